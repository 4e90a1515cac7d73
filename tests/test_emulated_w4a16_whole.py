"""W4A16 for one row and small weights on the CPU (emulator/README.md), against float64."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from emulator.w4a16 import check_each_weight, check_linear, check_one_bad_row, machine_of
from helpers import ACTIVATIONS, randn, random_weight

pytestmark = pytest.mark.sampled

DTYPES = (torch.float16, torch.bfloat16)
check = partial(check_linear, kernel="sm90_register_resident")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [70, 200, 170])
def test_activations_and_biases(dtype: torch.dtype, n: int) -> None:
    """The last CTA has fewer columns; with bf16 activations scales may be of either type."""
    index = (70, 200, 170).index(n)
    scale_dtype = dtype if index % 2 else torch.float16
    q = random_weight(n, 104 + 496 * index, 128, scale_dtype=scale_dtype)
    bias = randn((n,), dtype, 1) if index % 2 else None
    x = randn((1, q.k), dtype)
    check(x, q, bias, ACTIVATIONS[(1 + index) % 5], machine_of(index, 13))


@pytest.mark.parametrize("n", [1, 15, 16, 17, 32, 65])
@pytest.mark.parametrize("k", [1, 7, 8, 31, 127, 128, 129, 255, 256, 257, 4095, 4096])
def test_edges(n: int, k: int) -> None:
    dtype = DTYPES[(n + k) % 2]
    q = random_weight(n, k, 128, scale_dtype=(dtype, torch.float16)[n % 2], seed=n)
    check(randn((1, k), dtype), q, machine=machine_of(n + k, 5))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strides(dtype: torch.dtype) -> None:
    q = random_weight(50, 264, 128, scale_dtype=dtype)
    bias = randn((100,), dtype, 1)[::2]
    for d_strides in ((53, 1), (101, 2), (1, 5)):
        check(
            randn((1, 264), dtype), q, bias, "silu", machine_of(d_strides[0]), d_strides=d_strides
        )


def test_same_bits_in_any_order() -> None:
    q = random_weight(129, 1096)
    x = randn((1, 1096), torch.float16)
    first, *others = (check(x, q, machine=machine_of(index, 9)) for index in range(4))
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_code_and_position(dtype: torch.dtype) -> None:
    q = random_weight(60, 160, 128, scale_dtype=dtype)
    check_each_weight(q, dtype, "sm90_register_resident", rows=1, roundings=2, absolute=1e-7)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_activations(dtype: torch.dtype, value: float) -> None:
    check_one_bad_row(
        random_weight(33, 200, scale_dtype=dtype), dtype, 1, value, "sm90_register_resident"
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [2.0**-24, 2.0**-14, 1024.0])
def test_extreme_scales(dtype: torch.dtype, scale: float) -> None:
    q = random_weight(64, 192, 128, scale_dtype=dtype)
    q.scales.fill_(scale)
    check(randn((1, 192), dtype), q)
