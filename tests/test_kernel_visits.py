"""The problems by which a GPU's tests visit the kernels leave none out; this needs no GPU."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import asdict

import pytest
from kernel_visits import (
    W4_FORMS,
    Choice,
    Kernel,
    W4Form,
    find_visits,
    find_w4_visits,
    kernel_of,
    w4_waves,
)

BASE = 1 << 20  # an address aligned to anything


@pytest.fixture(scope="module")
def kernels(cpp) -> set[Kernel]:
    def explain(m: int, n: int, k: int, transa: bool, transb: bool) -> Choice:
        problem = cpp.GemmProblem(
            m=m, n=n, k=k, dtype="float16", a=BASE, a_strides=(1, m) if transa else (k, 1),
            b=BASE, b_strides=(1, k) if transb else (n, 1), d=BASE, d_strides=(n, 1),
        )  # fmt: skip
        return json.loads(cpp.explain_gemm_json(problem, 90, 132, candidates=False))["choice"]

    return {visit.kernel for visit in find_visits(explain)}


def of_family(kernels: set[Kernel], name: str) -> list[Kernel]:
    return [kernel for kernel in kernels if kernel.name == name]


def test_every_tile_of_the_sm90_kernel_is_visited(cpp, kernels):
    visited = {(k.tile, k.stages, k.cluster) for k in of_family(kernels, "sm90_persistent")}
    tiles = itertools.product(cpp.SM90_PERSISTENT_TILES, (1, 2))
    assert visited == {((128, n), stages, cluster) for (n, stages), cluster in tiles}


def test_every_way_to_store_and_to_copy_is_visited(kernels):
    persistent = of_family(kernels, "sm90_persistent")
    assert {"tma_store" in kernel.flags for kernel in persistent} == {False, True}
    assert {"copy_a", "copy_b"} <= set().union(*(kernel.flags for kernel in persistent))


def test_the_other_kernels_are_visited_whole_and_in_parts_of_k(kernels):
    # On Hopper mma.sync's tile for aligned operands is only run by benchmarks/sweep_mul.py.
    for family, least in (("sm80", 2), ("gemv", 6), ("sm90_skinny", 8)):
        mine = of_family(kernels, family)
        assert len({kernel.tile for kernel in mine}) >= least
        assert {"in_parts" in kernel.flags for kernel in mine} == {False, True}


def test_a_choice_is_cut_to_what_is_compiled(cpp):
    problem = cpp.GemmProblem(
        m=300, n=4096, k=4096, dtype="float16", a=BASE, a_strides=(4096, 1),
        b=BASE, b_strides=(1, 4096), d=BASE, d_strides=(4096, 1),
    )  # fmt: skip
    choice = json.loads(cpp.explain_gemm_json(problem, 90, 132))["choice"]
    kernel = kernel_of({**choice, "kernel": "sm80", "splits": 12, "compiled_m": 64})
    assert kernel == kernel_of(
        {**choice, "kernel": "sm80", "splits": 3, "compiled_m": 64, "ctas": 9}
    )
    assert (kernel.name, kernel.tile[0]) == ("sm80", 64)
    assert "in_parts" in kernel.flags


@pytest.fixture(scope="module")
def explain_w4(cpp) -> Callable[[int], Callable[[W4Form, int, int, int], Choice]]:
    """By a GPU of so many multiprocessors."""

    def on(sm_count: int) -> Callable[[W4Form, int, int, int], Choice]:
        def explain(form: W4Form, m: int, n: int, k: int) -> Choice:
            problem = cpp.W4A16Problem(m=m, n=n, k=k, **asdict(form))
            said = cpp.explain_w4a16_json(problem, 90, sm_count, candidates=False)
            return json.loads(said)["choice"]

        return explain

    return on


@pytest.mark.parametrize("sm_count", [8, 132])  # XGEMM_CUDA_SMS, and an H200's
def test_every_kernel_for_packed_weights_is_visited(cpp, explain_w4, sm_count):
    visits = find_w4_visits(explain_w4(sm_count), W4_FORMS[0])
    skinny = [visit for visit in visits if visit.kernel.name == "sm90_skinny"]
    assert {-(-visit.m // 8) for visit in skinny} == {1, 2, 3}
    assert 64 in {visit.kernel.tile[1] for visit in skinny}
    wide = [visit.kernel for visit in visits if visit.kernel.name == "sm90_wgmma"]
    assert {"copy_x", "in_parts", "stream_k"} <= set().union(*(kernel.flags for kernel in wide))
    assert 2 in {kernel.cluster for kernel in wide}
    assert {kernel.tile for kernel in wide} == set(cpp.W4_WGMMA_TILES)


def test_tiles_for_packed_weights_are_visited_with_several_tiles_and_passes(cpp, explain_w4):
    explain, several, again = explain_w4(2), set(), set()
    for form in W4_FORMS:
        for visit in find_w4_visits(explain, form):
            assert visit.work < 2 * 10**9  # else a sanitizer takes minutes
            if visit.kernel.name != "sm90_wgmma":
                continue
            choice = explain(form, visit.m, visit.n, visit.k)
            tiles, passes = w4_waves(choice, visit.m, visit.n, visit.k)
            several |= {visit.kernel.tile} if tiles else set()
            again |= {visit.kernel.tile} if passes else set()
    assert several == again == set(cpp.W4_WGMMA_TILES)


def test_waves_and_passes_over_a_pipeline_are_counted():
    def waves(m: int, n: int, k: int, **other: object) -> tuple[bool, bool]:
        choice = {
            "kernel": "sm90_wgmma", "block_m": 32, "block_n": 128, "warps": 20, "stages": 0,
            "cluster": 1, "splits": 1, "ctas": 4, "stream_k": False, **other,
        }  # fmt: skip
        return w4_waves(choice, m, n, k)

    assert waves(32, 512, 1024) == (False, False)
    assert waves(32, 512, 4096) == (False, True)
    assert waves(64, 512, 1024) == (True, False)
    parts = {"cluster": 4, "splits": 4}
    assert waves(32, 128, 4096, **parts) == (False, False)
    assert waves(32, 256, 8192, **parts) == (True, True)
    assert waves(32, 640, 1024, stream_k=True) == (True, False)
    assert waves(32, 256, 8192, stream_k=True) == (False, True)
    skinny = {"kernel": "sm90_skinny", "block_m": 8, "block_n": 32, "warps": 8, "stages": 2}
    assert waves(8, 64, 4096, cluster=2, **skinny) == (False, False)
    assert waves(8, 96, 4096, cluster=2, **skinny) == (True, True)
