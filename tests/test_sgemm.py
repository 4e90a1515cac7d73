"""sgemm on the CPU against float64: transposes, alpha, beta, leading dimensions, batches."""

from __future__ import annotations

import pytest
import torch
from helpers import (
    assert_within,
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

sgemm = torch.ops.xgemm.sgemm.default
sgemm_into = torch.ops.xgemm.sgemm_into.default

scalars = st.sampled_from((0.0, 1.0, -1.0, 0.5, 1.7))


def operands(m, n, k, transa, transb, a_layout="contiguous", b_layout="contiguous", seed=0):
    a = laid_out(randn((k, m) if transa else (m, k), torch.float32, seed), a_layout)
    b = laid_out(randn((n, k) if transb else (k, n), torch.float32, seed + 1), b_layout)
    return a, b


def check(a, b, c=None, **options):
    result = sgemm(a, b, c, **options)
    assert result.dtype == torch.float32
    expected, bound = reference.sgemm(a, b, c, **options), reference.sgemm_bound(a, b, c, **options)
    assert_within(result, expected, bound)
    return result


@settings(max_examples=60)
@given(
    sizes,
    sizes,
    sizes,
    st.booleans(),
    st.booleans(),
    scalars,
    scalars,
    layouts,
    layouts,
    layouts,
    threads,
    seeds,
)
def test_blas_semantics(
    m, n, k, transa, transb, alpha, beta, a_layout, b_layout, c_layout, count, seed
):
    a, b = operands(m, n, k, transa, transb, a_layout, b_layout, seed)
    c = laid_out(randn((m, n), torch.float32, seed + 2), c_layout)
    options = {"transa": transa, "transb": transb, "alpha": alpha, "beta": beta}
    with num_threads(count):
        check(a, b, c, **options)
        if c_layout == "expanded" and m > 1:
            return  # overlaps itself: test_errors.py
        written = laid_out(c.clone(), c_layout)
        assert sgemm_into(written, a, b, **options) is None
    expected = reference.sgemm(a, b, c, **options)
    assert_within(written, expected, reference.sgemm_bound(a, b, c, **options))


@pytest.mark.parametrize("transa", [False, True])
@pytest.mark.parametrize("transb", [False, True])
def test_beyond_one_block(transa, transb):
    a, b = operands(130, 515, 700, transa, transb)
    with num_threads(1):
        one = check(a, b, transa=transa, transb=transb)
    with num_threads(2):
        two = check(a, b, transa=transa, transb=transb, alpha=2.0)
    bound = reference.sgemm_bound(a, b, transa=transa, transb=transb)
    assert_within(two, 2 * one.double(), 4 * bound)


@pytest.mark.parametrize("m", [1, 17])
def test_c_is_not_read_where_beta_is_0(m):
    a, b = operands(m, 15, 33, False, False)
    poison = torch.full((m, 15), float("nan"))
    expected = sgemm(a, b)
    assert expected.isfinite().all()
    assert torch.equal(sgemm(a, b, poison, beta=0.0), expected)
    sgemm_into(poison, a, b)
    assert torch.equal(poison, expected)


@pytest.mark.parametrize("k", [0, 33])
def test_alpha_0_leaves_beta_c(k):
    a, b = operands(5, 7, k, False, False)
    c = randn((5, 7), torch.float32, 3)
    assert torch.equal(sgemm(a, b, c, alpha=0.0, beta=0.5), 0.5 * c)


def test_nan_in_c_counts_where_beta_is_not_0():
    a, b = operands(3, 4, 5, False, False)
    c = torch.zeros(3, 4)
    c[1, 2] = float("nan")
    assert torch.equal(sgemm(a, b, c, beta=1.0).isnan(), c.isnan())


def test_accumulates_into_a_leading_dimension():
    """C is the middle of a wider matrix; what is around it stays."""
    a, b = operands(17, 15, 33, False, False)
    wide = randn((19, 40), torch.float32, 5)
    before = wide.clone()
    view = wide[1:18, 10:25]
    sgemm_into(view, a, b, alpha=0.5, beta=2.0)
    c = before[1:18, 10:25]
    options = {"alpha": 0.5, "beta": 2.0}
    assert_within(
        view, reference.sgemm(a, b, c, **options), reference.sgemm_bound(a, b, c, **options)
    )
    before[1:18, 10:25] = view
    assert torch.equal(wide, before)


def test_column_major_c():
    a, b = operands(17, 15, 33, True, True)
    c = torch.empty(15, 17).mT
    sgemm_into(c, a, b, transa=True, transb=True)
    assert_within(
        c,
        reference.sgemm(a, b, transa=True, transb=True),
        reference.sgemm_bound(a, b, transa=True, transb=True),
    )


@pytest.mark.parametrize("transa", [False, True])
def test_batches(transa):
    a = randn((3, 9, 5) if transa else (3, 5, 9), torch.float32)
    b = randn((2, 1, 9, 4), torch.float32, 1)
    c = randn((2, 3, 5, 4), torch.float32, 2)
    check(a, b, c, transa=transa, alpha=0.5, beta=-1.0)
    written = c.clone()
    sgemm_into(written, a, b, transa=transa, alpha=0.5, beta=-1.0)
    assert torch.equal(written, sgemm(a, b, c, transa=transa, alpha=0.5, beta=-1.0))


def test_is_mul_where_both_are_defined():
    a, b = operands(33, 17, 129, False, False)
    assert torch.equal(sgemm(a, b), torch.ops.xgemm.mul(a, b))
