"""The linear layer of several experts over rows sorted by expert, opaque to compilers.

Ops of the namespace `xgemm_experts`, which is not public: a loop over the active experts, each a
call of `mul_into.w4a16` or, of MXFP4, a product with the dequantized weight. Which experts are
active is in the data: `expert_bounds` brings it to the host, once for all projections, and cannot
be captured in a CUDA graph.
"""

from __future__ import annotations

import torch

from xgemm.formats.packed import Layout, form_of_fp4
from xgemm.formats.packed_format import PackedFormat

__all__ = ["expert_bounds", "experts_linear"]

Tensor = torch.Tensor

_mul = torch.ops.xgemm.mul.default
_mul_into = torch.ops.xgemm.mul_into.w4a16
_dequantize = torch.ops.xgemm.dequantize_w4.default
_grad_a = torch.ops.xgemm.w4a16_grad_a.default
FLOATS = (torch.float32, torch.float16, torch.bfloat16)

_library = torch.library.Library("xgemm_experts", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.cudagraph_unsafe)
_library.define("bounds(Tensor ids, int experts) -> Tensor", tags=_TAGS)
_library.define(
    "linear(Tensor a, Tensor qweight, Tensor bounds, Tensor? bias, Tensor? perm, int n, int k, "
    "int group_size, *, bool bf16_scales=False, bool zeros=False, bool fp4=False) -> Tensor",
    tags=_TAGS,
)
_library.define(
    "linear_grad_a(Tensor grad, Tensor qweight, Tensor bounds, Tensor? perm, int n, int k, "
    "int group_size, *, bool bf16_scales=False, bool zeros=False, bool fp4=False) -> Tensor",
    tags=_TAGS,
)
_bounds = torch.ops.xgemm_experts.bounds.default
_linear = torch.ops.xgemm_experts.linear.default
_linear_grad_a = torch.ops.xgemm_experts.linear_grad_a.default


def expert_bounds(ids: Tensor, experts: int) -> Tensor:
    """Where the rows of each expert begin among rows sorted by their expert, on the CPU.

    ids: int [S], sorted: the expert of each row; `experts` or more stands for none.

    Returns int64 [experts + 1]: expert e has the rows bounds[e] to bounds[e + 1].
    """
    return _bounds(ids, experts)


def experts_linear(
    a: Tensor,
    qweight: Tensor,
    bounds: Tensor,
    bias: Tensor | None,
    perm: Tensor | None,
    form: PackedFormat,
) -> Tensor:
    """a[rows of expert e] W_e^T + bias_e for every expert e; the gradient is in a and bias.

    a: [S, K] fp16, bf16 or fp32, rows sorted by expert.
    qweight: uint8 [E, rows, row_bytes], each expert's packed weight [N, K].
    bounds: int64 [E + 1] of `expert_bounds`. The result is 0 in the rows from bounds[E] on.
    bias: [E, N] of a's dtype, or None. perm: int32 [E, K] (act-order), or None.

    Returns [S, N] of a's dtype. The rows of an expert are one product: what another expert gets
    changes no bit of it.
    """
    return _linear(
        a, qweight, bounds, bias, perm, form.n, form.k, form.group_size,
        bf16_scales=form.bf16_scales, zeros=form.zeros, **form_of_fp4(form.fp4),
    )  # fmt: skip


def _check(
    op: str, a: Tensor, channels: int, qweight: Tensor, bounds: Tensor, n: int, k: int,
    group_size: int, zeros: bool,
) -> None:  # fmt: skip
    if a.dim() != 2 or a.dtype not in FLOATS:
        raise ValueError(
            f"{op}: the activations must be fp16, bf16 or fp32 [rows, channels], "
            f"got {a.dtype} {list(a.shape)}"
        )
    torch._check_value(
        a.shape[1] == channels,
        lambda: f"{op}: the activations must have {channels} channels, got {a.shape[1]}",
    )
    layout = Layout(n, k, group_size, zeros)
    shape = (bounds.shape[0] - 1, layout.rows, layout.row_bytes)
    if tuple(qweight.shape) != shape or qweight.dtype != torch.uint8:
        raise ValueError(
            f"{op}: qweight must be uint8 {list(shape)}, got {qweight.dtype} {list(qweight.shape)}"
        )


def _slices(bounds: Tensor) -> list[tuple[int, int, int]]:
    """(expert, first row, row past the last) of each expert that has rows."""
    ends = bounds.tolist()
    return [(e, ends[e], ends[e + 1]) for e in range(len(ends) - 1) if ends[e] < ends[e + 1]]


def _dequantized(
    qweight: Tensor, n: int, k: int, group_size: int, dtype: torch.dtype, form: dict[str, bool]
) -> Tensor:
    """An expert's MXFP4 weight [N, K], which the kernels of linear layers do not take."""
    name = str(dtype).removeprefix("torch.")
    return _dequantize(qweight, n, k, group_size, dtype=name, **form)


@torch.library.impl(_library, "bounds", "CompositeExplicitAutograd")
def _bounds_kernel(ids: Tensor, experts: int) -> Tensor:
    if ids.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "QuantExperts: with a gradient, or without top_k_index, which experts are active is "
            "read from the GPU: it cannot be captured in a CUDA graph"
        )
    edges = torch.arange(experts + 1, device=ids.device, dtype=ids.dtype)
    return torch.searchsorted(ids, edges).to("cpu")


@torch.library.register_fake("xgemm_experts::bounds")
def _bounds_fake(ids: Tensor, experts: int) -> Tensor:
    return torch.empty(experts + 1, dtype=torch.int64)


@torch.library.impl(_library, "linear", "CompositeExplicitAutograd")
def _linear_kernel(
    a: Tensor, qweight: Tensor, bounds: Tensor, bias: Tensor | None, perm: Tensor | None,
    n: int, k: int, group_size: int, **form: bool,
) -> Tensor:  # fmt: skip
    op = "QuantExperts"
    _check(op, a, k, qweight, bounds, n, k, group_size, form.get("zeros", False))
    y = a.new_empty(a.shape[0], n)
    end = 0
    for e, start, end in _slices(bounds):
        if form.get("fp4"):
            x = a[start:end] if perm is None else a[start:end].index_select(1, perm[e])
            w = _dequantized(qweight[e], n, k, group_size, a.dtype, form)
            y[start:end] = _mul(x, w.t(), None if bias is None else bias[e])
            continue
        _mul_into(
            y[start:end], a[start:end], qweight[e], n, k, group_size,
            None if bias is None else bias[e], None if perm is None else perm[e], **form,
        )  # fmt: skip
    y[end:].zero_()
    return y


@torch.library.impl(_library, "linear_grad_a", "CompositeExplicitAutograd")
def _linear_grad_a_kernel(
    grad: Tensor, qweight: Tensor, bounds: Tensor, perm: Tensor | None,
    n: int, k: int, group_size: int, **form: bool,
) -> Tensor:  # fmt: skip
    op = "QuantExperts: gradient"
    _check(op, grad, n, qweight, bounds, n, k, group_size, form.get("zeros", False))
    grad = grad.contiguous()
    grad_a = grad.new_empty(grad.shape[0], k)
    end = 0
    for e, start, end in _slices(bounds):
        if form.get("fp4"):
            own = _mul(
                grad[start:end], _dequantized(qweight[e], n, k, group_size, grad.dtype, form)
            )
            if perm is not None:
                own = torch.empty_like(own).index_copy_(1, perm[e].long(), own)
            grad_a[start:end] = own
            continue
        grad_a[start:end] = _grad_a(
            grad[start:end], qweight[e], n, k, group_size, None if perm is None else perm[e], **form
        )
    grad_a[end:].zero_()
    return grad_a


@torch.library.register_fake("xgemm_experts::linear")
def _linear_fake(
    a: Tensor, qweight: Tensor, bounds: Tensor, bias: Tensor | None, perm: Tensor | None,
    n: int, k: int, group_size: int, **form: bool,
) -> Tensor:  # fmt: skip
    _check("QuantExperts", a, k, qweight, bounds, n, k, group_size, form.get("zeros", False))
    return a.new_empty(a.shape[0], n)


@torch.library.register_fake("xgemm_experts::linear_grad_a")
def _linear_grad_a_fake(
    grad: Tensor, qweight: Tensor, bounds: Tensor, perm: Tensor | None,
    n: int, k: int, group_size: int, **form: bool,
) -> Tensor:  # fmt: skip
    return grad.new_empty(grad.shape[0], k)


# Registers the derivatives of the ops above.
from xgemm.nn import experts_autograd  # noqa: E402, F401
