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
    check_data,
    check_mesh,
)
from xgemm.formats.packed import ROW_COLUMNS
from xgemm.nn import QuantExperts, QuantLinear

ModelT = TypeVar("ModelT", bound=nn.Module)
Split = tuple[str, PackedStyle, list[range]]  # a layer's name, how, and what each rank gets

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
    modules = dict(model.named_modules())
    splits = plan_splits("parallelize", model, modules, mesh.size(), plan)
    for name, _, _ in splits:
        try:
            check_data(modules[name])
        except ValueError as error:
            raise ValueError(f"parallelize: {name}: {error}") from None
    for name, style, parts in splits:
        style.apply(modules[name], mesh, parts)
    return model


def plan_splits(
    where: str,
    model: nn.Module,
    modules: Mapping[str, nn.Module],
    ranks: int,
    plan: Mapping[str, PackedStyle | str] | None,
) -> list[Split]:
    """The layers to split, by `plan` or the model's own. Errors begin with `where`.

    modules: those of `model` by name, with its packed layers where it does not have them yet.
    """
    if plan is not None:
        return with_parts(where, modules, ranks, _given_styles(where, modules, plan))
    own = getattr(model, "tp_plan", None)
    if not own:
        raise ValueError(f"{where}: plan must be given, as {type(model).__name__} has no tp_plan")
    return with_parts(where, modules, ranks, own_styles(where, model, modules, ranks, own))


def with_parts(
    where: str, modules: Mapping[str, nn.Module], ranks: int, styles: Mapping[str, PackedStyle]
) -> list[Split]:
    splits = []
    for name, style in styles.items():
        try:
            splits.append((name, style, style.parts(modules[name], ranks)))
        except (TypeError, ValueError) as error:
            raise type(error)(f"{where}: {name}: {error}") from None
    return splits


def _given_styles(
    where: str, modules: Mapping[str, nn.Module], plan: Mapping[str, Any]
) -> dict[str, PackedStyle]:
    styles: dict[str, PackedStyle] = {}
    for pattern, style in plan.items():
        style = _STYLES.get(style) if isinstance(style, str) else style
        if not isinstance(style, PackedStyle):
            raise TypeError(
                f"{where}: {pattern}: a style must be one of xgemm.distributed's or of "
                f"{list(_STYLES)}, got {plan[pattern]!r}"
            )
        names = _matching(modules, pattern)
        if not names:
            raise ValueError(f"{where}: plan: {pattern} fits no module of the model")
        for name in names:
            if name in styles:
                raise ValueError(f"{where}: plan: two patterns fit {name}")
            styles[name] = style
    return styles


def own_styles(
    where: str,
    model: nn.Module,
    modules: Mapping[str, nn.Module],
    ranks: int,
    plan: Mapping[str, str],
    refuse_floats: bool = True,
) -> dict[str, PackedStyle]:
    """What `plan`, in transformers' words, says of packed layers.

    refuse_floats: whether a float linear that it has split is an error.
    """
    _check_heads(where, model, ranks)
    styles: dict[str, PackedStyle] = {}
    for pattern, style in plan.items():
        for name in _matching(modules, pattern):
            module = modules[name]
            if isinstance(module, QuantLinear) and style not in _STYLES:
                raise ValueError(
                    f"{where}: {name}: tp_plan must be one of {list(_STYLES)}, got {style!r}"
                )
            must_split = isinstance(module, nn.Linear) and style in _STYLES.keys() - _OF_ITSELF
            if isinstance(module, QuantLinear) or (must_split and refuse_floats):
                styles[name] = _STYLES[style]
    for name, module in modules.items():
        if isinstance(module, QuantExperts):
            styles[name] = ExpertParallel()
    return styles


def _matching(modules: Mapping[str, nn.Module], pattern: str) -> list[str]:
    expression = re.compile(re.escape(pattern).replace(r"\*", r"[^.]+"))
    return [name for name in modules if name and expression.fullmatch(name)]


def _check_heads(where: str, model: nn.Module, ranks: int) -> None:
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
                f"{where}: {name} must give each of {ranks} ranks as many heads, in a multiple "
                f"of {ROW_COLUMNS} columns, got {count} heads of {width} columns"
            )
