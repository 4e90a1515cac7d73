"""Tensors that accelerate has offloaded: what the model holds on meta, its hooks hold elsewhere."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def offloaded_tensor(model: nn.Module, name: str) -> torch.Tensor | None:
    """The tensor `name` from the map of the hook that brings it; None where there is no such hook.

    The hook is that of the tensor's module, or of a module around it (place_submodules).
    """
    parts = name.split(".")
    for depth in range(len(parts) - 1, -1, -1):
        module = model.get_submodule(".".join(parts[:depth]))
        hook: Any = getattr(module, "_hf_hook", None)
        if not getattr(hook, "offload", False) or hook.weights_map is None:
            continue
        try:
            found: torch.Tensor = hook.weights_map[".".join(parts[depth:])]
        except KeyError:
            continue
        return found
    return None
