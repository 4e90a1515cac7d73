"""Host time of a call, against torch's own ops in the same run.

Under inference_mode the problems are one row by one 64-wide block, so that the call is what is
timed. Where autograd might have to look, they are 64 rows: what a small layer costs a user. The
limits leave a quarter for noise (docs/measurements/generate.md has what was measured).
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from helpers import assert_host_time, num_threads, randn, random_weight

import xgemm


def test_mul_is_within_2_2_of_matmul():
    """A Xeon has 1.75 or 1.95 from process to process: torch's 1.1 us are 1.2 in some."""
    a, b = randn((1, 64), torch.float32), randn((64, 64), torch.float32, 1)
    mul = torch.ops.xgemm.mul.default
    with num_threads(1):
        assert_host_time(2.2, lambda: mul(a, b), lambda: torch.matmul(a, b))


@pytest.mark.parametrize("form", ["plain", "bias", "zeros"])
def test_linear_is_within_2_of_f_linear(form):
    p = xgemm.pack(random_weight(64, 64, 32, "real" if form == "zeros" else "none"))
    w, x = randn((64, 64), torch.float32), randn((1, 64), torch.float32, 1)
    bias = randn((64,), torch.float32, 2) if form == "bias" else None
    linear, f_linear = xgemm.linear, torch.nn.functional.linear
    with num_threads(1):
        assert_host_time(2.0, lambda: linear(x, p, bias), lambda: f_linear(x, w, bias))


MODES = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}


@pytest.mark.parametrize("mode", MODES)
def test_calls_that_need_no_gradient(mode):
    """No Python runs below the op, in whichever mode."""
    a, b = randn((64, 64), torch.float32), randn((64, 64), torch.float32, 1)
    mul = torch.ops.xgemm.mul.default
    dense = torch.nn.Linear(64, 64).requires_grad_(False)
    packed = xgemm.nn.QuantLinear.from_linear(dense, group_size=32)
    p, linear, f_linear = packed.to_packed(), xgemm.linear, torch.nn.functional.linear
    with_zeros = xgemm.pack(random_weight(64, 64, 32, "real"))
    with num_threads(1):
        assert_host_time(1.5, lambda: mul(a, b), lambda: torch.matmul(a, b), MODES[mode])
        for weight in (p, with_zeros):
            call = partial(linear, a, weight)
            assert_host_time(1.4, call, lambda: f_linear(a, b), MODES[mode])
        assert_host_time(1.25, lambda: packed(a), lambda: dense(a), MODES[mode])


def test_calls_that_need_a_gradient():
    x = randn((64, 64), torch.float32).requires_grad_()
    ones = torch.ones(64, 64)
    dense = torch.nn.Linear(64, 64).requires_grad_(False)
    packed = xgemm.nn.QuantLinear.from_linear(dense, group_size=32)
    grad, autocast = torch.enable_grad, lambda: torch.autocast("cpu")
    with num_threads(1):
        assert_host_time(1.85, lambda: packed(x), lambda: dense(x), grad)
        assert_host_time(
            1.5, lambda: packed(x).backward(ones), lambda: dense(x).backward(ones), grad
        )
        assert_host_time(1.25, lambda: packed(ones), lambda: dense(ones), autocast)


def test_a_profiler_sees_the_ops():
    """They are called by a way of their own where no gradient is needed, and where one is."""
    a, b = randn((4, 64), torch.float32), randn((64, 64), torch.float32, 1)
    p = xgemm.pack(random_weight(64, 64, 32, "none"))
    for mode in MODES.values():
        with mode(), torch.profiler.profile() as profile:
            torch.ops.xgemm.mul.default(a, b)
            xgemm.linear(a, p)
        names = [event.key for event in profile.key_averages() if "xgemm" in event.key]
        assert names == ["xgemm::mul"]
    with torch.profiler.profile() as profile:
        torch.ops.xgemm.sgemm(a.clone().requires_grad_(), b)
    assert "xgemm::sgemm" in [event.key for event in profile.key_averages()]
