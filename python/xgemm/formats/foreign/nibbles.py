"""Eight 4-bit numbers in an int32 word, the lowest bits first: what every format is made of."""

from __future__ import annotations

import torch

PER_WORD = 8


def unpack_nibbles(words: torch.Tensor, count: int) -> torch.Tensor:
    """int32 [R, C] to uint8 [R, count]: number j of a row is in bits 4 (j % 8) of its word j // 8.

    count <= 8 C; the rest is padding.
    """
    octets = words.flatten().view(torch.uint8)  # x86-64: the lowest byte first
    nibbles = torch.stack((octets & 15, octets >> 4), dim=-1)
    return nibbles.view(words.shape[0], words.shape[1] * PER_WORD)[:, :count]


def pack_nibbles(numbers: torch.Tensor) -> torch.Tensor:
    """uint8 [R, count], each 0..15, to int32 [R, ceil(count / 8)]; padded with 0."""
    rows, count = numbers.shape
    words = -(-count // PER_WORD)
    padded = torch.nn.functional.pad(numbers, (0, words * PER_WORD - count)).contiguous()
    pairs = padded.view(-1, 2)
    return (pairs[:, 0] | (pairs[:, 1] << 4)).view(torch.int32).view(rows, words)
