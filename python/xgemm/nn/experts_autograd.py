"""Derivatives of the ops of experts_linear.py, in the activations and the biases."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import Function

from xgemm.derivatives import (
    BELOW_AUTOGRAD,
    Gradients,
    below_autograd,
    keep,
    needs_derivative,
    primals,
    record,
)

Tensor = torch.Tensor

_linear = torch.ops.xgemm_experts.linear.default
_linear_grad_a = torch.ops.xgemm_experts.linear_grad_a.default


class _Linear(Function):
    """Each expert's rows times its weight, plus its bias."""

    @staticmethod
    def forward(
        ctx: Any,
        result: list[Tensor],
        a: Tensor,
        qweight: Tensor,
        bounds: Tensor,
        bias: Tensor | None,
        perm: Tensor | None,
        shape: tuple[int, ...],
        form: dict[str, bool],
    ) -> Tensor:
        keep(ctx, qweight, bounds, perm)
        ctx.shape, ctx.form, ctx.a_shape = shape, form, a.shape
        return result[0]

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        _, a_tangent, _, _, bias_tangent, *_ = tangents
        with primals(ctx) as (qweight, bounds, perm):
            if a_tangent is None:
                a_tangent = bias_tangent.new_zeros(ctx.a_shape)
            return _linear(a_tangent, qweight, bounds, bias_tangent, perm, *ctx.shape, **ctx.form)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Gradients:
        (grad,) = grads
        if grad is None:
            return (None,) * 8
        qweight, bounds, perm, _ = ctx.saved_tensors
        grad_a = grad_bias = None
        if ctx.needs_input_grad[1]:
            grad_a = _linear_grad_a(grad, qweight, bounds, perm, *ctx.shape, **ctx.form)
        if ctx.needs_input_grad[4]:
            rest = bounds.new_full((1,), grad.shape[0])
            # The last length is that of rows that no expert has.
            lengths = torch.diff(bounds, append=rest).to(grad.device)
            # In float32, and in one order: sums by index_add are neither.
            sums = torch.segment_reduce(
                grad.float(), "sum", lengths=lengths, axis=0, initial=0, unsafe=True
            )
            grad_bias = sums[:-1].to(grad.dtype)
        return None, grad_a, None, None, grad_bias, None, None, None


class _LinearGradA(Function):
    """Linear in grad, so that its own gradient is the forward op."""

    @staticmethod
    def forward(
        ctx: Any,
        result: list[Tensor],
        grad: Tensor,
        qweight: Tensor,
        bounds: Tensor,
        perm: Tensor | None,
        shape: tuple[int, ...],
        form: dict[str, bool],
    ) -> Tensor:
        keep(ctx, qweight, bounds, perm)
        ctx.shape, ctx.form = shape, form
        return result[0]

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        with primals(ctx) as (qweight, bounds, perm):
            return _linear_grad_a(tangents[1], qweight, bounds, perm, *ctx.shape, **ctx.form)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Gradients:
        (grad,) = grads
        qweight, bounds, perm, _ = ctx.saved_tensors
        if grad is not None:
            grad = _linear(grad, qweight, bounds, None, perm, *ctx.shape, **ctx.form)
        return None, grad, None, None, None, None, None


def _linear_kernel(
    keys: Any,
    a: Tensor,
    qweight: Tensor,
    bounds: Tensor,
    bias: Tensor | None,
    perm: Tensor | None,
    *shape: int,
    **form: bool,
) -> Tensor:
    args = (a, qweight, bounds, bias, perm)
    if not needs_derivative(a, bias):
        return _linear.redispatch(keys & BELOW_AUTOGRAD, *args, *shape, **form)
    with below_autograd():
        y = _linear.redispatch(keys & BELOW_AUTOGRAD, *args, *shape, **form)
    return record(_Linear, y, *args, shape, form)


def _linear_grad_a_kernel(
    keys: Any,
    grad: Tensor,
    qweight: Tensor,
    bounds: Tensor,
    perm: Tensor | None,
    *shape: int,
    **form: bool,
) -> Tensor:
    args = (grad, qweight, bounds, perm)
    if not needs_derivative(grad):
        return _linear_grad_a.redispatch(keys & BELOW_AUTOGRAD, *args, *shape, **form)
    with below_autograd():
        grad_a = _linear_grad_a.redispatch(keys & BELOW_AUTOGRAD, *args, *shape, **form)
    return record(_LinearGradA, grad_a, *args, shape, form)


_library = torch.library.Library("xgemm_experts", "IMPL")
_library.impl("linear", _linear_kernel, "Autograd", with_keyset=True)
_library.impl("linear_grad_a", _linear_grad_a_kernel, "Autograd", with_keyset=True)
