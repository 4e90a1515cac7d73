"""W4A16 for few rows and small weights on the CPU (emulator/README.md), against float64."""

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
@pytest.mark.parametrize("m", [1, 2])
def test_rows(dtype: torch.dtype, m: int) -> None:
    """CTAs of one, two and three strips, the last of them with fewer."""
    for index, (n, sm_count) in enumerate([(70, 5), (200, 7), (170, 4)]):
        # With bf16 activations scales may be of either type.
        scale_dtype = dtype if index % 2 else torch.float16
        q = random_weight(n, 104 + 496 * index, 128, scale_dtype=scale_dtype, seed=m)
        bias = randn((n,), dtype, 1) if index % 2 else None
        x = randn((m, q.k), dtype)
        check(x, q, bias, ACTIVATIONS[(m + index) % 5], machine_of(m + index, sm_count))


@pytest.mark.parametrize("n", [1, 15, 16, 17, 32, 65])
@pytest.mark.parametrize("k", [1, 7, 8, 31, 127, 128, 129, 255, 256, 257, 4095, 4096])
def test_edges(n: int, k: int) -> None:
    for index, m in enumerate((1, 2)):
        dtype = DTYPES[(n + index) % 2]
        q = random_weight(n, k, 128, scale_dtype=(dtype, torch.float16)[index], seed=n)
        x = torch.zeros(m, -(-k // 8) * 8, dtype=dtype)[:, :k]
        x.copy_(randn((m, k), dtype))
        check(x, q, machine=machine_of(n + k + index))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strides(dtype: torch.dtype) -> None:
    q = random_weight(50, 264, 128, scale_dtype=dtype)
    bias = randn((100,), dtype, 1)[::2]
    for x in (randn((2, 272), dtype)[:, :264], randn((1, 264), dtype).expand(2, 264)):
        for d_strides in ((53, 1), (101, 2), (1, 5)):
            check(x, q, bias, "silu", machine_of(d_strides[0]), d_strides=d_strides)


def test_same_bits_in_any_order() -> None:
    q = random_weight(129, 1096)
    x = randn((2, 1096), torch.float16)
    first, *others = (check(x, q, machine=machine_of(index)) for index in range(4))
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_code_and_position(dtype: torch.dtype) -> None:
    q = random_weight(70, 160, 128, scale_dtype=dtype)
    check_each_weight(q, dtype, "sm90_register_resident", rows=2, roundings=2, absolute=1e-7)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("m", [1, 2])
def test_non_finite_activations(dtype: torch.dtype, value: float, m: int) -> None:
    check_one_bad_row(
        random_weight(33, 200, scale_dtype=dtype), dtype, m, value, "sm90_register_resident"
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [2.0**-24, 2.0**-14, 1024.0])
def test_extreme_scales(dtype: torch.dtype, scale: float) -> None:
    q = random_weight(64, 192, 128, scale_dtype=dtype)
    q.scales.fill_(scale)
    check(randn((2, 192), dtype), q)
