"""AutoAWQ's format, version "gemm".

    qweight   int32 [K, N / 8]   the codes of 8 columns, in the order [0, 2, 4, 6, 1, 3, 5, 7]
    qzeros    int32 [G, N / 8]   zero points, in the same order
    scales    fp16 [G, N]

Source: AutoAWQ 0.2.9, awq/modules/linear/gemm.py and awq/utils/packing_utils.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from xgemm.formats.foreign.layer import SCALES, ForeignLayer, LayerShape
from xgemm.formats.foreign.nibbles import PER_WORD, pack_nibbles, unpack_nibbles
from xgemm.formats.foreign.section import Section
from xgemm.formats.foreign.written import Written, check_multiples, usual, whole_zeros
from xgemm.formats.quantized import QuantizedWeight

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # nibble i of a word is column ORDER[i] of its 8
_POSITION = (0, 4, 1, 5, 2, 6, 3, 7)  # column c of a word is nibble _POSITION[c]


class Awq:
    method = "awq"
    key = "qweight"
    parts: tuple[str, ...] = ("qweight", "qzeros", "scales")

    def __init__(self, section: Section) -> None:
        section.four_bits("bits", "w_bit")
        version = section.text("version", "format", "checkpoint_format", default="gemm")
        if version.lower() != "gemm":
            raise section.error("version", "'gemm'", version)
        self._group_size = section.group_size("group_size", "q_group_size", default=128)
        self._zeros = section.flag("zero_point", default=True)

    def shape(self, layer: ForeignLayer) -> LayerShape:
        k, words = layer.size("qweight", 0), layer.size("qweight", 1)
        shape = LayerShape(words * PER_WORD, k, self._group_size, self._zeros)
        layer.check("qweight", ("int32",), (k, words))
        layer.check("qzeros", ("int32",), (shape.groups, words))
        layer.check("scales", SCALES, (shape.groups, shape.n))
        return shape

    def read(self, layer: ForeignLayer) -> QuantizedWeight:
        shape = self.shape(layer)
        return layer.weight(
            shape,
            codes=_columns(layer.tensor("qweight")).t(),
            scales=layer.scales("scales"),
            zeros=_columns(layer.tensor("qzeros")),
            g_idx=None,
        )


def _columns(words: torch.Tensor) -> torch.Tensor:
    """int32 [R, N / 8] to uint8 [R, N], the columns in order."""
    rows, count = words.shape
    nibbles = unpack_nibbles(words, count * PER_WORD).view(rows, count, PER_WORD)
    return nibbles[..., _POSITION].reshape(rows, count * PER_WORD)


class AwqWriter:
    """Zero points are always written, 8 where a layer has none: AutoAWQ's kernels read them."""

    def __init__(self, asymmetric: bool) -> None:
        self._first: tuple[str, int] | None = None  # a layer, and its group size

    def tensors(self, name: str, weight: QuantizedWeight) -> dict[str, torch.Tensor]:
        if weight.g_idx is not None:
            raise ValueError(f"convert: {name} is in act-order, which awq has no tensor for")
        first, size = self._first = self._first or (name, weight.group_size)
        if weight.group_size != size:
            raise ValueError(
                f"convert: awq has one group_size for all layers: {first} has {size}, {name} has "
                f"{weight.group_size}"
            )
        check_multiples("awq", name, weight, n=PER_WORD, k=max(size, 1))
        return {
            "qweight": _words(weight.codes.t()),
            "qzeros": _words(whole_zeros("awq", name, weight)),
            "scales": weight.scales,
        }

    def section(self, layers: Mapping[str, Written], floats: list[str]) -> dict[str, Any]:
        return {
            "quant_method": "awq",
            "bits": 4,
            "group_size": usual(layers.values()).group_size,
            "zero_point": True,
            "version": "gemm",
            "modules_to_not_convert": floats,
        }


def _words(numbers: torch.Tensor) -> torch.Tensor:
    """uint8 [R, N] to int32 [R, N / 8], the columns of a word in ORDER."""
    rows, n = numbers.shape
    columns = numbers.reshape(rows, n // PER_WORD, PER_WORD)[..., ORDER]
    return pack_nibbles(columns.reshape(rows, n))
