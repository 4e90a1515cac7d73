"""quantize: a model's linear layers to 4 bits, in place."""

from __future__ import annotations

import fnmatch
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from xgemm.formats.packed import check_group_size, pack
from xgemm.nn import QuantLinear
from xgemm.quantize.weight import check_method, quantize_weight

logger = logging.getLogger("xgemm")

Progress = Callable[[int, int, str], None]


@dataclass
class QuantizationReport:
    """What `quantize` did to a model; kept as `model.xgemm_report`."""

    method: str
    group_size: int
    symmetric: bool
    quantized: list[str] = field(default_factory=list)  # names of the layers taken over
    left: dict[str, str] = field(default_factory=dict)  # name of a layer -> why it was left
    bytes_before: int = 0  # of the weights of the layers taken over
    bytes_after: int = 0
    clip: str = "none"
    scale_dtype: str | None = None
    lm_head: bool = False
    skip: list[str] = field(default_factory=list)

    @property
    def recipe(self) -> dict[str, Any]:
        """How `quantize` was called, as config.json holds it."""
        names = ("method", "group_size", "symmetric", "clip", "scale_dtype", "lm_head", "skip")
        return {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        lines = [
            f"quantized {len(self.quantized)} linear layers ({self.method}, group_size "
            f"{self.group_size}, {'symmetric' if self.symmetric else 'asymmetric'}): "
            f"{self.bytes_before / 1e6:.1f} MB -> {self.bytes_after / 1e6:.1f} MB; "
            f"left {len(self.left)}"
        ]
        lines += [f"  left {name}: {reason}" for name, reason in self.left.items()]
        return "\n".join(lines)


def quantize(
    model: nn.Module,
    method: str = "rtn",
    group_size: int = 128,
    symmetric: bool = True,
    skip: Iterable[str] = (),
    calibration: Any = None,
    progress: Progress | None = None,
    *,
    lm_head: bool = False,
    clip: str = "none",
    scale_dtype: torch.dtype | None = None,
) -> nn.Module:
    """Replace the model's nn.Linear layers by QuantLinear, in place, and return the model.

    Left as they are: layers that `skip` names (a full name such as "layers.0.mlp.down_proj", or a
    pattern with *, ? and []), the output head (`lm_head`, or what the model calls its output
    embeddings) unless `lm_head=True`, layers whose weight is also a parameter elsewhere (tied
    embeddings), subclasses of nn.Linear (their forward may differ; a QuantLinear is already
    quantized), layers with hooks (which may look at the weight). Each of them, with the reason,
    and what was taken over is in `model.xgemm_report` and logged (logger "xgemm", level INFO).

    method, group_size, symmetric, clip, scale_dtype: as in `quantize_weight`.
    calibration: batches for methods that need them; "rtn" takes none.
    progress: called as progress(done, total, name) before each layer, and once at the end.

    Layers are swapped when all weights are quantized: an error leaves the model as it was. A name
    in `skip` that matches no linear layer raises ValueError.
    """
    check_method("quantize", method)
    check_group_size("quantize: group_size", group_size)
    if not isinstance(model, nn.Module):
        raise TypeError(f"quantize: model must be a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, QuantLinear):
        raise ValueError("quantize: model is itself a QuantLinear: it is already quantized")
    if isinstance(model, nn.Linear):
        raise ValueError("quantize: model is itself a Linear: use QuantLinear.from_linear")
    if calibration is not None:
        raise ValueError(f"quantize: method {method!r} takes no calibration data")
    patterns = [skip] if isinstance(skip, str) else list(skip)

    report = QuantizationReport(method, group_size, symmetric, clip=clip, lm_head=lm_head)
    report.scale_dtype = None if scale_dtype is None else str(scale_dtype).removeprefix("torch.")
    report.skip = patterns
    names = _linear_names(model)
    heads = set() if lm_head else _output_heads(model)
    uses = _parameter_uses(model)
    chosen: dict[nn.Linear, list[str]] = {}
    for layer, where in names.items():
        reason = _reason_to_leave(layer, where, patterns, heads, uses)
        if reason is None and any(_read_by_parent(model, name) for name in where):
            reason = "torch.nn.TransformerEncoderLayer reads its weight by itself"
        if reason is None:
            chosen[layer] = where
        else:
            report.left.update(dict.fromkeys(where, reason))
    _refuse_idle_patterns(patterns, [name for where in names.values() for name in where])

    replacements: list[tuple[list[str], QuantLinear]] = []
    for done, (layer, where) in enumerate(chosen.items()):
        if progress is not None:
            progress(done, len(chosen), where[0])
        try:
            q = quantize_weight(layer.weight, method, group_size, symmetric, clip, scale_dtype)
        except ValueError as error:
            raise ValueError(f"quantize: {where[0]}: {error}") from error
        packed = pack(q)
        new = QuantLinear.from_packed(packed, layer.bias, dtype=layer.weight.dtype)
        new.train(layer.training)
        report.quantized += where
        report.bytes_before += layer.weight.numel() * layer.weight.element_size()
        report.bytes_after += packed.nbytes
        replacements.append((where, new))
    for where, new in replacements:
        for name in where:
            model.set_submodule(name, new)
    if progress is not None:
        progress(len(chosen), len(chosen), "")
    model.xgemm_report = report  # type: ignore[assignment]
    logger.info("%s", report)
    return model


def _linear_names(model: nn.Module) -> dict[nn.Linear, list[str]]:
    """Each linear layer, subclasses too, with every name it has (a shared layer has several)."""
    names: dict[nn.Linear, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, nn.Linear):
            names.setdefault(module, []).append(name)
    return names


def _output_heads(model: nn.Module) -> set[nn.Module]:
    heads = {m for name, m in model.named_modules() if name.rpartition(".")[2] == "lm_head"}
    get_output_embeddings = getattr(model, "get_output_embeddings", None)
    if callable(get_output_embeddings):
        head = get_output_embeddings()
        if isinstance(head, nn.Module):
            heads.add(head)
    return heads


def _parameter_uses(model: nn.Module) -> dict[int, list[str]]:
    """The names of each parameter, by its id; a module that has several names counts once."""
    uses: dict[int, list[str]] = {}
    for module_name, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            full = f"{module_name}.{name}" if module_name else name
            uses.setdefault(id(parameter), []).append(full)
    return uses


def _reason_to_leave(
    layer: nn.Linear,
    names: list[str],
    patterns: list[str],
    heads: set[nn.Module],
    uses: dict[int, list[str]],
) -> str | None:
    for pattern in patterns:
        if any(fnmatch.fnmatchcase(name, pattern) for name in names):
            return f"skip names it ({pattern!r})"
    if isinstance(layer, QuantLinear):
        return "already quantized"
    if type(layer) is not nn.Linear:
        return f"a subclass of nn.Linear ({type(layer).__name__})"
    elsewhere = [use for use in uses[id(layer.weight)] if use != f"{names[0]}.weight"]
    if elsewhere:
        return f"its weight is tied to {', '.join(elsewhere)}"
    if layer in heads:
        return "the output head"
    if layer._forward_hooks or layer._forward_pre_hooks or "forward" in layer.__dict__:
        return "it has hooks"
    if not layer.weight.is_floating_point() or layer.weight.element_size() < 2:
        return f"its weight is {str(layer.weight.dtype).removeprefix('torch.')}"
    return None


def _read_by_parent(model: nn.Module, name: str) -> bool:
    # Its fused path takes the two layers' weights and does not call them.
    parent = model.get_submodule(name.rpartition(".")[0])
    return isinstance(parent, nn.TransformerEncoderLayer)


def _refuse_idle_patterns(patterns: list[str], names: list[str]) -> None:
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            raise ValueError(f"quantize: skip: {pattern!r} matches no linear layer of the model")
