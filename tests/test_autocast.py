"""Autocast: what torch.matmul does to dtypes, mul and mul.w4a16 do."""

from __future__ import annotations

import pytest
import torch
from helpers import randn, small_packed

import xgemm

mul = torch.ops.xgemm.mul.default
sgemm = torch.ops.xgemm.sgemm.default

LOW = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("a_dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("b_dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_mul_casts_as_matmul_does(dtype, a_dtype, b_dtype):
    a, b = randn((3, 16), a_dtype), randn((16, 5), b_dtype, 1)
    with torch.autocast("cpu", dtype=dtype):
        result, theirs = mul(a, b), torch.matmul(a, b)
    assert result.dtype == theirs.dtype == dtype
    assert torch.equal(result, mul(a.to(dtype), b.to(dtype)))


@pytest.mark.parametrize("dtype", LOW)
def test_bias_is_cast_and_may_be_named(dtype):
    a, b, bias = (randn(s, torch.float32) for s in ((3, 16), (16, 5), (5,)))
    expected = mul(a.to(dtype), b.to(dtype), bias.to(dtype), activation="gelu")
    with torch.autocast("cpu", dtype=dtype):
        assert torch.equal(mul(a, b, bias, activation="gelu"), expected)
        assert torch.equal(torch.ops.xgemm.mul(a, b, bias=bias, activation="gelu"), expected)


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("act_order", [False, True])
def test_linear_casts_activations_and_bias(dtype, act_order):
    _, p = small_packed(zeros="real", group_size=32, act_order=act_order)
    x, bias = randn((3, 64), torch.float32), randn((48,), torch.float32, 1)
    expected = xgemm.linear(x.to(dtype), p, bias.to(dtype), "silu")
    with torch.autocast("cpu", dtype=dtype):
        y = xgemm.linear(x, p, bias, "silu")
        without_bias = xgemm.linear(x, p)
    assert y.dtype == without_bias.dtype == dtype
    assert torch.equal(y, expected)


def test_sgemm_stays_float32():
    a, b, c = (randn(s, torch.float32) for s in ((3, 16), (16, 5), (3, 5)))
    expected = sgemm(a, b, c, beta=1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(sgemm(a, b, c, beta=1.0), expected)


def test_into_keeps_what_it_is_given():
    a, b, dst = randn((3, 16), torch.float32), randn((16, 5), torch.float32), torch.empty(3, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.ops.xgemm.mul_into(dst, a, b)
    assert torch.equal(dst, mul(a, b))


def test_float64_is_refused_not_cast():
    a, b = torch.zeros(2, 3, dtype=torch.float64), torch.zeros(3, 2, dtype=torch.float64)
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(ValueError, match="a must be float32, float16 or bfloat16, got float64"),
    ):
        mul(a, b)


def test_gradients_return_in_the_parameters_dtype():
    _, p = small_packed(group_size=32)
    w = torch.nn.Parameter(randn((16, 64), torch.float32))
    x = randn((3, 16), torch.float32).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = xgemm.linear(mul(x, w, activation="gelu"), p)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert w.grad.dtype == x.grad.dtype == torch.float32
    found, w.grad = w.grad, None
    xgemm.linear(mul(x, w, activation="gelu"), p).sum().backward()
    scale = float(w.grad.abs().max())
    torch.testing.assert_close(found, w.grad, rtol=0.05, atol=0.05 * scale)


def test_off_outside_and_inside_a_disabled_region():
    a, b = randn((3, 16), torch.float32), randn((16, 5), torch.float32, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.autocast("cpu", enabled=False):
            assert mul(a, b).dtype == torch.float32
        assert mul(a, b).dtype == torch.bfloat16
    assert mul(a, b).dtype == torch.float32


def test_under_compile():
    _, p = small_packed(group_size=32)
    x, w = randn((3, 16), torch.float32), randn((16, 64), torch.float32, 1)

    def model(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return xgemm.linear(mul(x, w), p)

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, w), model(x, w))
