"""mul_into and mul_into.w4a16: mul's numbers into any strided destination.

The bits are mul's where the destination is contiguous, as mul's own result is; elsewhere the
result may be written, and its activation evaluated, by other code within the same bound.
"""

from __future__ import annotations

import pytest
import torch
from helpers import (
    DTYPES,
    activations,
    assert_within,
    dtypes,
    laid_out,
    layouts,
    randn,
    random_weight,
    seeds,
    sizes,
    w4a16_args,
    w4a16_form,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import xgemm
from xgemm import reference

mul = torch.ops.xgemm.mul.default
mul_into = torch.ops.xgemm.mul_into.default
w4a16_into = torch.ops.xgemm.mul_into.w4a16

destinations = st.sampled_from(("contiguous", "transposed", "padded", "strided", "offset"))


def destination(shape, dtype, layout):
    """A destination of NaN: an element that is not written shows."""
    return laid_out(torch.full(shape, float("nan"), dtype=dtype), layout)


@settings(max_examples=40)
@given(sizes, sizes, sizes, dtypes, layouts, destinations, activations, st.booleans(), seeds)
def test_mul_into(m, n, k, dtype, layout, dst_layout, activation, with_bias, seed):
    a = laid_out(randn((m, k), dtype, seed), layout)
    b = laid_out(randn((k, n), dtype, seed + 1), layout)
    bias = randn((n,), dtype, seed + 2) if with_bias else None
    dst = destination((m, n), dtype, dst_layout)
    assert mul_into(dst, a, b, bias, activation=activation) is None
    assert_within(
        dst, reference.mul(a, b, bias, activation), reference.mul_bound(a, b, bias, activation)
    )
    if dst_layout == "contiguous":
        assert torch.equal(dst, mul(a, b, bias, activation=activation))


@settings(max_examples=40)
@given(
    st.sampled_from((0, 1, 3, 17, 40)),
    st.sampled_from((1, 16, 63, 129)),
    st.sampled_from((1, 64, 129)),
    st.sampled_from((32, 128, -1)),
    dtypes,
    destinations,
    activations,
    st.booleans(),
    seeds,
)
def test_w4a16_into(m, n, k, group, dtype, dst_layout, activation, act_order, seed):
    q = random_weight(n, k, group, "real", act_order=act_order, seed=seed)
    p = xgemm.pack(q)
    x, bias = randn((m, k), dtype, seed), randn((n,), dtype, seed + 1)
    options = {**w4a16_form(p), "activation": activation}
    dst = destination((m, n), dtype, dst_layout)
    assert w4a16_into(dst, x, *w4a16_args(p), bias, p.perm, **options) is None
    assert_within(
        dst, reference.w4a16(x, q, bias, activation), reference.w4a16_bound(x, q, bias, activation)
    )
    if dst_layout == "contiguous":
        assert torch.equal(dst, xgemm.linear(x, p, bias, activation))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shapes",
    [((7,), (7,)), ((7,), (7, 5)), ((3, 7), (7,)), ((4, 3, 7), (7, 5)), ((2, 3, 7), (2, 7, 5))],
)
def test_vectors_and_batches(shapes, dtype):
    a, b = (randn(shape, dtype, seed) for seed, shape in enumerate(shapes))
    expected = mul(a, b)
    for layout in ("contiguous", "transposed", "strided"):
        if expected.dim() == 0 and layout != "contiguous":
            continue
        dst = destination(expected.shape, dtype, layout)
        mul_into(dst, a, b)
        assert torch.equal(dst, expected)


def test_what_lies_around_a_view_stays():
    wide = torch.arange(200.0).view(10, 20)
    before = wide.clone()
    a, b = randn((4, 6), torch.float32), randn((6, 5), torch.float32, 1)
    mul_into(wide[3:7, 2:12:2], a, b)
    before[3:7, 2:12:2] = mul(a, b)
    assert torch.equal(wide, before)


def test_left_half_from_the_right_half():
    """Two views of one buffer that share no element are no overlap."""
    buffer = randn((6, 12), torch.float32)
    a, dst = buffer[:, 6:], buffer[:, :6]
    b = randn((6, 6), torch.float32, 1)
    expected = mul(a.clone(), b)
    mul_into(dst, a, b)
    assert torch.equal(dst, expected)


def test_packet():
    dst, a, b = torch.empty(2, 4), randn((2, 3), torch.float32), randn((3, 4), torch.float32)
    torch.ops.xgemm.mul_into(dst, a, b, activation="silu")
    assert torch.equal(dst, mul(a, b, activation="silu"))


def test_a_write_is_counted():
    """Autograd refuses to go back through a saved tensor that was overwritten."""
    x = randn((3, 3), torch.float32).requires_grad_()
    saved = torch.zeros(3, 3)
    y = x * saved
    version = saved._version
    with torch.no_grad():
        mul_into(saved, torch.ones(3, 3), torch.ones(3, 3))
    assert saved._version == version + 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_inference_mode():
    with torch.inference_mode():
        dst = torch.empty(2, 2)
        mul_into(dst, torch.ones(2, 3), torch.ones(3, 2))
    assert torch.equal(dst, torch.full((2, 2), 3.0))


@pytest.mark.parametrize("op", ["mul_into", "mul_into.w4a16", "sgemm_into"])
def test_an_inference_tensor_is_written_in_inference_mode_only(op):
    """As in torch: nothing counts the writes into one, by which autograd finds what was changed."""
    p = xgemm.pack(random_weight(4, 32, 32))
    name = "c" if op == "sgemm_into" else "dst"
    others = (torch.ones(2, 3), torch.ones(3, 4))
    if op == "mul_into.w4a16":
        others = (torch.ones(2, 32), *w4a16_args(p))
    packet, _, overload = op.partition(".")
    call = getattr(getattr(torch.ops.xgemm, packet), overload or "default")
    with torch.inference_mode():
        dst = torch.full((2, 4), 7.0)
        inference = tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in others)
    for args in (others, inference):  # tensors of which autograd knows some, and none
        for mode in (torch.enable_grad, torch.no_grad):
            with mode(), pytest.raises(ValueError, match=f"{op}: {name} must not be an inference"):
                call(dst, *args)
            assert (dst == 7).all()
    with torch.inference_mode():
        call(dst, *others)
    assert (dst != 7).all()


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_write_is_counted_in_every_mode(mode):
    dst = torch.zeros(2, 4)
    version = dst._version
    with mode():
        mul_into(dst, torch.ones(2, 3), torch.ones(3, 4))
    assert dst._version == version + 1


def test_negative_views():
    """z.conj().imag holds the negatives of its values: it is read and written like any tensor."""
    a, b, z = torch.ones(2, 3), torch.ones(3, 4), torch.zeros(2, 4, dtype=torch.complex64)
    dst = z.conj().imag
    assert dst.is_neg()
    mul_into(dst, a, b)
    assert torch.equal(z.imag, torch.full((2, 4), -3.0))
    torch.ops.xgemm.sgemm_into(dst, a, b, beta=2.0)  # 3 + 2 * 3
    assert torch.equal(z.imag, torch.full((2, 4), -9.0))
    minus = torch.zeros(2, 3, dtype=torch.complex64).copy_(1j * a).conj().imag
    mul_into(y := torch.empty(2, 4), minus, b)
    assert torch.equal(y, torch.full((2, 4), -3.0))
    with pytest.raises(ValueError, match="mul_into: dst must have the shape"):
        mul_into(dst, a, b[:, :3])
    assert torch.equal(dst, torch.full((2, 4), 9.0))


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_no_destination(mode):
    with (
        mode(),
        pytest.raises(TypeError, match=r"^sgemm_into: c must be a torch\.Tensor, got None"),
    ):
        torch.ops.xgemm.sgemm_into(None, torch.ones(2, 3), torch.ones(3, 4))
