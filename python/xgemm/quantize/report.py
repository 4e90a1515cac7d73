"""What `quantize` did to a model, what stays in float, and which share of the parameters it is."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import nn

from xgemm.formats.manifest import RECIPE
from xgemm.nn import QuantExperts, QuantLinear
from xgemm.nn.float_linear import linear_shape
from xgemm.quantize.errors import LayerError

# Parameters in float are named, the largest first, until the rest is less than this.
UNNAMED_SHARE = 0.01
WARN_BELOW = 0.8


@dataclass(frozen=True)
class KeptParameter:
    """A parameter that stays in float."""

    name: str
    shape: tuple[int, ...]
    share: float  # of all of the model's parameters
    reason: str


@dataclass
class QuantizationReport:
    """What `quantize` did to a model; kept as `model.xgemm_report`.

    The shares count weights, whatever their dtype; a shared or tied parameter counts once.
    """

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
    include: list[str] = field(default_factory=list)
    experts: list[str] = field(default_factory=list)  # those of `quantized` that are QuantExperts
    parameters: int = 0  # of the whole model
    share_quantized: float = 0.0  # of the parameters: those in 4 bits now, from before as well
    options: dict[str, Any] = field(default_factory=dict)  # of a method with calibration
    # layers that `method` could not do -> why, and how they were quantized instead
    fallbacks: dict[str, str] = field(default_factory=dict)
    kept: list[KeptParameter] = field(default_factory=list)  # the large ones, the largest first
    errors: dict[str, LayerError] = field(default_factory=dict)  # of each of `quantized`, in order

    @property
    def recipe(self) -> dict[str, Any]:
        """How `quantize` was called, as config.json holds it."""
        return {name: getattr(self, name) for name in RECIPE}

    @property
    def error(self) -> LayerError | None:
        """Of all layers together; None where nothing was quantized."""
        return self.error_of(self.errors) if self.errors else None

    def as_dict(self) -> dict[str, Any]:
        """Everything, as JSON takes it; `error` is of all layers together."""
        return {
            **asdict(self),
            "errors": {name: error.as_dict() for name, error in self.errors.items()},
            "error": None if self.error is None else self.error.as_dict(),
        }

    def to_json(self) -> str:
        """`as_dict` as a JSON document."""
        return json.dumps(self.as_dict(), indent=2, allow_nan=False)

    def layers_by_kind(self) -> dict[str, list[str]]:
        """The quantized layers, those together whose names differ by an index (then *) alone."""
        kinds: dict[str, list[str]] = {}
        for name in self.errors:
            kinds.setdefault(_pattern(name), []).append(name)
        return kinds

    def error_of(self, names: Iterable[str]) -> LayerError:
        """The error of the layers `names` together."""
        return reduce(add, (self.errors[name] for name in names))

    def worst(self, names: Iterable[str]) -> str:
        """The layer of the largest error among `names`: of its outputs, where they are known."""
        return max(names, key=lambda name: self.errors[name].shown)

    @property
    def title(self) -> str:
        return (
            f"{self.method}, group_size {self.group_size}, "
            f"{'symmetric' if self.symmetric else 'asymmetric'}"
        )

    def __str__(self) -> str:
        linears = len(self.quantized) - len(self.experts)
        parts = [_count(linears, "linear layer")]
        if self.experts:
            parts.append(_count(len(self.experts), "module of experts", "modules of experts"))
        lines = [
            f"quantized {' and '.join(parts)} ({self.title}): "
            f"{self.bytes_before / 1e6:.1f} MB -> {self.bytes_after / 1e6:.1f} MB; "
            f"left {len(self.left)}",
            f"4 bits hold {self.share_quantized:.1%} of {millions(self.parameters)} parameters",
        ]
        if self.error is not None:
            lines.append(self._error_text(self.error))
        for name, names, reason in _grouped(self.left.items()):
            lines.append(f"  left {name}{_times(names)}: {reason}")
        for name, names, reason in _grouped(self.fallbacks.items()):
            lines.append(f"  not by {self.method}: {name}{_times(names)}: {reason}")
        lines += [f"  in float {text}" for text in self.kept_texts()]
        return "\n".join(lines)

    def _error_text(self, error: LayerError) -> str:
        worst = self.worst(self.errors)
        outputs = "" if error.outputs is None else f", of outputs {error.outputs:.2%}"
        return (
            f"relative error of weights {error.weights:.2%}{outputs}, "
            f"{error.bits_per_weight:.2f} bits a weight; "
            f"the largest {self.errors[worst].shown:.2%}: {worst}"
        )

    def kept_texts(self) -> list[str]:
        """A line for each kind of parameter of `kept`: those whose names differ by digits alone."""
        share = {f"{kept.name} {list(kept.shape)}": kept.share for kept in self.kept}
        reasons = zip(share, (kept.reason for kept in self.kept), strict=True)
        found = []
        for name, names, reason in _grouped(reasons):
            part = sum(share[one] for one in names)
            found.append((part, f"{name}{_times(names)} {part:.1%}: {reason}"))
        return [text for _, text in sorted(found, key=lambda pair: -pair[0])]

    def count(self, model: nn.Module, taken: Iterable[nn.Module]) -> None:
        """Set `parameters`, `share_quantized` and `kept`, before the layers `taken` are swapped."""
        taken = set(taken)
        packed = 0
        floats: list[tuple[str, torch.Tensor, str]] = []
        seen: set[int] = set()
        for owner_name, owner in model.named_modules():
            packed += _packed_weights(owner)
            for name, parameter in owner.named_parameters(recurse=False):
                full = f"{owner_name}.{name}" if owner_name else name
                if id(parameter) in seen or not parameter.is_floating_point():
                    continue
                seen.add(id(parameter))
                if owner in taken and _is_weight(owner, parameter):
                    packed += parameter.numel()
                else:
                    floats.append((full, parameter, self._why(owner_name, owner, name, parameter)))
        total = packed + sum(parameter.numel() for _, parameter, _ in floats)
        self.parameters = total
        self.share_quantized = packed / max(total, 1)
        self.kept = []
        rest = total - packed
        for name, parameter, reason in sorted(floats, key=lambda entry: -entry[1].numel()):
            if rest < UNNAMED_SHARE * total or parameter.numel() == 0:
                break
            rest -= parameter.numel()
            shape, share = tuple(parameter.shape), parameter.numel() / total
            self.kept.append(KeptParameter(name, shape, share, reason))

    def warn(self, stacklevel: int) -> None:
        """A UserWarning where little of the model is quantized."""
        if self.share_quantized >= WARN_BELOW:
            return
        texts = self.kept_texts()
        more = f"; and {len(texts) - 4} more kinds (model.xgemm_report)" if len(texts) > 4 else ""
        warnings.warn(
            f"quantize: 4 bits hold {self.share_quantized:.1%} of the model's "
            f"{millions(self.parameters)} parameters. In float: {'; '.join(texts[:4])}{more}",
            UserWarning,
            stacklevel=stacklevel + 1,
        )

    def _why(self, owner_name: str, owner: nn.Module, name: str, parameter: torch.Tensor) -> str:
        if owner_name in self.left:
            return self.left[owner_name]
        if name.endswith("bias"):
            return "a bias"
        if isinstance(owner, nn.Embedding):
            return "an embedding, which is looked up"
        if parameter.dim() < 2:
            return "a vector"
        return f"of {type(owner).__name__}, which is no linear layer"


def _packed_weights(module: nn.Module) -> int:
    """How many weights a packed layer holds in 4 bits."""
    if isinstance(module, QuantLinear):
        return module.out_features * module.in_features
    if isinstance(module, QuantExperts):
        return module.num_experts * sum(form.n * form.k for form in module.formats.values())
    return 0


def _is_weight(module: nn.Module, parameter: torch.Tensor) -> bool:
    """Whether it is what `quantize` packs, of a layer that is taken over."""
    return parameter.dim() == (2 if linear_shape(module) is not None else 3)


def _grouped(entries: Iterable[tuple[str, str]]) -> list[tuple[str, list[str], str]]:
    """(Name, names, reason) of names that differ by an index alone and have the same reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, reason in entries:
        groups.setdefault((_pattern(name), reason), []).append(name)
    return [
        (names[0] if len(names) == 1 else pattern, names, reason)
        for (pattern, reason), names in groups.items()
    ]


def _pattern(name: str) -> str:
    """The name with each index as *."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def millions(count: int) -> str:
    return f"{count:,}" if count < 100_000 else f"{count / 1e6:.1f} M"


def _times(names: list[str]) -> str:
    return "" if len(names) == 1 else f" ({len(names)} times)"


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
