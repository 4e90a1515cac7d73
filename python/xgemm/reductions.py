"""What torch must know of the eight reductions beside their kernels: fakes, derivatives, vmap.

The gradients are torch's own formulas in torch's own operators, so that they can be differentiated
again; where a formula would divide by the value of an element (prod), one that also holds at zero
is used. A tangent is what the same formula gives for a gradient of 1, times the input's tangent,
summed. argmax and argmin have no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import Function

from .batching import Batched, InDims, sample_of
from .derivatives import (
    BELOW_AUTOGRAD,
    Gradients,
    below_autograd,
    keep,
    needs_derivative,
    primals,
    record,
)

Tensor = torch.Tensor
Dims = int | Sequence[int] | None

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _reduced_dims(op: str, ndim: int, dim: Dims) -> list[int]:
    """The reduced dimensions, counted from the front: all of them where none is named."""
    dims = [dim] if isinstance(dim, int) else list(dim or ())
    bound = max(ndim, 1)
    wrapped: list[int] = []
    for d in dims:
        if not -bound <= d < bound:
            raise IndexError(
                f"{op}: dim must be in [{-bound}, {bound - 1}] for a {ndim}-D tensor, got {d}"
            )
        if d % bound in wrapped:
            raise ValueError(
                f"{op}: dim must name each dimension once, got {d} again for a {ndim}-D tensor"
            )
        wrapped.append(d % bound)
    return [d for d in wrapped if d < ndim] if dims else list(range(ndim))


def _has_identity(op: str, p: float) -> bool:
    """Whether a reduction of nothing has a value."""
    return op in ("sum", "mean", "prod") or (op == "norm" and not p < 0 and p != math.inf)


def _result_dtype(op: str, dtype: torch.dtype) -> torch.dtype:
    if op in ("argmax", "argmin") or (op in ("sum", "prod") and not dtype.is_floating_point):
        return torch.int64
    return dtype


def _shape(op: str, x: Tensor, dim: Dims, keepdim: bool, p: float = 2.0) -> list[int]:
    """The shape of the result; an error where the call is wrong."""
    allowed = _FLOATS if op in ("mean", "norm") else _FLOATS + _INTEGERS
    if x.dtype not in allowed:
        *rest, last = (_name(dtype) for dtype in allowed)
        raise ValueError(f"{op}: x must be {', '.join(rest)} or {last}, got {_name(x.dtype)}")
    dims = _reduced_dims(op, x.dim(), dim)
    if not _has_identity(op, p):
        order = f" with p={p:g}" if op == "norm" else ""
        shape = "[" + ", ".join(str(size) for size in x.shape) + "]"
        for d in sorted(dims):
            message = (
                f"{op}: dim {d} must not be empty where it is reduced{order},"
                f" got x of shape {shape}"
            )
            torch._check_index(x.shape[d] != 0, lambda message=message: message)
    return [1 if d in dims else size for d, size in enumerate(x.shape) if keepdim or d not in dims]


def _fake(op: str, x: Tensor, dim: Dims, keepdim: bool, p: float = 2.0) -> Tensor:
    return x.new_empty(_shape(op, x, dim, keepdim, p), dtype=_result_dtype(op, x.dtype))


def _register_fake(op: str) -> None:
    def fake(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
        return _fake(op, x, dim, keepdim)

    def fake_norm(x: Tensor, dim: Dims = None, keepdim: bool = False, p: float = 2.0) -> Tensor:
        return _fake(op, x, dim, keepdim, p)

    torch.library.register_fake(f"xgemm::{op}", fake_norm if op == "norm" else fake)


def _restore(reduced: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
    """The reduced dimensions put back, each of size 1."""
    if not keepdim:
        for d in sorted(dims):
            reduced = reduced.unsqueeze(d)
    return reduced


def _prod_grad(grad: Tensor, x: Tensor, result: Tensor, dims: list[int], p: float) -> Tensor:
    """The product of the others: of all before an element times all after it."""
    if not dims:
        return grad
    kept = [d for d in range(x.dim()) if d not in dims]
    order = kept + dims
    wide = x.float() if x.element_size() < 4 else x
    rows = wide.permute(order).reshape([x.shape[d] for d in kept] + [-1])
    one = torch.ones_like(rows[..., :1])
    before = torch.cat([one, rows[..., :-1]], -1).cumprod(-1)
    after = torch.cat([one, rows.flip(-1)[..., :-1]], -1).cumprod(-1).flip(-1)
    others = (before * after).reshape([x.shape[d] for d in order])
    inverse = sorted(range(x.dim()), key=order.__getitem__)
    return (grad * others.permute(inverse)).to(x.dtype)


def _extreme_grad(grad: Tensor, x: Tensor, result: Tensor, dims: list[int], p: float) -> Tensor:
    """Equal parts to all that share the extreme value."""
    ties = x == result
    return grad * ties / (ties.sum(dims, keepdim=True) if dims else 1)


def _norm_grad(grad: Tensor, x: Tensor, norm: Tensor, dims: list[int], p: float) -> Tensor:
    if p == 0:
        return torch.zeros_like(x)
    if p == 1:
        return x.sgn() * grad
    if p == 2:
        return grad * (x / norm).masked_fill(norm == 0, 0)
    if math.isinf(p):
        size = x.abs()
        ties = (size == norm) | size.isnan()
        return x.sgn() * (grad / (ties.sum(dims, keepdim=True) if dims else 1) * ties)
    if p < 1:
        return x.sgn() * x.abs().pow(p - 1).masked_fill(x == 0, 0) * grad * norm.pow(1 - p)
    slope = x.sgn() * x.abs().pow(p - 1) if p < 2 else x * x.abs().pow(p - 2)
    return slope * (grad / norm.pow(p - 1)).masked_fill(norm == 0, 0)


_GRADIENTS: dict[str, Callable[[Tensor, Tensor, Tensor, list[int], float], Tensor]] = {
    "prod": _prod_grad,
    "amax": _extreme_grad,
    "amin": _extreme_grad,
    "norm": _norm_grad,
}


class _Reduce(Function):
    """Any of the reductions that have a gradient, by name."""

    @staticmethod
    def forward(
        ctx: Any, result: list[Tensor], x: Tensor, op: str, dim: Dims, keepdim: bool, p: float
    ) -> Tensor:
        ctx.op, ctx.dim, ctx.keepdim, ctx.p = op, dim, keepdim, p
        ctx.dims = _reduced_dims(op, x.dim(), dim)
        ctx.shape = x.shape
        if op in _GRADIENTS:
            keep(ctx, x, output=result[0])
        else:  # a sum or mean keeps neither its input nor its result alive
            ctx.set_materialize_grads(False)
        return result[0]

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        x_tangent = tangents[1]
        call = getattr(torch.ops.xgemm, ctx.op).default
        arguments = (ctx.dim, ctx.keepdim, ctx.p)[: len(call._schema.arguments) - 1]
        if ctx.op not in _GRADIENTS:
            with primals(ctx):
                return call(x_tangent, *arguments)
        with primals(ctx) as (x,):
            result = _restore(call(x, *arguments), ctx.dims, ctx.keepdim)
            slope = _GRADIENTS[ctx.op](torch.ones_like(result), x, result, ctx.dims, ctx.p)
            return (slope * x_tangent).sum(ctx.dims, keepdim=ctx.keepdim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Gradients:
        (grad,) = grads
        if grad is None:
            return (None,) * 6
        grad = _restore(grad, ctx.dims, ctx.keepdim)
        if ctx.op in _GRADIENTS:
            x, result = ctx.saved_tensors
            result = _restore(result, ctx.dims, ctx.keepdim)
            grad_x = _GRADIENTS[ctx.op](grad, x, result, ctx.dims, ctx.p)
        else:
            grad_x = grad.expand(ctx.shape)
            if ctx.op == "mean":
                grad_x = grad_x / math.prod(ctx.shape[d] for d in ctx.dims)
        return None, grad_x, None, None, None, None


def _register_derivatives(name: str) -> None:
    op = getattr(torch.ops.xgemm, name).default

    def kernel(keys: Any, x: Tensor, *arguments: Any) -> Tensor:
        if not needs_derivative(x):
            return op.redispatch(keys & BELOW_AUTOGRAD, x, *arguments)
        with below_autograd():
            result = op.redispatch(keys & BELOW_AUTOGRAD, x, *arguments)
        given = dict(zip(("dim", "keepdim", "p"), arguments, strict=False))
        dim, keepdim, p = given.get("dim"), given.get("keepdim", False), given.get("p", 2.0)
        return record(_Reduce, result, x, name, dim, keepdim, p)

    _library.impl(name, kernel, "Autograd", with_keyset=True)


def _register_batching(name: str) -> None:
    op = getattr(torch.ops.xgemm, name).default

    def rule(
        info: Any, in_dims: InDims, x: Tensor, dim: Dims = None, keepdim: bool = False, *p: float
    ) -> Batched:
        sample = sample_of(x, in_dims[0])
        shape = _shape(name, sample, dim, keepdim, *p)
        dims = [d + 1 for d in _reduced_dims(name, sample.dim(), dim)]
        x = x.movedim(in_dims[0] or 0, 0)
        indexed = name in ("argmax", "argmin")
        if sample.dim() == 0 or (indexed and len(dims) > 1):  # one number, or all as one run
            x, dims = x.reshape(x.shape[0], math.prod(sample.shape)), [1]
        over = dims[0] if indexed else dims
        return op(x, over, keepdim, *p).reshape(x.shape[0], *shape), 0

    torch.library.register_vmap(f"xgemm::{name}", rule)


_library = torch.library.Library("xgemm", "IMPL")
for _op in ("sum", "mean", "prod", "amax", "amin", "norm", "argmax", "argmin"):
    _register_fake(_op)
    _register_batching(_op)
for _op in ("sum", "mean", *_GRADIENTS):
    _register_derivatives(_op)
