"""mul on the CPU against float64: shapes, strides, dtypes, bias, activations, non-finite values."""

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
    seeds,
    sizes,
    threads,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from xgemm import reference
from xgemm.activations import activate

mul = torch.ops.xgemm.mul.default


def check(a, b, bias=None, activation="none"):
    result = mul(a, b, bias, activation=activation)
    assert result.dtype == a.dtype
    assert result.is_contiguous()
    assert result.shape == torch.matmul(a.double(), b.double()).shape
    assert_within(
        result,
        reference.mul(a, b, bias, activation),
        reference.mul_bound(a, b, bias, activation),
    )
    return result


@settings(max_examples=60)
@given(sizes, sizes, sizes, dtypes, layouts, layouts, activations, st.booleans(), threads, seeds)
def test_matrices(m, n, k, dtype, a_layout, b_layout, activation, with_bias, count, seed):
    a = laid_out(randn((m, k), dtype, seed), a_layout)
    b = laid_out(randn((k, n), dtype, seed + 1), b_layout)
    bias = laid_out(randn((n,), dtype, seed + 2), a_layout) if with_bias else None
    with num_threads(count):
        check(a, b, bias, activation)


@settings(max_examples=40)
@given(
    st.sampled_from(
        [
            ((17,), (17,)),
            ((17,), (17, 5)),
            ((3, 17), (17,)),
            ((4, 3, 17), (17,)),
            ((17,), (4, 17, 5)),
            ((4, 3, 17), (17, 5)),
            ((3, 17), (4, 17, 5)),
            ((4, 3, 17), (4, 17, 5)),
            ((4, 1, 17), (4, 17, 1)),
            ((1, 3, 17), (4, 17, 5)),
            ((2, 1, 3, 17), (4, 17, 5)),
            ((2, 4, 3, 17), (1, 4, 17, 5)),
            ((0, 3, 17), (17, 5)),
            ((2, 0, 17), (2, 17, 5)),
            ((2, 3, 0), (2, 0, 5)),
            ((0,), (0,)),
            ((1, 2, 1, 2, 1, 2, 1, 3, 7), (2, 1, 7, 5)),
        ]
    ),
    dtypes,
    layouts,
    layouts,
    seeds,
)
def test_vectors_and_batches(shapes, dtype, a_layout, b_layout, seed):
    a = laid_out(randn(shapes[0], dtype, seed), a_layout)
    b = laid_out(randn(shapes[1], dtype, seed + 1), b_layout)
    check(a, b)
    n = b.shape[-1] if b.dim() > 1 else 1
    check(a, b, randn((n,), dtype, seed + 2), "gelu")


@pytest.mark.parametrize("dtype", DTYPES)
def test_batch_of_permuted_views(dtype):
    """Attention's operands: [B, T, H, D] seen as [B, H, T, D]."""
    q = randn((2, 9, 3, 16), dtype).permute(0, 2, 1, 3)
    k = randn((2, 11, 3, 16), dtype, 1).permute(0, 2, 3, 1)
    check(q, k)
    check(q.flip(1), k.flip(0))


def test_more_batch_dimensions_than_a_problem_holds():
    a = randn((2,) * 10 + (2, 3), torch.float32).permute(*reversed(range(10)), 10, 11)
    check(a, randn((2,) * 10 + (3, 2), torch.float32, 1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 515, 1030), (257, 130, 300), (70, 1, 2049)])
def test_beyond_one_block(m, n, k, dtype):
    """Sizes that take more than one panel in every direction, on both thread counts."""
    a, b = randn((m, k), dtype), randn((k, n), dtype, 1)
    with num_threads(1):
        one = check(a, b)
    with num_threads(2):
        two = check(a, b.mT.contiguous().mT)
    assert_within(two, one.double(), 2 * reference.mul_bound(a, b))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activation_over_its_range(activation, dtype):
    """The product of 1 and x is x: the activation alone, from tiny to overflowing."""
    x = torch.cat([torch.linspace(-12, 12, 401), torch.tensor([-6e4, -100.0, 100.0, 6e4])])
    x = x.to(dtype)
    check(x[:, None], torch.ones((1, 1), dtype=dtype), None, activation)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_non_finite_operands(dtype, value, activation):
    for m in (1, 17):
        a, b = randn((m, 33), dtype), randn((33, 19), dtype, 1)
        a[m // 2, 7] = value
        result = check(a, b)
        assert not result[m // 2].isfinite().any()
        assert result[: m // 2].isfinite().all()
        bias = randn((19,), dtype, 2)
        bias[3] = value
        result = mul(randn((m, 33), dtype), b, bias, activation=activation)
        expected = activate(torch.tensor(value), activation)
        assert torch.equal(result[:, 3].isfinite(), expected.isfinite().expand(m))
        assert torch.equal(result[:, 3].isnan(), expected.isnan().expand(m))


def test_inf_times_zero_is_nan():
    a = torch.tensor([[float("inf"), 1.0]])
    b = torch.tensor([[0.0], [1.0]])
    assert mul(a, b).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_accumulates_in_float32(dtype):
    """1 + 4096 * 2^-12 is 2 in float32; a 16-bit accumulator stays at 1."""
    a = torch.full((1, 4097), 2.0**-12, dtype=dtype)
    a[0, 0] = 1
    assert mul(a, torch.ones((4097, 1), dtype=dtype)).item() == 2


def test_float16_overflow_is_infinite():
    a = torch.full((2, 16), 200.0, dtype=torch.float16)
    assert mul(a, a.mT).isposinf().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_empty_k_is_bias_and_activation(dtype):
    bias = randn((5,), dtype)
    result = mul(torch.empty((3, 0), dtype=dtype), torch.empty((0, 5), dtype=dtype), bias)
    assert torch.equal(result, bias.expand(3, 5))


@pytest.mark.parametrize("m", [1, 4, 65])
def test_same_bits_again(m):
    a, b = randn((m, 300), torch.float32), randn((300, 70), torch.float32, 1)
    assert torch.equal(mul(a, b), mul(a, b))


@pytest.mark.parametrize("precision", ["ieee", "tf32x3", "tf32"])
def test_every_precision_is_float32_on_the_cpu(precision):
    a, b = randn((17, 33), torch.float32), randn((33, 15), torch.float32, 1)
    assert torch.equal(mul(a, b, precision=precision), mul(a, b))


def test_views_into_parameters():
    """A linear's weight is read through its transpose, a narrow slice and a select."""
    w = randn((40, 33), torch.float32)
    x = randn((5, 33), torch.float32, 1)
    check(x, w.t())
    check(x, w[4:20].t())
    check(x[2], w.t())
    check(x, w[7])


def test_packet_and_named_arguments():
    a, b, bias = (randn(s, torch.float32) for s in ((3, 4), (4, 5), (5,)))
    expected = mul(a, b, bias, activation="relu")
    assert torch.equal(torch.ops.xgemm.mul(a, b, bias, activation="relu"), expected)
    assert torch.equal(torch.ops.xgemm.mul(a=a, b=b, bias=bias, activation="relu"), expected)
