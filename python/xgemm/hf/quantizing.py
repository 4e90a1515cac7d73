"""A float checkpoint quantized as it loads: one float weight in memory at a time."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.core_model_loading import ConversionOps

from xgemm.formats.packed import PackedWeight, pack
from xgemm.hf.config import XgemmConfig
from xgemm.nn import QuantExperts, QuantLinear
from xgemm.nn.float_experts import expert_weights, experts_projections, pack_experts
from xgemm.nn.float_linear import is_conv1d
from xgemm.quantize.errors import experts_error, layer_error
from xgemm.quantize.plan import plan, refuse_nothing
from xgemm.quantize.report import QuantizationReport
from xgemm.quantize.weight import quantize_weight

logger = logging.getLogger("xgemm")


class Quantizing:
    """Which weights of a model on meta are to be quantized, and what was done.

    weights: name of a float parameter -> name of its module.
    """

    def __init__(self, model: PreTrainedModel, config: XgemmConfig) -> None:
        recipe = config.recipe()
        patterns = {name: recipe[name] for name in ("skip", "include", "lm_head")}
        chosen = plan(model, **patterns, tied=model.all_tied_weights_keys)
        if not chosen.chosen:
            refuse_nothing(model, chosen.left)
        self.weights = {
            f"{names[0]}.{leaf}": names[0]
            for module, names in chosen.chosen.items()
            for leaf in experts_projections(module) or ["weight"]
        }
        self.report = QuantizationReport(**recipe, left=chosen.left)
        self._options = config.weight_options()
        # The projections of experts that have come, until all of a module's have.
        self._experts: dict[str, dict[str, list[PackedWeight]]] = {}

    def quantize(
        self, model: PreTrainedModel, name: str, value: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Pack a weight, and put the packed module into the model when it has all of its weights.

        Gives the tensors that transformers is to place, by name: the module holds them on meta.
        """
        owner = self.weights[name]
        module: Any = model.get_submodule(owner)
        expected = model.get_parameter(name).shape
        if value.shape != expected:
            raise ValueError(
                f"{name} must be {list(expected)}, the checkpoint has {list(value.shape)}"
            )
        self.report.bytes_before += value.numel() * value.element_size()
        new: QuantLinear | QuantExperts
        projections = experts_projections(module)
        if projections is None:
            weight = value.t() if is_conv1d(module) else value
            quantized = quantize_weight(weight, **self._options)
            self.report.errors[owner] = layer_error(weight, quantized)
            packed = pack(quantized)
            self.report.bytes_after += packed.nbytes
            new = QuantLinear.from_packed(packed, module.bias, dtype=value.dtype)
            new.train(module.training)
        else:
            come = self._experts.setdefault(owner, {})
            packed_experts = pack_experts(module, value, **self._options)
            come[name.rpartition(".")[2]] = packed_experts
            error = experts_error(expert_weights(module, value), packed_experts)
            before = self.report.errors.get(owner)
            self.report.errors[owner] = error if before is None else before + error
            if come.keys() != projections.keys():
                return {}
            self._experts.pop(owner)
            self.report.bytes_after += sum(p.nbytes for packed in come.values() for p in packed)
            new = QuantExperts.from_packed(module, come)
            new.compute_dtype = value.dtype
            self.report.experts.append(owner)
        model.set_submodule(owner, new)
        self.report.quantized.append(owner)
        return _taken(owner, new)

    def finish(self, model: PreTrainedModel) -> QuantizationReport:
        """The report, when all weights are in their places."""
        if self._experts:
            names = ", ".join(sorted(self._experts))
            raise ValueError(f"from_pretrained: the checkpoint has only some weights of {names}")
        done = set(self.report.quantized)
        for name in self.weights.values():
            if name not in done:
                self.report.left[name] = "the checkpoint has no weight of it"
        self.report.count(model, ())
        if not done:
            refuse_nothing(model, self.report.left)
        logger.info("%s", self.report)
        self.report.warn(stacklevel=2)
        return self.report


def _taken(owner: str, module: nn.Module) -> dict[str, torch.Tensor]:
    """The packed weights of a module by their full names; what it holds itself is on meta then."""
    tensors = {}
    for name, parameter in list(module.named_parameters(recurse=False)):
        if name.endswith("qweight"):
            tensors[f"{owner}.{name}"] = parameter.data
            meta: Any = type(parameter)(parameter.data.to("meta"), requires_grad=False)
            module._parameters[name] = meta
    return tensors


class QuantizeWeights(ConversionOps):
    """The operation that transformers applies to each weight that is to be quantized."""

    def __init__(self, quantizing: Quantizing) -> None:
        self.quantizing = quantizing

    def convert(self, input_dict: dict[str, Any], **context: Any) -> dict[str, Any]:
        """{name: float tensor} to {name of a packed tensor: tensor}; others pass."""
        model, missing = context["model"], context["missing_keys"]
        result: dict[str, Any] = {}
        while input_dict:
            name, value = input_dict.popitem()
            value = value[0] if isinstance(value, list) else value
            if name in self.quantizing.weights:
                result.update(self.quantizing.quantize(model, name, value))
                missing.discard(name)
            else:
                result[name] = value
        return result
