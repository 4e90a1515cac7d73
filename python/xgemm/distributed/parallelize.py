"""parallelize: the packed layers of a model split over the ranks of a mesh, by a plan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate

from xgemm.distributed.styles import (
    ColwiseParallel,
    ExpertParallel,
    PackedStyle,
    RowwiseParallel,
    check_mesh,
)
from xgemm.formats.packed import ROW_COLUMNS
from xgemm.nn import QuantExperts, QuantLinear

ModelT = TypeVar("ModelT", bound=nn.Module)

# What transformers calls the styles in a model's tp_plan.
_STYLES: dict[str, PackedStyle] = {
    "colwise": ColwiseParallel(),
    "colwise_gather_output": ColwiseParallel(output_layouts=Replicate()),
    "rowwise": RowwiseParallel(),
    "rowwise_split_input": RowwiseParallel(input_layouts=Replicate()),
}
# Styles of layers that give on each rank what they gave before: a float one may stay whole.
_OF_ITSELF = {"colwise_gather_output", "rowwise_split_input"}


def parallelize(
    model: ModelT, mesh: DeviceMesh, plan: Mapping[str, PackedStyle | str] | None = None
) -> ModelT:
    """Split the packed layers of `model` over the ranks of `mesh`, in place; returns the model.

    Each rank of the mesh calls it with the same model and plan, and keeps its share of the packed
    weights. Other layers stay whole on each rank.

    mesh: a DeviceMesh of one dimension.
    plan: {name: style}. A name is that of a module; `*` stands for one part of it, as in
        "model.layers.*.mlp.up_proj". A style is ColwiseParallel, RowwiseParallel or ExpertParallel
        of xgemm.distributed, or "colwise", "colwise_gather_output", "rowwise" or
        "rowwise_split_input", as transformers calls them. None takes the `tp_plan` of a
        transformers model, and splits all experts by ExpertParallel.

    Raises TypeError or ValueError, by the name of the layer and before any is changed, where a
    layer is not packed or is split already, a plan's name fits no module, or a share would be
    empty: shares are multiples of 64 columns or channels. Attention heads must fit the ranks
    where plan is None.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"parallelize: model must be an nn.Module, got {type(model).__name__}")
    try:
        check_mesh(mesh)
    except (TypeError, ValueError) as error:
        raise type(error)(f"parallelize: {error}") from None
    styles = _own_plan(model, mesh.size()) if plan is None else _given_plan(model, plan)
    parts = {}
    for name, style in styles.items():
        try:
            parts[name] = style.parts(model.get_submodule(name), mesh.size())
        except (TypeError, ValueError) as error:
            raise type(error)(f"parallelize: {name}: {error}") from None
    for name, style in styles.items():
        style.apply(model.get_submodule(name), mesh, parts[name])
    return model


def _given_plan(model: nn.Module, plan: Mapping[str, Any]) -> dict[str, PackedStyle]:
    styles: dict[str, PackedStyle] = {}
    for pattern, style in plan.items():
        style = _STYLES.get(style) if isinstance(style, str) else style
        if not isinstance(style, PackedStyle):
            raise TypeError(
                f"parallelize: {pattern}: a style must be one of xgemm.distributed's or of "
                f"{list(_STYLES)}, got {plan[pattern]!r}"
            )
        names = _matching(model, pattern)
        if not names:
            raise ValueError(f"parallelize: plan: {pattern} fits no module of the model")
        for name in names:
            if name in styles:
                raise ValueError(f"parallelize: plan: two patterns fit {name}")
            styles[name] = style
    return styles


def _own_plan(model: nn.Module, ranks: int) -> dict[str, PackedStyle]:
    """What a transformers model says of itself, for its packed layers."""
    plan = getattr(model, "tp_plan", None)
    if not plan:
        raise ValueError(
            f"parallelize: plan must be given, as {type(model).__name__} has no tp_plan"
        )
    _check_heads(model, ranks)
    styles: dict[str, PackedStyle] = {}
    for pattern, style in plan.items():
        for name in _matching(model, pattern):
            module = model.get_submodule(name)
            if isinstance(module, QuantLinear) and style not in _STYLES:
                raise ValueError(
                    f"parallelize: {name}: tp_plan must be one of {list(_STYLES)}, got {style!r}"
                )
            must_split = isinstance(module, nn.Linear) and style in _STYLES.keys() - _OF_ITSELF
            if isinstance(module, QuantLinear) or must_split:
                styles[name] = _STYLES[style]
    for name, module in model.named_modules():
        if isinstance(module, QuantExperts):
            styles[name] = ExpertParallel()
    return styles


def _matching(model: nn.Module, pattern: str) -> list[str]:
    expression = re.compile(re.escape(pattern).replace(r"\*", r"[^.]+"))
    return [name for name, _ in model.named_modules() if name and expression.fullmatch(name)]


def _check_heads(model: nn.Module, ranks: int) -> None:
    """Each rank gets as many whole heads: attention takes its columns for those."""
    config: Any = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    heads = getattr(config, "num_attention_heads", None)
    if not heads:
        return
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    for name in ("num_attention_heads", "num_key_value_heads"):
        count = getattr(config, name, None) or heads
        if count % ranks != 0 or count // ranks * width % ROW_COLUMNS != 0:
            raise ValueError(
                f"parallelize: {name} must give each of {ranks} ranks as many heads, in a multiple "
                f"of {ROW_COLUMNS} columns, got {count} heads of {width} columns"
            )
