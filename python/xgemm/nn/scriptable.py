"""QuantLinear as TorchScript can compile it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from xgemm.nn.linear import QuantLinear


class ScriptableQuantLinear(nn.Module):
    """What torch.jit.script compiles in place of `layer`: the same tensors, forward only."""

    def __init__(self, layer: QuantLinear) -> None:
        super().__init__()
        self.out_features: int = layer.out_features
        self.in_features: int = layer.in_features
        self.group_size: int = layer.group_size
        self.bf16_scales: bool = layer.bf16_scales
        self.has_zeros: bool = layer.has_zeros
        self.activation: str = layer.activation
        self.qweight = nn.Parameter(layer.qweight.data, requires_grad=False)
        self.bias = layer.bias
        self.register_buffer("perm", layer.perm)
        self.register_buffer("packed_format", layer.packed_format)
        self.train(layer.training)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        # The packet: TorchScript chooses the overload when it compiles.
        return torch.ops.xgemm.mul(
            input,
            self.qweight,
            self.out_features,
            self.in_features,
            self.group_size,
            self.bias,
            self.perm,
            bf16_scales=self.bf16_scales,
            zeros=self.has_zeros,
            activation=self.activation,
        )
