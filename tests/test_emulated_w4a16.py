"""W4A16 for few rows on the CPU (emulator/README.md), against float64: formats, splits, edges."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
from emulator.library import Machine
from emulator.w4a16 import (
    check_each_weight,
    check_linear,
    check_one_bad_row,
    linear,
    machine_of,
)
from helpers import ACTIVATIONS, laid_out, randn, random_weight

from xgemm import reference

pytestmark = pytest.mark.sampled

DTYPES = (torch.float16, torch.bfloat16)
MOST_WARPS = {1: 16, 2: 16, 3: 10}  # by rows of X / 8
check = partial(check_linear, kernel="sm90_skinny")


def most_rows(group: int) -> int:
    return 16 if group in (32, 64) else 24


@pytest.mark.parametrize("zeros", ["none", "integer", "real"])
@pytest.mark.parametrize("group", [32, 64, 128, -1])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_formats(dtype: torch.dtype, group: int, zeros: str) -> None:
    scales = itertools.cycle(DTYPES)
    most = most_rows(group)
    for index, (m, n, k) in enumerate([(1, 70, 300), (8, 33, 640), (11, 64, 129), (most, 31, 520)]):
        q = random_weight(n, k, group, zeros, next(scales), act_order=index == 1, seed=index)
        bias = randn((n,), dtype, 1) if index % 2 else None
        check(randn((m, k), dtype), q, bias, ACTIVATIONS[index], machine_of(index))


@pytest.mark.parametrize("cluster", [1, 2, 4, 8])
@pytest.mark.parametrize("m", [1, 9, 17])
def test_splits(m: int, cluster: int) -> None:
    """Warps and stages of any number, more and fewer than there is work for."""
    k, most = 1100, MOST_WARPS[-(-m // 8)]  # 9 units
    q = random_weight(200, k, 64 if m == 1 else 128, "integer")
    x = randn((m, k), torch.float16)
    for index, (w, stages) in enumerate(
        zip((1, 2, 3, 5, 8, most), (1, 2, 3, 4, 2, 2), strict=True)
    ):
        check(
            x,
            q,
            machine=machine_of(index, 2 * cluster),
            cluster=cluster,
            warps=w,
            stages=stages,
            clusters=1 + index % 2,
        )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cluster", [1, 2, 8])
def test_wide_tiles(dtype: torch.dtype, cluster: int) -> None:
    """64 columns; in the last wave 16, 32 or all of them."""
    k = 1100
    for index, (m, n, clusters) in enumerate([(1, 200, 2), (2, 330, 5), (5, 90, 1), (8, 257, 3)]):
        q = random_weight(n, k, 128, scale_dtype=dtype, seed=index)
        check(
            randn((m, k), dtype),
            q,
            bias=randn((n,), dtype, 1) if index % 2 else None,
            machine=machine_of(index, 2 * cluster),
            strips=4,
            cluster=cluster,
            warps=(1, 3, 9, 16)[index] if cluster == 1 else 1 + index % 2,
            stages=1 + index % 3,
            clusters=clusters,
        )


@pytest.mark.parametrize("layout", ["transposed", "padded", "strided", "expanded", "offset"])
def test_strides(layout: str) -> None:
    q = random_weight(50, 260, 128)
    for index, dtype in enumerate(DTYPES):
        x = laid_out(randn((5, 260), dtype), layout)
        bias = randn((100,), dtype, 1)[::2]
        for d_strides in ((53, 1), (101, 2), (1, 5)):
            check(x, q, bias, "silu", machine_of(index), d_strides=d_strides)


@pytest.mark.parametrize("n", [1, 15, 16, 17, 32, 65])
@pytest.mark.parametrize("k", [1, 7, 8, 31, 127, 128, 129])
def test_edges(n: int, k: int) -> None:
    for index, (m, group) in enumerate(((1, 32), (3, 128), (17, -1))):
        q = random_weight(n, k, group, "real", seed=n)
        check(randn((m, k), DTYPES[index % 2]), q, machine=machine_of(n + k + index))


def test_same_bits_in_any_order() -> None:
    q = random_weight(129, 1100)
    x = randn((5, 1100), torch.float16)
    first, *others = (check(x, q, machine=machine_of(index)) for index in range(4))
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("group", [32, 64, 128, -1])
def test_every_code_and_position(dtype: torch.dtype, group: int) -> None:
    q = random_weight(70, 160, group, "integer")
    check_each_weight(q, dtype, "sm90_skinny", rows=most_rows(group), roundings=2, absolute=1e-7)


def test_what_the_offset_of_bf16_codes_costs() -> None:
    """Two fp32 roundings at 128, of the scale: seen only where a weight is next to nothing."""
    for m in (1, 2, 9):
        q = random_weight(700, 1, 32, "real", seed=m)
        assert q.zeros is not None
        q.codes.zero_()
        q.zeros.uniform_(-0.002, 0.002)
        x = randn((m, 1), torch.bfloat16)
        y, said = linear(x, q, machine=machine_of(m), kernel="sm90_skinny")
        scales = q.scales.double().abs().index_select(0, q.group_of_channel()).t()
        offset = 2 * 128 * 2.0**-24 * torch.matmul(x.double().abs(), scales.t())
        expected, bound = reference.w4a16(x, q), reference.w4a16_bound(x, q)
        assert reference.error_ratio(y, expected, bound + offset) <= 1, said


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("m", [1, 3, 12])
def test_non_finite_activations(dtype: torch.dtype, value: float, m: int) -> None:
    for group in (32, 128, -1):
        check_one_bad_row(random_weight(33, 200, group, "real"), dtype, m, value, "sm90_skinny")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_extreme_scales(dtype: torch.dtype) -> None:
    for group, scale in itertools.product((32, 128, -1), (2.0**-24, 2.0**-14, 1024.0)):
        q = random_weight(64, 192, group)
        q.scales.fill_(scale)
        for m in (2, most_rows(group)):
            check(randn((m, 192), dtype), q)
    q = random_weight(64, 192, 128, scale_dtype=torch.bfloat16)
    for scale in (2.0**-120, 2.0**100):
        q.scales.fill_(scale)
        check(randn((2, 192), dtype) * (2.0**-12 if scale > 1 else 1), q)


def test_a_perm_out_of_bounds_reads_zeros() -> None:
    q = random_weight(40, 130, 32)
    x, perm = randn((3, 130), torch.float16), torch.randperm(130).int()
    gathered = x[:, perm.long()]
    perm[[3, 77, 129]] = torch.tensor([-1, 130, 2**31 - 1], dtype=torch.int32)
    gathered[:, [3, 77, 129]] = 0
    for m in (1, 3):
        y, _ = linear(x[:m], q, machine=machine_of(m), kernel="sm90_skinny", perm=perm)
        expected, _ = linear(gathered[:m], q, machine=machine_of(m), kernel="sm90_skinny")
        assert torch.equal(y, expected)


def test_choices_for_a_whole_gpu() -> None:
    for index, (m, n, k) in enumerate([(1, 512, 4096), (8, 256, 4096), (16, 96, 2048)]):
        q = random_weight(n, k, 128)
        check(randn((m, k), DTYPES[index % 2]), q, machine=Machine(90, 132))
