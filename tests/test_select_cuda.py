"""Which CUDA kernel a dense product gets: what holds for every choice, whatever the heuristic."""

from __future__ import annotations

import json
import math
from types import ModuleType
from typing import Any

import pytest
from dense_problems import (
    DEVICES,
    HALF_TYPES,
    HOPPER,
    Case,
    Matrix,
    cases,
    ceil_div,
    devices,
    fields,
    matrix,
    product,
)
from hypothesis import given, settings
from hypothesis import strategies as st

TMA_KERNELS = {"sm90_persistent", "sm90_skinny", "sm90_single_tile"}
MOST_EXTENT = 2**31 - 1  # of a tensor map, as the kernels' 32-bit coordinates reach it
MOST_BOX = 256
NEAR = 1.04  # of two estimates: about their error


def copied(side: Matrix, strides: list[tuple[int, int]]) -> int:
    """The bytes of a dense copy of an operand, a dimension of stride 0 taken once."""
    return 2 * side.rows * side.columns * math.prod(size for size, stride in strides if stride)


def residues(side: Matrix) -> int:
    """Rows so many apart lie a multiple of 16 bytes apart."""
    return 8 // math.gcd(side.row_stride, 8)


def check_tensor_maps(case: Case, config: Any) -> None:
    """A kernel that loads through TMA: tensor maps exist for what it reads and writes."""
    m, n, k = case.sizes
    assert case.dtype in HALF_TYPES
    assert min(m, n, k) >= 1, "a tensor map has no empty extent"
    assert max(m, n, k, case.products) <= MOST_EXTENT
    assert config.block_m % 8 == 0
    assert config.block_n % 8 == 0
    if config.kernel == "sm90_persistent":
        assert config.block_m % 64 == 0, "wgmma takes 64 rows"
    assert max(config.block_m, config.block_n) <= MOST_BOX
    in_workspace = 0
    for side, index, copy in ((case.a, 1, config.copy_a), (case.b, 2, config.copy_b)):
        strides = [(dim[0], dim[index]) for dim in case.batch if dim[0] > 1]
        steps_fit = all(stride >= 0 and stride % 8 == 0 for _, stride in strides)
        shifted = side is case.a and config.shifted
        assert copy or shifted or (side.fits_tma() and steps_fit), "an operand that TMA cannot read"
        if copy:
            in_workspace += copied(side, strides)
    if config.shifted:
        assert config.kernel == "sm90_persistent"
        assert case.a.column_stride == 1
        assert config.copy_b or case.b.column_stride == 1
        assert m % residues(case.a) == 0, "the rows of each residue are as many"
        assert not config.copy_a
        assert not config.swapped
        assert case.products == 1
        in_workspace += 2 * 64 * m
    assert config.workspace_bytes >= in_workspace
    if config.tma_store:
        assert case.d.fits_tma()
        contiguous = [n] * (case.d.column_stride == 1) + [m] * (case.d.row_stride == 1)
        assert any(extent % 8 == 0 for extent in contiguous), "a TMA store writes 16 bytes whole"
        assert all(dim[3] % 8 == 0 and dim[3] > 0 for dim in case.batch if dim[0] > 1)


def check_grid(case: Case, config: Any, sm_count: int) -> None:
    m, n, k = case.sizes
    assert config.block_m >= 1
    assert config.block_n >= 1
    assert 1 <= config.ctas <= 2**31 - 1
    assert 1 <= config.splits <= max(1, k), "a part of K is empty"
    assert 1 <= config.cluster <= 8, "clusters above 8 are not portable"
    assert config.ctas % config.cluster == 0
    if config.kernel == "sm90_persistent":
        assert config.ctas <= sm_count, "a persistent CTA has an SM of its own"
        m, n = (n, m) if config.swapped else (m, n)
        group = config.block_m * config.cluster // config.splits
        parts = residues(case.a) if config.shifted else 1
        tiles = parts * ceil_div(m // parts, group) * ceil_div(n, config.block_n) * case.products
        assert config.ctas <= tiles * config.cluster, "a cluster has nothing to do"
        halves = tiles % config.ctas  # tiles of the last wave, one for each cluster
        assert config.splits == 1 or 0 < halves <= config.ctas // 2, "no halves of the last wave"


def check_shared_memory(config: Any, kib: int) -> None:
    # The stages alone; an epilogue and barriers come on top. mma.sync's have 32 of K or more.
    block_k = {"sm90_persistent": 64, "sm90_skinny": 64, "sm90_single_tile": 64, "sm80": 32}.get(
        config.kernel, 0
    )
    stages = config.stages * (config.block_m + config.block_n) * block_k * 2
    assert stages <= kib * 1024
    if config.kernel in TMA_KERNELS:
        assert config.stages >= 2, "loads do not run ahead"


def check_workspace(case: Case, config: Any) -> None:
    assert config.workspace_bytes >= 0
    m, n, _ = case.sizes
    if config.kernel == "simt":
        assert config.workspace_bytes == 0
    in_memory = config.kernel != "sm90_persistent" and config.splits > 1
    if not (in_memory or config.shifted or config.copy_a or config.copy_b):
        assert config.workspace_bytes == 0, "nothing to sum up and nothing to copy"
    readable = case.a.fits_tma() and case.b.fits_tma() and not case.batch
    if config.kernel in TMA_KERNELS and readable:
        for copy, extent in ((config.copy_a, m), (config.copy_b, n)):
            assert not copy or extent == min(m, n) <= 32, "TMA can read both well as they lie"
    # Partial sums in fp32 for each split, copies of both operands with padded rows, and counters.
    round_up = lambda extent: ceil_div(extent, 256) * 256  # noqa: E731
    sums = 4 * config.splits * round_up(m) * round_up(n) * case.products
    sums += 4 * config.ctas * config.block_m * config.block_n
    copies = sum(
        2 * round_up(side.rows) * round_up(side.columns) * case.products
        for side in (case.a, case.b)
    )
    assert config.workspace_bytes <= 2 * (sums + copies) + 2**22


def check(cpp: ModuleType, case: Case, device: tuple[int, int]) -> Any:
    """The choice for `case` on `device`, after what must hold for every choice."""
    capability, sm_count = device
    problem = case.problem(cpp)
    config = cpp.select_gemm(problem, capability, sm_count)
    kernel = config.kernel
    if kernel in TMA_KERNELS:
        assert capability == 90, "wgmma is Hopper's own"
    if kernel == "sm80":
        assert capability >= 80
        assert case.dtype in HALF_TYPES
    if 0 in (*case.sizes[:2], case.products):
        assert config.workspace_bytes == 0, "an empty result needs no memory"
        return config
    if kernel in TMA_KERNELS:
        check_tensor_maps(case, config)
    elif kernel in {"fp32", "fp32_sm90"}:  # copies of rows that it cannot read where they lie
        sizes = [side.rows * side.columns for side in (case.a, case.b)]
        copied_elements = sizes[0] * config.copy_a + sizes[1] * config.copy_b
        assert config.workspace_bytes >= 4 * copied_elements
    else:
        assert not any((config.copy_a, config.copy_b)), "these kernels read any stride"
    check_grid(case, config, sm_count)
    check_shared_memory(config, DEVICES[device])
    check_workspace(case, config)
    return config


def assert_near(said: dict[str, Any], **measured: Any) -> None:
    """What was measured to be the fastest is a candidate, and estimated to be near the choice.

    Which of near candidates is the choice is a matter of constants; what they lose by it, all
    together, tests/test_regret.py bounds over recorded sweeps.
    """
    us = [
        each["estimate_us"]
        for each in said["candidates"]
        if measured.items() <= {**each, "least": min(each["block_m"], each["block_n"])}.items()
    ]
    assert us, "not listed"
    assert min(us) <= NEAR * said["choice"]["estimate_us"]


def check_near(
    cpp: ModuleType, case: Case, device: tuple[int, int] = HOPPER, **measured: Any
) -> None:
    check(cpp, case, device)
    assert_near(json.loads(cpp.explain_gemm_json(case.problem(cpp), *device)), **measured)


@settings(max_examples=1500)
@given(case=cases(), device=devices)
def test_every_choice_is_valid(cpp: ModuleType, case: Case, device: tuple[int, int]) -> None:
    config = check(cpp, case, device)
    again = cpp.select_gemm(case.problem(cpp), *device)
    assert fields(config) == fields(again), "not the same choice twice"


@settings(max_examples=300)
@given(case=cases(), device=devices, moved=st.integers(1, 1000))
def test_choice_depends_on_alignment_not_on_addresses(
    cpp: ModuleType, case: Case, device: tuple[int, int], moved: int
) -> None:
    by = 256 * moved
    sides = {
        name: Matrix(side.rows, side.columns, *side.strides, side.address + by)
        for name, side in (("a", case.a), ("b", case.b), ("d", case.d))
    }
    elsewhere = Case(**sides, **{k: getattr(case, k) for k in ("dtype", "alpha", "beta", "batch")})
    there = cpp.select_gemm(elsewhere.problem(cpp), *device)
    assert fields(cpp.select_gemm(case.problem(cpp), *device)) == fields(there)


@pytest.mark.parametrize("device", list(DEVICES), ids=lambda device: f"sm_{device[0]}")
@pytest.mark.parametrize("dtype", [*HALF_TYPES, "float32"])
@pytest.mark.parametrize("m", [1, 2, 5, 16, 17, 64, 100, 128, 129, 512, 4096, 16384])
def test_layer_shapes(cpp: ModuleType, m: int, dtype: str, device: tuple[int, int]) -> None:
    for n, k in [(4096, 4096), (28672, 4096), (4096, 14336), (10240, 8192), (1, 4096), (4097, 33)]:
        for layout in ("rows", "columns"):
            case = Case(matrix(m, k), matrix(k, n, layout), matrix(m, n), dtype)
            check(cpp, case, device)


@pytest.mark.parametrize("dtype", HALF_TYPES)
@pytest.mark.parametrize("a_layout", ["rows", "columns"])
@pytest.mark.parametrize("b_layout", ["rows", "columns"])
def test_large_aligned_products_use_wgmma_on_hopper_only(
    cpp: ModuleType, a_layout: str, b_layout: str, dtype: str
) -> None:
    size = 4096
    case = Case(
        matrix(size, size, a_layout), matrix(size, size, b_layout), matrix(size, size), dtype
    )
    for device in DEVICES:
        kernel = check(cpp, case, device).kernel
        assert (kernel == "sm90_persistent") == (device[0] == 90)


@pytest.mark.parametrize("size", [64, 256, 512, 1024])
@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_small_products_have_a_kernel_of_their_own_on_hopper(
    cpp: ModuleType, size: int, layout: str
) -> None:
    case = Case(matrix(size, size), matrix(size, size, layout), matrix(size, size), HALF_TYPES[0])
    for device in DEVICES:
        kernel = check(cpp, case, device).kernel
        assert (kernel == "sm90_single_tile") == (device[0] == 90)


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_offsets_of_32_bits_reach_over_a_tile_of_aligned_operands(
    cpp: ModuleType, layout: str
) -> None:
    """Its threads have no more; a tile for all operands has less than 256 columns."""
    for lead, wide in ((2**25 - 8, True), (2**25, False)):
        far = matrix(8192, 8192, layout, padding=lead - 8192)
        case = Case(far, matrix(8192, 8192), matrix(8192, 8192))
        assert (check(cpp, case, (80, 108)).block_n == 256) == wide


@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize(
    "change", [{"offset": 1}, {"offset": 4}, {"padding": 1}, {"padding": 4}, {"layout": "strided"}]
)
def test_operands_that_tma_cannot_read_are_copied_or_go_elsewhere(
    cpp: ModuleType, side: str, change: dict[str, Any]
) -> None:
    given = {"a": matrix(2048, 2048), "b": matrix(2048, 2048), "d": matrix(2048, 2048)}
    given[side] = matrix(2048, 2048, **change)
    assert not given[side].fits_tma()
    config = check(cpp, Case(**given), HOPPER)
    if config.kernel in TMA_KERNELS:
        assert (config.copy_a or config.shifted, config.copy_b) == (side == "a", side == "b")
        assert config.shifted or config.workspace_bytes >= 2 * 2048 * 2048


@pytest.mark.parametrize(
    ("m", "n", "k", "copies_b"),
    [(2048, 511, 32001, True), (4096, 4096, 4100, False), (16384, 777, 3001, True)],
)
def test_rows_that_tma_cannot_read_are_read_shifted(
    cpp: ModuleType, m: int, n: int, k: int, copies_b: bool
) -> None:
    config = check(cpp, product(m, n, k), HOPPER)
    assert (config.shifted, config.copy_a, config.copy_b) == (True, False, copies_b)
    # Not where the residues have unequal rows, nor beside an operand along K.
    assert check(cpp, product(m + 1, n, k + (k + 1) % 2), HOPPER).copy_a
    along_k = Case(matrix(m, k), matrix(k, n, "columns"), matrix(m, n))
    assert not check(cpp, along_k, HOPPER).shifted


@pytest.mark.parametrize("few", [2, 5, 8])
def test_few_rows_that_do_not_lie_along_k_are_copied_so_that_they_do(
    cpp: ModuleType, few: int
) -> None:
    x, w = matrix(few, 8192, "columns"), matrix(8192, 8192)
    for case, of_b in (
        (Case(x, w, matrix(few, 8192)), False),
        (Case(w, matrix(8192, few), matrix(8192, few)), True),
    ):
        config = check(cpp, case, HOPPER)
        assert (config.copy_a, config.copy_b) == (not of_b, of_b)
        problem = case.problem(cpp)
        _, (copy,) = cpp.read_copies(problem, "b" if of_b else "a", 1 << 50)
        assert (copy.outer, copy.inner) == (few, 8192)
        assert not check(cpp, Case(matrix(few, 8192), w, matrix(few, 8192)), HOPPER).copy_a


@pytest.mark.parametrize(("columns", "whole"), [(4096, True), (4092, False), (4089, False)])
def test_rows_of_the_result_that_end_within_16_bytes_are_stored_by_elements(
    cpp: ModuleType, columns: int, whole: bool
) -> None:
    d = matrix(4096, columns, padding=-columns % 8 + 8)
    config = check(cpp, Case(matrix(4096, 2048), matrix(2048, columns, "columns"), d), HOPPER)
    assert config.kernel == "sm90_persistent"
    assert config.tma_store == whole


@pytest.mark.parametrize("step", [2**20 + 3, 2**20 + 4])
@pytest.mark.parametrize("index", [1, 2, 3])
def test_batches_that_tma_cannot_step_through(cpp: ModuleType, index: int, step: int) -> None:
    steps = [8, 2**20, 2**20, 2**20]
    steps[index] = step
    aligned = (8, 2**20, 2**20, 2**20)
    check(cpp, product(1024, 1024, 1024, batch=(aligned,)), HOPPER)
    check(cpp, product(1024, 1024, 1024, batch=(tuple(steps),)), HOPPER)


@pytest.mark.parametrize("extent", [2**31 - 8, 2**31, 2**33])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_extents_beyond_32_bits(cpp: ModuleType, index: int, extent: int) -> None:
    sizes = [8, 8, 8]
    sizes[index] = extent
    for device in DEVICES:
        check(cpp, product(*sizes), device)


@pytest.mark.parametrize(
    ("sizes", "batch"),
    [((0, 5, 7), ()), ((5, 0, 7), ()), ((0, 0, 0), ()), ((4, 5, 7), ((0, 28, 35, 20),))],
)
def test_empty_results(
    cpp: ModuleType, sizes: tuple[int, int, int], batch: tuple[tuple[int, int, int, int], ...]
) -> None:
    for device in DEVICES:
        check(cpp, product(*sizes, batch=batch), device)


def test_sums_over_nothing_are_still_computed(cpp: ModuleType) -> None:
    for device in DEVICES:
        config = check(cpp, product(300, 500, 0), device)
        assert config.kernel not in TMA_KERNELS
        assert config.ctas >= 1


def test_fp32_stays_in_fp32(cpp: ModuleType) -> None:
    for device in DEVICES:
        config = check(cpp, product(4096, 4096, 4096, dtype="float32"), device)
        assert config.kernel not in {*TMA_KERNELS, "sm80"}


@settings(max_examples=200)
@given(case=cases(), device=devices)
def test_explain_names_the_problem_and_the_reason(
    cpp: ModuleType, case: Case, device: tuple[int, int]
) -> None:
    problem = case.problem(cpp)
    config = cpp.select_gemm(problem, *device)
    text = cpp.explain_gemm(problem, config)
    m, n, k = case.sizes
    assert f"m={m} n={n} k={k} {case.dtype}" in text
    assert config.reason
    assert config.reason in text
    assert f"{config.ctas} CTAs" in text


def test_explanations_tell_kernels_apart(cpp: ModuleType) -> None:
    """Problems that get different kernels read differently in the line that names the kernel."""
    named: dict[str, set[str]] = {}
    for m in (1, 16, 300, 4096):
        for dtype in ("float16", "float32"):
            for device in DEVICES:
                problem = product(m, 4096, 4096, dtype=dtype).problem(cpp)
                config = cpp.select_gemm(problem, *device)
                said = cpp.explain_gemm(problem, config).split("kernel: ")[1]
                named.setdefault(config.kernel, set()).add(said.partition(" (")[0])
    assert len(named) >= 2
    names = [name for names in named.values() for name in names]
    assert len(names) == len(set(names)) == len(named)
