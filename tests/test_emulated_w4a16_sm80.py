"""W4A16 on every GPU from Ampere on, and dequantizing, on the CPU (emulator/README.md)."""

from __future__ import annotations

import random

import pytest
import torch
from emulator.library import Machine
from emulator.w4a16 import check_linear, dequantize, linear
from helpers import ACTIVATIONS, laid_out, randn, random_weight

from xgemm import QuantizedWeight, reference

pytestmark = pytest.mark.sampled

HALVES = (torch.float16, torch.bfloat16)
MACHINES = (Machine(80, 4), Machine(86, 16, True, seed=2), Machine(90, 132, True, seed=1))


def check(
    x: torch.Tensor,
    q: QuantizedWeight,
    bias: torch.Tensor | None = None,
    activation: str = "none",
    machine: Machine = MACHINES[0],
    **options: object,
) -> torch.Tensor:
    run_by = {"machine": machine, "kernel": "sm80"}
    return check_linear(x, q, bias, activation, **run_by, **options)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("group_size", [32, 64, 128, -1])
def test_formats(group_size: int, dtype: torch.dtype) -> None:
    """Every format, tile and machine; the last unit, strip and group are short."""
    draw = random.Random(group_size)
    for zeros in ("none", "integer", "real"):
        for m in (1, 9, 17, 33):
            scales, act_order = draw.choice(HALVES), draw.random() < 0.2
            q = random_weight(70, 300, group_size, zeros, scales, act_order, seed=m)
            bias = randn((70,), dtype, m) if draw.random() < 0.5 else None
            activation, machine = draw.choice(ACTIVATIONS), draw.choice(MACHINES)
            check(randn((m, 300), dtype, m), q, bias, activation, machine)


TILES = [(8, 64), (8, 128), (16, 64), (16, 128), (32, 64), (32, 128), (64, 128)]  # tile.h


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize(("rows", "columns"), TILES)
def test_tiles(rows: int, columns: int, dtype: torch.dtype) -> None:
    """Each of them, with a group for a whole unit and with several: they are other loops."""
    for group_size, zeros in ((128, "none"), (32, "real")):
        q = random_weight(columns + 20, 424, group_size, zeros, dtype)
        tile = {"block_m": rows, "block_n": columns, "stages": 2, "splits": 1}
        check(randn((rows + 3, 424), dtype), q, machine=MACHINES[2], **tile)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("group_size", [32, 64, 128, -1])
def test_scales_multiplied_into_the_weights(group_size: int, dtype: torch.dtype) -> None:
    """The tile that does so, whole and with K in parts; not all of its columns and k exist."""
    q = random_weight(330, 424, group_size, "none", dtype)
    x, bias = randn((70, 424), dtype), randn((330,), dtype, 1)
    for splits in (1, 3):
        tile = {"block_m": 64, "block_n": 256, "stages": 2, "splits": splits}
        check(x, q, bias, "silu", MACHINES[splits % 3], **tile)


@pytest.mark.parametrize("layout", ["transposed", "padded", "strided", "expanded", "offset"])
def test_strides(layout: str) -> None:
    q = random_weight(33, 130, 64, act_order=layout == "padded")
    for index, m in enumerate((3, 20)):
        x = laid_out(randn((m, 130), HALVES[index]), layout)
        bias = randn((66,), HALVES[index], 1)[::2]
        for d_strides in ((40, 1), (35, 1), (67, 2), (1, m + 1)):
            check(x, q, bias, "silu", MACHINES[index], d_strides=d_strides)


@pytest.mark.parametrize("n", [1, 16, 65, 257])
@pytest.mark.parametrize("k", [1, 8, 127, 129])
def test_edges(n: int, k: int) -> None:
    for index, (m, group_size) in enumerate(((1, 32), (9, 128), (65, -1))):
        q = random_weight(n, k, group_size, "real", seed=n)
        check(randn((m, k), HALVES[index % 2]), q, machine=MACHINES[index])


@pytest.mark.parametrize("machine", MACHINES, ids=str)
def test_k_in_parts(machine: Machine) -> None:
    """Also in more parts than there are units, which leaves some of them empty."""
    q = random_weight(130, 1100, 32, "real")
    for m, splits in ((1, 2), (8, 3), (12, 4), (30, 9), (40, 2)):
        x, options = randn((m, 1100), torch.float16), {"splits": splits}
        first = check(x, q, machine=machine, **options)
        assert torch.equal(first, check(x, q, machine=machine, **options))


def test_a_row_does_not_depend_on_the_others() -> None:
    for n, k, machine in ((80, 520, Machine(90, 8)), (300, 1300, Machine(80, 4, True))):
        q, x = random_weight(n, k, 64, "real"), randn((70, k), torch.float16)
        whole = check(x, q, machine=machine, batch_invariant=True)
        for first, last in ((0, 1), (3, 4), (5, 13), (7, 23), (1, 34), (2, 66)):
            part = check(x[first:last], q, machine=machine, batch_invariant=True)
            assert torch.equal(part, whole[first:last]), (n, k, first, last)


def test_one_kernel_takes_all_rows_where_bits_must_not_depend_on_them() -> None:
    q = random_weight(64, 128, 128)
    for m in (1, 30):
        x = randn((m, 128), torch.float16)
        options = {"machine": Machine(90, 4), "batch_invariant": True}
        assert "kernel: sm90 wgmma" in linear(x, q, **options)[1]


def test_a_perm_out_of_range_reads_nothing() -> None:
    q = random_weight(20, 40, 32)
    perm = torch.arange(40, dtype=torch.int32)
    perm[3], perm[39] = -1, 2**31 - 1
    x = randn((5, 40), torch.float16)
    y, _ = linear(x, q, machine=MACHINES[2], perm=perm, kernel="sm80")
    kept = x.clone()
    kept[:, [3, 39]] = 0
    assert torch.equal(y, linear(kept, q, machine=MACHINES[2], kernel="sm80")[0])


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
def test_dequantize(dtype: torch.dtype) -> None:
    for n, k, group_size in (
        (64, 128, 128),
        (130, 257, 32),
        (1, 1, -1),
        (70, 200, 64),
        (20, 64, -1),
    ):
        for zeros in ("none", "real"):
            q = random_weight(n, k, group_size, zeros, torch.bfloat16)
            w, exact = dequantize(q, dtype, MACHINES[1]), reference.dequantize(q)
            steps = torch.finfo(dtype).eps / 2 + 2 * torch.finfo(torch.float32).eps
            assert bool(((w.double() - exact).abs() <= steps * exact.abs() + 2.0**-25).all())
