"""float64 references of the GEMM ops, and how far a right result may lie from them.

Every op has a function `<op>` that computes it in float64 and a function `<op>_bound` that gives,
element by element, the largest error of a kernel that keeps the library's rule: products summed in
float32 in any order, bias and activation in float32, one rounding to the output's dtype. The bounds
follow from K and the dtypes alone (Higham, Accuracy and Stability of Numerical Algorithms, 3.1);
nothing in them is fitted to a kernel. `error_ratio` compares: at most 1 is right.
"""

from __future__ import annotations

import math

import torch

from .activations import activate
from .formats.quantized import SYMMETRIC_ZERO, QuantizedWeight

# The steepest slope of each activation, rounded up: what it makes of an error in its argument.
_SLOPE = {"none": 1.0, "relu": 1.0, "gelu": 1.13, "gelu_tanh": 1.13, "silu": 1.1}
# float32 roundings in the evaluation of an activation, each of at most |x| (erf, tanh and exp are
# within 2 units of their last place, and their result is at most 2 before x multiplies it).
_ROUNDINGS = {"none": 0, "relu": 0, "gelu": 8, "gelu_tanh": 16, "silu": 8}

_UNIT_F32 = 2.0**-24  # unit roundoff of float32


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number of `dtype`."""
    return torch.finfo(dtype).eps / 2


def _smallest_step(dtype: torch.dtype) -> float:
    """Distance of the subnormal numbers of `dtype`."""
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps


def _summation(terms: int) -> float:
    """Relative error of a float32 sum of `terms` products in any order, over their magnitudes."""
    product = terms * _UNIT_F32
    return product / (1 - product) if product < 1 else math.inf


def _finish(
    before: torch.Tensor, error: torch.Tensor, activation: str, dtype: torch.dtype
) -> torch.Tensor:
    """Bound of activation(before), of which `error` is known, after the rounding to `dtype`."""
    error = error * _SLOPE[activation]
    error = error + _ROUNDINGS[activation] * _UNIT_F32 * before.abs()
    magnitude = activate(before, activation).abs() + error
    # An overflow of float32 or of a 16-bit result is the op's right answer; see error_ratio.
    return error + unit_roundoff(dtype) * magnitude + _smallest_step(dtype)


def mul(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None, activation: str = "none"
) -> torch.Tensor:
    """`torch.ops.xgemm.mul` in float64: activation(a @ b + bias), shapes as torch.matmul's."""
    product = torch.matmul(a.double(), b.double())
    if bias is not None:
        # A 1-D b is one column, which the result lacks: so does its bias.
        product = product + bias.double().reshape(bias.shape if b.dim() > 1 else ())
    return activate(product, activation)


def mul_bound(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None, activation: str = "none"
) -> torch.Tensor:
    """Largest error of `torch.ops.xgemm.mul` on these operands, element by element."""
    magnitude = mul(a.abs(), b.abs(), None if bias is None else bias.abs())
    error = _summation(a.shape[-1] + 2) * magnitude + _smallest_step(torch.float32)
    return _finish(mul(a, b, bias), error, activation, a.dtype)


def sgemm(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    transa: bool = False,
    transb: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> torch.Tensor:
    """`torch.ops.xgemm.sgemm` in float64: alpha op(a) op(b) + beta c, without c where beta is 0."""
    product = torch.matmul(
        a.double().mT if transa else a.double(), b.double().mT if transb else b.double()
    )
    return alpha * product if c is None or beta == 0 else alpha * product + beta * c.double()


def sgemm_bound(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    transa: bool = False,
    transb: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> torch.Tensor:
    """Largest error of `torch.ops.xgemm.sgemm` on these operands, element by element."""
    magnitude = sgemm(
        a.abs(), b.abs(), None if c is None else c.abs(), transa, transb, abs(alpha), abs(beta)
    )
    k = a.shape[-2] if transa else a.shape[-1]
    # alpha and beta are float32 in the kernel: one rounding each, one where they multiply.
    error = _summation(k + 6) * magnitude + (1 + abs(alpha)) * _smallest_step(torch.float32)
    return _finish(sgemm(a, b, c, transa, transb, alpha, beta), error, "none", torch.float32)


def dequantize(q: QuantizedWeight) -> torch.Tensor:
    """The weight [N, K] in float64: `w[n, k] = (code[n, k] - zero[g, n]) * scale[g, n]`.

    Of MXFP4 what the code stands for, times the scale.
    """
    group = q.group_of_channel()
    codes = q.codes.double()
    scale = q.scales.double().index_select(0, group).t()
    if q.fp4:
        return q.fp4_values(torch.float64) * scale
    if q.zeros is None:
        return (codes - SYMMETRIC_ZERO) * scale
    return (codes - q.zeros.double().index_select(0, group).t()) * scale


def _weight_magnitude(q: QuantizedWeight) -> torch.Tensor:
    """(|code| + |zero|) |scale|, [N, K]: what a kernel that takes the zero out of the sum adds."""
    group = q.group_of_channel()
    scale = q.scales.double().abs().index_select(0, group).t()
    if q.fp4:
        return q.fp4_values(torch.float64).abs() * scale
    if q.zeros is None:
        return (q.codes.double() + SYMMETRIC_ZERO) * scale
    return (q.codes.double() + q.zeros.double().abs().index_select(0, group).t()) * scale


def _zero_fraction(q: QuantizedWeight) -> torch.Tensor:
    """|zero - the integer next to it| |scale|, [N, K], of a weight with zero points."""
    assert q.zeros is not None
    zeros = q.zeros.double()
    of_groups = (zeros - zeros.round()).abs() * q.scales.double().abs()
    return of_groups.index_select(0, q.group_of_channel()).t()


def w4a16(
    x: torch.Tensor,
    q: QuantizedWeight,
    bias: torch.Tensor | None = None,
    activation: str = "none",
) -> torch.Tensor:
    """`torch.ops.xgemm.mul.w4a16` in float64: activation(x W^T + bias), x [..., K]."""
    product = torch.matmul(x.double(), dequantize(q).t())
    return activate(product if bias is None else product + bias.double(), activation)


def w4a16_bound(
    x: torch.Tensor,
    q: QuantizedWeight,
    bias: torch.Tensor | None = None,
    activation: str = "none",
) -> torch.Tensor:
    """Largest error of `torch.ops.xgemm.mul.w4a16`, element by element.

    The weight may be rounded once to the activations' dtype, and so may what its zero point is
    beyond an integer. The bound is taken over sum (|code| + |zero|) |scale| |x|, so that the zero
    point may be summed apart.
    """
    magnitude = torch.matmul(x.double().abs(), _weight_magnitude(q).t())
    # 1-D x: `keepdim` leaves [1], which broadcasts over the N results as [..., 1] does.
    rounding = unit_roundoff(x.dtype) * magnitude
    if q.zeros is not None:
        fraction = torch.matmul(x.double().abs(), _zero_fraction(q).t())
        rounding = rounding + unit_roundoff(x.dtype) * fraction
    rounding = rounding + _smallest_step(x.dtype) * x.double().abs().sum(-1, keepdim=True)
    if bias is not None:
        magnitude = magnitude + bias.double().abs()
    # Six roundings beside the summation's: code - zero, times scale, and the same for the zeros.
    error = _summation(x.shape[-1] + 6) * magnitude + rounding
    return _finish(w4a16(x, q, bias), error, activation, x.dtype)


def w4a16_grad_a(grad: torch.Tensor, q: QuantizedWeight) -> torch.Tensor:
    """`torch.ops.xgemm.w4a16_grad_a` in float64: grad W, grad [..., N]."""
    return torch.matmul(grad.double(), dequantize(q))


def w4a16_grad_a_bound(grad: torch.Tensor, q: QuantizedWeight) -> torch.Tensor:
    """Largest error of `torch.ops.xgemm.w4a16_grad_a`, element by element."""
    magnitude = torch.matmul(grad.double().abs(), _weight_magnitude(q))
    error = (_summation(grad.shape[-1] + 6) + unit_roundoff(grad.dtype)) * magnitude
    error = error + _smallest_step(grad.dtype) * grad.double().abs().sum(-1, keepdim=True)
    return _finish(w4a16_grad_a(grad, q), error, "none", grad.dtype)


def error_ratio(actual: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor) -> float:
    """The largest |actual - expected| / bound: at most 1 where `actual` is right.

    Where `expected` is not finite, `actual` must not be either (which kind may differ). Where it is
    finite but beyond what the dtype holds, within the bound, an infinity of its sign is right.
    Infinite where shapes differ or an element breaks these rules.
    """
    if actual.shape != expected.shape:
        return math.inf
    if actual.numel() == 0:
        return 0.0
    value, limit = actual.double(), torch.finfo(actual.dtype).max
    difference = (value - expected).abs()
    ratio = torch.where(difference == 0, 0.0, difference / bound)
    overflow = value.isinf() & (value.sign() == expected.sign())
    overflow &= expected.abs() + bound >= limit
    ratio = torch.where(overflow, 0.0, ratio)
    ratio = torch.where(expected.isfinite(), ratio, 0.0)
    wrong = (expected.isfinite() & ~value.isfinite() & ~overflow) | (
        ~expected.isfinite() & value.isfinite()
    )
    return math.inf if bool(wrong.any()) else float(ratio.max())
