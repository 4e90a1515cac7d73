"""The problems by which a GPU's tests visit the kernels leave none out; this needs no GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kernel_visits import find_visits, find_w4_visits, kernel_of

CSRC = Path(__file__).parents[1] / "csrc" / "cuda" / "gemm"
BASE = 1 << 20  # an address aligned to anything


@pytest.fixture(scope="module")
def kernels(cpp) -> set[str]:
    def explain(m: int, n: int, k: int, transa: bool, transb: bool) -> str:
        problem = cpp.GemmProblem(
            m=m, n=n, k=k, dtype="float16", a=BASE, a_strides=(1, m) if transa else (k, 1),
            b=BASE, b_strides=(1, k) if transb else (n, 1), d=BASE, d_strides=(n, 1),
        )  # fmt: skip
        config = cpp.select_gemm(problem, 90, 132)
        return cpp.explain_gemm(problem, config)

    return {visit.kernel for visit in find_visits(explain)}


def tiles_of(kernels: set[str], family: str) -> set[tuple[str, str]]:
    """(tile, cluster) of every visit of a family."""
    found = set()
    for kernel in kernels:
        if kernel.partition(" (")[0] == family:
            tile, cluster = (
                re.search(r"tile (\S+?)(?=,|$)", kernel),
                re.search(r"clusters of (\d+)", kernel),
            )
            assert tile is not None
            found.add((tile[1], cluster[1] if cluster else "1"))
    return found


def test_every_tile_of_the_sm90_kernel_is_visited(kernels):
    text = (CSRC / "sm90" / "tiles.h").read_text()
    listed = re.findall(r"^\s*TILE\((\d+), \d+, (\d+)\)", text, re.MULTILINE)
    assert listed
    assert tiles_of(kernels, "sm90") == {(f"128x{n}", cluster) for n, cluster in listed}


def test_every_way_to_store_and_to_copy_is_visited(kernels):
    sm90 = " ".join(kernel for kernel in kernels if kernel.startswith("sm90 ("))
    for part in ("TMA store", "element-wise store", "a copied first", "b copied first"):
        assert part in sm90


def test_the_other_kernels_are_visited_whole_and_in_parts_of_k(kernels):
    # On Hopper mma.sync's tile for aligned operands is only run by benchmarks/sweep_mul.py.
    for family, least in (("sm80", 2), ("gemv", 6), ("sm90 rows", 8)):
        mine = {kernel for kernel in kernels if kernel.partition(" (")[0] == family}
        assert len({tile for tile, _ in tiles_of(kernels, family)}) >= least
        assert any("K in parts" in kernel for kernel in mine)
        assert any("K in parts" not in kernel for kernel in mine)


def test_an_explanation_is_cut_to_what_is_compiled():
    said = "dense GEMM: m=1\nkernel: sm80 (mma.sync), tile 64x64, 4 stages, K in 12 parts, 99 CTAs"
    said += ", workspace of 12345 bytes\nbecause: x"
    assert kernel_of(said) == "sm80 (mma.sync), tile 64x64, 4 stages, K in parts"


def test_every_kernel_for_packed_weights_is_visited(cpp):
    def explain(m: int, n: int, k: int) -> str:
        problem = cpp.W4A16Problem(
            m=m, n=n, k=k, group_size=128, zeros=False, dtype="float16"
        )  # fmt: skip
        return cpp.explain_w4a16(problem, cpp.select_w4a16(problem, capability=90, sm_count=132))

    visits = find_w4_visits(explain)
    rows = {-(-visit.m // 8) for visit in visits if visit.kernel.startswith("sm90 rows")}
    assert rows == {1, 2, 3}
    assert any(re.search(r"rows.*, tile \d+x64,", visit.kernel) for visit in visits)
    wide = [visit.kernel for visit in visits if visit.kernel.startswith("sm90 wgmma")]
    for part in ("x copied first", "clusters of 2", "K in parts"):
        assert any(part in kernel for kernel in wide)
    text = (CSRC.parent / "w4a16" / "sm90" / "wgmma" / "tile.h").read_text()
    # TILE(warpgroups, rows, cycles), and of few rows TILE(blocks, parts of K, rows, cycles).
    listed = re.findall(r"^\s*TILE\((\d+), (?:\d+, )?(\d+), \d+\)", text, re.MULTILINE)
    assert len(listed) >= 16
    for blocks, rows_of_x in listed:
        tile = f"tile {rows_of_x}x{64 * int(blocks)},"
        assert any(tile in kernel for kernel in wide), tile
