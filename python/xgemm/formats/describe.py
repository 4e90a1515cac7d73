"""What config.json says of a quantized model: its modules, and the recipe that made them."""

from __future__ import annotations

from typing import Any

from torch import nn

from xgemm.formats.manifest import (
    QUANT_METHOD,
    RECIPE,
    ExpertsSpec,
    ModuleSpec,
    format_of,
    write_spec,
)
from xgemm.formats.packed import LAYOUT_VERSION
from xgemm.nn import QuantExperts, QuantLinear


def quantization_config(model: nn.Module) -> dict[str, Any]:
    """The section quantization_config of config.json."""
    described = describe_modules(model)
    return {
        "quant_method": QUANT_METHOD,
        "format": format_of(described["experts"]),
        "layout_version": LAYOUT_VERSION,
        **recipe(model),
        **described,
    }


def describe_modules(model: nn.Module) -> dict[str, dict[str, Any]]:
    """The sections "modules" and "experts": {name: spec}, a module with two names twice."""
    modules, experts = {}, {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, QuantLinear):
            modules[name] = write_spec(linear_spec(module))
        elif isinstance(module, QuantExperts):
            experts[name] = write_spec(experts_spec(module))
    return {"modules": modules, "experts": experts}


def recipe(model: nn.Module) -> dict[str, Any]:
    """The values of RECIPE that are known of `model`: what it was loaded with, or quantized by."""
    config: Any = getattr(getattr(model, "config", None), "quantization_config", None)
    if getattr(config, "quant_method", None) == QUANT_METHOD and hasattr(config, "to_dict"):
        known = config.to_dict()
    else:
        report: Any = getattr(model, "xgemm_report", None)
        known = {} if report is None else report.recipe
    return {name: known[name] for name in RECIPE if known.get(name) is not None}


def linear_spec(layer: QuantLinear) -> ModuleSpec:
    return ModuleSpec(
        n=layer.out_features,
        k=layer.in_features,
        group_size=layer.group_size,
        bf16_scales=layer.bf16_scales,
        zeros=layer.has_zeros,
        act_order=layer.perm is not None,
        bias=layer.bias is not None,
        activation=layer.activation,
    )


def experts_spec(experts: QuantExperts) -> ExpertsSpec:
    projections = {
        name: ModuleSpec(
            n=form.n,
            k=form.k,
            group_size=form.group_size,
            bf16_scales=form.bf16_scales,
            zeros=form.zeros,
            act_order=getattr(experts, f"{name}_perm") is not None,
            bias=experts._parameters.get(f"{name}_bias") is not None,
            activation="none",
            fp4=form.fp4,
        )
        for name, form in experts.formats.items()
    }
    return ExpertsSpec(experts.num_experts, projections)
