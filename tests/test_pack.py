"""pack and unpack: every weight comes back as it was; bad input is refused by name."""

from __future__ import annotations

import copy
import dataclasses
import io
import pickle

import pytest
import torch
from helpers import random_weight
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

import xgemm
from xgemm import PackedWeight, QuantizedWeight
from xgemm.formats.packed import GROUP_SIZES


def make(
    n: int = 70,
    k: int = 200,
    group_size: int = 32,
    zeros: bool = True,
    dtype: torch.dtype = torch.float16,
    g_idx: torch.Tensor | None = None,
) -> QuantizedWeight:
    generator = torch.Generator().manual_seed(n * 1000 + k)
    groups = -(-k // (group_size if group_size > 0 else max(k, 1)))
    scales = torch.rand(groups, n, generator=generator).add(0.1).to(dtype)
    zero = (torch.rand(groups, n, generator=generator) * 15).half() if zeros else None
    codes = torch.randint(0, 16, (n, k), dtype=torch.uint8, generator=generator)
    return QuantizedWeight(codes, scales, zero, g_idx, group_size)


def assert_same(a: QuantizedWeight, b: QuantizedWeight) -> None:
    assert a.group_size == b.group_size
    for name in ("codes", "scales", "zeros", "g_idx"):
        x, y = getattr(a, name), getattr(b, name)
        if x is None or y is None:
            assert x is y
        else:
            assert x.dtype == y.dtype
            assert torch.equal(x, y), name


@given(
    n=st.integers(0, 150),
    k=st.integers(0, 400),
    group_size=st.sampled_from(GROUP_SIZES),
    zeros=st.booleans(),
    dtype=st.sampled_from((torch.float16, torch.bfloat16)),
    seed=st.none() | st.integers(0, 1000),
)
def test_unpack_gives_the_weight_back(
    n: int, k: int, group_size: int, zeros: bool, dtype: torch.dtype, seed: int | None
) -> None:
    q = make(n, k, group_size, zeros, dtype)
    if seed is not None:
        size = group_size if group_size > 0 else max(k, 1)
        order = torch.randperm(k, generator=torch.Generator().manual_seed(seed))
        q = dataclasses.replace(q, g_idx=(order // size).int())
    p = xgemm.pack(q)
    in_order = q.g_idx is None or torch.equal(q.g_idx, q.g_idx.sort().values)
    assert (p.perm is None) == in_order
    assert (p.n, p.k, p.group_size, p.has_zeros) == (n, k, group_size, zeros)
    assert p.bf16_scales == (dtype == torch.bfloat16)
    back = xgemm.unpack(p)
    assert_same(back, dataclasses.replace(q, g_idx=None) if in_order else q)


def test_act_order_sorts_channels_by_group_and_keeps_their_order() -> None:
    k, group_size = 80, 32  # the last group has 16 channels
    g_idx = torch.tensor([(2, 0, 1, 0, 1)[i % 5] for i in range(k)], dtype=torch.int32)
    q = make(64, k, group_size, g_idx=g_idx)
    p = xgemm.pack(q)
    assert p.perm is not None
    assert p.perm.dtype == torch.int32
    expected = sorted(range(k), key=lambda channel: (int(g_idx[channel]), channel))
    assert p.perm.tolist() == expected
    plain = xgemm.unpack(dataclasses.replace(p, perm=None))
    assert torch.equal(plain.codes, q.codes[:, p.perm.long()])


def test_act_order_dequantizes_to_the_same_weight() -> None:
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    q = make(70, 200, 32, g_idx=(order // 32).int())
    by_hand = torch.empty(70, 200)
    for channel in range(200):
        group = int(q.g_idx[channel])
        by_hand[:, channel] = (q.codes[:, channel] - q.zeros[group].float()) * q.scales[group]
    assert torch.equal(q.dequantize(), by_hand)
    p = xgemm.pack(q)
    product = xgemm.linear(torch.eye(200), p)  # row i of the product is channel i of W
    torch.testing.assert_close(product.t(), by_hand, rtol=1e-6, atol=1e-6)


BAD = [
    ({"codes": torch.full((4, 32), 16, dtype=torch.uint8)}, "codes must be within 0..15, got 16"),
    ({"codes": torch.zeros(4, 32)}, r"codes must be uint8 \[N, K\], got torch.float32 \[4, 32\]"),
    ({"codes": torch.zeros(4, dtype=torch.uint8)}, r"codes must be uint8 \[N, K\]"),
    ({"scales": torch.ones(1, 4)}, r"scales must be float16 or bfloat16 \[groups, N\] = \[1, 4\]"),
    ({"scales": torch.ones(2, 4).half()}, r"scales must be .* = \[1, 4\], got .* \[2, 4\]"),
    ({"scales": torch.ones(4, 1).half()}, r"scales must be .* = \[1, 4\], got .* \[4, 1\]"),
    (
        {"scales": torch.tensor([[1.0, 1.0, float("nan"), 1.0]]).half()},
        "scales must be finite, got nan at group 0, column 2",
    ),
    ({"scales": torch.full((1, 4), float("inf")).bfloat16()}, "scales must be finite, got inf"),
    ({"zeros": torch.ones(1, 4).bfloat16()}, r"zeros must be float16 \[groups, N\] = \[1, 4\]"),
    ({"zeros": torch.ones(4).half()}, r"zeros must be float16 \[groups, N\] = \[1, 4\]"),
    ({"zeros": torch.full((1, 4), float("nan")).half()}, "zeros must be finite, got nan"),
    ({"group_size": 16}, r"group_size must be one of \(32, 64, 128, -1\), got 16"),
    ({"group_size": 0}, "group_size must be one of"),
    ({"group_size": 32.0}, "group_size must be an int, got float"),
    ({"g_idx": torch.zeros(31, dtype=torch.int32)}, r"g_idx must be int32 \[32\]"),
    ({"g_idx": torch.zeros(32)}, r"g_idx must be int32 \[32\], got torch.float32"),
    ({"g_idx": torch.full((32,), -1, dtype=torch.int32)}, r"g_idx must be within 0..0, got -1"),
    ({"g_idx": torch.full((32,), 1, dtype=torch.int32)}, r"g_idx must be within 0..0, got 1..1"),
    ({"scales": torch.ones(1, 4, device="meta").half()}, "scales must be on the device of codes"),
    ({"codes": torch.zeros(4, 32, dtype=torch.uint8, device="meta")}, "codes has no data"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_weights_are_refused(change: dict, message: str) -> None:
    q = dataclasses.replace(make(4, 32, 32), **change)
    with pytest.raises((TypeError, ValueError), match="pack: " + message):
        xgemm.pack(q)


def test_uneven_groups_are_refused() -> None:
    g_idx = torch.arange(64, dtype=torch.int32) // 32
    g_idx[0] = 1
    with pytest.raises(ValueError, match=r"every group 32 channels .* got 31 in group 0"):
        xgemm.pack(make(4, 64, 32, g_idx=g_idx))


def test_other_types_are_refused() -> None:
    with pytest.raises(TypeError, match="pack: q must be a QuantizedWeight, got Tensor"):
        xgemm.pack(torch.zeros(4))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unpack: p must be a PackedWeight, got int"):
        xgemm.unpack(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("group_size", [32, 128, -1])
def test_a_packed_weight_dequantizes(group_size: int, dtype: torch.dtype) -> None:
    """Each weight of the canonical form, rounded once; act-order is undone."""
    for zeros, scale_dtype, act_order in (
        ("none", torch.float16, False),
        ("integer", torch.bfloat16, False),
        ("real", torch.float16, group_size > 0),
    ):
        q = random_weight(70, 130, group_size, zeros, scale_dtype, act_order)
        w = xgemm.pack(q).dequantize(dtype)
        exact = q.dequantize(torch.float64)
        steps = torch.finfo(dtype).eps / 2 + 2 * torch.finfo(torch.float32).eps
        assert w.dtype == dtype
        assert bool(((w.double() - exact).abs() <= steps * exact.abs() + 2.0**-25).all())


def test_dequantize_refuses_other_types() -> None:
    p = xgemm.pack(make(4, 32, 32))
    with pytest.raises(ValueError, match=r"dequantize_w4: dtype must be .*, got 'float64'"):
        p.dequantize(torch.float64)


def test_strided_input_is_packed_by_value() -> None:
    q = make(70, 200, 32)
    strided = QuantizedWeight(
        q.codes.t().contiguous().t(), q.scales.t().contiguous().t(), q.zeros[:, :], None, 32
    )
    assert not strided.codes.is_contiguous()
    assert torch.equal(xgemm.pack(strided).qweight, xgemm.pack(q).qweight)


PACKED_BAD = [
    ({"qweight": torch.zeros(2, 10, dtype=torch.uint8)}, r"qweight must be uint8 \[2, 10240\]"),
    ({"qweight": torch.zeros(2, 10240)}, "got torch.float32"),
    ({"n": 200}, r"qweight must be uint8 \[4, 10240\] for n=200"),
    ({"n": True}, "n must be an int, got bool"),
    ({"k": -1}, "k must be within"),
    ({"group_size": 48}, "group_size must be one of"),
    ({"has_zeros": False}, r"qweight must be uint8 \[2, 9216\]"),
    ({"bf16_scales": 1}, "bf16_scales must be a bool"),
    ({"perm": torch.arange(200)}, r"perm must be int32 \[200\] or None, got torch.int64"),
    ({"perm": torch.arange(9, dtype=torch.int32)}, r"perm must be int32 \[200\] or None"),
    ({"layout_version": 2}, "layout_version must be 1 .*, got 2"),
    ({"layout_version": True}, "layout_version must be an int, got bool"),
]


@pytest.mark.parametrize(("change", "message"), PACKED_BAD)
def test_bad_packed_weights_are_refused(change: dict, message: str) -> None:
    p = xgemm.pack(make())
    with pytest.raises((TypeError, ValueError), match=message):
        dataclasses.replace(p, **change)


def test_unpack_refuses_what_is_no_permutation() -> None:
    p = xgemm.pack(make())
    bad = dataclasses.replace(p, perm=torch.arange(200, dtype=torch.int32))
    bad.perm.zero_()  # later than it was checked
    with pytest.raises(ValueError, match=r"unpack: perm must hold each of 0..199 once"):
        xgemm.unpack(bad)


def test_a_weight_with_a_channel_named_twice() -> None:
    """It is refused where it is made; where perm is changed later, what it lacks is 0."""
    p = xgemm.pack(make())
    twice = torch.arange(200, dtype=torch.int32)
    twice[7] = 8
    for perm in (twice, twice - 1, twice + 1):
        with pytest.raises(ValueError, match=r"PackedWeight: perm must hold each of 0\.\.199 once"):
            dataclasses.replace(p, perm=perm)
    whole = dataclasses.replace(p, perm=torch.arange(200, dtype=torch.int32))
    assert whole.perm is not None
    whole.perm[7] = 8
    for layer in (whole, xgemm.nn.QuantLinear.from_packed(whole)):
        torch.use_deterministic_algorithms(True)  # memory that is not set is filled with NaN
        try:
            w = layer.dequantize(torch.float32)
        finally:
            torch.use_deterministic_algorithms(False)
        assert (w[:, 7] == 0).all()
        others = [k for k in range(200) if k not in (7, 8)]
        assert torch.equal(w[:, others], p.dequantize()[:, others])
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:  # nothing to look at there
        fake = dataclasses.replace(p, perm=mode.from_tensor(twice))
    assert fake.perm is not None


def test_packed_weight_moves_copies_and_pickles() -> None:
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    q = make(g_idx=(order // 32).int())
    p = xgemm.pack(q)
    assert p.device == torch.device("cpu")
    assert p.nbytes == p.qweight.numel() + 4 * 200
    meta = p.to("meta")
    assert meta.qweight.is_meta
    assert meta.perm is not None
    assert meta.perm.is_meta
    buffer = io.BytesIO()
    torch.save(p, buffer)
    buffer.seek(0)
    for same in (
        p.to("cpu"),
        copy.deepcopy(p),
        pickle.loads(pickle.dumps(p)),
        torch.load(buffer, weights_only=False),
    ):
        assert_same(xgemm.unpack(same), q)


def test_pickle_of_another_layout_version_is_refused() -> None:
    p = xgemm.pack(make())
    state = {**p.__dict__, "layout_version": 7}
    with pytest.raises(ValueError, match=r"layout_version must be 1 .*, got 7"):
        PackedWeight.__new__(PackedWeight).__setstate__(state)
