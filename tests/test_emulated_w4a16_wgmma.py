"""W4A16 by wgmma on the CPU (emulator/README.md), against float64: tiles, formats, shares of K."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

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

pytestmark = pytest.mark.sampled

DTYPES = (torch.float16, torch.bfloat16)
# (consumer warpgroups, rows of X), as in csrc/cuda/w4a16/sm90/wgmma/tile.h
TILES = (
    *((2, rows) for rows in (80, 96, 112, 128, 160, 192, 224, 256)),
    *((3, rows) for rows in (96, 112, 128, 160)),
)
# (blocks of 64 columns, warpgroups that share the K of each, rows of X)
FEW_TILES = (
    (4, 1, 32),
    *itertools.product((2,), (2,), (16, 32, 48, 64)),
    *itertools.product((1,), (4,), (16, 32, 48, 64)),
)
BETWEEN_TILES = (80, 112)  # rows: no scales of the type that the activations do not have, no splits
ONLY_OWN_SCALES = tuple(itertools.product((2, 3), BETWEEN_TILES))
MOST_MIDDLE_ROWS = 160  # of tiles whose CTAs do not share X
SPLIT_TILES = (
    *(
        (consumers, 1, rows)
        for consumers, rows in TILES
        if consumers * rows <= 256 and rows not in BETWEEN_TILES
    ),
    *(tile for tile in FEW_TILES if tile[0] * tile[2] <= 128),
)
check = partial(check_linear, kernel="sm90_wgmma")


def config(
    consumers: int,
    rows: int,
    sharers: int,
    splits: int,
    clusters: int,
    stream_k: bool = False,
    parts: int = 1,
) -> dict[str, Any]:
    return {
        "consumers": consumers,
        "parts": parts,
        "rows": rows,
        "sharers": sharers,
        "splits": splits,
        "clusters": clusters,
        "stream_k": stream_k,
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("consumers", "rows"), TILES)
def test_tiles(consumers: int, rows: int, dtype: torch.dtype) -> None:
    """Every tile, with as many rows as it has and with more; one and two CTAs that share X."""
    most_sharers = 1 if rows <= MOST_MIDDLE_ROWS else 2
    for index, (m, group) in enumerate(itertools.product((rows, rows + 9), (64, 32))):
        sharers = min(1 + index % 2, most_sharers)
        scales = dtype if (consumers, rows) in ONLY_OWN_SCALES else DTYPES[index % 2]
        q = random_weight(64 * consumers + 40, 300, group, "real", scales, seed=index)
        bias = randn((q.n,), dtype, 1) if index % 2 else None
        tile = config(consumers, rows, sharers, 1, 1 + index % 2)
        check(randn((m, 300), dtype), q, bias, ACTIVATIONS[index], machine_of(index), **tile)


@pytest.mark.parametrize("zeros", ["none", "integer", "real"])
@pytest.mark.parametrize("group", [32, 64, 128, -1])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_formats(dtype: torch.dtype, group: int, zeros: str) -> None:
    for index, (m, n, k) in enumerate([(33, 70, 300), (50, 33, 640), (100, 64, 129), (5, 31, 520)]):
        q = random_weight(n, k, group, zeros, DTYPES[index % 2], act_order=index == 1, seed=index)
        bias = randn((n,), dtype, 1) if index % 2 else None
        check(randn((m, k), dtype), q, bias, ACTIVATIONS[index], machine_of(index))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("blocks", "parts", "rows"), FEW_TILES)
def test_tiles_of_few_rows(blocks: int, parts: int, rows: int, dtype: torch.dtype) -> None:
    """The same of these, whose warpgroups share K; formats of which a unit has 1 and 4 groups, and
    the commonest, which has kernels of its own: bf16's take scales of either type."""
    commonest = (("none", 128, scales) for scales in dict.fromkeys((dtype, DTYPES[0])))
    formats = (("real", 32, DTYPES[0]), ("real", 128, DTYPES[1]), *commonest)
    for index, (m, (zeros, group, scales)) in enumerate(
        itertools.product((rows, rows + 9), formats)
    ):
        q = random_weight(64 * blocks + 40, 700, group, zeros, scales, seed=index)
        bias = randn((q.n,), dtype, 1) if index % 2 else None
        tile = config(blocks, rows, 1, 1, 1 + index % 2, parts=parts)
        activation = ACTIVATIONS[index % len(ACTIVATIONS)]
        check(randn((m, 700), dtype), q, bias, activation, machine_of(index), **tile)


@pytest.mark.parametrize("splits", [2, 4])
@pytest.mark.parametrize(("consumers", "parts", "rows"), SPLIT_TILES)
def test_splits(consumers: int, parts: int, rows: int, splits: int) -> None:
    """CTAs of a cluster that exchange sums, over several tiles each."""
    for index, sharers in enumerate((1, 1 if rows <= MOST_MIDDLE_ROWS else 2)):
        q = random_weight(64 * consumers + 44, 128 * splits + 1, 128, "integer", seed=index)
        bias = randn((q.n,), DTYPES[index], 1)
        tile = config(consumers, rows, sharers, splits, 1 + index, parts=parts)
        x = randn((rows + 3, q.k), DTYPES[index])
        check(x, q, bias, "silu", machine_of(index, 16), **tile)


@pytest.mark.parametrize("clusters", [1, 2, 3, 5, 7])
@pytest.mark.parametrize(
    ("consumers", "parts", "rows"),
    [
        (2, 2, 32),
        (1, 4, 16),
        (4, 1, 32),
        (2, 1, 128),
        (3, 1, 96),
        (2, 1, 256),
    ],
)
def test_even_shares(consumers: int, parts: int, rows: int, clusters: int) -> None:
    """Ranges that begin and end anywhere, also several within one tile."""
    for index, sharers in enumerate((1, 1 if rows <= MOST_MIDDLE_ROWS else 2)):
        scales = DTYPES[index] if (consumers, rows) in ONLY_OWN_SCALES else DTYPES[0]
        q = random_weight(64 * consumers * 2 + 5, 700, 32, "integer", scales, seed=index)
        bias = randn((q.n,), DTYPES[index], 1)
        tile = config(consumers, rows, sharers, 1, clusters, True, parts)
        x = randn((rows, q.k), DTYPES[index])
        check(x, q, bias, "gelu", machine_of(index + clusters, 16), **tile)


@pytest.mark.parametrize("parts", [2, 3, 4, 6])
@pytest.mark.parametrize(("consumers", "rows"), [(4, 32), (2, 96), (3, 96), (2, 256)])
def test_shares_of_one_tile(consumers: int, rows: int, parts: int) -> None:
    """As many CTAs for each tile: the one with its beginning has more units, the others fewer."""
    sharers = 1 if rows <= MOST_MIDDLE_ROWS else 2
    q = random_weight(64 * consumers * 2 * sharers, 12 * 128, 128, "none", DTYPES[0], seed=parts)
    x = randn((rows, q.k), DTYPES[0])
    tile = config(consumers, rows, sharers, 1, 2 * parts, stream_k=True)
    check(x, q, None, "none", machine_of(parts, 64), **tile)


@pytest.mark.parametrize("layout", ["transposed", "padded", "strided", "expanded", "offset"])
def test_strides(layout: str) -> None:
    q = random_weight(50, 260, 128)
    for index, dtype in enumerate(DTYPES):
        x = laid_out(randn((35, 260), dtype), layout)
        bias = randn((100,), dtype, 1)[::2]
        for d_strides in ((53, 1), (56, 1), (101, 2), (1, 37)):
            check(x, q, bias, "silu", machine_of(index), d_strides=d_strides)


@pytest.mark.parametrize("n", [1, 15, 64, 65, 129])
@pytest.mark.parametrize("k", [1, 8, 63, 64, 128, 129])
def test_edges(n: int, k: int) -> None:
    for index, (m, group) in enumerate(((1, 32), (31, 128), (65, -1))):
        q = random_weight(n, k, group, "real", seed=n)
        check(randn((m, k), DTYPES[index % 2]), q, machine=machine_of(n + k + index))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("zeros", ["none", "integer"])
@pytest.mark.parametrize("group", [32, 128, -1])
def test_batch_invariant(dtype: torch.dtype, zeros: str, group: int) -> None:
    """The bits of a row are the same alone and among others, in any order of the threads."""
    scales = dtype if zeros == "none" else torch.float16
    q = random_weight(200, 1300, group, zeros, scales, act_order=True)
    x, bias = randn((150, 1300), dtype), randn((200,), dtype, 1)
    options: dict[str, Any] = {"batch_invariant": True}
    whole = check(x, q, bias, "gelu", machine_of(0, 8), **options)
    for index, m in enumerate((1, 24, 33, 65)):
        for first in (0, 150 - m):
            part = x[first : first + m]
            y = check(part, q, bias, "gelu", machine_of(index, 8), **options)
            assert torch.equal(y, whole[first : first + m]), f"{m} rows from {first}"


def test_same_bits_in_any_order() -> None:
    q = random_weight(129, 1100)
    x = randn((40, 1100), torch.float16)
    for tile in (config(2, 48, 1, 4, 1, parts=2), config(2, 48, 1, 1, 5, True, 2)):
        first, *others = (check(x, q, machine=machine_of(index, 16), **tile) for index in range(4))
        assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("group", [32, 64, 128, -1])
def test_every_code_and_position(dtype: torch.dtype, group: int) -> None:
    for zeros, scales in itertools.product(("none", "integer"), DTYPES):
        q = random_weight(70, 160, group, zeros, scales)
        check_each_weight(q, dtype, "sm90_wgmma", rows=160, roundings=1.001)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_activations(dtype: torch.dtype, value: float) -> None:
    for m, group in ((1, 32), (40, 128), (70, -1)):
        check_one_bad_row(random_weight(33, 200, group, "real"), dtype, m, value, "sm90_wgmma")


@pytest.mark.parametrize("scales", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_extreme_scales(dtype: torch.dtype, scales: torch.dtype) -> None:
    for group, scale in itertools.product((32, 128, -1), (2.0**-24, 2.0**-14, 1024.0)):
        q = random_weight(64, 192, group, "real", scales)
        q.scales.fill_(scale)
        check(randn((34, 192), dtype), q)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("group", [32, 64, 128, -1])
def test_small_and_large_scales(dtype: torch.dtype, group: int) -> None:
    """Warps that may take codes for subnormal numbers, and warps that may not, in turns."""
    q = random_weight(130, 1000, group, "none", dtype)
    blocks = torch.randint(-9, 3, (q.scales.shape[0], 9)).repeat_interleave(16, 1)[:, :130]
    columns = torch.randint(-2, 1, q.scales.shape)
    q.scales.copy_(torch.ldexp(1 + torch.rand(q.scales.shape), blocks + columns))
    for index, (m, consumers, rows) in enumerate(
        ((96, 2, 96), (40, 3, 128), (130, 2, 160), (130, 2, 256))
    ):
        tile = config(consumers, rows, 2 if rows > MOST_MIDDLE_ROWS else 1, 1, 1)
        check(randn((m, 1000), dtype), q, machine=machine_of(index), **tile)


@pytest.mark.parametrize("m", [34, 258])  # 256 rows and more are copied in groups of four
def test_wrong_perm_reads_nothing_outside(m: int) -> None:
    q = random_weight(40, 100)
    x, perm = randn((m, 100), torch.float16), torch.arange(100, dtype=torch.int32)
    perm[[0, 7]] = torch.tensor([-1, 100], dtype=torch.int32)
    y, _ = linear(x, q, perm=perm, machine=machine_of(0), kernel="sm90_wgmma")
    clean = x.clone()
    clean[:, [0, 7]] = 0
    assert torch.equal(y, linear(clean, q, machine=machine_of(0), kernel="sm90_wgmma")[0])


@pytest.mark.parametrize("layout", ["transposed", "padded", "strided", "expanded", "offset"])
def test_many_rows_in_another_order(layout: str) -> None:
    for index, k in enumerate((330, 1032)):
        q = random_weight(31, k, 128, act_order=True, seed=index)
        check(laid_out(randn((257, k), DTYPES[index]), layout), q, machine=machine_of(index))


def test_many_long_rows_in_another_order() -> None:
    """Of more than 29,056 channels two rows at a time fit into shared memory."""
    k = 29_060
    q = random_weight(2, k, 128, act_order=True)
    check(randn((257, k), torch.float16), q)


def test_columns_that_a_cluster_has_and_the_weight_has_not() -> None:
    """The second CTA of a pair that shares X: tiles of 128 columns, 339 of which there are."""
    q = random_weight(339, 236, 32, "real")
    for index in range(4):
        tile = config(2, 192, 2, 1, 1 + index % 2)
        check(randn((116, 236), torch.bfloat16), q, machine=machine_of(index), **tile)


@pytest.mark.parametrize("k", [1408, 1398])
def test_the_last_stage_of_two_units_has_one(k: int) -> None:
    """A warpgroup without a unit of a stage leaves it for the next tile's."""
    q = random_weight(30, k, 128, "real", torch.bfloat16)
    tile = config(1, 48, 1, 1, 1, parts=4)
    for seed in range(6):
        machine = Machine(90, 1, late_copies=False, seed=seed)
        check(randn((86, k), torch.bfloat16), q, machine=machine, **tile)
