"""Emulated `moe_sort` and `moe.w4a16`, of torch's CPU tensors."""

from __future__ import annotations

import random
from typing import Any

import torch
from moe import Mixture

from .library import DTYPES, Machine, Memory, library

ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu", "silu_and_mul", "gelu_tanh_and_mul")


def drawn_options(draw: random.Random, dtype: torch.dtype) -> dict[str, Any]:
    """What a mixture may have beside its sizes and its format."""
    return {
        "bias": draw.random() < 0.5,
        "act_order": draw.random() < 0.3,
        "rows": draw.choice(("tokens", "slots")),
        "activation": draw.choice(ACTIVATIONS),
        "weights": draw.choice((None, dtype, torch.float32)),
        "strangers": draw.random() < 0.5,
    }


def sort(ids: torch.Tensor, experts: int, machine: Machine) -> torch.Tensor:
    memory = Memory()
    kept, sorted = memory.copy(ids), memory.empty((experts + 1 + ids.numel(),), torch.int32)
    machine.use()
    wide = ids.dtype == torch.int64
    library().sort_moe(
        kept.data_ptr(), wide, ids.numel(), experts, sorted.data_ptr(), machine.capability
    )
    return sorted.clone()


def run(
    m: Mixture,
    machine: Machine,
    sorted: torch.Tensor | None = None,
    block_m: int = 0,
    stages: int = 0,
    wgmma: bool = False,
) -> torch.Tensor:
    """What the op computes on CUDA; other rows of a tile, or stages, than the plan's.

    By mma.sync, or by wgmma.
    """
    memory = Memory()
    experts, (tokens, top_k) = len(m.packed), m.ids.shape
    sorted = sort(m.ids, experts, machine) if sorted is None else sorted
    a, *rest = m.args(sorted)
    qweight, sorted, _, n, k, group_size, bias, perm, weights = rest

    def address(tensor: torch.Tensor | None) -> int:
        return 0 if tensor is None else kept(tensor).data_ptr()

    def kept(tensor: torch.Tensor) -> torch.Tensor:
        return memory.copy(tensor)

    columns = n // 2 if m.activation.endswith("_and_mul") else n
    y = memory.empty((tokens * top_k, columns), a.dtype)
    x = kept(a)
    problem = library().MoeProblem(
        experts=experts,
        slots=tokens * top_k,
        layout=(n, k, group_size),
        zeros=m.options()["zeros"],
        bf16_scales=m.options()["bf16_scales"],
        dtype=DTYPES[a.dtype],
        weight=address(qweight),
        x=(x.data_ptr(), x.stride(0)),
        row_divisor=top_k if a.shape[0] == tokens else 1,
        sorted=address(sorted),
        bias=address(bias),
        perm=address(perm),
        activation=ACTIVATIONS.index(m.activation),
        y=y.data_ptr(),
        fp4=m.options()["fp4"],
    )
    machine.use()
    library().launch_moe(problem, machine.capability, block_m, stages, wgmma)
    if weights is None:
        return y.clone()
    result = memory.empty((tokens, columns), a.dtype)
    library().combine_moe(
        tokens, top_k, columns, DTYPES[a.dtype], y.data_ptr(), address(weights),
        DTYPES[weights.dtype], result.data_ptr(), machine.capability,
    )  # fmt: skip
    return result.clone()
