"""Shares of a packed weight: ranges of its columns or channels, packed by themselves."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import torch

from xgemm.formats.packed import (
    GROUP_SIZES,
    ROW_COLUMNS,
    UNIT_K,
    Layout,
    PackedWeight,
    pack,
    unpack,
)
from xgemm.formats.quantized import QuantizedWeight


def shares(size: int, parts: int, multiple: int) -> list[range]:
    """`size` items as `parts` ranges that begin at multiples of `multiple`, as even as they can be.

    Their lengths differ by `multiple` at most; only the last one may end at no multiple. ValueError
    where a range would be empty.
    """
    units = -(-size // multiple)
    if units < parts:
        raise ValueError(f"{size} is too small for {parts} shares that are multiples of {multiple}")
    each, more = divmod(units, parts)
    starts = [multiple * (i * each + max(0, i - parts + more)) for i in range(parts)]
    return [range(start, stop) for start, stop in itertools.pairwise([*starts, size])]


def columns(weight: PackedWeight, own: range) -> PackedWeight:
    """The output columns `own` of `weight`, in memory of their own.

    Where `own` begins and ends at rows of the layout (multiples of 64, or N) they are copied,
    elsewhere repacked. The order of channels (act-order) stays that of `weight`.
    """
    if own.start % ROW_COLUMNS == 0 and (own.stop % ROW_COLUMNS == 0 or own.stop == weight.n):
        rows = slice(own.start // ROW_COLUMNS, -(-own.stop // ROW_COLUMNS))
        return replace(weight, qweight=weight.qweight[rows].clone(), n=len(own))
    return pack(unpack(weight).rows(slice(own.start, own.stop)))


def channels(weight: PackedWeight, own: range) -> PackedWeight:
    """The packed channels `own` of `weight`, in memory of their own and without a `perm`.

    Channel j of the result multiplies x[..., own.start + j], or x[..., perm[own.start + j]] where
    `weight` has a perm. Where `own` begins and ends at units of the layout (multiples of 128, or K)
    they are copied, elsewhere repacked. Where `own` begins within a group, the result has smaller
    groups that share the scales of the larger ones; ValueError where 32 does not divide that place.
    """
    if own.start % UNIT_K == 0 and (own.stop % UNIT_K == 0 or own.stop == weight.k):
        qweight = units(weight.qweight, weight.layout, own.start, len(own)).clone(
            memory_format=torch.contiguous_format
        )
        return replace(weight, qweight=qweight, k=len(own), perm=None)
    group_size = weight.group_size
    if group_size != -1 and own.start % group_size != 0:
        group_size = math.gcd(own.start, group_size)
        if group_size not in GROUP_SIZES:
            raise ValueError(
                f"channels of groups of {weight.group_size} must begin at a multiple of "
                f"{min(size for size in GROUP_SIZES if size > 0)}, got {own.start}"
            )
    whole = unpack(replace(weight, perm=None))
    scales, zeros = whole.scales, whole.zeros
    if group_size != -1:
        first = torch.arange(own.start, own.stop, group_size, device=scales.device)
        group = first // weight.group_size
        scales = scales.index_select(0, group)
        zeros = None if zeros is None else zeros.index_select(0, group)
    codes = whole.codes[:, own.start : own.stop]
    return pack(QuantizedWeight(codes, scales, zeros, None, group_size))


def units(qweight: torch.Tensor, layout: Layout, start: int, count: int) -> torch.Tensor:
    """The bytes of input channels [start, start + count), which are a packed weight of their own.

    start is a multiple of 128, and so is count unless the channels end with it: a unit of the
    layout is whole then.
    """
    first, last = start // UNIT_K, -(-(start + count) // UNIT_K)
    own = qweight[:, first * layout.unit_bytes : last * layout.unit_bytes]
    if not layout.per_channel:
        return own
    scales = qweight[:, layout.units * layout.unit_bytes :]  # of all channels, so of these, too
    return torch.cat((own, scales), dim=1)
