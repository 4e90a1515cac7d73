"""Host time under inference_mode, against torch's own ops in the same run.

The problems are one row by one 64-wide block, so that the call is what is timed. It is the thread's
own CPU time, which does not grow while others have the core; the two sides alternate, their medians
are compared, and what a busy machine spoiled is taken again before it counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pytest
import torch
from helpers import num_threads, randn, random_weight

import xgemm

ATTEMPTS = 6
REPEATS = 41
CALLS = 100


def seconds(call: Callable[[], object]) -> float:
    start = time.thread_time()
    for _ in range(CALLS):
        call()
    return time.thread_time() - start


def ratio(ours: Callable[[], object], theirs: Callable[[], object]) -> float:
    """The median time of `ours` over that of `theirs`."""
    times: tuple[list[float], list[float]] = ([], [])
    with num_threads(1), torch.inference_mode():
        seconds(ours), seconds(theirs)
        for _ in range(REPEATS):
            times[0].append(seconds(ours))
            times[1].append(seconds(theirs))
    return statistics.median(times[0]) / statistics.median(times[1])


def assert_ratio(limit: float, ours: Callable[[], object], theirs: Callable[[], object]) -> None:
    found = []
    for _ in range(ATTEMPTS):
        found.append(ratio(ours, theirs))
        if found[-1] <= limit:
            return
    listed = ", ".join(f"{value:.2f}" for value in found)
    pytest.fail(f"took {listed} times torch's host time, expected at most {limit}")


def test_mul_is_within_1_8_of_matmul():
    a, b = randn((1, 64), torch.float32), randn((64, 64), torch.float32, 1)
    mul = torch.ops.xgemm.mul.default
    assert_ratio(1.8, lambda: mul(a, b), lambda: torch.matmul(a, b))


@pytest.mark.parametrize("form", ["plain", "bias", "zeros"])
def test_linear_is_within_2_of_f_linear(form):
    p = xgemm.pack(random_weight(64, 64, 32, "real" if form == "zeros" else "none"))
    w, x = randn((64, 64), torch.float32), randn((1, 64), torch.float32, 1)
    bias = randn((64,), torch.float32, 2) if form == "bias" else None
    linear, f_linear = xgemm.linear, torch.nn.functional.linear
    assert_ratio(2.0, lambda: linear(x, p, bias), lambda: f_linear(x, w, bias))
