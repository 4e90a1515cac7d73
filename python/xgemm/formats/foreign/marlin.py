"""Marlin's own format: the order in which its kernel reads weights. Symmetric.

    B, or qweight   int32 [K / 16, 2 N]   codes of tiles of 16 x 64, in the order of `_TILE`
    s, or scales    fp16 [G, N]           columns in the order of `_GROUPED`, or of `_SINGLE` where
                                          one group holds all of K

B and s (and a workspace) are the names of Marlin and AutoGPTQ, the others those of AutoAWQ. A tile
is that of mma.m16n8k16: of each 16 columns lane 4 c + r of a warp has columns c and c + 8, of which
it has channels 2 r, 2 r + 1, 2 r + 8 and 2 r + 9. Source: Marlin, as in AutoAWQ 0.2.9,
awq/modules/linear/marlin.py.
"""

from __future__ import annotations

import torch

from xgemm.formats.foreign.layer import SCALES, ForeignLayer, LayerShape
from xgemm.formats.foreign.nibbles import PER_WORD, unpack_nibbles
from xgemm.formats.foreign.section import Section
from xgemm.formats.quantized import QuantizedWeight

_K, _N = 16, 64  # of a tile
_NIBBLES = (0, 2, 4, 6, 1, 3, 5, 7)  # which of a lane's eight codes nibble i of its word is


def _tile() -> torch.Tensor:
    """For each nibble of a tile its code: 256 * (column // 16) + 16 * channel + column % 16."""
    codes = []
    for lane in range(32):
        column, channel = lane // 4, 2 * (lane % 4)
        own = [16 * (channel + k) + column + 8 * half for half in (0, 1) for k in (0, 1, 8, 9)]
        for columns in range(_N // 16):
            codes += [256 * columns + own[i] for i in _NIBBLES]
    return torch.tensor(codes)


_TILE = _tile()
_GROUPED = torch.tensor([i + 8 * j for i in range(8) for j in range(8)])
_SINGLE = torch.tensor([2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)])


class Marlin:
    method = "marlin"
    separator = "."

    def __init__(self, section: Section) -> None:
        if "bits" in section.values:
            section.four_bits("bits")
        self._group_size = section.group_size("group_size", "q_group_size", default=-1)
        autoawq = section.values.get("quant_method") == "awq"
        self.key, self._scales = ("qweight", "scales") if autoawq else ("B", "s")
        self.parts: tuple[str, ...] = (self.key, self._scales, "workspace")

    def shape(self, layer: ForeignLayer) -> LayerShape:
        k, words = _K * layer.size(self.key, 0), layer.size(self.key, 1)
        n = words // 2
        if words % (2 * _N):
            raise ValueError(
                f"{layer.where(self.key)} must have a multiple of {2 * _N} columns, got {words}"
            )
        shape = LayerShape(n, k, self._group_size, zeros=False)
        layer.check(self.key, ("int32",), (k // _K, words))
        layer.check(self._scales, SCALES, (shape.groups, n))
        return shape

    def read(self, layer: ForeignLayer) -> QuantizedWeight:
        shape = self.shape(layer)
        words = layer.tensor(self.key)
        given = unpack_nibbles(words, words.shape[1] * PER_WORD).view(-1, _K * _N)
        tiles = torch.empty_like(given)
        tiles[:, _TILE] = given
        tiles = tiles.view(shape.k // _K, shape.n // 16, _K, 16)  # [k / 16, n / 16, k % 16, n % 16]
        order = _SINGLE if shape.groups == 1 else _GROUPED
        stored = layer.scales(self._scales).view(-1, len(order))
        scales = torch.empty_like(stored)
        scales[:, order] = stored
        return layer.weight(
            shape,
            codes=tiles.permute(1, 3, 0, 2).reshape(shape.n, shape.k),
            scales=scales.view(shape.groups, shape.n),
            zeros=None,
            g_idx=None,
        )


def is_marlin(section: Section) -> bool:
    """Whether a section of GPTQ's or AWQ's, or of Marlin's own, says that weights lie so."""
    values = section.values
    stated = [values.get(key) for key in ("checkpoint_format", "format", "version", "quant_method")]
    return values.get("is_marlin_format") is True or "marlin" in stated
