"""Which CUDA kernel a product of float32 operands gets, for each precision."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest
from dense_problems import (
    BASE,
    DEVICES,
    HOPPER,
    Case,
    cases,
    ceil_div,
    devices,
    fields,
    matrix,
    product,
)
from hypothesis import given, settings
from test_select_cuda import assert_near

PRECISIONS = ("ieee", "tf32x3", "tf32")


def problem_of(cpp: ModuleType, case: Case, precision: str) -> Any:
    return case.problem(cpp, dtype="float32", precision=precision)


def check(cpp: ModuleType, case: Case, precision: str, device: tuple[int, int]) -> Any:
    """The choice, after what must hold for every choice."""
    capability, sm_count = device
    config = cpp.select_gemm(problem_of(cpp, case, precision), capability, sm_count)
    kernel = config.kernel
    m, n, k = case.sizes
    if 0 in (m, n, case.products):
        return config
    assert kernel in {"fp32", "fp32_sm90", "tf32", "tf32_swapped", "tf32_single_tile", "tf32_sm80"}
    assert 1 <= config.ctas <= 2**31 - 1
    assert 1 <= config.splits <= max(1, k), "a part of K is empty"
    partials = 4 * config.splits * (m + 3) * (n + 3) * case.products if config.splits > 1 else 0
    copies = 0
    wgmma = kernel in {"tf32", "tf32_swapped"}
    tma_tiles = kernel in {"fp32_sm90", "tf32_single_tile"}
    assert kernel != "tf32_single_tile" or precision == "tf32"
    if tma_tiles:
        assert capability == 90
        assert k > 0
        assert len(case.batch) <= 1
        tile = (config.block_m, config.block_n)
        assert tile in ({(64, 64), (32, 128), (32, 32)} if kernel == "fp32_sm90" else {(32, 32)})
        # Of D, or of its transpose: so many tiles, of which some are whole and some are split.
        counts = {
            case.products * ceil_div(rows, tile[0]) * ceil_div(columns, tile[1])
            for rows, columns in ((m, n), (n, m))
        }
        found = [
            tiles
            for tiles in counts
            if (config.splits == 1 and config.ctas == tiles)
            or (
                (config.splits > 1 and tiles < config.ctas <= tiles * config.splits)
                and (config.ctas - tiles) % (config.splits - 1) == 0
            )
        ]
        assert found
        split_tiles = max((config.ctas - tiles) // max(1, config.splits - 1) for tiles in found)
        partials = 4 * tile[0] * tile[1] * split_tiles * config.splits * (config.splits > 1)
    elif kernel != "fp32":
        assert precision != "ieee"
        assert k > 0
        assert capability in (80, 90, 100) or precision == "tf32"
    if wgmma:
        assert capability == 90
        assert len(case.batch) <= 1
        x, y = config.block_m, config.block_n
        x, y = (y, x) if kernel == "tf32_swapped" else (x, y)
        three = {(256, 128), (128, 192), (128, 128)}
        one = {(128, 256), (128, 192), (128, 128), (128, 64)}
        assert (x, y) in (three if precision == "tf32x3" else one)
        assert config.ctas <= sm_count, "a persistent CTA has an SM of its own"
        if config.copy_a:
            copies += 4 * m * (k + 31) * case.products + 256
        if config.copy_b:
            copies += 4 * n * (k + 31) * case.products + 256
    else:
        if config.copy_a or config.copy_b:
            assert tma_tiles or (
                kernel == "fp32" and (config.block_m, config.block_n) == (128, 128)
            ), "others read any stride"
            assert len(case.batch) <= 1
            copies += config.copy_a * (4 * k * (m + 31) * case.products + 256)
            copies += config.copy_b * (4 * k * (n + 31) * case.products + 256)
        tiles = min(
            ceil_div(rows, config.block_m) * ceil_div(columns, config.block_n)
            for rows, columns in ((m, n), (n, m))
        )
        if not tma_tiles:
            assert config.ctas >= min(tiles * case.products * config.splits, 2**31 - 1)
    assert config.workspace_bytes <= partials + copies
    if config.splits == 1 and not copies:
        assert config.workspace_bytes == 0
    return config


@pytest.mark.parametrize("precision", PRECISIONS)
@settings(max_examples=300)
@given(case=cases(), device=devices)
def test_every_choice_is_valid(
    cpp: ModuleType, precision: str, case: Case, device: tuple[int, int]
) -> None:
    config = check(cpp, case, precision, device)
    again = cpp.select_gemm(problem_of(cpp, case, precision), *device)
    assert fields(config) == fields(again), "not the same choice twice"


@pytest.mark.parametrize("precision", ["tf32x3", "tf32"])
@pytest.mark.parametrize("b_layout", ["rows", "columns"])
@pytest.mark.parametrize("a_layout", ["rows", "columns"])
def test_tensor_cores_where_asked_for_and_where_they_are_faster(
    cpp: ModuleType, a_layout: str, b_layout: str, precision: str
) -> None:
    size = 4096
    case = Case(matrix(size, size, a_layout), matrix(size, size, b_layout), matrix(size, size))
    for device in DEVICES:
        for asked in ("ieee", precision):
            config = check(cpp, case, asked, device)
            fast = (80, 90, 100) if asked == "tf32" else (80, 90)  # of compute capability
            slow = asked == "ieee" or device[0] not in fast
            wgmma = {"tf32", "tf32_swapped"}
            ieee = {"fp32_sm90" if device == HOPPER else "fp32"}
            names = ieee if slow else wgmma if device == HOPPER else {"tf32_sm80"}
            if asked == "tf32x3" and device[0] == 100:
                names = {"fp32", "tf32_sm80"}  # about as fast
            assert config.kernel in names


@pytest.mark.parametrize("precision", ["tf32x3", "tf32"])
def test_a_copy_is_made_only_where_it_must(cpp: ModuleType, precision: str) -> None:
    """wgmma needs one operand along k in shared memory, and TMA 16-byte aligned strides."""
    size = 2048
    for a_layout, b_layout, copies in (
        ("rows", "columns", 0),
        ("rows", "rows", 0),
        ("columns", "columns", 0),
        ("columns", "rows", 1),
    ):
        case = Case(matrix(size, size, a_layout), matrix(size, size, b_layout), matrix(size, size))
        config = check(cpp, case, precision, HOPPER)
        assert config.copy_a + config.copy_b == copies
    odd = matrix(size, size, padding=1)
    config = check(cpp, Case(odd, matrix(size, size), matrix(size, size)), precision, HOPPER)
    assert config.copy_a
    assert not config.copy_b


@pytest.mark.parametrize("b_layout", ["rows", "columns"])
@pytest.mark.parametrize("a_layout", ["rows", "columns"])
def test_small_products_of_tf32_are_not_copied(
    cpp: ModuleType, a_layout: str, b_layout: str
) -> None:
    """mma.sync takes operands in any order."""
    for size in (128, 256, 384):
        case = Case(matrix(size, size, a_layout), matrix(size, size, b_layout), matrix(size, size))
        config = check(cpp, case, "tf32", HOPPER)
        assert not config.copy_a
        assert not config.copy_b
        if (a_layout, b_layout) == ("columns", "rows"):
            assert config.kernel == "tf32_single_tile"


def test_few_tiles_are_split_over_k(cpp: ModuleType) -> None:
    for precision in PRECISIONS:
        config = check(cpp, product(128, 128, 1 << 16), precision, HOPPER)
        assert config.splits > 8
        config = check(cpp, product(8192, 8192, 8192), precision, HOPPER)
        if precision == "ieee":  # only the tiles of the last wave
            assert config.ctas < 1.5 * 128 * 128
        else:
            assert config.splits == 1


def near(cpp: ModuleType, case: Case, device: tuple[int, int] = HOPPER, **measured: Any) -> None:
    """Of IEEE products, `measured` is near the choice."""
    check(cpp, case, "ieee", device)
    problem = problem_of(cpp, case, "ieee")
    assert_near(json.loads(cpp.explain_gemm_json(problem, *device)), **measured)


def test_few_rows_get_a_flat_tile(cpp: ModuleType) -> None:
    near(cpp, product(4, 4096, 4096), kernel="fp32", block_m=4)  # a stream over B
    # D's columns, and its rows where it is column-major.
    for case in (
        product(8, 4096, 4096),
        product(4096, 8, 4096),
        Case(matrix(4096, 4096), matrix(4096, 8), matrix(4096, 8, "columns")),
    ):
        near(cpp, case, kernel="fp32_sm90", block_m=32, block_n=128)
        near(cpp, case, (80, 108), kernel="fp32", block_m=16, block_n=128)


def test_batches_of_small_matrices_get_a_warp_each(cpp: ModuleType) -> None:
    for (m, n, k), count, stages in (
        ((20, 16, 24), 5000, 2),
        ((32, 24, 100), 1, 3),  # four warps share one's K
        ((512, 512, 512), 1, 3),
    ):
        batch = ((count, m * k, k * n, m * n),) if count > 1 else ()
        case = product(m, n, k, batch=batch)
        near(cpp, case, kernel="fp32_sm90", block_m=32, block_n=32, stages=stages)


def test_few_long_columns_are_shared_by_a_cluster(cpp: ModuleType) -> None:
    """docs/measurements/fp32.md: as a second launch these took 1.3 to 1.8 times as long."""
    for m, n, k in ((1, 70, 3211), (1, 568, 7108), (4, 231, 3507)):
        config = check(cpp, product(m, n, k), "ieee", HOPPER)
        assert config.cluster == config.splits > 1
        assert check(cpp, product(m, n, k), "ieee", (80, 108)).cluster == 1


def test_many_columns_are_streamed_by_pairs_of_ctas(cpp: ModuleType) -> None:
    """That took 49.5 us, one CTA for each 128 columns 67.8; 74.3 and 98.1."""
    near(cpp, product(4, 7759, 4352), kernel="fp32", block_n=128, cluster=2)
    tall = Case(matrix(7891, 7658, "columns"), matrix(7658, 2), matrix(7891, 2))
    near(cpp, tall, kernel="fp32", block_n=128, cluster=2)


def test_a_cta_of_a_stream_has_many_short_columns(cpp: ModuleType) -> None:
    """11.3 us by 32 columns, 13.2 by 16."""
    case = Case(matrix(2, 320, "columns"), matrix(320, 6984, "columns"), matrix(2, 6984))
    near(cpp, case, kernel="fp32", block_m=2, block_n=32)


@pytest.mark.parametrize("precision", ["tf32x3", "tf32"])
def test_elements_that_are_stored_one_by_one_count(cpp: ModuleType, precision: str) -> None:
    """K is short, and rows of D are not aligned: wgmma's stores would take longest."""
    config = check(cpp, product(3467, 2886, 13), precision, HOPPER)
    assert config.kernel == "fp32_sm90"


def test_alignment_matters_and_addresses_do_not(cpp: ModuleType) -> None:
    for precision in PRECISIONS:
        case = product(1024, 1024, 1024)
        here = check(cpp, case, precision, HOPPER)
        moved = Case(
            *(
                matrix(1024, 1024, offset=512)  # elements of 2 bytes in test_select_cuda
                for _ in range(3)
            )
        )
        assert moved.a.address != BASE
        assert fields(check(cpp, moved, precision, HOPPER)) == fields(here)


def test_explanations_name_the_kernel(cpp: ModuleType) -> None:
    for precision, name in (("ieee", "fp32 sm90"), ("tf32x3", "tf32"), ("tf32", "tf32")):
        problem = problem_of(cpp, product(4096, 4096, 4096), precision)
        said = cpp.explain_gemm(problem, cpp.select_gemm(problem, *HOPPER))
        assert f"kernel: {name} (" in said
        assert "float32" in said
