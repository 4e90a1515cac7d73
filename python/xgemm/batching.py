"""torch.vmap over the GEMM ops: one call for all samples, wherever an op can be told so.

A batch of activations is one more leading dimension. What an op takes only once and is batched all
the same costs more: a batched bias is added to the rounded product, with the activation after it,
and a batched packed weight is one call for each sample. Below torch.vmap come the other transforms
and autograd, which see the calls made here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .activations import activate
from .fake import mul_shape, sgemm_shape, w4a16_grad_shape, w4a16_shape

_mul = torch.ops.xgemm.mul.default
_mul_w4a16 = torch.ops.xgemm.mul.w4a16
_w4a16_grad_a = torch.ops.xgemm.w4a16_grad_a.default
_sgemm = torch.ops.xgemm.sgemm.default

Tensor = torch.Tensor
InDims = tuple[int | None, ...]
Batched = tuple[Any, Any]


@dataclass(frozen=True)
class Sample:
    """One sample of a batched tensor, as far as the checks of an op look at it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def dim(self) -> int:
        return len(self.shape)


def sample_of(x: Tensor, dim: int | None) -> Any:
    """What one sample of x looks like."""
    shape = tuple(size for d, size in enumerate(x.shape) if dim is None or d != dim % x.dim())
    return Sample(shape, x.dtype, x.device)


def _sample_shape(
    op: str, shape_of: Any, args: Sequence[Any], in_dims: InDims, options: Any
) -> list[int]:
    """The shape of one sample's result; an error, in its terms, where the call is wrong."""
    samples = (
        sample_of(argument, _dim(in_dims, index)) if isinstance(argument, Tensor) else argument
        for index, argument in enumerate(args)
    )
    shape: list[int] = shape_of(op, *samples, **options)
    return shape


def _dim(in_dims: InDims, index: int) -> int | None:
    """The batch dimension of an argument; None where it was left out."""
    return in_dims[index] if index < len(in_dims) else None


def _front(x: Tensor, dim: int | None) -> Tensor:
    return x if dim is None else x.movedim(dim, 0)


def _padded(x: Tensor, batched: bool, dims: int) -> Tensor:
    """x, whose batch if any is in front, with its own dimensions padded from the left to `dims`."""
    if not batched:
        return x
    return x.reshape(x.shape[0], *[1] * (dims + 1 - x.dim()), *x.shape[1:])


def _product(a: Tensor, a_dim: int | None, b: Tensor, b_dim: int | None, **options: Any) -> Tensor:
    """mul for each sample, the batch in front; a or b is batched."""
    a_batched, b_batched = a_dim is not None, b_dim is not None
    a, b = _front(a, a_dim), _front(b, b_dim)
    a_dims, b_dims = a.dim() - a_batched, b.dim() - b_batched
    if not b_batched and b_dims <= 2:
        return _mul(a, b, **options)  # samples of a are more rows
    if a_dims == 1:
        a = a.unsqueeze(-2)
    if b_dims == 1:
        b = b.unsqueeze(-1)
    dims = max(a_dims, b_dims, 2)
    y = _mul(_padded(a, a_batched, dims), _padded(b, b_batched, dims), **options)
    if a_dims == 1:
        y = y.squeeze(-2)
    return y.squeeze(-1) if b_dims == 1 else y


def _each(op: Any, info: Any, in_dims: InDims, args: Sequence[Any], options: Any) -> Batched:
    """The op once for each sample."""
    if info.batch_size == 0:
        name = op._schema.name.partition("::")[2]
        raise ValueError(f"{name}: torch.vmap over a 4-bit weight needs at least 1 sample, got 0")
    dims = [_dim(in_dims, index) for index in range(len(args))]
    results = [
        op(
            *(
                argument if dim is None else argument.select(dim, index).contiguous()
                for argument, dim in zip(args, dims, strict=True)
            ),
            **options,
        )
        for index in range(info.batch_size)
    ]
    if isinstance(results[0], torch.Tensor):
        return torch.stack(results), 0
    outputs = tuple(torch.stack(parts) for parts in zip(*results, strict=True))
    return outputs, (0,) * len(outputs)


@torch.library.register_vmap("xgemm::mul")
def _mul_rule(
    info: Any, in_dims: InDims, a: Tensor, b: Tensor, bias: Tensor | None = None, **options: Any
) -> Batched:
    dims = len(_sample_shape("mul", mul_shape, (a, b, bias), in_dims, options))
    a_dim, b_dim, bias_dim = (_dim(in_dims, index) for index in range(3))
    if bias is None or bias_dim is None:
        return _product(a, a_dim, b, b_dim, bias=bias, **options), 0
    activation = options.pop("activation", "none")
    if a_dim is None and b_dim is None:
        y = _mul(a, b, **options)
    else:
        y = _product(a, a_dim, b, b_dim, **options)
    bias = bias.movedim(bias_dim, 0)
    if b.dim() - (b_dim is not None) == 1:
        bias = bias.squeeze(1)  # one number for each sample
    return activate(y + _padded(bias, True, dims), activation), 0


@torch.library.register_vmap("xgemm::mul.w4a16")
def _mul_w4a16_rule(
    info: Any,
    in_dims: InDims,
    a: Tensor,
    qweight: Tensor,
    n: int,
    k: int,
    group_size: int,
    bias: Tensor | None = None,
    perm: Tensor | None = None,
    **options: Any,
) -> Batched:
    args = (a, qweight, n, k, group_size, bias, perm)
    a_dim, qweight_dim, bias_dim, perm_dim = (_dim(in_dims, index) for index in (0, 1, 5, 6))
    if qweight_dim is not None or perm_dim is not None:
        return _each(_mul_w4a16, info, in_dims, args, options)
    dims = len(_sample_shape("mul.w4a16", w4a16_shape, args, in_dims, options))
    weight = (qweight, n, k, group_size)
    a = _front(a, a_dim)
    if bias is None or bias_dim is None:
        return _mul_w4a16(a, *weight, bias, perm, **options), 0
    activation = options.pop("activation", "none")
    y = _mul_w4a16(a, *weight, None, perm, **options)
    return activate(y + _padded(bias.movedim(bias_dim, 0), True, dims), activation), 0


@torch.library.register_vmap("xgemm::w4a16_grad_a")
def _w4a16_grad_a_rule(
    info: Any,
    in_dims: InDims,
    grad: Tensor,
    qweight: Tensor,
    n: int,
    k: int,
    group_size: int,
    perm: Tensor | None = None,
    **form: Any,
) -> Batched:
    args = (grad, qweight, n, k, group_size, perm)
    grad_dim, qweight_dim, perm_dim = (_dim(in_dims, index) for index in (0, 1, 5))
    if qweight_dim is not None or perm_dim is not None:
        return _each(_w4a16_grad_a, info, in_dims, args, form)
    _sample_shape("w4a16_grad_a", w4a16_grad_shape, args, in_dims, form)
    return _w4a16_grad_a(_front(grad, grad_dim), *args[1:], **form), 0


@torch.library.register_vmap("xgemm::sgemm")
def _sgemm_rule(
    info: Any, in_dims: InDims, a: Tensor, b: Tensor, c: Tensor | None = None, **options: Any
) -> Batched:
    shape = _sample_shape("sgemm", sgemm_shape, (a, b, c), in_dims, options)
    a_dim, b_dim, c_dim = (_dim(in_dims, index) for index in range(3))
    a, b = _front(a, a_dim), _front(b, b_dim)
    a_batched, b_batched = a_dim is not None, b_dim is not None
    if not (a_batched or b_batched):  # c alone is
        a, a_batched = a.expand(info.batch_size, *a.shape), True
    if c is not None:
        c = c.expand(info.batch_size, *shape) if c_dim is None else c.movedim(c_dim, 0)
    a, b = _padded(a, a_batched, len(shape)), _padded(b, b_batched, len(shape))
    return _sgemm(a, b, c, **options), 0


def _register_loop(name: str) -> None:
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.xgemm, packet), overload or "default")

    def rule(info: Any, in_dims: InDims, *args: Any, **options: Any) -> Batched:
        return _each(op, info, in_dims, args, options)

    torch.library.register_vmap(f"xgemm::{name}", rule)


def _register_refusal(name: str) -> None:
    def rule(info: Any, in_dims: InDims, *args: Any, **options: Any) -> Batched:
        raise NotImplementedError(
            f"{name}: torch.vmap does not go over an op that writes into a tensor, "
            f"call {name.replace('_into', '')}"
        )

    torch.library.register_vmap(f"xgemm::{name}", rule)


for _name in ("pack_w4", "unpack_w4", "dequantize_w4"):
    _register_loop(_name)
for _name in ("mul_into", "mul_into.w4a16", "sgemm_into"):
    _register_refusal(_name)
for _name in ("moe.w4a16", "moe_sort"):
    _register_loop(_name)
