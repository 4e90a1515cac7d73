"""Fake kernels of the ops for a mixture of experts, as those of fake.py."""

from __future__ import annotations

import torch

from .activations import ACTIVATIONS
from .fake import (
    _FLOATS,
    Size,
    Tensor,
    _check_device,
    _check_dtype,
    _check_fp4,
    _check_layout,
    _check_like,
    _check_name,
    _check_shape,
    _packed_shape,
    _require,
    _shape,
)
from .onnx_guard import refuse_onnx_export

ACTIVATIONS_AND_GATES = (*ACTIVATIONS, "silu_and_mul", "gelu_tanh_and_mul")
_MAX_EXPERTS = 1 << 20  # of moe_sort


@torch.library.register_fake("xgemm::moe_sort")
def _moe_sort(ids: Tensor, experts: int) -> Tensor:
    op = "moe_sort"
    _check_dtype(op, "ids", ids, (torch.int32, torch.int64))
    if ids.dim() != 2:
        raise ValueError(f"{op}: ids must have the shape [T, k], got {_shape(ids)}")
    _require(
        1 <= experts <= _MAX_EXPERTS,
        f"{op}: experts must be in [1, {_MAX_EXPERTS}], got {experts}",
    )
    return ids.new_empty([experts + 1 + ids.shape[0] * ids.shape[1]], dtype=torch.int32)


@torch.library.register_fake("xgemm::moe.w4a16")
def _moe_w4a16(
    a: Tensor,
    qweight: Tensor,
    sorted: Tensor,
    top_k: int,
    n: Size,
    k: Size,
    group_size: int,
    bias: Tensor | None = None,
    perm: Tensor | None = None,
    weights: Tensor | None = None,
    *,
    bf16_scales: bool = False,
    zeros: bool = False,
    activation: str = "none",
    fp4: bool = False,
) -> Tensor:
    refuse_onnx_export("moe.w4a16")
    op = "moe.w4a16"
    from torch.fx.experimental.symbolic_shapes import sym_or  # as in _broadcast

    _check_dtype(op, "a", a, _FLOATS)
    _check_name(op, "activation", activation, ACTIVATIONS_AND_GATES)
    layout = _check_layout(op, n, k, group_size, zeros)
    _check_fp4(op, fp4, group_size, bf16_scales, zeros)
    _require(top_k >= 1, f"{op}: top_k must be in [1, 2147483647], got {top_k}")
    gated = activation.endswith("_and_mul")
    if gated:
        _require(n % 2 == 0, f"{op}: n must be even, a gate and what it multiplies, got {n}")
    message = f"{op}: a must have the shape [rows, k={k}], got {_shape(a)}"
    if a.dim() != 2:
        raise ValueError(message)
    _require(a.shape[1] == k, message)

    _check_dtype(op, "qweight", qweight, (torch.uint8,))
    rows, row_bytes = _packed_shape(layout, n, k)
    message = (
        f"{op}: qweight must have the shape [experts, {rows}, {row_bytes}] for n={n}, k={k},"
        f" group_size={group_size}, bf16_scales={str(bf16_scales).lower()},"
        f" zeros={str(zeros).lower()}, got {_shape(qweight)}"
    )
    if qweight.dim() != 3:
        raise ValueError(message)
    for size, wanted in zip(qweight.shape[1:], (rows, row_bytes), strict=True):
        _require(size == wanted, message)
    _require(qweight.shape[0] >= 1, message)
    _check_device(op, "qweight", qweight, "a", a)
    experts = qweight.shape[0]

    _check_dtype(op, "sorted", sorted, (torch.int32,))
    _check_device(op, "sorted", sorted, "a", a)
    message = (
        f"{op}: sorted must be moe_sort's result for {experts} experts and a multiple of"
        f" top_k={top_k} slots, got {_shape(sorted)}"
    )
    if sorted.dim() != 1:
        raise ValueError(message)
    slots = sorted.shape[0] - experts - 1
    _require(slots >= 0, message)
    _require(slots % top_k == 0, message)
    _require(
        sym_or(a.shape[0] == slots, a.shape[0] * top_k == slots),
        f"{op}: a must have a row for each of {slots // top_k} tokens or of {slots} slots,"
        f" got {_shape(a)}",
    )
    if bias is not None:
        _check_like(op, "bias", bias, "a", a)
        _check_shape(op, "bias", bias, [experts, n])
    if perm is not None:
        _check_dtype(op, "perm", perm, (torch.int32,))
        _check_device(op, "perm", perm, "a", a)
        _check_shape(op, "perm", perm, [experts, k])
    if weights is not None:
        _check_dtype(op, "weights", weights, _FLOATS)
        _check_device(op, "weights", weights, "a", a)
        _check_shape(op, "weights", weights, [slots // top_k, top_k])
    rows = slots if weights is None else weights.shape[0]
    return a.new_empty([rows, n // 2 if gated else n])
