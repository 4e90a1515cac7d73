"""Group sizes that the packed layout does not have: the same weight, in finer groups."""

from __future__ import annotations

import torch

from xgemm.formats.packed import GROUP_SIZES
from xgemm.formats.quantized import QuantizedWeight


def layout_group_size(size: int, k: int) -> int:
    """The layout's group size for a file's: itself, or the largest that divides it.

    One group over all of K is -1. ValueError for a size that is no multiple of 32.
    """
    if size in GROUP_SIZES:
        return size
    if size >= k:
        return -1
    for smaller in (128, 64, 32):
        if size % smaller == 0:
            return smaller
    raise ValueError(f"group_size must be -1 or a multiple of 32, got {size}")


def regrouped(weight: QuantizedWeight, size: int) -> QuantizedWeight:
    """`weight`, whose scales are those of groups of `size` channels, in groups of its group_size.

    Each group's scale and zero point are repeated; with a g_idx, the channels of a group are shared
    out in their order.
    """
    if weight.group_size == -1:
        return weight
    parts = size // weight.group_size
    groups = -(-weight.k // weight.group_size)

    def repeated(values: torch.Tensor) -> torch.Tensor:
        return values.repeat_interleave(parts, dim=0)[:groups].contiguous()

    g_idx = weight.g_idx
    if g_idx is not None:
        order = g_idx.argsort(stable=True)
        sorted_groups = g_idx[order].long()
        first = torch.searchsorted(sorted_groups, sorted_groups)  # of its group, in that order
        within = torch.arange(weight.k) - first
        finer = sorted_groups * parts + within // weight.group_size
        g_idx = torch.empty_like(g_idx).index_copy_(0, order, finer.int())
    zeros = None if weight.zeros is None else repeated(weight.zeros)
    return QuantizedWeight(weight.codes, repeated(weight.scales), zeros, g_idx, weight.group_size)
