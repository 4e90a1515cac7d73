"""What the writers of other tools' formats share: a layer's scheme, and what a format can hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from xgemm.formats.quantized import SYMMETRIC_ZERO, QuantizedWeight


@dataclass(frozen=True)
class Written:
    """The scheme of a layer, as config.json tells it."""

    group_size: int
    symmetric: bool
    act_order: bool

    @classmethod
    def of(cls, weight: QuantizedWeight) -> Written:
        return cls(weight.group_size, weight.zeros is None, weight.g_idx is not None)


def usual(layers: Iterable[Written]) -> Written:
    """The scheme of most layers."""
    return Counter(layers).most_common(1)[0][0]


def whole_zeros(method: str, name: str, weight: QuantizedWeight) -> torch.Tensor:
    """The zero points, uint8 [G, N]; ValueError where one is no whole number of 0..15."""
    if weight.zeros is None:
        return torch.full_like(weight.scales, SYMMETRIC_ZERO, dtype=torch.uint8)
    zeros = weight.zeros
    wrong = (zeros != zeros.round()) | (zeros < 0) | (zeros > 15)
    if bool(wrong.any()):
        raise ValueError(
            f"convert: {name}: zero points must be whole numbers of 0..15 in {method}, got "
            f"{float(zeros[wrong][0])}: only xgemm's own format holds others"
        )
    return zeros.to(torch.uint8)


def check_multiples(method: str, name: str, weight: QuantizedWeight, n: int, k: int) -> None:
    """Refuse a weight whose sizes are no multiples of n and k, which readers take for granted."""
    if weight.n % n or weight.k % k:
        raise ValueError(
            f"convert: {name} must be [a multiple of {n}, a multiple of {k}] in {method}, got "
            f"[{weight.n}, {weight.k}]"
        )
