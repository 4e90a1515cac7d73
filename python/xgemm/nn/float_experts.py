"""Modules whose 3-D parameters are the float weights of experts: their form, and their weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from xgemm.formats.packed import PackedWeight, pack

# Classes that take rows of every expert, and no routing: (module, name).
_SORTED_INPUT = (("transformers.models.llama4.modeling_llama4", "Llama4TextExperts"),)


def experts_projections(module: nn.Module) -> dict[str, tuple[int, int]] | None:
    """{name: (N, K)} of the 3-D weights of a module of experts; None for any other module.

    A module of experts has `num_experts`, parameters `gate_up_proj` (or `up_proj`) and `down_proj`
    [E, N, K], or [E, K, N] where `is_transposed`, and says how it computes by the attributes that
    transformers' `use_experts_implementation` sets: has_gate, has_bias, is_transposed. Llama 4's
    experts, which say nothing, are known by their class.
    """
    parameters = module._parameters
    up_name = "gate_up_proj" if "gate_up_proj" in parameters else "up_proj"
    up, down = parameters.get(up_name), parameters.get("down_proj")
    if up is None or down is None or up.dim() != 3 or down.dim() != 3:
        return None
    if not (up.is_floating_point() and down.is_floating_point()):
        return None
    count = getattr(module, "num_experts", None)
    transposed = is_transposed(module)
    if transposed is None or count != up.shape[0] or count != down.shape[0]:
        return None
    shapes = {}
    for name, weight in ((up_name, up), ("down_proj", down)):
        _, n, k = weight.shape
        shapes[name] = (k, n) if transposed else (n, k)
    gates = 2 if up_name == "gate_up_proj" else 1
    if shapes[up_name][0] != gates * shapes["down_proj"][1]:
        return None
    return shapes


def is_transposed(module: nn.Module) -> bool | None:
    """Whether weights are [E, K, N]; None where the module does not say how it computes."""
    if (type(module).__module__, type(module).__name__) in _SORTED_INPUT:
        return True
    flags = [getattr(module, name, None) for name in ("has_gate", "has_bias", "is_transposed")]
    if not all(isinstance(flag, bool) for flag in flags):
        return None
    has_gate, has_bias, transposed = flags
    biases = {"down_proj_bias"} & module._parameters.keys()
    if has_gate != ("gate_up_proj" in module._parameters) or has_bias != bool(biases):
        return None
    return transposed


def expert_weights(module: nn.Module, weights: torch.Tensor) -> list[torch.Tensor]:
    """Each expert's weight [N, K] of `weights`, 3-D as a parameter of `module` holds them."""
    transposed = is_transposed(module)
    return [w.mT if transposed else w for w in weights.detach()]


def pack_experts(
    module: nn.Module, weights: torch.Tensor, method: str = "rtn", **options: Any
) -> list[PackedWeight]:
    """Each expert's weight of `weights`, 3-D as a parameter of `module` holds them, quantized.

    Scales are fp16, or bf16 for all experts where one of them needs it.
    """
    from xgemm.quantize.weight import quantize_weight  # its package imports this module

    floats = expert_weights(module, weights)
    packed = [pack(quantize_weight(w, method, **options)) for w in floats]
    if len({p.bf16_scales for p in packed}) > 1:
        wide = {**options, "scale_dtype": torch.bfloat16}
        for e, w in enumerate(floats):
            if not packed[e].bf16_scales:
                packed[e] = pack(quantize_weight(w, method, **wide))
    return packed
