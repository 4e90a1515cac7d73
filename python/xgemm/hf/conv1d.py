"""Conv1D: transformers' linear layer of GPT-2, by `torch.ops.xgemm.mul`."""

from __future__ import annotations

import torch
from transformers import pytorch_utils

from xgemm.nn.dense import dense, takes

__all__ = ["Conv1D"]


class Conv1D(pytorch_utils.Conv1D):
    """y = x W + bias with W [nx, nf]: what `xgemm.swap` makes of transformers' Conv1D.

    Tensors that `mul` does not take go through the layer's own forward.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.weight, self.bias
        return dense(x, weight, bias) if takes(x, weight, bias) else super().forward(x)
