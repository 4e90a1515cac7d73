"""mul.w4a16 and its gradient op on the CPU against float64 over the codes, scales and zeros."""

from __future__ import annotations

import pytest
import torch
from helpers import (
    ACTIVATIONS,
    DTYPES,
    activations,
    assert_within,
    dtypes,
    laid_out,
    layouts,
    num_threads,
    randn,
    random_weight,
    seeds,
    threads,
    w4a16_args,
    w4a16_form,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import xgemm
from xgemm import reference

grad_a = torch.ops.xgemm.w4a16_grad_a.default

rows = st.sampled_from((0, 1, 2, 3, 5, 8, 15, 16, 17, 33))
features = st.sampled_from((0, 1, 15, 16, 17, 63, 64, 65, 129))
channels = st.sampled_from((0, 1, 15, 17, 31, 32, 64, 127, 128, 129, 300))
groups = st.sampled_from((32, 64, 128, -1))
zero_kinds = st.sampled_from(("none", "integer", "real"))
scale_dtypes = st.sampled_from((torch.float16, torch.bfloat16))


def check(x, q, p, bias=None, activation="none", **options):
    y = xgemm.linear(x, p, bias, activation, **options)
    assert y.dtype == x.dtype
    assert y.shape == (*x.shape[:-1], q.n)
    assert_within(
        y,
        reference.w4a16(x, q, bias, activation),
        reference.w4a16_bound(x, q, bias, activation),
    )
    return y


@settings(max_examples=80)
@given(
    rows,
    features,
    channels,
    groups,
    zero_kinds,
    scale_dtypes,
    st.booleans(),
    dtypes,
    layouts,
    activations,
    st.booleans(),
    st.booleans(),
    threads,
    seeds,
)
def test_any_weight(
    m, n, k, group, zeros, scale, act_order, dtype, layout, activation, with_bias, invariant,
    count, seed,
):  # fmt: skip
    q = random_weight(n, k, group, zeros, scale, act_order, seed)
    p = xgemm.pack(q)
    x = laid_out(randn((m, k), dtype, seed), layout)
    bias = randn((n,), dtype, seed + 1) if with_bias else None
    with num_threads(count):
        check(x, q, p, bias, activation, batch_invariant=invariant)
        grad = laid_out(randn((m, n), dtype, seed + 2), layout)
        dx = grad_a(grad, *w4a16_args(p), p.perm, **w4a16_form(p))
    assert dx.dtype == dtype
    assert_within(dx, reference.w4a16_grad_a(grad, q), reference.w4a16_grad_a_bound(grad, q))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [1, 4, 70])
def test_beyond_one_block(dtype, m):
    q = random_weight(330, 1100, 128, "real", act_order=True)
    p = xgemm.pack(q)
    x = randn((m, 1100), dtype)
    with num_threads(1):
        one = check(x, q, p)
    with num_threads(2):
        two = check(x, q, p)
    assert_within(two, one.double(), 2 * reference.w4a16_bound(x, q))
    grad = randn((m, 330), dtype, 1)
    dx = grad_a(grad, *w4a16_args(p), p.perm, **w4a16_form(p))
    assert_within(dx, reference.w4a16_grad_a(grad, q), reference.w4a16_grad_a_bound(grad, q))


@pytest.mark.parametrize("shape", [(96,), (1, 96), (2, 3, 96), (2, 0, 96), (1, 1, 1, 96)])
def test_leading_dimensions(shape):
    q = random_weight(40, 96, 32)
    p = xgemm.pack(q)
    x = randn(shape, torch.float32)
    check(x, q, p)
    check(laid_out(x, "strided"), q, p, randn((40,), torch.float32, 1), "silu")
    if len(shape) == 3:
        check(x.mT.contiguous().mT, q, p)
        check(randn((3, 2, 96), torch.float32).transpose(0, 1), q, p)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", [32, 64, 128, -1])
def test_every_code_and_position(dtype, group):
    """The identity as activations reads W itself, each weight at its own place."""
    k = 160
    q = random_weight(70, k, group, "integer")
    p = xgemm.pack(q)
    w = reference.dequantize(q).t()
    assert torch.equal(xgemm.linear(torch.eye(k), p), w.float())
    y = xgemm.linear(torch.eye(k, dtype=dtype), p)
    assert_within(y, w, w.abs() * 2 * reference.unit_roundoff(dtype) + 1e-7)
    one_by_one = torch.cat([xgemm.linear(row, p) for row in torch.eye(k)[:, None]])
    assert torch.equal(one_by_one, w.float())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_bias_and_activation(dtype, activation):
    q = random_weight(65, 130, 64)
    p = xgemm.pack(q)
    bias = randn((130,), dtype, 3)[::2]
    for m in (1, 9):
        check(randn((m, 130), dtype), q, p, bias, activation)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("m", [1, 3, 40])
def test_non_finite_activations(dtype, value, m):
    q = random_weight(33, 100, 32, "real")
    # A weight of exactly 0 times an infinity is NaN; times a number it is nothing.
    p = xgemm.pack(q)
    x = randn((m, 100), dtype)
    x[m - 1, 50] = value
    y = check(x, q, p)
    assert not y[m - 1].isfinite().any()
    assert y[: m - 1].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", [32, 64, 128, -1])
@pytest.mark.parametrize("zeros", ["none", "integer"])
def test_infinities_are_those_of_the_dequantized_product(dtype, group, zeros):
    """For any number of rows: NaN where a weight is exactly 0, else the infinity of its sign.

    A code of 0 is not a weight of 0, nor is a zero point subtracted from an infinity.
    """
    q = random_weight(70, 200, group, zeros, act_order=group == 64)
    p = xgemm.pack(q)
    w = p.dequantize().double()
    assert (w == 0).any()
    assert (q.codes == 0).any()
    for m in (1, 2, 4, 7, 16, 17, 40):
        x = randn((m, 200), dtype)
        x[0, 3], x[m - 1, 199] = float("inf"), -float("inf")
        x[m // 2, [0, 130]] = -float("inf")
        expected = x.double() @ w.T
        for batch_invariant in (False, True):
            y = xgemm.linear(x, p, batch_invariant=batch_invariant).double()
            infinite = expected.isinf()
            assert infinite.any()
            assert torch.equal(y.isnan(), expected.isnan())
            assert torch.equal(y[infinite], expected[infinite])
            assert torch.equal(y.isfinite(), expected.isfinite())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", [32, 128, -1])
@pytest.mark.parametrize("act_order", [False, True])
def test_batch_invariant(dtype, group, act_order):
    """The bits of a row are the same alone, among few rows and among many, on 1 and 2 threads."""
    q = random_weight(100, 300, group, "integer", act_order=act_order)
    p = xgemm.pack(q)
    x = randn((150, 300), dtype)
    bias = randn((100,), dtype, 1)
    with num_threads(2):
        whole = xgemm.linear(x, p, bias, "gelu", batch_invariant=True)
    check(x, q, p, bias, "gelu", batch_invariant=True)
    for m in (1, 2, 3, 4, 5, 8, 17, 64):
        for start in (0, 150 - m):
            with num_threads(1 + m % 2):
                part = xgemm.linear(x[start : start + m], p, bias, "gelu", batch_invariant=True)
            assert torch.equal(part, whole[start : start + m]), f"{m} rows from {start}"


@pytest.mark.parametrize("m", [1, 4, 40])
def test_same_bits_again(m):
    p = xgemm.pack(random_weight(129, 300))
    x = randn((m, 300), torch.float32)
    assert torch.equal(xgemm.linear(x, p), xgemm.linear(x, p))


@pytest.mark.parametrize("m", [1, 9])
def test_x_beyond_k_is_not_read(m):
    """The padding of K up to the unit multiplies nothing, whatever lies behind a row of x."""
    q = random_weight(20, 33, 32)
    p = xgemm.pack(q)
    wide = torch.full((m, 256), float("nan"))
    wide[:, :33] = randn((m, 33), torch.float32)
    check(wide[:, :33], q, p)


def test_rows_of_qweight_are_a_split_in_n():
    q = random_weight(192, 100, 64, "real")
    p = xgemm.pack(q)
    x = randn((3, 100), torch.float32)
    whole = xgemm.linear(x, p)
    parts = [
        torch.ops.xgemm.mul.w4a16(x, p.qweight.narrow(0, row, 1), 64, 100, 64, zeros=True)
        for row in range(3)
    ]
    assert torch.equal(torch.cat(parts, 1), whole)


def test_linear_is_the_overload():
    q = random_weight(48, 96, 32, "integer", torch.bfloat16, act_order=True)
    p = xgemm.pack(q)
    assert p.perm is not None
    x, bias = randn((5, 96), torch.float16), randn((48,), torch.float16, 1)
    expected = torch.ops.xgemm.mul(
        x, p.qweight, 48, 96, 32, bias, p.perm, bf16_scales=True, zeros=True, activation="relu"
    )
    assert torch.equal(xgemm.linear(x, p, bias, "relu"), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_extreme_scales(dtype):
    """Scales at both ends of float16: neither underflows on the way nor overflows too early."""
    q = random_weight(64, 64, 32)
    for scale in (2.0**-24, 2.0**-14, 1024.0):
        q.scales.fill_(scale)
        p = xgemm.pack(q)
        check(randn((2, 64), dtype), q, p)
        check(randn((20, 64), dtype), q, p)


def test_explain_names_a_kernel():
    text = torch.ops.xgemm.explain("mul.w4a16", 1, 4096, 4096, dtype="float16")
    many = torch.ops.xgemm.explain("mul.w4a16", 512, 4096, 4096, dtype="float16")
    assert text
    assert many
    assert text != many
