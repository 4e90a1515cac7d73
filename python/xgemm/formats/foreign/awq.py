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


class Awq:
    method = "awq"
    separator = "."
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
            codes=columns_of_words(layer.tensor("qweight")).t(),
            scales=layer.scales("scales"),
            zeros=columns_of_words(layer.tensor("qzeros")),
            g_idx=None,
        )


def columns_of_words(words: torch.Tensor) -> torch.Tensor:
    """int32 [R, N / 8] to uint8 [R, N], the columns in order.

    Nibbles j and j + 4 of a word are columns 2 j and 2 j + 1. The inner bytes change places, and
    then the inner nibbles of each half do.
    """
    return unpack_nibbles(_swap_nibbles(_swap_bytes(words)), words.shape[1] * PER_WORD)


def _swap_bytes(words: torch.Tensor) -> torch.Tensor:
    """Bytes 0, 1, 2, 3 of each word as 0, 2, 1, 3."""
    outer = words & ~0x00FFFF00
    return outer | ((words & 0x00FF0000) >> 8) | ((words & 0x0000FF00) << 8)


def _swap_nibbles(words: torch.Tensor) -> torch.Tensor:
    """Nibbles 0, 1, 2, 3 of each half of a word as 0, 2, 1, 3."""
    outer = words & ~0x0FF00FF0
    return outer | ((words & 0x0F000F00) >> 4) | ((words & 0x00F000F0) << 4)


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
    """uint8 [R, N] to int32 [R, N / 8], in the order that `columns_of_words` undoes."""
    return _swap_bytes(_swap_nibbles(pack_nibbles(numbers)))
