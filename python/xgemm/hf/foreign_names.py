"""Which module of a model the layers of another tool's checkpoint are for.

transformers renames the tensors of older checkpoints, and gathers modules of one expert each into
3-D parameters: what it would do with the float weight of a layer says where the layer belongs.
"""

from __future__ import annotations

from collections.abc import Iterable
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

from xgemm.hf.names import Names, some
from xgemm.nn.experts import experts_projections
from xgemm.nn.float_linear import linear_shape


@dataclass(frozen=True)
class Source:
    """A module of the model, and the layers that its weights are made of.

    parts: for each weight ("weight", or "gate_up_proj" and "down_proj" of experts) the lists of
        layers that are joined, row after row; a list has a layer for each expert, or one.
    shapes: (N, K) of each weight, of one expert.
    experts: how many; None for a linear layer.
    """

    module: str
    parts: dict[str, list[list[str]]]
    shapes: dict[str, tuple[int, int]]
    experts: int | None

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

    def sources(self, directory: Path, layers: Iterable[str]) -> list[Source]:
        """Each module with the layers that it is made of, in the order of the model.

        ValueError for a layer that the model has no place for, and for a module some of whose
        layers are quantized while others are not.
        """
        found: dict[str, dict[str, dict[int, list[str]]]] = {}  # module -> leaf -> pattern's index
        converters: dict[str, Any] = {}
        absent = []
        for layer in sorted(layers, key=dot_natural_key):
            target, pattern = self._renamed(f"{layer}.weight")
            if target not in self._state:
                absent.append(layer)
                continue
            module, _, leaf = target.rpartition(".")
            converter = None if pattern is None else self._by_pattern[pattern]
            index = 0 if converter is None else converter.source_patterns.index(pattern)
            converters[target] = converter
            parts = found.setdefault(module, {}).setdefault(leaf, {})
            parts.setdefault(index, []).append(layer)
        try:
            Names(self._model).refuse_absent(absent, bool(found))
        except ValueError as error:
            raise ValueError(f"load: {directory}: {error}") from None
        order = {name: i for i, (name, _) in enumerate(self._model.named_modules())}
        return [
            self._source(directory, module, found[module], converters)
            for module in sorted(found, key=order.__getitem__)
        ]

    def _source(
        self,
        directory: Path,
        name: str,
        leaves: dict[str, dict[int, list[str]]],
        converters: dict[str, Any],
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
        for leaf in shapes:
            target = f"{name}.{leaf}"
            patterns = _joined_patterns(where, leaf, converters[target], shape is not None)
            lists = [leaves[leaf].get(index, []) for index in range(patterns)]
            for layers in lists:
                if len(layers) != count:
                    raise ValueError(
                        f"{where}: {leaf} is made of {count} layers for each of {patterns} names, "
                        f"got {len(layers)} quantized ones: {some(layers) or 'none'}"
                    )
            parts[leaf] = lists
        return Source(name, parts, shapes, None if shape is not None else count)

    def _renamed(self, key: str) -> tuple[str, str | None]:
        """The name in the model, and the pattern of a converter that takes the tensor."""
        prefix = self._model.base_model_prefix
        renamed, pattern = rename_source_key(
            key, self._renamings, self._converters, prefix, self._state
        )
        if renamed not in self._state and key in self._state:
            renamed, pattern = rename_source_key(key, [], [], prefix, self._state)
        return str(renamed), pattern


def _joined_patterns(where: str, leaf: str, converter: Any, linear: bool) -> int:
    """How many names a weight is made of; ValueError for a conversion that is more than joining.

    QuantExperts holds each expert as [N, K] however the float weights lie, so that a transposition
    of the last two dimensions changes nothing.
    """
    if converter is None:
        return 1
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
    return len(converter.source_patterns)
