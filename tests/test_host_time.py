"""Host time under inference_mode, against torch's own ops in the same run.

The problems are one row by one 64-wide block, so that the call is what is timed.
"""

from __future__ import annotations

import pytest
import torch
from helpers import assert_host_time, num_threads, randn, random_weight

import xgemm


def test_mul_is_within_1_8_of_matmul():
    a, b = randn((1, 64), torch.float32), randn((64, 64), torch.float32, 1)
    mul = torch.ops.xgemm.mul.default
    with num_threads(1):
        assert_host_time(1.8, lambda: mul(a, b), lambda: torch.matmul(a, b))


@pytest.mark.parametrize("form", ["plain", "bias", "zeros"])
def test_linear_is_within_2_of_f_linear(form):
    p = xgemm.pack(random_weight(64, 64, 32, "real" if form == "zeros" else "none"))
    w, x = randn((64, 64), torch.float32), randn((1, 64), torch.float32, 1)
    bias = randn((64,), torch.float32, 2) if form == "bias" else None
    linear, f_linear = xgemm.linear, torch.nn.functional.linear
    with num_threads(1):
        assert_host_time(2.0, lambda: linear(x, p, bias), lambda: f_linear(x, w, bias))
