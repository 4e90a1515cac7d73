"""The problems by which a GPU's tests visit the kernels leave none out; this needs no GPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from kernel_visits import (
    W4_FORMS,
    W4Form,
    find_visits,
    find_w4_visits,
    kernel_of,
    w4_turns,
)

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
    text = (CSRC / "sm90" / "persistent" / "tiles.h").read_text()
    listed = re.findall(r"^\s*TILE\((\d+), \d+\)", text, re.MULTILINE)
    assert listed
    assert tiles_of(kernels, "sm90 persistent") == {
        (f"128x{n}", cluster) for n in listed for cluster in "12"
    }


def test_every_way_to_store_and_to_copy_is_visited(kernels):
    persistent = " ".join(kernel for kernel in kernels if kernel.startswith("sm90 persistent ("))
    for part in ("TMA store", "element-wise store", "a copied first", "b copied first"):
        assert part in persistent


def test_the_other_kernels_are_visited_whole_and_in_parts_of_k(kernels):
    # On Hopper mma.sync's tile for aligned operands is only run by benchmarks/sweep_mul.py.
    for family, least in (("sm80", 2), ("gemv", 6), ("sm90 skinny", 8)):
        mine = {kernel for kernel in kernels if kernel.partition(" (")[0] == family}
        assert len({tile for tile, _ in tiles_of(kernels, family)}) >= least
        assert any("K in parts" in kernel for kernel in mine)
        assert any("K in parts" not in kernel for kernel in mine)


def test_an_explanation_is_cut_to_what_is_compiled():
    said = "dense GEMM: m=1\nkernel: sm80 (mma.sync), tile 64x64, 4 stages, K in 12 parts, 99 CTAs"
    said += ", workspace of 12345 bytes\nbecause: x"
    assert kernel_of(said) == "sm80 (mma.sync), tile 64x64, 4 stages, K in parts"


@pytest.fixture(scope="module")
def explain_w4(cpp) -> Callable[[int], Callable[[W4Form, int, int, int], str]]:
    """By a GPU of so many multiprocessors."""

    def on(sm_count: int) -> Callable[[W4Form, int, int, int], str]:
        def explain(form: W4Form, m: int, n: int, k: int) -> str:
            problem = cpp.W4A16Problem(m=m, n=n, k=k, **asdict(form))
            config = cpp.select_w4a16(problem, capability=90, sm_count=sm_count)
            return cpp.explain_w4a16(problem, config)

        return explain

    return on


def w4_tiles() -> set[str]:
    """Of the wgmma kernels."""
    text = (CSRC.parent / "w4a16" / "sm90" / "wgmma" / "tile.h").read_text()
    # TILE(warpgroups, rows, cycles), and of few rows TILE(blocks, parts of K, rows, cycles).
    listed = re.findall(r"^\s*TILE\((\d+), (?:\d+, )?(\d+), \d+\)", text, re.MULTILINE)
    assert len(listed) >= 16
    return {f"tile {rows}x{64 * int(blocks)}," for blocks, rows in listed}


@pytest.mark.parametrize("sm_count", [8, 132])  # XGEMM_CUDA_SMS, and an H200's
def test_every_kernel_for_packed_weights_is_visited(explain_w4, sm_count):
    visits = find_w4_visits(explain_w4(sm_count), W4_FORMS[0])
    rows = {-(-visit.m // 8) for visit in visits if visit.kernel.startswith("sm90 skinny")}
    assert rows == {1, 2, 3}
    assert any(re.search(r"skinny.*, tile \d+x64,", visit.kernel) for visit in visits)
    wide = [visit.kernel for visit in visits if visit.kernel.startswith("sm90 wgmma")]
    for part in ("x copied first", "clusters of 2", "K in parts", "stream-K"):
        assert any(part in kernel for kernel in wide)
    for tile in w4_tiles():
        assert any(tile in kernel for kernel in wide), tile


def test_tiles_for_packed_weights_are_visited_with_several_tiles_and_passes(explain_w4):
    explain, several, again = explain_w4(2), set(), set()
    for form in W4_FORMS:
        for visit in find_w4_visits(explain, form):
            said = explain(form, visit.m, visit.n, visit.k)
            mine = {tile for tile in w4_tiles() if tile in visit.kernel}
            tiles, passes = w4_turns(said, visit.m, visit.n, visit.k)
            several |= mine if tiles else set()
            again |= mine if passes else set()
            assert visit.work < 2 * 10**9  # else a sanitizer takes minutes
    assert several == w4_tiles()
    assert again == w4_tiles()


def test_turns_of_a_ring_are_counted():
    def turns(kernel: str, m: int, n: int, k: int) -> tuple[bool, bool]:
        return w4_turns(f"W4A16\nkernel: {kernel}\nbecause: x", m, n, k)

    whole = "sm90 wgmma, tile 32x128, 20 warps, 0 stages, 4 CTAs"
    assert turns(whole, 32, 512, 1024) == (False, False)
    assert turns(whole, 32, 512, 4096) == (False, True)
    assert turns(whole, 64, 512, 1024) == (True, False)
    parts = "sm90 wgmma, tile 32x128, 20 warps, 0 stages, clusters of 4, K in 4 parts, 4 CTAs"
    assert turns(parts, 32, 128, 4096) == (False, False)
    assert turns(parts, 32, 256, 8192) == (True, True)
    shares = "sm90 wgmma, tile 32x128, 20 warps, 0 stages, 4 CTAs, stream-K"
    assert turns(shares, 32, 640, 1024) == (True, False)
    assert turns(shares, 32, 256, 8192) == (False, True)
    rows = "sm90 skinny, tile 8x32, 8 warps, 2 stages, clusters of 2, 4 CTAs"
    assert turns(rows, 8, 64, 4096) == (False, False)
    assert turns(rows, 8, 96, 4096) == (True, True)
