"""A mixture of experts over 4-bit weights in three calls, none of which waits for the device.

So a CUDA graph can hold it. It has no gradient: experts_linear.py has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from xgemm.formats.packed import form_of_fp4
from xgemm.formats.packed_format import PackedFormat

Tensor = torch.Tensor

# What moe.w4a16 applies to its columns itself: half as many come out.
FUSED_GATES = ("silu_and_mul", "gelu_tanh_and_mul")
# Where the host may wait for the device, a product for each expert is taken instead if an expert
# has many rows, on average: it has the kernels for them. On a CPU from so many rows on.
MANY_ROWS = 64
# On CUDA from so many rows times elements of an expert's weights on. The host needs 50 us for each
# expert of that loop, and moe.w4a16 takes 13 fs for a row and an element by mma.sync: as much at
# 4e9. (H200; the loop was measured with Qwen3-30B's small experts alone, up to 32 rows.)
MANY_PRODUCTS = 4 * 10**9


@dataclass(frozen=True)
class Projection:
    """The packed weights [N, K] of the experts, qweight uint8 [E, rows, row_bytes].

    bias: [E, N], or None. perm: int32 [E, K] (act-order), or None.
    """

    form: PackedFormat
    qweight: Tensor
    bias: Tensor | None = None
    perm: Tensor | None = None

    def __call__(self, a: Tensor, order: Tensor, top_k: int, **more: Any) -> Tensor:
        """Every slot's row times its expert's weight. order: of `moe_sort`."""
        form = self.form
        return torch.ops.xgemm.moe.w4a16(
            a, self.qweight, order, top_k, form.n, form.k, form.group_size, self.bias, self.perm,
            bf16_scales=form.bf16_scales, zeros=form.zeros, **form_of_fp4(form.fp4), **more,
        )  # fmt: skip


def takes(x: Tensor, ids: Tensor, experts: int, weights: int) -> bool:
    """Whether the three calls are the way for these rows, and there is no better one.

    weights: elements of the weights of one expert, all projections.
    """
    if x.device.type not in ("cpu", "cuda"):
        return False
    if torch.compiler.is_compiling() or (x.is_cuda and torch.cuda.is_current_stream_capturing()):
        return True  # the other way reads on the host which experts are active
    if x.is_cuda:
        return ids.numel() * weights < MANY_PRODUCTS * experts
    return ids.numel() < MANY_ROWS * experts


def fused_gate(act: Any) -> str | None:
    """The name in FUSED_GATES of act(gate) * up, for a module that is an activation; or None."""
    kind = type(act).__name__
    if kind in ("SiLU", "SiLUActivation"):
        return "silu_and_mul"
    if kind == "GELUTanh" or (kind == "GELU" and getattr(act, "approximate", "") == "tanh"):
        return "gelu_tanh_and_mul"
    return None


def mixture(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    up: Projection,
    down: Projection,
    gate: str | Callable[[Tensor], Tensor],
    then: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """[T, H]: for every token the sum over its slots of weights[t, j] times expert ids[t, j] of it.

    x: [T, H]. ids: int [T, k]; one that is no expert's number counts as 0. weights: [T, k].
    gate: one of FUSED_GATES, or a function of the rows of `up`. then: of each slot's result.
    """
    tokens, k = ids.shape
    order = torch.ops.xgemm.moe_sort(ids, up.qweight.shape[0])
    fused = isinstance(gate, str)
    inner = up(x, order, k, activation=gate if fused else "none")
    inner = inner if isinstance(gate, str) else gate(inner)
    if then is None:
        return down(inner, order, k, weights=weights)
    y = then(down(inner, order, k)) * weights.reshape(-1, 1)
    return y.view(tokens, k, y.shape[1]).sum(dim=1).to(x.dtype)
