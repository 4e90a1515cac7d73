"""The activations that the ops can fuse, as torch computes them."""

from __future__ import annotations

import torch

from .quoting import shown

ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")


def activate(x: torch.Tensor, activation: str) -> torch.Tensor:
    """`activation` of x, in x's dtype and differentiable: none, relu, gelu, gelu_tanh or silu."""
    if activation == "none":
        return x
    if activation == "relu":
        return torch.relu(x)
    if activation == "gelu":
        return torch.nn.functional.gelu(x)
    if activation == "gelu_tanh":
        return torch.nn.functional.gelu(x, approximate="tanh")
    if activation == "silu":
        return torch.nn.functional.silu(x)
    raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {shown(activation)}")
