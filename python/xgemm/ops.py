"""Functions over the ops, and the documentation of every `torch.ops.xgemm` operator.

`help(torch.ops.xgemm.mul)` shows an operator's page, and so does `xgemm.ops.DOCS["mul"]`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from .autograd import plain_w4a16
from .formats.packed import PackedWeight, check_tensor
from .op_docs import DOCS

__all__ = ["DOCS", "linear"]

# The overload itself: looking it up through the packet costs more than the call.
_w4a16 = torch.ops.xgemm.mul.w4a16


def linear(
    x: torch.Tensor,
    p: PackedWeight,
    bias: torch.Tensor | None = None,
    activation: str = "none",
    batch_invariant: bool = False,
) -> torch.Tensor:
    """activation(x W^T + bias) with a 4-bit weight W [N, K]: the functional form of QuantLinear.

    Args:
        x: [..., K] float16 or bfloat16; float32 on the CPU, and on CUDA by a general path.
        p: the weight, packed once by `xgemm.pack`, on x's device.
        bias: [N] of x's dtype, or None.
        activation: none, relu, gelu (erf), gelu_tanh or silu, applied in float32 before the one
            rounding to x's dtype. Where a gradient is needed it follows the rounded product.
        batch_invariant: a row's bits do not depend on how many rows there are.

    Returns:
        [..., N] of x's dtype. It has a gradient in x and bias.

    Raises:
        TypeError: p is not a PackedWeight, or x is not a tensor.
        ValueError: a shape, dtype or device does not fit; the message names the argument.
    """
    if not isinstance(p, PackedWeight):
        raise TypeError(f"linear: p must be a PackedWeight, got {type(p).__name__}")
    if p.fp4:
        raise ValueError("linear: p must hold int4 codes, got MXFP4: moe.w4a16 multiplies those")
    perm = p.perm
    try:
        if activation == "none" and perm is None and not (batch_invariant or is_dynamo_compiling()):
            return plain_w4a16(
                x, p.qweight, p.n, p.k, p.group_size, bias, p.bf16_scales, p.has_zeros
            )
        return _with_options(x, p, bias, activation, batch_invariant)
    except (RuntimeError, TypeError):
        check_tensor("linear: x", x)
        raise


def _with_options(
    x: torch.Tensor,
    p: PackedWeight,
    bias: torch.Tensor | None,
    activation: str,
    batch_invariant: bool,
) -> torch.Tensor:
    options: dict[str, Any] = {}
    if p.bf16_scales:
        options["bf16_scales"] = True
    if p.has_zeros:
        options["zeros"] = True
    if activation != "none":
        options["activation"] = activation
    if batch_invariant:
        options["batch_invariant"] = True
    return _w4a16(x, p.qweight, p.n, p.k, p.group_size, bias, p.perm, **options)


for _name, _text in DOCS.items():
    getattr(torch.ops.xgemm, _name).__doc__ = _text
