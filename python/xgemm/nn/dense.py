"""Linear: an nn.Linear whose product is `torch.ops.xgemm.mul`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.compiler import is_dynamo_compiling

from xgemm.activations import ACTIVATIONS, activate
from xgemm.quoting import shown

__all__ = ["MUL_DTYPES", "Linear", "dense", "takes"]

# The overload for Dynamo, the callable within it otherwise: see ops.py.
_mul_traced = torch.ops.xgemm.mul.default
_mul_direct = _mul_traced._op

MUL_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_DEVICES = ("cpu", "cuda", "meta")
# Not a DTensor, a nested or a quantized tensor, for which torch has a rule of its own.
_CLASSES = (torch.Tensor, nn.Parameter, FakeTensor, FunctionalTensor)


class Linear(nn.Linear):
    """y = activation(x W^T + bias), by `torch.ops.xgemm.mul`, bias and activation in its epilogue.

    x: [..., in_features], fp16, bf16 or fp32; y: [..., out_features] of the same dtype.

    Parameters, state dict, gradients and whatever else is asked of the layer are an nn.Linear's.
    Tensors that `mul` does not take (float64, complex, mixed dtypes as under autocast, DTensor,
    nested and sparse ones, other devices than CPU and CUDA) go through F.linear: the layer works
    where nn.Linear does. fp32 products are `ieee`, whatever torch.backends allows its own.

    activation: none, relu, gelu (erf), gelu_tanh or silu.
    """

    activation = "none"  # of the class: a swapped layer has the attributes that it had

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str = "none",
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"Linear: activation must be one of {ACTIVATIONS}, got {shown(activation)}"
            )
        if activation != "none":
            self.activation = activation

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        parameters = self._parameters
        weight: Any
        try:
            weight, bias = parameters["weight"], parameters["bias"]
        except KeyError:  # pruned, parametrized, or a replica of DataParallel
            weight, bias = self.weight, self.bias
        if not takes(input, weight, bias):
            return activate(F.linear(input, weight, bias), self.activation)
        return dense(input, weight.t(), bias, self.activation)

    def __prepare_scriptable__(self) -> nn.Module:
        """What torch.jit.script compiles in this layer's place: the nn.Linear."""
        if self.activation != "none":
            raise RuntimeError(
                f"Linear: a layer with activation {self.activation!r} cannot be scripted: use "
                f"torch.jit.trace or torch.compile"
            )
        linear = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        linear.weight, linear.bias = self.weight, self.bias
        return linear.train(self.training)

    def extra_repr(self) -> str:
        text = super().extra_repr()
        return text if self.activation == "none" else f"{text}, activation={self.activation!r}"


def dense(
    input: torch.Tensor, columns: torch.Tensor, bias: torch.Tensor | None, activation: str = "none"
) -> torch.Tensor:
    """activation(input @ columns + bias) by `mul`. A default that is passed costs time."""
    mul = _mul_traced if is_dynamo_compiling() else _mul_direct
    if activation != "none":
        return mul(input, columns, bias, activation=activation)
    return mul(input, columns) if bias is None else mul(input, columns, bias)


def takes(input: Any, weight: Any, bias: Any) -> bool:
    """Whether `mul` takes the tensors of a linear layer."""
    if type(input) not in _CLASSES or type(weight) not in _CLASSES:
        return False
    dtype = input.dtype
    return (
        dtype in MUL_DTYPES
        and weight.dtype == dtype
        and (bias is None or bias.dtype == dtype)
        and input.device.type in _DEVICES
        and input.layout == weight.layout == torch.strided
        and not input.is_nested
        and input.dim() > 0
    )
