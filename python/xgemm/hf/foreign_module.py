"""The packed module of a model, made of layers of another tool's checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from xgemm.formats.foreign import Shards
from xgemm.formats.foreign.join import joined, with_zeros
from xgemm.formats.foreign.layer import LayerShape
from xgemm.formats.packed import PackedWeight, pack, unpack
from xgemm.hf.foreign_names import Source
from xgemm.nn import QuantExperts, QuantLinear


def check_shapes(directory: Path, shapes: Mapping[str, LayerShape], source: Source) -> None:
    """Refuse layers that do not fit the module that they are for, before a weight is read."""
    for leaf, lists in source.parts.items():
        n, k = source.shapes[leaf]
        for layers in zip(*lists, strict=True):  # of one expert, or of one linear layer
            found = [shapes[layer] for layer in layers]
            if source.experts is None and any(shape.fp4 for shape in found):
                raise ValueError(
                    f"load: {directory}: {', '.join(layers)} is MXFP4, which is taken of experts, "
                    "and not of linear layers"
                )
            if sum(shape.n for shape in found) != n or any(shape.k != k for shape in found):
                got = " and ".join(str([shape.n, shape.k]) for shape in found)
                raise ValueError(
                    f"load: {directory}: {', '.join(layers)} must be [{n}, {k}], "
                    f"as {source.module}.{leaf} is in the model, got {got}"
                )


def packed_module(
    shards: Shards, source: Source, old: Any, device: Any
) -> QuantLinear | QuantExperts:
    """What takes the place of `old`, the float module; its layers are read one at a time.

    device: of the packed weights. Biases stay those of `old`.
    """
    if source.experts is not None and source.stacked:
        stacked = {}
        for leaf, ((layer,),) in source.parts.items():
            own = range(source.experts)
            stacked[leaf] = [pack(shards.read(layer, e)).to(device) for e in own]
        return QuantExperts.from_packed(old, stacked)
    if source.experts is not None:
        packed = {
            leaf: _alike([_packed(shards, names, device) for names in zip(*lists, strict=True)])
            for leaf, lists in source.parts.items()
        }
        return QuantExperts.from_packed(old, packed)
    layers = [names[0] for names in source.parts["weight"]]
    weight = _packed(shards, layers, device)
    return QuantLinear.from_packed(weight, old.bias, dtype=old.weight.dtype).train(old.training)


def _packed(shards: Shards, layers: Iterable[str], device: Any) -> PackedWeight:
    names = list(layers)
    try:
        weight = joined([shards.read(name) for name in names])
    except TypeError as error:
        raise _error(shards, names, error) from None
    try:
        return pack(weight).to(device)
    except ValueError as error:
        raise _error(shards, names, error) from None


def _alike(experts: list[PackedWeight]) -> list[PackedWeight]:
    """All with zero points where one has them."""
    if len({weight.has_zeros for weight in experts}) == 1:
        return experts
    return [weight if weight.has_zeros else pack(with_zeros(unpack(weight))) for weight in experts]


def _error(shards: Shards, layers: list[str], error: Exception) -> ValueError:
    return ValueError(f"load: {shards.directory}: {', '.join(layers)}: {error}")
