"""AutoAWQ's format, version "gemm".

    qweight   int32 [K, N / 8]   the codes of 8 columns, in the order [0, 2, 4, 6, 1, 3, 5, 7]
    qzeros    int32 [G, N / 8]   zero points, in the same order
    scales    fp16 [G, N]

Source: AutoAWQ 0.2.9, awq/modules/linear/gemm.py and awq/utils/packing_utils.py.
"""

from __future__ import annotations

import torch

from xgemm.formats.foreign.layer import SCALES, ForeignLayer, LayerShape
from xgemm.formats.foreign.nibbles import PER_WORD, unpack_nibbles
from xgemm.formats.foreign.section import Section
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
