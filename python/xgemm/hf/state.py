"""What transformers is told of a quantized model, and what it saves of it."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import PreTrainedModel, core_model_loading
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming

from xgemm.formats.describe import describe_modules
from xgemm.formats.guard import guards
from xgemm.formats.manifest import RECIPE
from xgemm.hf.config import XgemmConfig
from xgemm.nn import QuantExperts, QuantLinear

# Stands in the names of guards until transformers has converted a state to the names and the parts
# of the original checkpoint: it would take the guard of an experts' weight for that weight.
_MARK = "xgemm_guard."
_PrefixChange: Any = getattr(core_model_loading, "PrefixChange", ())  # newer than 5.0


def has_quantized_modules(model: nn.Module) -> bool:
    return any(isinstance(module, QuantLinear | QuantExperts) for module in model.modules())


def describe(model: nn.Module, recipe: XgemmConfig) -> XgemmConfig:
    """The config of `model` as it is: `recipe`, and its quantized modules of now."""
    described = describe_modules(model)
    return XgemmConfig(
        **recipe.recipe(), modules=described["modules"], experts=described["experts"]
    )


def recipe_of(report: Any) -> XgemmConfig:
    """The recipe that `xgemm.quantize` followed; nothing where there is no report."""
    known = dict.fromkeys(RECIPE) if report is None else report.recipe
    return XgemmConfig(**known, modules={})


def mark(model: PreTrainedModel, quantizer: Any) -> None:
    """Make `model`, and the models within it, say that `quantizer` has quantized them.

    The models within, as a user may save one of them by itself.
    """
    model.config.quantization_config = quantizer.quantization_config
    for inner in _models(model):
        inner.hf_quantizer = quantizer
        inner.is_quantized = True
        inner.quantization_method = quantizer.quantization_config.quant_method
        inner.config._is_quantized = True


def unmark(model: PreTrainedModel) -> None:
    """Make `model`, and the models within it, float models again to whoever asks."""
    for inner in _models(model):
        for name in ("hf_quantizer", "quantization_method"):
            inner.__dict__.pop(name, None)
        inner.is_quantized = False
        for name in ("quantization_config", "_is_quantized"):
            inner.config.__dict__.pop(name, None)


def _models(model: PreTrainedModel) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, PreTrainedModel)]


def state_with_guards(model: PreTrainedModel) -> dict[str, Any]:
    """The model's state and its guards, for save_pretrained to convert and write."""
    state = dict(model.state_dict())
    for name, guard in guards(state).items():
        state.pop(name, None)
        owner, _, leaf = name.rpartition(".")
        state[f"{owner}.{_MARK}{leaf}" if owner else _MARK + leaf] = guard
    conversions = getattr(model, "_weight_conversions", None)
    if conversions is None:  # what transformers takes for a model that it has not loaded
        conversions = [
            conversion
            for conversion in get_model_conversion_mapping(model, add_legacy=False)
            if not isinstance(conversion, _PrefixChange)
        ]
    own = [c for c in conversions if not isinstance(c, _UnmarkGuards)]
    model._weight_conversions = [_UnmarkGuards(), *own]
    return state


class _UnmarkGuards(WeightRenaming):
    """Takes the mark out of names when a state is converted for saving. Renames nothing else."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(source_patterns=_MARK.replace(".", r"\."), target_patterns="")

    def reverse_transform(self) -> WeightRenaming:
        return self
