"""Shares of packed weights: the same codes, scales and zeros, or the same float weights."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import xgemm
from xgemm.formats.packed_format import PackedFormat
from xgemm.formats.split import channels, columns, shares

N, K = 200, 448


def weight(group_size: int, zeros: bool, dtype: torch.dtype, act_order: bool = False):
    random = torch.Generator().manual_seed(3)
    groups = 1 if group_size == -1 else -(-K // group_size)
    g_idx = None
    if act_order:
        g_idx = torch.arange(K, dtype=torch.int32) // group_size
        g_idx = g_idx[torch.randperm(K, generator=random)]
    return xgemm.pack(
        xgemm.QuantizedWeight(
            torch.randint(0, 16, (N, K), generator=random, dtype=torch.uint8),
            torch.rand(groups, N, generator=random).add(0.5).to(dtype),
            torch.randn(groups, N, generator=random).half() if zeros else None,
            g_idx,
            group_size,
        )
    )


def source(whole: xgemm.PackedWeight) -> tuple[torch.Tensor, PackedFormat]:
    """What shares are taken of: the bytes and their format."""
    form = PackedFormat(whole.n, whole.k, whole.group_size, whole.bf16_scales, whole.has_zeros)
    return whole.qweight, form


FORMATS = [
    (group_size, zeros, dtype)
    for group_size in (32, 64, 128, -1)
    for zeros, dtype in ((False, torch.float16), (True, torch.bfloat16))
]


@pytest.mark.parametrize("size", [64, 100, 7392, 32001])
@pytest.mark.parametrize("parts", [1, 2])
def test_shares_cover_all_and_begin_at_multiples(size, parts):
    found = shares(size, parts, 32)
    assert [i for part in found for i in part] == list(range(size))
    assert all(part.start % 32 == 0 for part in found)
    assert max(map(len, found)) - min(map(len, found)) <= 32


def test_shares_that_would_be_empty_are_refused():
    with pytest.raises(ValueError, match=r"100 is too small for 3 shares .* multiples of 64"):
        shares(100, 3, 64)


@pytest.mark.parametrize(("group_size", "zeros", "dtype"), FORMATS)
@pytest.mark.parametrize("own", [range(64, 128), range(128, 200), range(0, 192)])
def test_columns(group_size, zeros, dtype, own):
    whole = weight(group_size, zeros, dtype)
    part = columns(*source(whole), own)
    assert (part.n, part.k, part.group_size) == (len(own), K, group_size)
    expected = xgemm.unpack(whole).rows(slice(own.start, own.stop))
    assert torch.equal(part.qweight, xgemm.pack(expected).qweight)
    assert part.qweight.untyped_storage().nbytes() == part.layout.nbytes


@pytest.mark.parametrize(("group_size", "zeros", "dtype"), FORMATS)
@pytest.mark.parametrize(
    "own", [range(128, 256), range(256, 448), range(64, 160), range(192, 448), range(32, 448)]
)
def test_channels(group_size, zeros, dtype, own):
    whole = weight(group_size, zeros, dtype)
    part = channels(*source(whole), own)
    assert (part.n, part.k) == (N, len(own))
    expected = whole.dequantize()[:, own.start : own.stop]
    assert torch.equal(part.dequantize(), expected)
    assert part.qweight.untyped_storage().nbytes() == part.layout.nbytes
    if own.start % (K if group_size == -1 else group_size) == 0 or group_size == -1:
        assert part.group_size == group_size


@pytest.mark.parametrize("own", [range(5, 64), range(0, 71)])
def test_columns_within_a_row_are_refused(own):
    with pytest.raises(ValueError, match=r"columns must begin and end at multiples of 64, .* 200"):
        columns(*source(weight(64, True, torch.float16)), own)


def test_channels_within_32_are_refused_where_groups_end():
    with pytest.raises(ValueError, match="groups of 64 must begin at a multiple of 32, got 40"):
        channels(*source(weight(64, True, torch.float16)), range(40, 80))
    part = channels(*source(weight(-1, True, torch.float16)), range(40, 80))
    assert torch.equal(part.dequantize(), weight(-1, True, torch.float16).dequantize()[:, 40:80])


def test_shares_of_an_order_of_channels():
    whole = weight(64, True, torch.float16, act_order=True)
    part = dataclasses.replace(columns(*source(whole), range(64, 128)), perm=whole.perm)
    assert torch.equal(part.dequantize(), whole.dequantize()[64:128])
    part = channels(*source(whole), range(192, 448))
    assert part.perm is None
    expected = whole.dequantize().index_select(1, whole.perm[192:448].long())
    assert torch.equal(part.dequantize(), expected)
