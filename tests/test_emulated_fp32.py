"""Products of float32 operands by the CUDA kernels on the CPU (emulator/README.md)."""

from __future__ import annotations

import itertools
import random
import re

import pytest
import torch
from emulator.library import Config, Machine, Memory, make_problem, run
from random_products import (
    PRECISIONS,
    Limits,
    worst_share,
)
from test_emulated_gemm import LAYOUTS, check_listed, machine_of, matrix

pytestmark = pytest.mark.sampled

ORDERS = ((False, False, 0), (True, False, 1), (False, True, 2), (True, True, 3))
LIMITS = Limits(most=400, work=4 * 10**6)
PROBLEMS = 60  # of each precision


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def operand(rows: int, columns: int, layout: str, pad: int = 0) -> torch.Tensor:
    outer, inner = (rows, columns) if layout == "n" else (columns, rows)
    buffer = torch.full((outer, inner + pad), float("nan"))
    view = buffer[:, :inner]
    view.copy_(torch.randn(outer, inner))
    return view if layout == "n" else view.t()


def check(
    config: Config | None, shape: tuple[int, int, int], layout: str, precision: str, index: int
) -> str:
    m, n, k = shape
    late_copies, late_products, seed = ORDERS[index % len(ORDERS)]
    machine = Machine(90, 4, late_copies, late_products, seed)
    memory = Memory()
    a, b = operand(m, k, layout[0]), operand(k, n, layout[1])
    d = memory.empty((m, n), torch.float32)
    problem = make_problem(d, memory.copy(a), memory.copy(b), precision=precision)
    said = run(problem, machine, config)
    share = worst_share(d, a, b, precision=precision).item()
    assert share <= 1, f"{share:.3g} of the bound: {said}"
    return said


def tiles_of(m: int, n: int, block_m: int, block_n: int) -> int:
    """Flat tiles take D's shorter side as rows."""
    if block_m < block_n:
        m, n = min(m, n), max(m, n)
    return ceil_div(m, block_m) * ceil_div(n, block_n)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("tile", [(128, 128, 2), (64, 64, 4), (16, 128, 4)], ids=str)
def test_tiles_of_the_fp32_cores(tile: tuple[int, int, int], layout: str) -> None:
    block_m, block_n, stages = tile
    # Whole tiles; less than a stage of k; ragged, with more k than the pipeline holds; more rows
    # than columns.
    shapes = (
        (2 * block_m, block_n, 64), (8, 12, 4), (block_m + 3, 2 * block_n - 1, 101), (130, 9, 33),
    )  # fmt: skip
    for index, (m, n, k) in enumerate(shapes):
        ctas = tiles_of(m, n, block_m, block_n)
        config = Config("fp32", block_m, block_n, stages, ctas=ctas)
        check(config, (m, n, k), layout, "ieee", index)
    splits, (m, n, k) = 3, (block_m, block_n + 5, 100)
    config = Config(
        "fp32", block_m, block_n, stages, ctas=2 * splits, splits=splits,
        workspace_bytes=4 * splits * m * (n + 3),
    )  # fmt: skip
    check(config, (m, n, k), layout, "ieee", 3)


@pytest.mark.parametrize("capability", [90, 80])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_few_rows_by_all_candidates(layout: str, capability: int) -> None:
    """Of random products in any layout, rows that are not there, D's columns as the few."""
    rng, said = random.Random(f"{layout} {capability}"), list[str]()
    for index, few in enumerate((1, 2, 3, 4)):
        wide, k = rng.randrange(1, 200), 1021 if index == 1 else rng.randrange(1, 200)
        if index in (0, 3):  # what vectors can read
            wide, k = -(-wide // 4) * 4, -(-k // 4) * 4
        m, n = (wide, few) if index % 2 else (few, wide)
        a = matrix(m, k, torch.float32, layout[0])
        b = matrix(k, n, torch.float32, layout[1])
        said += check_listed(
            machine_of(index, capability), "fp32", a, b,
            d_layout="nt"[index // 2], bias=torch.randn(n), activation=("none", "relu")[index // 2],
        )  # fmt: skip
    tiles = [re.findall(r"tile (\d+)x(\d+)", each)[0] for each in said]
    along_k, along_columns = {4, 8, 16, 32}, {32, 128}  # columns of a CTA
    expected = along_k if layout[1] == "t" else along_columns
    expected = expected | (along_k if layout[0] == "n" else along_columns)
    assert {int(columns) for rows, columns in tiles if int(rows) <= 4} == expected
    counts = {int(each) for each in re.findall(r"K in (\d+) parts", "\n".join(said))}
    assert counts >= {2, 4, 8, 16, 32, 64}
    clusters = set(re.findall(r"clusters of (\d)", "\n".join(said)))
    assert clusters == (set("248") if capability == 90 else set())


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_copies_along_rows(layout: str) -> None:
    for index, (m, n, k) in enumerate(((130, 261, 50), (256, 128, 64), (300, 5, 33))):
        ctas, splits = ceil_div(m, 128) * ceil_div(n, 128), 1 + index % 2
        config = Config(
            "fp32", 128, 128, 3, ctas=ctas * splits, splits=splits, copy_a=True, copy_b=index != 1,
            workspace_bytes=4 * (k * (m + n + 62) + splits * m * (n + 3)) + 512,
        )  # fmt: skip
        check(config, (m, n, k), layout, "ieee", index)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("tile", [(64, 64, 3), (32, 128, 3), (32, 32, 2), (32, 32, 3)], ids=str)
@pytest.mark.parametrize("copies", [True, False])
def test_tiles_of_the_fp64_tensor_cores(
    copies: bool, tile: tuple[int, int, int], layout: str
) -> None:
    """Whole, split over K, and both; K of less than a stage and of more than the pipeline; operands
    along k and along their rows, aligned, copied before or by the threads."""
    block_m, block_n, stages = tile
    for index, (m, n, k, whole, splits) in enumerate(
        (
            (130, 260, 20, None, 1), (256, 132, 160, 0, 3), (300, 7, 133, 1, 2),
            (128, 390, 129, 3, 5), (3, 2, 1, None, 1), (260, 132, 264, None, 1),
        )
    ):  # fmt: skip
        tiles = tiles_of(m, n, block_m, block_n)
        split_tiles = 0 if whole is None else tiles - whole
        config = Config(
            "fp32_sm90", block_m, block_n, stages,
            splits=splits, ctas=tiles + split_tiles * (splits - 1),
            copy_a=copies and ((k if layout[0] == "n" else m) % 4 != 0 or index == 1),
            copy_b=copies and (n if layout[1] == "n" else k) % 4 != 0,
            workspace_bytes=4 * (k * (m + n + 62) + split_tiles * splits * block_m * block_n) + 512,
        )  # fmt: skip
        check(config, (m, n, k), layout, "ieee", index)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("copies", [True, False])
def test_tiles_of_small_products_of_tf32(copies: bool, layout: str) -> None:
    """The same, but of TF32."""
    for index, (m, n, k, splits) in enumerate(
        ((40, 36, 68, 1), (33, 7, 133, 2), (64, 32, 256, 1), (3, 2, 1, 1), (70, 68, 700, 11))
    ):
        tiles = tiles_of(m, n, 32, 32)
        config = Config(
            "tf32_single_tile", 32, 32, 4, splits=splits, ctas=tiles * splits,
            copy_a=copies and (k if layout[0] == "n" else m) % 4 != 0,
            copy_b=copies and (n if layout[1] == "n" else k) % 4 != 0,
            workspace_bytes=4 * (k * (m + n + 62) + tiles * splits * 32 * 32) + 512,
        )  # fmt: skip
        check(config, (m, n, k), layout, "tf32", index)


def test_many_parts_are_shared_by_threads() -> None:
    """More than a thread loads at once, of tiles of either kind and of the kernels without."""
    m, n, k, splits = 36, 72, 2112, 33
    for index, (kernel, block_m, block_n, stages, precision) in enumerate(
        (
            ("fp32_sm90", 64, 64, 3, "ieee"), ("fp32_sm90", 32, 128, 3, "ieee"),
            ("fp32_sm90", 32, 32, 3, "ieee"), ("tf32_single_tile", 32, 32, 4, "tf32"),
            ("fp32", 64, 64, 4, "ieee"), ("tf32", 128, 64, 0, "tf32"),
        )
    ):  # fmt: skip
        tiles = tiles_of(m, n, block_m, block_n)
        config = Config(
            kernel, block_m, block_n, stages, splits=splits, ctas=tiles * splits,
            workspace_bytes=4 * tiles * splits * block_m * block_n,
        )  # fmt: skip
        check(config, (m, n, k), "nt", precision, index)


@pytest.mark.parametrize("copies", [True, False])
def test_the_fp64_tensor_cores_round_once(copies: bool) -> None:
    """Products are exact and sums float64: nothing but the result's own rounding is left."""
    m, n, k = 70, 66, 1001
    machine, memory = Machine(90, 4), Memory()
    a, b = operand(m, k, "n"), operand(k, n, "t")
    a[:, ::7] *= 1e6  # sums in fp32 would lose the others
    d = memory.empty((m, n), torch.float32)
    problem = make_problem(d, memory.copy(a), memory.copy(b))
    workspace = 4 * k * (m + n + 62) + 512
    config = Config(
        "fp32_sm90", 64, 64, 3, ctas=4, copy_a=copies, copy_b=copies, workspace_bytes=workspace
    )
    run(problem, machine, config)
    exact, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    bound = 2.0**-24 * exact.abs() + (k + 8) * 2.0**-53 * magnitude
    assert ((d.double() - exact).abs() <= bound).all()


WGMMA_TILES = {
    "tf32x3": ((256, 128), (128, 192), (128, 128)),
    "tf32": ((128, 256), (128, 192), (128, 128), (128, 64)),
}


@pytest.mark.parametrize("layout", ["nt", "nn", "tn"])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("precision", ["tf32x3", "tf32"])
def test_tiles_of_wgmma(precision: str, swapped: bool, layout: str) -> None:
    """Whole tiles and ends; several tiles a CTA, with fewer k tiles than the boxes that are stored
    under them, and more; D whose rows are aligned to 16 bytes, 8, and 4."""
    for index, (x, y) in enumerate(WGMMA_TILES[precision]):
        m, n, k = 260 + 40 * (index % 2), (260, 262, 271)[index % 3], (132, 228, 36)[index % 3]
        if layout == "nn" or (layout, swapped) == ("tn", True):
            n = 260  # B is not copied
        config = Config(
            "tf32_swapped" if swapped else "tf32", y if swapped else x, x if swapped else y,
            stages=3, ctas=2, splits=1 + index % 2,
            copy_a=swapped and layout[0] == "t", copy_b=not swapped and layout[1] == "n",
            workspace_bytes=4 * (2 * (m + 3) * (n + 3) + (m + n) * (k + 64)) + 512,
        )  # fmt: skip
        check(config, (m, n, k), layout, precision, index)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("precision", ["tf32x3", "tf32"])
def test_wgmma(precision: str, layout: str) -> None:
    # More units than CTAs, ragged ends, K of one stage and of more than the pipeline, an odd count.
    shapes = ((520, 300, 96), (40, 260, 24), (256, 128, 416), (130, 700, 164))
    for index, shape in enumerate(shapes):
        said = check(None, shape, layout, precision, index)
        assert "kernel: tf32" in said or "kernel: fp32" in said


@pytest.mark.parametrize("precision", ["tf32x3", "tf32"])
def test_mma_sync(precision: str) -> None:
    for index, (shape, layout) in enumerate(
        itertools.product(((256, 128, 64), (130, 77, 101), (5, 300, 7)), ("nn", "nt", "tn"))
    ):
        m, n, _ = shape
        ctas = ceil_div(m, 128) * ceil_div(n, 128)
        check(Config("tf32_sm80", 128, 128, 3, ctas=ctas), shape, layout, precision, index)


@pytest.mark.parametrize("values", ["normal", "positive"])
def test_three_products_are_as_exact_as_fp32_sums(values: str) -> None:
    """The emulated tensor cores round towards zero, as the real ones do."""
    torch.manual_seed(1)
    m, n, k = 64, 64, 1024
    a, b = torch.randn(m, k), torch.randn(n, k).t()
    if values == "positive":
        a, b = a.abs(), b.abs()
    exact, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    sums = torch.zeros(m, n)
    for i in range(k):  # exact products, a rounding for each sum, as FMAs have it
        sums = (sums.double() + a[:, i : i + 1].double() * b[i : i + 1].double()).float()
    memory = Memory()
    d = memory.empty((m, n), torch.float32)
    run(make_problem(d, memory.copy(a), memory.copy(b), precision="tf32x3"), Machine())
    errors = [(((y - exact) / magnitude).square().mean().sqrt()) for y in (d, sums)]
    assert errors[0] <= errors[1]


def test_what_is_not_finite_stays_so() -> None:
    for precision, machine in itertools.product(PRECISIONS, (Machine(90), Machine(80))):
        torch.manual_seed(2)
        a, b = torch.randn(64, 72), torch.randn(72, 48)
        a[7, 3], a[9, 71], b[10, 11] = float("nan"), float("inf"), float("-inf")
        a[20, 5] = torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32)  # CUDA's NaN
        memory = Memory()
        d = memory.empty((64, 48), torch.float32)
        run(make_problem(d, memory.copy(a), memory.copy(b), precision=precision), machine)
        assert torch.equal(torch.isfinite(d), torch.isfinite(a.double() @ b.double()))
        assert d[7].isnan().all()
        assert d[20].isnan().all()
