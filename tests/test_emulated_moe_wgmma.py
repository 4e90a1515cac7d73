"""moe.w4a16 by wgmma, on the CPU (emulator/README.md): against float64, and bit by bit against the
kernel by mma.sync."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from emulator.library import Machine
from emulator.moe import drawn_options, run
from moe import FORMATS, Mixture, check, mixture

HALVES = (torch.float16, torch.bfloat16)
ROWS = (16, 32, 64)
MACHINES = (
    Machine(90, 4),
    Machine(90, 4, True, seed=1),
    Machine(90, 4, late_products=True, seed=2),
    Machine(90, 4, True, True, seed=3),
)


def check_both(m: Mixture, machine: Machine, rows: int) -> torch.Tensor:
    """Within the bound; and the bits of mma.sync, which may differ with zero points only."""
    y = check(m, lambda one: run(one, machine, block_m=rows, wgmma=True))
    if not m.options()["zeros"]:
        assert torch.equal(y, run(m, replace(machine, seed=0)))
    return y


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize(("group_size", "zeros", "scales"), FORMATS, ids=str)
def test_formats(group_size: int, zeros: str, scales: torch.dtype, dtype: torch.dtype) -> None:
    draw = random.Random(group_size)
    for rows, (tokens, n, k) in zip(
        ROWS, ((9, 70, 300), (5, 34, 1030), (8, 320, 140)), strict=True
    ):
        m = mixture(
            tokens, 2, 3, n, k, dtype, group_size, zeros, scales, **drawn_options(draw, dtype)
        )
        check_both(m, draw.choice(MACHINES), rows)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("rows", ROWS)
def test_tiles(rows: int, dtype: torch.dtype) -> None:
    """More of them than CTAs; and pipelines that are passed several times."""
    for index, counts in enumerate(([rows, 0, 1, rows + 3], [rows + 1, rows - 1, 0, 5])):
        n, k = (264, 400) if index else (40, 1100)
        m = mixture(sum(counts), 1, 4, n, k, dtype, scales=dtype, bias=index == 0)
        experts = torch.repeat_interleave(torch.arange(4), torch.tensor(counts))
        m.ids[:] = experts[torch.randperm(len(experts))][:, None]
        check_both(m, MACHINES[index + HALVES.index(dtype)], rows)


@pytest.mark.parametrize("activation", ["silu_and_mul", "gelu_tanh_and_mul"])
def test_gates(activation: str) -> None:
    """Of whole halves of units, and not; of fewer columns than a tile has, and of more."""
    for index, n in enumerate((64, 192, 448, 66)):
        options: dict[str, Any] = {"activation": activation, "bias": n == 192}
        m = mixture(25, 2, 3, n, 200, HALVES[index % 2], **options)
        check_both(m, MACHINES[index], ROWS[index % 3])


def test_edges() -> None:
    for index, (n, k) in enumerate(((1, 1), (65, 7), (64, 128), (200, 129), (2, 1000))):
        m = mixture(7, 3, 4, n, k, HALVES[index % 2], 32, strangers=True)
        check_both(m, MACHINES[index % 4], ROWS[index % 3])
    m = mixture(70, 1, 5, 64, 256, rows="slots")
    m.ids.fill_(3)
    check_both(m, MACHINES[1], 32)
    m.ids.fill_(9)
    assert not run(m, MACHINES[1], wgmma=True).any()


def test_many_experts() -> None:
    """More than a warp's lanes have, each of few units."""
    m = mixture(80, 3, 150, 64, 128, weights=torch.float16, strangers=True)
    check_both(m, MACHINES[3], 16)


@pytest.mark.parametrize("rows", ROWS)
def test_a_bad_row_is_its_own(rows: int) -> None:
    for index, value in enumerate((float("inf"), float("nan"))):
        m = mixture(40, 1, 3, 64, 256)
        m.a[3, 50] = value
        y = run(m, MACHINES[index], block_m=rows, wgmma=True)
        assert not y[3].isfinite().any()
        m.a[3] = 0
        others = [t for t in range(40) if t != 3]
        good = run(m, MACHINES[index + 1], block_m=rows, wgmma=True)
        assert torch.equal(good[others], y[others])


def test_an_order_that_is_none_reads_nothing_else() -> None:
    """Of rows that are not there; what is computed is of no use, but of the right memory."""
    m = mixture(9, 2, 4, 64, 256, rows="slots")
    draw = torch.Generator().manual_seed(0)
    for index in range(6):
        sorted = torch.randint(-30, 30, (4 + 1 + 18,), generator=draw, dtype=torch.int32)
        run(m, MACHINES[index % 4], sorted=sorted, wgmma=True, block_m=ROWS[index % 3])
