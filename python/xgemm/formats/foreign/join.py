"""Layers that a model holds as one: rows joined, zero points where a neighbour has them."""

from __future__ import annotations

from dataclasses import replace

import torch

from xgemm.formats.quantized import SYMMETRIC_ZERO, QuantizedWeight


def joined(weights: list[QuantizedWeight]) -> QuantizedWeight:
    """One weight of the rows of all of `weights`, which multiply the same channels.

    TypeError where their groups, the order of their channels or the dtype of their scales differ.
    """
    first = weights[0]
    if len(weights) == 1:
        return first
    for weight in weights[1:]:
        if (weight.k, weight.group_size) != (first.k, first.group_size):
            raise TypeError("the layers that make one weight must have the same K and group_size")
        if weight.fp4 != first.fp4:
            raise TypeError("the layers that make one weight must have codes of one kind")
        if weight.scales.dtype != first.scales.dtype:
            raise TypeError("the layers that make one weight must have scales of one dtype")
        if not torch.equal(weight.group_of_channel(), first.group_of_channel()):
            raise TypeError("the layers that make one weight must have the same g_idx")
    if any(weight.zeros is not None for weight in weights):
        weights = [with_zeros(weight) for weight in weights]
    zeros = [weight.zeros for weight in weights if weight.zeros is not None]
    return QuantizedWeight(
        torch.cat([weight.codes for weight in weights]),
        torch.cat([weight.scales for weight in weights], dim=1),
        torch.cat(zeros, dim=1) if zeros else None,
        first.g_idx,
        first.group_size,
        first.fp4,
    )


def with_zeros(weight: QuantizedWeight) -> QuantizedWeight:
    """The same weight, with the zero point 8 written out where it has none."""
    if weight.zeros is not None:
        return weight
    return replace(weight, zeros=torch.full_like(weight.scales, SYMMETRIC_ZERO, dtype=torch.half))
