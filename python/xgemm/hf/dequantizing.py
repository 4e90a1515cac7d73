"""model.dequantize(): float layers in the place of the packed ones."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from xgemm.nn import QuantExperts, QuantLinear
from xgemm.nn.float_linear import is_conv1d, linear_shape


def dequantize_modules(model: PreTrainedModel, dtype: torch.dtype | None) -> None:
    """Put float layers, of `dtype` (None: as each was), in the place of the packed ones.

    They are of the classes that the model's own class makes them of (GPT-2's Conv1D, Falcon's
    linear layer), so that what is saved of the model is a checkpoint like any other.
    """
    names: dict[QuantLinear | QuantExperts, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, QuantLinear | QuantExperts):
            names.setdefault(module, []).append(name)
            if any(parameter.is_meta for parameter in module.parameters(recurse=False)):
                raise ValueError(
                    f"dequantize: {name} is offloaded: load the model without offloading "
                    "(device_map)"
                )
    skeleton = dict(_skeleton(model).named_modules(remove_duplicate=False))
    for module, where in names.items():
        if isinstance(module, QuantExperts):
            new = module.to_experts()
        else:
            new = _linear(module, skeleton.get(where[0]))
        new = new.to(dtype=dtype).train(module.training)
        hook = getattr(module, "_hf_hook", None)
        if hook is not None:
            from accelerate.hooks import add_hook_to_module

            add_hook_to_module(new, hook)
        for name in where:
            model.set_submodule(name, new)


def _skeleton(model: PreTrainedModel) -> nn.Module:
    """A float model of the same class and config, on the meta device."""
    config = copy.deepcopy(model.config)
    config.__dict__.pop("quantization_config", None)
    with torch.device("meta"):
        return type(model)(config)


def _linear(layer: QuantLinear, own: Any) -> nn.Module:
    """The float layer, in the class of `own`, that of the skeleton, if this is a linear layer."""
    linear = layer.to_linear()
    if own is None or linear_shape(own) != (layer.out_features, layer.in_features):
        return linear  # a layer that has been resized, or that was added
    weight: torch.Tensor = linear.weight.detach()
    own.weight = nn.Parameter(weight.t().contiguous() if is_conv1d(own) else weight)
    own.bias = linear.bias
    return own
