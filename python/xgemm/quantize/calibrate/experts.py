"""Inputs of experts that a module holds as 3-D parameters: the tokens that each of them gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from xgemm.nn.float_experts import expert_weights, experts_projections


def expert_rows(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    mask_of_rows: Callable[[int], torch.Tensor | None],
) -> Iterator[tuple[int, torch.Tensor]]:
    """(expert, the rows [rows, H] that it gets) of a call of `module`.

    mask_of_rows: gives the mask of so many tokens.
    """
    names = ("hidden_states", "top_k_index")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    hidden, index = given["hidden_states"], given.get("top_k_index")
    experts: Any = module.num_experts
    if index is None:
        # Llama 4's form: rows for every expert, those of tokens that others have are 0.
        of_experts = hidden.reshape(experts, -1, hidden.shape[-1])
        mask = mask_of_rows(of_experts.shape[1])
        for expert, rows in enumerate(of_experts):
            routed = (rows != 0).any(dim=1)
            yield expert, rows[routed if mask is None else routed & mask.to(rows.device)]
        return
    hidden = hidden.reshape(-1, hidden.shape[-1])
    mask = mask_of_rows(hidden.shape[0])
    counts = None if mask is None else mask.to(index.device)
    for expert in range(experts):
        routed = (index == expert).any(dim=1)
        yield expert, hidden[routed if counts is None else routed & counts]


def middle(module: Any, expert: int, x: torch.Tensor) -> torch.Tensor:
    """What the down projection of an expert reads, where its first projection reads `x`."""
    name = next(iter(experts_projections(module) or {}))
    weight = expert_weights(module, module._parameters[name])[expert]
    bias = module._parameters.get(f"{name}_bias")
    up = nn.functional.linear(x, weight, None if bias is None else bias[expert])
    if name == "up_proj":
        return module.act_fn(up)
    own: Callable[..., torch.Tensor] | None = getattr(module, "_apply_gate", None)
    if own is not None:
        return own(up)
    gate, up = up.chunk(2, dim=-1)
    return module.act_fn(gate) * up
