"""Float layers that a QuantLinear can stand for: which they are, and their weight as [N, K]."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from xgemm.nn.dense import Linear

__all__ = ["float_weight", "is_conv1d", "is_plain", "linear_shape"]

# Subclasses of nn.Linear whose forward is x W^T + b, by module and name.
_PLAIN = {
    ("transformers.models.falcon.modeling_falcon", "FalconLinear"),
    ("transformers.models.esm.modeling_esmfold", "EsmFoldLinear"),
}


def is_conv1d(module: nn.Module) -> bool:
    """Whether it is GPT-2's linear layer, transformers' Conv1D, with its weight as [K, N]."""
    transformers = sys.modules.get("transformers.pytorch_utils")
    return transformers is not None and isinstance(module, transformers.Conv1D)


def is_plain(module: nn.Module) -> bool:
    """Whether it computes x W^T + b from float parameters and does nothing else."""
    cls = type(module)
    if is_conv1d(module):
        return cls.__name__ == "Conv1D"
    if cls is Linear:  # of xgemm.swap
        return module.activation == "none"
    return cls is nn.Linear or (cls.__module__, cls.__name__) in _PLAIN


def linear_shape(module: nn.Module) -> tuple[int, int] | None:
    """(out_features, in_features) of a linear layer, float or packed; None for another module."""
    if isinstance(module, nn.Linear):
        return module.out_features, module.in_features
    if is_conv1d(module):
        layer: Any = module
        return layer.nf, layer.nx
    return None


def float_weight(module: nn.Module) -> torch.Tensor:
    """The weight [N, K] of a float linear layer: for Conv1D a transposed view."""
    weight: Any = module.weight
    return weight.t() if is_conv1d(module) else weight
