"""Which module of a model the layers of another tool's checkpoint are for.

transformers renames the tensors of older checkpoints, and gathers modules of one expert each into
3-D parameters: what it would do with the float weight of a layer says where the layer belongs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    Transpose,
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from xgemm.formats.foreign.layer import LayerShape
from xgemm.hf.names import Names, some
from xgemm.nn.float_experts import experts_projections
from xgemm.nn.float_linear import linear_shape

# Tools that take a model's experts, or its joined linears, apart to quantize them write each part
# under the name that most models have: llm-compressor for Mixtral's experts (transformers: w1, w3,
# w2), GPTQModel for Phi-3's gate_up_proj.
_EXPERT_PART = re.compile(r"(\.experts\.\d+\.)(gate|up|down)_proj\.weight$")
_EXPERT_PARTS = {"gate": "w1", "up": "w3", "down": "w2"}
_JOINED_PART = re.compile(r"(gate|up)_proj\.weight$")
_JOINED_PARTS = ("gate", "up")  # of gate_up_proj, in the order of its rows


@dataclass(frozen=True)
class _Place:
    """Where a layer's float weight lies in the model: the `index`-th of `parts` that are joined."""

    target: str
    index: int
    parts: int


@dataclass(frozen=True)
class Source:
    """A module of the model, and the layers that its weights are made of.

    parts: for each weight ("weight", or "gate_up_proj" and "down_proj" of experts) the lists of
        layers that are joined, row after row; a list has a layer for each expert, or one. Where
        `stacked`, one layer holds all experts.
    shapes: (N, K) of each weight, of one expert.
    experts: how many; None for a linear layer.
    """

    module: str
    parts: dict[str, list[list[str]]]
    shapes: dict[str, tuple[int, int]]
    experts: int | None
    stacked: bool = False

    @property
    def layers(self) -> list[str]:
        return [name for lists in self.parts.values() for names in lists for name in names]


class ForeignNames:
    """The names of a checkpoint, as transformers renames them for `model`."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        mapping = get_model_conversion_mapping(model)
        self._renamings: list[Any] = [m for m in mapping if isinstance(m, WeightRenaming)]
        self._converters: list[Any] = [m for m in mapping if isinstance(m, WeightConverter)]
        self._by_pattern = {p: c for c in self._converters for p in c.source_patterns}
        self._state: dict[str, Any] = dict(model.state_dict(keep_vars=True))

    def in_model(self, key: str) -> str | None:
        """The name in the model; None where transformers makes a tensor of several."""
        renamed, pattern = self._renamed(key)
        return renamed if pattern is None or renamed == key else None

    def has(self, key: str) -> bool:
        """Whether the model has a place for a tensor of this name."""
        return self._renamed(key)[0] in self._state

    def unexpected(self, key: str) -> set[str]:
        """What transformers calls a tensor that has no place in the model."""
        renamed, pattern = self._renamed(key)
        if pattern is None:
            return {renamed}
        targets = self._by_pattern[pattern].target_patterns
        return {renamed.replace(targets[0], target) for target in targets}

    def sources(self, directory: Path, layers: Mapping[str, LayerShape]) -> list[Source]:
        """Each module with the layers that it is made of, in the order of the model.

        ValueError for a layer that the model has no place for, and for a module some of whose
        layers are quantized while others are not.
        """
        found: dict[str, dict[str, dict[int, list[str]]]] = {}  # module -> leaf -> part's index
        counts: dict[str, int] = {}
        absent = []
        for layer in sorted(layers, key=dot_natural_key):
            stacked = layers[layer].experts is not None
            place = self._place(directory, layer if stacked else f"{layer}.weight")
            if place is None:
                absent.append(layer)
                continue
            module, _, leaf = place.target.rpartition(".")
            counts[place.target] = place.parts
            parts = found.setdefault(module, {}).setdefault(leaf, {})
            parts.setdefault(place.index, []).append(layer)
        try:
            Names(self._model).refuse_absent(absent, bool(found))
        except ValueError as error:
            raise ValueError(f"load: {directory}: {error}") from None
        order = {name: i for i, (name, _) in enumerate(self._model.named_modules())}
        return [
            self._source(directory, module, found[module], counts, layers)
            for module in sorted(found, key=order.__getitem__)
        ]

    def _source(
        self,
        directory: Path,
        name: str,
        leaves: dict[str, dict[int, list[str]]],
        counts: dict[str, int],
        given: Mapping[str, LayerShape],
    ) -> Source:
        where = f"load: {directory}: {name}"
        module = self._model.get_submodule(name)
        shape = linear_shape(module)
        shapes = {"weight": shape} if shape is not None else experts_projections(module)
        if shapes is None:
            raise ValueError(
                f"{where} is quantized in the checkpoint and a {type(module).__name__}, no linear "
                "layer and no experts in a form that is known, in the model"
            )
        if lacking := shapes.keys() - leaves.keys():
            raise ValueError(
                f"{where}: {min(lacking)} is not quantized, {min(leaves)} is: xgemm needs both"
            )
        count = 1 if shape is not None else int(getattr(module, "num_experts", 0))
        parts = {}
        stacked = {given[layer].experts for part in leaves.values() for names in part.values()
                   for layer in names}  # fmt: skip
        if stacked != {None}:
            if stacked != {count}:
                found = sorted(map(str, stacked))
                raise ValueError(f"{where}: has {count} experts in the model, got {found}")
            count = 1
        for leaf in shapes:
            patterns = counts[f"{name}.{leaf}"]
            lists = [leaves[leaf].get(index, []) for index in range(patterns)]
            for layers in lists:
                if len(layers) != count:
                    raise ValueError(
                        f"{where}: {leaf} is made of {count} layers for each of {patterns} names, "
                        f"got {len(layers)} quantized ones: {some(layers) or 'none'}"
                    )
            parts[leaf] = lists
        experts = None if shape is not None else int(getattr(module, "num_experts", 0))
        return Source(name, parts, shapes, experts, stacked != {None})

    def _place(self, directory: Path, key: str) -> _Place | None:
        """Of the weight of a layer; None where the model has none."""
        by_transformers = _EXPERT_PART.sub(lambda m: f"{m[1]}{_EXPERT_PARTS[m[2]]}.weight", key)
        for name in (key, by_transformers):
            target, pattern = self._renamed(name)
            if target not in self._state:
                continue
            converter = None if pattern is None else self._by_pattern[pattern]
            if converter is None:
                return _Place(target, 0, 1)
            module, _, leaf = target.rpartition(".")
            linear = linear_shape(self._model.get_submodule(module)) is not None
            _check_conversion(f"load: {directory}: {module}", leaf, converter, linear)
            patterns = converter.source_patterns
            return _Place(target, patterns.index(pattern), len(patterns))
        part = _JOINED_PART.search(key)
        joined = self._renamed(_JOINED_PART.sub("gate_up_proj.weight", key))[0]
        if part is None or joined not in self._state:
            return None
        return _Place(joined, _JOINED_PARTS.index(part[1]), len(_JOINED_PARTS))

    def _renamed(self, key: str) -> tuple[str, str | None]:
        """The name in the model, and the pattern of a converter that takes the tensor."""
        prefix = self._model.base_model_prefix
        renamed, pattern = rename_source_key(
            key, self._renamings, self._converters, prefix, self._state
        )
        if renamed not in self._state and key in self._state:
            renamed, pattern = rename_source_key(key, [], [], prefix, self._state)
        return str(renamed), pattern


def _check_conversion(where: str, leaf: str, converter: Any, linear: bool) -> None:
    """ValueError for a conversion of weights that is more than joining them.

    QuantExperts holds each expert as [N, K] however the float weights lie, so that a transposition
    of the last two dimensions changes nothing.
    """
    for operation in converter.operations:
        if isinstance(operation, Concatenate) and (operation.dim == 0) == linear:
            continue
        if not linear and isinstance(operation, MergeModulelist) and operation.dim == 0:
            continue
        swapped = isinstance(operation, Transpose) and {operation.dim0 % 3, operation.dim1 % 3}
        if not linear and swapped == {1, 2}:
            continue
        raise ValueError(
            f"{where}: {leaf}: transformers makes it of the checkpoint's tensors by "
            f"{type(operation).__name__}, which packed weights do not take"
        )
