"""A float checkpoint quantized as it loads: one weight in memory at a time."""

from __future__ import annotations

import logging
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.core_model_loading import ConversionOps
from transformers.pytorch_utils import Conv1D

from xgemm.formats.packed import pack
from xgemm.hf.config import XgemmConfig
from xgemm.nn import QuantLinear
from xgemm.nn.experts import experts_projections
from xgemm.quantize.plan import plan
from xgemm.quantize.report import QuantizationReport
from xgemm.quantize.weight import quantize_weight

logger = logging.getLogger("xgemm")


class Quantizing:
    """Which weights of a model on meta are to be quantized, and what was done."""

    def __init__(self, model: PreTrainedModel, config: XgemmConfig) -> None:
        self.config = config
        self.report, self.weights = _plan(model, config)

    def quantize(
        self, model: PreTrainedModel, name: str, value: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Put the packed layer into the model; gives the tensor that transformers is to place."""
        owner = self.weights[name]
        linear = model.get_submodule(owner)
        weight: Any = linear.weight
        if value.shape != weight.shape:
            raise ValueError(
                f"{name} must be {list(weight.shape)}, the checkpoint has {list(value.shape)}"
            )
        if isinstance(linear, Conv1D):
            value = value.t()
        packed = pack(quantize_weight(value, **self.config.weight_options()))
        layer = QuantLinear.from_packed(packed, linear.bias, dtype=value.dtype)
        model.set_submodule(owner, layer.train(linear.training))
        self.report.quantized.append(owner)
        self.report.bytes_before += value.numel() * value.element_size()
        self.report.bytes_after += packed.nbytes
        return {f"{owner}.qweight": layer.qweight}

    def finish(self, model: PreTrainedModel) -> QuantizationReport:
        """The report, when all weights are in their places."""
        done = set(self.report.quantized)
        for name in self.weights.values():
            if name not in done:
                self.report.left[name] = "the checkpoint has no weight of it"
        if not done:
            raise ValueError(
                f"from_pretrained: no layer of {type(model).__name__} was quantized\n{self.report}"
            )
        logger.info("%s", self.report)
        return self.report


def _plan(model: PreTrainedModel, config: XgemmConfig) -> tuple[QuantizationReport, dict[str, str]]:
    """The report so far, and parameter -> module of what is to be quantized."""
    chosen = plan(
        model, config.skip, config.include, bool(config.lm_head), model.all_tied_weights_keys
    )
    report = QuantizationReport(
        config.method or "", config.group_size or -1, bool(config.symmetric), left=chosen.left
    )
    weights = {}
    for layer, names in chosen.chosen.items():
        if experts_projections(layer) is None:
            weights[f"{names[0]}.weight"] = names[0]
        else:
            reason = "experts stay float while a model is loaded: use xgemm.quantize"
            report.left.update(dict.fromkeys(names, reason))
    return report, weights


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
