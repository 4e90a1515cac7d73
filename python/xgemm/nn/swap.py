"""swap and unswap: a model's float linears compute by `mul`, and back."""

from __future__ import annotations

import fnmatch
import logging
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import nn

from xgemm.nn.dense import MUL_DTYPES, Linear
from xgemm.nn.float_linear import is_conv1d, is_plain
from xgemm.nn.linear import QuantLinear

logger = logging.getLogger("xgemm")

Model = TypeVar("Model", bound=nn.Module)


@dataclass
class SwapReport:
    """What `swap` did to a model; kept as `model.xgemm_swap`."""

    swapped: list[str] = field(default_factory=list)  # names of the layers that compute by mul
    left: dict[str, str] = field(default_factory=dict)  # name of a layer -> why it was left

    def __str__(self) -> str:
        lines = [f"swapped {len(self.swapped)} linear layers; left {len(self.left)}"]
        lines += [f"  left {name}: {reason}" for name, reason in self.left.items()]
        return "\n".join(lines)


def swap(model: Model, skip: Iterable[str] = ()) -> Model:
    """Let the model's nn.Linear layers compute by `torch.ops.xgemm.mul`; returns the model.

    nn.Linear becomes `xgemm.nn.Linear` and transformers' Conv1D `xgemm.hf.conv1d.Conv1D`: the same
    module object, with the same parameters, hooks and names, of another class. So tied weights stay
    tied, a shared layer stays shared, and an optimizer keeps its parameters. Results agree to
    rounding.

    skip: layers to leave: full names, or patterns with *, ? and []. One that matches no linear
        layer raises ValueError.

    Left as they are: subclasses of nn.Linear (their forward may differ), layers of dtypes that
    `mul` does not take, layers whose forward was replaced (accelerate's hooks). What was swapped,
    and what was left for which reason, is in `model.xgemm_swap` and logged (logger "xgemm", level
    INFO). `unswap` undoes it.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"swap: model must be a torch.nn.Module, got {type(model).__name__}")
    patterns = [skip] if isinstance(skip, str) else list(skip)
    names = _linear_names(model)
    for pattern in patterns:
        if not any(
            fnmatch.fnmatchcase(name, pattern) for where in names.values() for name in where
        ):
            raise ValueError(f"swap: skip: {pattern!r} matches no linear layer of the model")
    report = SwapReport()
    for layer, where in names.items():
        reason = _reason_to_leave(layer, where, patterns)
        if reason is not None:
            report.left.update(dict.fromkeys(where, reason))
            continue
        layer.__class__ = _swapped_class(layer)
        report.swapped += where
    model.xgemm_swap = report  # type: ignore[assignment]
    logger.info("%s", report)
    return model


def unswap(model: Model) -> Model:
    """Undo `swap`; returns the model. A layer that was made with an activation stays as it is."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"unswap: model must be a torch.nn.Module, got {type(model).__name__}")
    for module in model.modules():
        if type(module) is Linear and module.activation == "none":
            module.__class__ = nn.Linear  # type: ignore[assignment]
        elif _is_swapped_conv1d(module):
            module.__class__ = type(module).__bases__[0]
    if "xgemm_swap" in model.__dict__:
        del model.xgemm_swap
    return model


def _linear_names(model: nn.Module) -> dict[nn.Module, list[str]]:
    """Each float linear layer with every name it has (a shared layer has several)."""
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        packed = isinstance(module, QuantLinear)
        if (isinstance(module, nn.Linear) and not packed) or is_conv1d(module):
            names.setdefault(module, []).append(name)
    return names


def _reason_to_leave(layer: nn.Module, names: list[str], patterns: list[str]) -> str | None:
    for pattern in patterns:
        if any(fnmatch.fnmatchcase(name, pattern) for name in names):
            return f"skip names it ({pattern!r})"
    if type(layer) not in (nn.Linear, Linear) and not (is_conv1d(layer) and is_plain(layer)):
        return f"a subclass of a linear layer ({type(layer).__name__})"
    if "forward" in layer.__dict__:
        return "its forward was replaced (by accelerate's hooks, or by a patch)"
    weight: Any = layer.weight
    if weight.dtype not in MUL_DTYPES:
        return f"its weight is {str(weight.dtype).removeprefix('torch.')}"
    return None


def _swapped_class(layer: nn.Module) -> Any:
    if isinstance(layer, nn.Linear):
        return Linear
    from xgemm.hf.conv1d import Conv1D

    return Conv1D


def _is_swapped_conv1d(module: nn.Module) -> bool:
    loaded = sys.modules.get("xgemm.hf.conv1d")
    return loaded is not None and type(module) is loaded.Conv1D
