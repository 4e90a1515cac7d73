"""vLLM's int4 weights, eight codes in an int32 word, to xgemm's packed weight."""

from __future__ import annotations

import torch

from xgemm.formats.packed import PackedWeight, pack
from xgemm.formats.quantized import QuantizedWeight


def pack_words(
    words: torch.Tensor,
    scales: torch.Tensor,
    group_size: int,
    zeros: torch.Tensor | None = None,
) -> PackedWeight:
    """The packed weight [N, K] of what vLLM loads, on the same device.

    words: int32 [K / 8, N], any strides; nibble i of row r, lowest first, is channel 8 r + i.
    scales: fp16 or bf16 [groups, N].
    zeros: int32 [groups, N / 8] with the zero point of column 8 c + i in nibble i, or None: 8.
    """
    codes = nibbles(words.t())
    points = None if zeros is None else nibbles(zeros).to(torch.float16)
    return pack(QuantizedWeight(codes, scales.contiguous(), points, None, group_size))


def nibbles(words: torch.Tensor) -> torch.Tensor:
    """uint8 [..., 8 C] of int32 [..., C], lowest nibble first."""
    # A word's bytes lie lowest first on every machine that xgemm runs on.
    pairs = words.contiguous().view(torch.uint8)
    return torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(-2)
