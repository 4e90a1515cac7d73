"""The packed layout: the C++ map, its Python mirror, pack_w4 and unpack_w4 are one."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xgemm.formats import packed
from xgemm.formats.packed import GROUP_SIZES, Layout, reference_pack, reference_unpack

layouts = st.builds(
    Layout,
    n=st.integers(0, 200),
    k=st.integers(0, 600),
    group_size=st.sampled_from(GROUP_SIZES),
    zeros=st.booleans(),
)


def random_weight(layout: Layout, bf16_scales: bool, seed: int = 0):
    """Codes, scales and zeros of every bit pattern that the format allows."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (layout.n, layout.k), dtype=torch.uint8, generator=generator)
    shape = (layout.groups, layout.n)
    scales = torch.randn(shape, generator=generator)
    scales = scales.to(torch.bfloat16 if bf16_scales else torch.float16)
    zeros = (torch.rand(shape, generator=generator) * 15).half() if layout.zeros else None
    return codes, scales, zeros


@given(layout=layouts, data=st.data())
def test_python_map_is_the_cpp_map(cpp: ModuleType, layout: Layout, data: st.DataObject) -> None:
    theirs = cpp.Layout(layout.n, layout.k, layout.group_size, layout.zeros)
    assert theirs.bytes == layout.nbytes
    for name in ("rows", "units", "groups", "strip_bytes", "unit_bytes", "row_bytes"):
        assert getattr(theirs, name) == getattr(layout, name)
    if layout.n == 0 or layout.k == 0:
        return
    columns = st.integers(0, layout.rows * 64 - 1)
    channels = st.integers(0, layout.units * 128 - 1)
    groups = st.integers(0, layout.groups - 1)
    for _ in range(20):
        column, channel, group = data.draw(columns), data.draw(channels), data.draw(groups)
        assert theirs.nibble_index(column, channel) == layout.nibble_index(column, channel)
        assert theirs.scale_offset(column, group) == layout.scale_offset(column, group)
        assert theirs.zero_offset(column, group) == layout.zero_offset(column, group)


def test_constants_are_the_cpp_constants(cpp: ModuleType) -> None:
    from xgemm.formats.quantized import SYMMETRIC_ZERO

    assert packed.LAYOUT_VERSION == cpp.LAYOUT_VERSION
    assert cpp.SYMMETRIC_ZERO == SYMMETRIC_ZERO


@given(layout=layouts, bf16_scales=st.booleans(), seed=st.integers(0, 2**31))
def test_ops_follow_the_map(layout: Layout, bf16_scales: bool, seed: int) -> None:
    codes, scales, zeros = random_weight(layout, bf16_scales, seed)
    qweight = torch.ops.xgemm.pack_w4(codes, scales, zeros, layout.group_size)
    assert qweight.shape == (layout.rows, layout.row_bytes)
    # The whole of it: padding is 0.
    assert torch.equal(qweight, reference_pack(codes, scales, zeros, layout.group_size))

    unpacked = torch.ops.xgemm.unpack_w4(
        qweight,
        layout.n,
        layout.k,
        layout.group_size,
        bf16_scales=bf16_scales,
        zeros=layout.zeros,
    )
    reference = reference_unpack(qweight, layout, bf16_scales)
    for got, mapped, given_tensor in zip(unpacked, reference, (codes, scales, zeros), strict=True):
        if given_tensor is None:
            assert mapped is None
            assert got.numel() == 0
            continue
        assert got.dtype == given_tensor.dtype
        assert torch.equal(got, given_tensor)
        assert torch.equal(mapped, given_tensor)


@settings(max_examples=20)
@given(layout=layouts)
def test_every_byte_has_one_owner(layout: Layout) -> None:
    """Nibbles, scales and zeros of the padded weight cover qweight once and only once."""
    owners = torch.zeros(layout.nbytes * 2, dtype=torch.int64)  # by nibble
    column = torch.arange(layout.rows * 64)[:, None]
    channel = torch.arange(layout.units * 128)[None, :]
    nibbles = layout.nibble_index(column, channel).flatten()
    owners.index_add_(0, nibbles, torch.ones_like(nibbles))
    slots = 1 if layout.per_channel else layout.units * layout.groups_per_unit
    group = torch.arange(slots)[None, :]
    offsets = [layout.scale_offset(column, group)]
    if layout.zeros:
        offsets.append(layout.zero_offset(column, group))
    for offset in offsets:
        for nibble in range(4):  # 2 bytes
            where = (offset * 2 + nibble).flatten()
            owners.index_add_(0, where, torch.ones_like(where))
    assert bool((owners == 1).all())


@given(
    n=st.integers(65, 300),
    k=st.integers(1, 300),
    group_size=st.sampled_from(GROUP_SIZES),
    zeros=st.booleans(),
    row=st.integers(1, 4),
)
def test_rows_split_and_join_in_n(n: int, k: int, group_size: int, zeros: bool, row: int) -> None:
    layout = Layout(n, k, group_size, zeros)
    cut = min(row, layout.rows - 1) * 64
    codes, scales, zero = random_weight(layout, False)
    qweight = torch.ops.xgemm.pack_w4(codes, scales, zero, group_size)
    head = torch.ops.xgemm.pack_w4(
        codes[:cut], scales[:, :cut], None if zero is None else zero[:, :cut], group_size
    )
    tail = torch.ops.xgemm.pack_w4(
        codes[cut:], scales[:, cut:], None if zero is None else zero[:, cut:], group_size
    )
    assert torch.equal(qweight.narrow(0, 0, cut // 64), head)
    assert torch.equal(qweight, torch.cat([head, tail]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((True, 8, 32, False), "n must be an int, got bool True"),
        ((8, 8.0, 32, False), "k must be an int, got float 8.0"),
        ((-1, 8, 32, False), "n must be within 0..2147483647, got -1"),
        ((8, 2**31, 32, False), "k must be within 0..2147483647, got 2147483648"),
        ((8, 8, 16, False), r"group_size must be one of \(32, 64, 128, -1\), got 16"),
        ((8, 8, 32, 1), "zeros must be a bool, got int 1"),
    ],
)
def test_bad_layouts_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Layout(*arguments)


def test_the_example_of_the_documentation_holds() -> None:
    page = Path(__file__).parents[1] / "docs" / "design" / "packed-layout.md"
    examples = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    assert len(examples) == 1
    exec(compile(examples[0], str(page), "exec"), {})


@given(cut=st.integers(1, 3), zeros=st.booleans(), group_size=st.sampled_from((32, 64, 128)))
def test_units_split_in_k(cut: int, zeros: bool, group_size: int) -> None:
    layout = Layout(70, 500, group_size, zeros)
    codes, scales, zero = random_weight(layout, False)
    qweight = torch.ops.xgemm.pack_w4(codes, scales, zero, group_size)
    k, group = cut * 128, cut * 128 // group_size
    head = torch.ops.xgemm.pack_w4(
        codes[:, :k], scales[:group], None if zero is None else zero[:group], group_size
    )
    assert torch.equal(qweight.narrow(1, 0, cut * layout.unit_bytes), head)
