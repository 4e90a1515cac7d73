"""Layers for `kernels.kernelize`: each lends its `forward` to a module that has its attributes."""

import torch
from torch import nn

__all__ = ["Linear", "QuantLinear"]


class Linear(nn.Module):
    """For torch.nn.Linear: input [..., in_features], fp16, bf16 or fp32.

    Takes weight [out_features, in_features] and bias [out_features] or None of the same dtype.
    """

    can_torch_compile = True
    has_backward = True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return torch.ops.xgemm.mul.default(input, self.weight.t(), self.bias)


class QuantLinear(nn.Module):
    """For a module that holds a packed 4-bit weight, as xgemm.nn.QuantLinear does.

    Takes qweight, bias, perm (None: no act-order), in_features, out_features, group_size,
    bf16_scales and has_zeros; docs/design/packed-layout.md says what they are. input:
    [..., in_features], fp16, bf16 or fp32. The gradient is that of the input and of the bias.
    """

    can_torch_compile = True
    has_backward = True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return torch.ops.xgemm.mul.w4a16(
            input,
            self.qweight,
            self.out_features,
            self.in_features,
            self.group_size,
            self.bias,
            self.perm,
            bf16_scales=self.bf16_scales,
            zeros=self.has_zeros,
        )
