"""mul and mul_into over random problems against float64, element by element, twice for the bits."""

from __future__ import annotations

import os
import random

import pytest
import torch
from random_products import (
    ON_CPU,
    ON_CUDA,
    Limits,
    draw_matrix,
    failures,
    run_problem,
    worst_share,
)

import xgemm  # noqa: F401  (registers the ops)

# XGEMM_RANDOM_PROBLEMS=100000 XGEMM_RANDOM_SEED=1 runs longer, over other problems.
PROBLEMS = int(os.environ.get("XGEMM_RANDOM_PROBLEMS", "20000"))
SEED = int(os.environ.get("XGEMM_RANDOM_SEED", "0"))
CHUNKS = 20
SHOWN = 8  # of the failures

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def run_many(seed: int, count: int, limits: Limits, device: str) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    found: list[str] = []
    for start in range(0, count, 100):
        verdicts = [run_problem(rng, limits, device) for _ in range(min(100, count - start))]
        found += failures(verdicts)
    assert not found, "\n".join([f"{len(found)} of {count} (seed {seed}):", *found[:SHOWN]])


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_on_cuda(chunk: int) -> None:
    run_many(SEED * CHUNKS + chunk, -(-PROBLEMS // CHUNKS), ON_CUDA, "cuda")


@pytest.mark.parametrize("chunk", range(4))
def test_on_the_cpu(chunk: int) -> None:
    run_many(SEED * CHUNKS + chunk, 100, ON_CPU, "cpu")


def test_what_is_wrong_is_found() -> None:
    """The comparison itself: a wrong, a missing and a not-a-number element fail it."""
    a, b = torch.randn(20, 30).half(), torch.randn(30, 10).half()
    right = (a.double() @ b.double()).half()
    assert worst_share(right, a, b) <= 1
    for value in (float(right[3, 4]) * 1.01 + 0.1, 0.0, float("nan"), float("inf")):
        wrong = right.clone()
        wrong[3, 4] = value
        assert worst_share(wrong, a, b) > 1


def test_operands_are_views_of_every_kind() -> None:
    rng = random.Random(0)
    kinds, strides = set(), set()
    for _ in range(200):
        view, kind = draw_matrix(rng, 6, 5, torch.float16, [2, 3], "cpu")
        assert view.shape == (2, 3, 6, 5)
        assert not view.isnan().any()
        kinds.add(kind.partition(",")[0])
        strides.add(view.stride())
    assert len(kinds) == 8
    assert len(strides) > 50
