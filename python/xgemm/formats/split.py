"""Shares of a packed weight: ranges of its columns or channels, packed by themselves."""

from __future__ import annotations

import itertools
import math
from typing import Any

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
from xgemm.formats.packed_format import PackedFormat
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


def columns(qweight: Any, form: PackedFormat, own: range) -> PackedWeight:
    """The output columns `own` of a packed weight, in memory of their own and without a `perm`.

    qweight: its bytes, or a slice of a safetensors file, of which no other bytes are read.
    own: from a multiple of 64 to a multiple of 64, or to N; ValueError where it is not.
    """
    if own.start % ROW_COLUMNS != 0 or (own.stop % ROW_COLUMNS != 0 and own.stop != form.n):
        raise ValueError(
            f"columns must begin and end at multiples of {ROW_COLUMNS}, or with the last of "
            f"{form.n}, got {own.start} to {own.stop}"
        )
    rows = slice(own.start // ROW_COLUMNS, -(-own.stop // ROW_COLUMNS))
    own_rows = qweight[rows].clone(memory_format=torch.contiguous_format)
    return packed(own_rows, form._replace(n=len(own)))


def channels(qweight: Any, form: PackedFormat, own: range) -> PackedWeight:
    """The packed channels `own` of a packed weight, in memory of their own and without a `perm`.

    qweight: its bytes, or a slice of a safetensors file, of which only whole units of 128 channels
    are read. Channel j of the result multiplies x[..., own.start + j], or
    x[..., perm[own.start + j]] where the weight has a perm. Where `own` begins and ends at units
    (multiples of 128, or K) they are copied, elsewhere repacked. Where `own` begins within a group,
    the result has smaller groups that share the scales of the larger ones; ValueError where 32 does
    not divide that place.
    """
    start = own.start // UNIT_K * UNIT_K
    stop = min(-(-own.stop // UNIT_K) * UNIT_K, form.k)
    layout = Layout(form.n, form.k, form.group_size, form.zeros)
    bytes_of_units = units(qweight, layout, start, stop - start)
    whole_units = packed(
        bytes_of_units.clone(memory_format=torch.contiguous_format),
        form._replace(k=stop - start),
    )
    if (start, stop) == (own.start, own.stop):
        return whole_units
    group_size = form.group_size
    if group_size != -1 and own.start % group_size != 0:
        group_size = math.gcd(own.start, group_size)
        if group_size not in GROUP_SIZES:
            raise ValueError(
                f"channels of groups of {form.group_size} must begin at a multiple of "
                f"{min(size for size in GROUP_SIZES if size > 0)}, got {own.start}"
            )
    whole = unpack(whole_units)
    scales, zeros = whole.scales, whole.zeros
    if group_size != -1:
        first = torch.arange(own.start - start, own.stop - start, group_size, device=scales.device)
        group = first // form.group_size
        scales = scales.index_select(0, group)
        zeros = None if zeros is None else zeros.index_select(0, group)
    codes = whole.codes[:, own.start - start : own.stop - start]
    return pack(QuantizedWeight(codes, scales, zeros, None, group_size, form.fp4))


def packed(qweight: torch.Tensor, form: PackedFormat) -> PackedWeight:
    """The packed weight of these bytes and this format, without a `perm`."""
    return PackedWeight(
        qweight, form.n, form.k, form.group_size, form.bf16_scales, form.zeros, fp4=form.fp4
    )


def units(qweight: Any, layout: Layout, start: int, count: int) -> torch.Tensor:
    """The bytes of input channels [start, start + count), which are a packed weight of their own.

    start is a multiple of 128, and so is count unless the channels end with it: a unit of the
    layout is whole then.
    """
    first, last = start // UNIT_K, -(-(start + count) // UNIT_K)
    own: torch.Tensor = qweight[:, first * layout.unit_bytes : last * layout.unit_bytes]
    if not layout.per_channel:
        return own
    scales = qweight[:, layout.units * layout.unit_bytes :]  # of all channels, so of these, too
    return torch.cat((own, scales), dim=1)
