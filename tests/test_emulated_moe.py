"""moe_sort and moe.w4a16's CUDA kernels, on the CPU (emulator/README.md)."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from emulator.library import Machine
from emulator.moe import ACTIVATIONS, drawn_options, run, sort
from moe import FORMATS, Mixture, check, mixture, sorted_slots

HALVES = (torch.float16, torch.bfloat16)
MACHINES = (Machine(80, 4), Machine(86, 16, True, seed=2), Machine(90, 132, True, seed=1))


def check_on(m: Mixture, machine: Machine = MACHINES[2], **options: int) -> torch.Tensor:
    return check(m, lambda one: run(one, machine, **options))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_sort(dtype: torch.dtype) -> None:
    """By counts of all experts, and (of more than 1023) by a search for each."""
    sizes = ((1, 1, 1), (3, 0, 3), (7, 3, 5), (64, 8, 128), (700, 2, 64), (20, 2, 1500))
    for index, (tokens, top_k, experts) in enumerate(sizes):
        ids = torch.randint(-2, experts + 3, (tokens, top_k)).to(dtype)
        found = sort(ids, experts, MACHINES[index % 3])
        assert torch.equal(found, sorted_slots(ids, experts)), (tokens, top_k, experts)
    ids = torch.full((1100, 1), 1, dtype=dtype)
    assert torch.equal(sort(ids, 2, MACHINES[1]), sorted_slots(ids, 2))
    ids = torch.tensor([[torch.iinfo(dtype).max, torch.iinfo(dtype).min, 1]]).to(dtype)
    assert torch.equal(sort(ids, 2, MACHINES[0]), torch.tensor([0, 0, 1, 2, 0, 1]).int())


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
@pytest.mark.parametrize(("group_size", "zeros", "scales"), FORMATS, ids=str)
def test_formats(group_size: int, zeros: str, scales: torch.dtype, dtype: torch.dtype) -> None:
    draw = random.Random(group_size)
    for tokens, n, k in ((3, 70, 300), (9, 34, 1030)):
        m = mixture(
            tokens, 2, 3, n, k, dtype, group_size, zeros, scales, **drawn_options(draw, dtype)
        )
        check_on(m, draw.choice(MACHINES))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("block_m", [8, 16, 32])
def test_tiles(block_m: int, dtype: torch.dtype) -> None:
    """Each, with 1 to 4 stages of a pipeline that is passed several times."""
    forms = ((128, "none"), (32, "real"), (-1, "real"))
    for stages, (group_size, zeros) in enumerate(forms, 1):
        m = mixture(18, 1, 2, 33, 1700, dtype, group_size, zeros, bias=True)
        check_on(
            m, replace(MACHINES[stages - 1], capability=90), block_m=block_m, stages=stages % 2 + 1
        )
    if block_m == 8:
        check_on(mixture(3, 1, 1, 20, 4100, dtype), block_m=8, stages=3 + HALVES.index(dtype))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation: str) -> None:
    for n in (256, 66):  # a gate that ends with a row of units, and one that does not
        options: dict[str, Any] = {"activation": activation, "bias": n == 256}
        check_on(mixture(5, 2, 3, n, 200, HALVES[n % 4 // 2], **options), MACHINES[n % 3])


def test_edges() -> None:
    for index, (n, k) in enumerate(((1, 1), (65, 7), (64, 128), (200, 129), (2, 1000), (20, 0))):
        m = mixture(7, 3, 4, n, k, HALVES[index % 2], 32, "real", strangers=True)
        check_on(m, MACHINES[index % 3])
    m = mixture(40, 1, 5, 64, 256, rows="slots")
    m.ids.fill_(3)
    check_on(m)
    m.ids.fill_(9)
    assert not run(m, MACHINES[0]).any()


def test_many_experts() -> None:
    """More than a warp looks at in one round."""
    m = mixture(60, 3, 150, 64, 128, weights=torch.float16, strangers=True)
    check_on(m)


def test_rows_as_they_lie() -> None:
    """Aligned and not, and with more between them than they hold."""
    m = mixture(6, 2, 4, 64, 136)
    for a in (
        torch.nn.functional.pad(m.a, (0, 8))[:, :136],
        torch.nn.functional.pad(m.a, (0, 5))[:, :136],
        torch.nn.functional.pad(m.a, (3, 5))[:, 3:139],
        m.a[:1].expand(6, -1),
    ):
        check_on(Mixture(m.weights_4bit, m.ids, a))


@pytest.mark.parametrize("activation", ["none", "silu_and_mul"])
def test_a_row_does_not_depend_on_the_others(activation: str) -> None:
    """Nor on the tile, nor on what other experts get."""
    m = mixture(30, 1, 2, 128, 1200, group_size=64, zeros="real", activation=activation)
    whole = run(m, MACHINES[0])
    for block_m in (8, 16, 32):
        assert torch.equal(run(m, MACHINES[2], block_m=block_m), whole)
    for rows in (slice(0, 1), slice(7, 9), slice(3, 30)):
        part = Mixture(m.weights_4bit, m.ids[rows], m.a[rows], activation=activation)
        assert torch.equal(run(part, MACHINES[1]), whole[rows])


def test_a_bad_row_is_its_own() -> None:
    m = mixture(20, 1, 2, 64, 256)
    m.a[3, 50] = float("inf")
    y = run(m, MACHINES[2])
    assert not y[3].isfinite().any()
    m.a[3] = 0
    others = [t for t in range(20) if t != 3]
    assert torch.equal(run(m, MACHINES[2])[others], y[others])


def test_an_order_that_is_none_reads_nothing_else() -> None:
    """Of rows that are not there; what is computed is of no use, but of the right memory."""
    m = mixture(9, 2, 4, 64, 256, rows="slots")
    draw = torch.Generator().manual_seed(0)
    for index in range(6):
        sorted = torch.randint(-30, 30, (4 + 1 + 18,), generator=draw, dtype=torch.int32)
        run(m, MACHINES[index % 3], sorted=sorted)


def test_a_perm_out_of_range_reads_nothing() -> None:
    for dtype in (torch.float16, torch.float32):
        m = mixture(5, 1, 2, 20, 72, dtype, 32, act_order=True)
        kept = mixture(5, 1, 2, 20, 72, dtype, 32, act_order=True)
        for p, other in zip(m.packed, kept.packed, strict=True):
            assert p.perm is not None
            assert other.perm is not None
            channels = p.perm[[3, 39]].clone()
            p.perm[3], p.perm[39] = -1, 2**31 - 1
            e = m.packed.index(p)
            kept.a[kept.ids[:, 0] == e] = kept.a[kept.ids[:, 0] == e].index_fill(
                1, channels.long(), 0
            )
        assert torch.equal(run(m, MACHINES[2]), run(kept, MACHINES[2]))
