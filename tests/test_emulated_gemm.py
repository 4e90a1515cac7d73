"""Every kernel and tile of the dense products on the CPU (emulator/README.md), against float64."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from emulator.library import Config, Machine, Memory, launch, library, listed, make_problem, run
from random_products import SENTINEL, worst_share
from sampling import ALL, over

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.sampled]

LAYOUTS = ("nn", "nt", "tn", "tt")  # of a and b: by rows, or transposed
DTYPES = (torch.float16, torch.bfloat16)
# (late copies, late products, seed of the threads' order)
ORDERS = ((False, False, 0), (True, False, 1), (False, True, 2), (True, True, 3))


def matrix(
    rows: int, columns: int, dtype: torch.dtype, layout: str = "n", pad: int = 0, lead: int = 0
) -> torch.Tensor:
    """Random; each row (or column) is followed by `pad` NaNs, and the first one led by `lead`."""
    outer, inner = (rows, columns) if layout == "n" else (columns, rows)
    buffer = torch.full((lead + outer * (inner + pad),), float("nan"), dtype=dtype)
    view = buffer.as_strided((outer, inner), (inner + pad, 1), lead)
    view.copy_(torch.randn(outer, inner))
    return view if layout == "n" else view.t()


def check(
    machine: Machine, config: Config | None, a: torch.Tensor, b: torch.Tensor, **other: Any
) -> str:
    """Runs a product (a, b: [..., m, k], [..., k, n]), looks at its numbers and around them."""
    place = Place(a, b, **other)
    return place.check(lambda: run(place.problem, machine, config))


class Place:
    """A product's operands, and a destination with room around it."""

    def __init__(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        d_layout: str = "n",
        d_pad: int = 8,
        bias: torch.Tensor | None = None,
        activation: str = "none",
    ) -> None:
        self._memory = Memory()
        self._operands = (a, b, bias, activation)
        *batch, m, n = torch.matmul(a.to("meta"), b.to("meta")).shape
        outer, inner = (m, n) if d_layout == "n" else (n, m)
        self._buffer = self._memory.empty((*batch, outer, inner + d_pad), a.dtype)
        d = self._buffer[..., :inner]
        self._d = d if d_layout == "n" else d.mT
        copied = [None if x is None else self._memory.copy(x) for x in (a, b, bias)]
        self.problem = make_problem(self._d, *copied, activation)

    def check(self, launch: Callable[[], str]) -> str:
        self._buffer.fill_(SENTINEL)
        self._d.fill_(float("nan"))
        said = launch()
        share = worst_share(self._d, *self._operands).item()
        assert share <= 1, f"{share:.3g} of the bound: {said}"
        self._d.fill_(SENTINEL)
        assert (self._buffer == SENTINEL).all(), f"written outside of the destination: {said}"
        return said


def check_listed(
    machine: Machine, kernel: str, a: torch.Tensor, b: torch.Tensor, **other: Any
) -> list[str]:
    """The same by every candidate of a kernel."""
    place = Place(a, b, **other)
    return [
        place.check(partial(launch, place.problem, machine, choice))
        for choice in listed(place.problem, machine, kernel)
    ]


def machine_of(index: int, capability: int = 90, sm_count: int = 4) -> Machine:
    late_copies, late_products, seed = ORDERS[index % len(ORDERS)]
    return Machine(capability, sm_count, late_copies, late_products, seed)


def some(count: int, turn: int) -> tuple[int, ...]:
    """Of so many things that each of a list of cases could do: all, or those that are its turn."""
    return tuple(range(count)) if ALL else (turn % count,)


def tiles_and_layouts() -> list[tuple[tuple[int, int, int], str]]:
    """Tiles that are not a multiple of 64 wide take a K-major B only."""
    all_of_them = itertools.product(library().PERSISTENT_TILES, (1, 2), LAYOUTS)
    return [
        ((block_n, stages, cluster), layout)
        for (block_n, stages), cluster, layout in all_of_them
        if layout[1] == "t" or block_n % 64 == 0
    ]


def pairs_and_layouts() -> list[tuple[tuple[int, int, int], str]]:
    return [(tile, layout) for tile, layout in tiles_and_layouts() if tile[2] == 2]


@over(tiles_and_layouts)
def test_sm90(tile: tuple[int, int, int], layout: str) -> None:
    block_n, stages, cluster = tile
    # m, n, k: several tiles and waves; whole boxes; less than a stage of K; more K than the
    # pipeline.
    shapes = ((392, block_n + 24, 200), (256, 2 * block_n, 128), (72, 40, 8), (136, 64, 456))
    for index, (m, n, k) in enumerate(shapes):
        for tma_store in (True, False):
            dtype = DTYPES[(index + tma_store) % 2]
            config = Config(
                "sm90_persistent",
                128,
                block_n,
                stages,
                ctas=2,
                cluster=cluster,
                tma_store=tma_store,
            )
            check(
                machine_of(index + tma_store),
                config,
                matrix(m, k, dtype, layout[0], pad=8),
                matrix(k, n, dtype, layout[1], pad=16),
                d_layout="n" if tma_store or index % 2 else "t",
                bias=torch.randn(n).to(dtype) if index == 0 else None,
                activation="gelu" if index == 0 else "none",
            )


@over(tiles_and_layouts)
def test_sm90_swapped(tile: tuple[int, int, int], layout: str) -> None:
    """D^T = B^T A^T: `layout` is that of B^T and A^T; stores by TMA are transposed."""
    block_n, stages, cluster = tile
    of_a, of_b = ("tn"["tn".index(letter) ^ 1] for letter in reversed(layout))
    for index, (m, n, k) in enumerate(((block_n + 24, 264, 200), (40, 72, 72))):
        for tma_store in (True, False):
            dtype = DTYPES[(index + tma_store) % 2]
            config = Config(
                "sm90_persistent", 128, block_n, stages, ctas=2, cluster=cluster,
                tma_store=tma_store, swapped=True,
            )  # fmt: skip
            check(
                machine_of(index + tma_store),
                config,
                matrix(m, k, dtype, of_a, pad=8),
                matrix(k, n, dtype, of_b, pad=16),
                bias=torch.randn(n).to(dtype) if index == 0 else None,
            )


@over(pairs_and_layouts)
def test_sm90_halves(tile: tuple[int, int, int], layout: str) -> None:
    """Two CTAs of a cluster share K."""
    block_n, stages, _ = tile
    # One tile for a cluster, and none for some; before it one for each CTA; none for some after it.
    shapes = ((200, block_n + 24, 648, 8), (72, 64, 72, 8), (264, 72, 520, 2), (520, 72, 200, 4))
    for index, (m, n, k, ctas) in enumerate(shapes):
        config = Config(
            "sm90_persistent",
            128,
            block_n,
            stages,
            ctas=ctas,
            cluster=2,
            splits=2,
            tma_store=index != 1,
        )
        a, b = matrix(m, k, torch.half, layout[0], pad=8), matrix(k, n, torch.half, layout[1], 16)
        check(machine_of(index + 1), config, a, b, bias=torch.randn(n).half())


@pytest.mark.parametrize("rows", [3, 5])
def test_sm90_halves_of_every_tile(rows: int) -> None:
    """Groups of fewer rows of tiles than there are, the last one smaller."""
    m, n = 128 * rows - 40, 136
    config = Config(
        "sm90_persistent", 128, 128, 6, ctas=4 * rows, cluster=2, splits=2, tma_store=True
    )
    a, b = matrix(m, 136, torch.half, "n", pad=8), matrix(136, n, torch.half, "t", 16)
    check(machine_of(rows), config, a, b)


@pytest.mark.parametrize("cluster", [1, 2])
def test_sm90_batches(cluster: int) -> None:
    for index, (batch_a, batch_b) in enumerate([((3,), (3,)), ((1,), (3,)), ((3,), (1,))]):
        a, b = (torch.randn(*batch, 136, 136).half() for batch in (batch_a, batch_b))
        config = Config(
            "sm90_persistent", 128, 128, 6, ctas=4, cluster=cluster, tma_store=index != 1
        )
        check(machine_of(index), config, a, b)


@pytest.mark.parametrize("copies", [(True, False), (False, True), (True, True)])
def test_copies_for_tma(copies: tuple[bool, bool]) -> None:
    for index, (layout, lead, step) in enumerate(itertools.product(LAYOUTS, (0, 1, 4), (1, 2))):
        operands = []
        for extents, letter, copied in zip(((136, 72), (72, 152)), layout, copies, strict=True):
            if not copied:
                operands.append(matrix(*extents, torch.float16, letter, pad=8))
                continue
            wide = (
                (extents[0], extents[1] * step)
                if letter == "n"
                else (extents[0] * step, extents[1])
            )
            view = matrix(*wide, torch.float16, letter, pad=3, lead=lead)
            operands.append(view[:, ::step] if letter == "n" else view[::step])
        config = Config(
            "sm90_persistent", 128, 128, 6, ctas=2, tma_store=True, copy_a=copies[0],
            copy_b=copies[1], workspace_bytes=1 << 17,
        )  # fmt: skip
        check(machine_of(index), config, *operands)


@pytest.mark.parametrize(("pad", "lead"), [(0, 0), (1, 3), (3, 0), (7, 5), (5, 1)])
@pytest.mark.parametrize("halves", [False, True])
def test_shifted(halves: bool, pad: int, lead: int) -> None:
    """Rows of A at odd strides, at those of 2 and 4 elements, and aligned rows at odd addresses."""
    for index, (m, n, k) in enumerate(
        ((272, 136, 201), (1048, 72, 457), (8, 520, 64), (16, 64, 121))
    ):
        dtype = DTYPES[index % 2]
        a = matrix(m, k, dtype, "n", pad=pad, lead=lead)
        b = matrix(k, n, dtype, "n", pad=3 if index == 1 else 16 - n % 8)
        config = Config(
            "sm90_persistent", 128, 128, 6, ctas=4,
            cluster=2 if halves else 1 + index % 2, splits=2 if halves else 1,
            tma_store=n % 8 == 0 and index != 2, copy_b=index == 1, shifted=True,
            workspace_bytes=1 << 20,
        )  # fmt: skip
        check(machine_of(index), config, a, b, bias=torch.randn(n).to(dtype))


@pytest.mark.parametrize("few", [2, 8, 13, 32])
def test_few_rows_across_k_are_copied_along_it(few: int) -> None:
    columns = 8 if few <= 8 else 16 if few <= 16 else 32
    for index, (layout, pad) in enumerate(itertools.product(("tn", "tt"), (0, 3))):
        x = matrix(few, 328, DTYPES[index % 2], layout[0], pad=pad)
        w = matrix(328, 136, DTYPES[index % 2], layout[1], pad=8)
        for a, b, copied in ((x, w, "copy_a"), (w.t(), x.t(), "copy_b")):
            config = Config(
                "sm90_skinny", 64, columns, 3, ctas=2, workspace_bytes=1 << 16, **{copied: True}
            )
            check(machine_of(index), config, a, b)


def columns_and_layouts() -> list[tuple[int, str]]:
    """Tiles that are not a multiple of 64 wide take a K-major X only."""
    both = itertools.product(library().SKINNY_COLUMNS, LAYOUTS)
    return [(columns, layout) for columns, layout in both if layout[0] == "n" or columns % 64 == 0]


@over(columns_and_layouts)
def test_sm90_skinny(columns: int, layout: str) -> None:
    """x [few, k] @ w [k, wide] and its transposed problem, by tiles of one and two warpgroups."""
    all_rows = (64, 128, 40, 104) if layout[1] == "t" else (64, 128)
    for index, (rows, splits) in enumerate(itertools.product(all_rows, (1, 2, 4, 8))):
        dtype = DTYPES[index // 2 % 2]
        few = columns if index % 3 else columns - 3
        wide, k = 152, (1096, 256, 520)[index % 3]
        config = Config(
            "sm90_skinny", rows, columns, 3, ctas=2 * splits, cluster=splits, splits=splits
        )
        x = matrix(few, k, dtype, layout[0], pad=8 + -few % 8 if layout[0] == "t" else 8)
        w = matrix(k, wide, dtype, layout[1], pad=8)
        sides = some(2, columns // 8 + index // 4)
        if 0 in sides:
            with_bias = {"bias": torch.randn(wide).to(dtype), "activation": "silu"}
            check(machine_of(index), config, x, w, **(with_bias if index % 2 else {}))
        if 1 in sides:
            with_bias = {"bias": torch.randn(few).to(dtype), "activation": "silu"}
            check(
                machine_of(index + 1), config, w.t(), x.t(), d_layout="nt"[index % 2],
                **(with_bias if index % 4 == 1 else {}),
            )  # fmt: skip


def small_shapes_and_layouts() -> list[tuple[tuple[int, int, int], str]]:
    return [
        ((block_m, block_n, stages), "nt"[a_mn] + "tn"[b_mn])
        for block_m, block_n, stages, a_mn, b_mn in library().SINGLE_TILE_SHAPES
    ]


@over(small_shapes_and_layouts)
def test_sm90_single_tile(shape: tuple[int, int, int], layout: str) -> None:
    block_m, block_n, stages = shape
    turn = (block_m + block_n) // 8
    # m, n, k: ragged; less than a tile, and little more than a stage; whole tiles, more K than the
    # pipeline; less K than a stage.
    shapes = (
        (block_m + 40, 2 * block_n + (21 if layout[1] == "t" else 24), 200),
        (40, 24, 72),
        (block_m, block_n, 64 * (stages + 3)),
        (2 * block_m, block_n, 8),
    )
    for index, (m, n, k) in enumerate(shapes):
        dtype = DTYPES[index % 2]
        a, b = matrix(m, k, dtype, layout[0], pad=8), matrix(k, n, dtype, layout[1], pad=8)
        config = Config(
            "sm90_single_tile", block_m, block_n, stages, ctas=0, cluster=(4, 1, 4, 1)[index]
        )
        sides = some(2, turn + index)
        if 0 in sides:
            check(
                machine_of(index), config, a, b,
                d_layout="nt"[index == 1],
                d_pad=8 + -n % 8 if index != 1 else 8,
                bias=torch.randn(n).to(dtype) if index == 0 else None,
                activation="gelu" if index == 0 else "none",
            )  # fmt: skip
        if 1 in sides:  # the same from its other side
            check(
                machine_of(index + 1), replace(config, swapped=True), b.t(), a.t(),
                d_layout="nt"[index == 3],
                d_pad=8 + -m % 8,
                bias=torch.randn(m).to(dtype) if index % 2 == 0 else None,
            )  # fmt: skip
    for rest in some(3, turn):
        (check_cut_tiles, check_rows_anywhere, check_batches)[rest](shape, layout)


def check_cut_tiles(shape: tuple[int, int, int], layout: str) -> None:
    """Tiles cut where an operand lies along K, three rows and columns of them."""
    block_m, block_n, stages = shape
    cut_m = block_m - 8 if layout[0] == "n" else block_m
    cut_n = block_n - 8 if layout[1] == "t" else block_n
    m, n = 3 * cut_m - (5 if layout[0] == "n" else 8), 3 * cut_n - 8
    config = Config("sm90_single_tile", cut_m, cut_n, stages, ctas=0)
    a = matrix(m, 136, torch.bfloat16, layout[0], pad=8)
    b = matrix(136, n, torch.bfloat16, layout[1], pad=8)
    for descending in (False, True):
        check(replace(machine_of(3), descending=descending), config, a, b)
    check(machine_of(4), replace(config, cluster=4), a, b)


def check_rows_anywhere(shape: tuple[int, int, int], layout: str) -> None:
    """D whose rows begin anywhere, along its rows and its columns."""
    block_m, block_n, stages = shape
    a = matrix(block_m + 3, 72, torch.bfloat16, layout[0], pad=8 if layout[0] == "n" else 5)
    b = matrix(72, block_n + 5, torch.bfloat16, layout[1], pad=3 if layout[1] == "n" else 8)
    config = Config("sm90_single_tile", block_m, block_n, stages, ctas=0)
    check(machine_of(1), config, a, b, d_pad=2)
    check(machine_of(2), replace(config, swapped=True), b.t(), a.t(), d_pad=4)


@pytest.mark.parametrize("group", [2, 3, 4, 7])
def test_sm90_single_tile_in_groups(group: int) -> None:
    """Seven tiles by nine: groups of one size, a smaller last one, one with a single tile."""
    dtype = DTYPES[group % 2]
    a, b = matrix(64 * 9 - 8, 72, dtype, "n"), matrix(72, 32 * 7 - 16, dtype, "t")
    config = Config("sm90_single_tile", 64, 32, 16, ctas=0, group=group)
    check(machine_of(group), config, a, b, bias=torch.randn(b.shape[1]).to(dtype))
    check(machine_of(group + 1), config, b.t(), a.t(), d_layout="t")


def check_batches(shape: tuple[int, int, int], layout: str) -> None:
    batch = torch.randn(2, 3, 72, 136).half(), torch.randn(3, 136, 40).half()
    a, b = (x if of == "n" else x.mT.contiguous().mT for x, of in zip(batch, layout, strict=True))
    for cluster in (1, 4):
        config = Config("sm90_single_tile", *shape, ctas=0, cluster=cluster)
        check(machine_of(2 + cluster), config, a, b)


def k_major_shapes() -> list[tuple[tuple[int, int, int]]]:
    """Every fourth."""
    return [(shape,) for shape, layout in small_shapes_and_layouts() if layout == "nt"][::4]


@over(k_major_shapes)
def test_sm90_single_tile_parts_of_k(shape: tuple[int, int, int]) -> None:
    """Parts of K whose sums a second launch adds: uneven ones, and of one chunk."""
    block_m, block_n, stages = shape
    for index, (chunks, parts) in enumerate(((2 * stages + 3, 2), (5, 5))):
        dtype, k = DTYPES[index % 2], 64 * chunks - 8 * index
        m, n = block_m + 21, 2 * block_n - 24
        a, b = matrix(m, k, dtype, "n", pad=8), matrix(k, n, dtype, "t", pad=8)
        config = Config(
            "sm90_single_tile", block_m, block_n, stages, ctas=0, splits=parts,
            workspace_bytes=4 * parts * m * n,
        )  # fmt: skip
        bias = torch.randn(n).to(dtype)
        check(machine_of(index), config, a, b, **({"bias": bias} if index else {}))
        swapped = replace(config, swapped=True, workspace_bytes=4 * parts * n * (m + 3))
        check(machine_of(index + 1), swapped, b.t(), a.t(), d_layout="nt"[index % 2])
        # One column, whose D has two strides of 1.
        column = replace(config, workspace_bytes=4 * parts * 4 * m)
        check(machine_of(index), column, a, b[:, :1], d_pad=0)
        check(machine_of(index), replace(column, swapped=True), a, b[:, :1], d_pad=0)


@pytest.mark.parametrize("capability", [90, 80])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gemv(dtype: torch.dtype, capability: int) -> None:
    """All candidates of random products, which are of all shapes and all splits of K."""
    rng, said = random.Random(capability), list[str]()
    for index, (few, layout, pad) in enumerate(itertools.product((1, 2, 3, 5, 8), "nt", (8, 1))):
        k, wide = 8 * rng.randrange(1, 170), rng.randrange(1, 300)
        k -= rng.randrange(8) if pad == 1 else 0
        x, w = matrix(few, k, dtype, pad=pad), matrix(k, wide, dtype, layout, pad=pad)
        machine, biases = machine_of(index, capability), torch.randn(max(few, wide)).to(dtype)
        if index % 2:
            said += check_listed(machine, "gemv", x, w, bias=biases[:wide])
        else:
            bias = biases[:few]
            said += check_listed(machine, "gemv", w.t(), x.t(), bias=bias, activation="relu")
    tiles = {tuple(sorted(map(int, re.findall(r"tile (\d+)x(\d+)", each)[0]))) for each in said}
    assert tiles == set(library().GEMV_SHAPES)
    assert {re.findall(r"K in (\d) parts", each)[0] for each in said if "K in" in each} == set(
        "248"
    )


@pytest.mark.parametrize("capability", [90, 80])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gemv_by_rows(dtype: torch.dtype, capability: int) -> None:
    # Warps of a last pass, and lanes of its last warp, that have nothing left; more than one pass.
    for index, (few, k) in enumerate(itertools.product((1, 2), (8, 264, 1040, 4104, 8192, 8720))):
        wide = (37, 40)[index % 2]
        x, w = matrix(few, k, dtype, pad=8), matrix(k, wide, dtype, "t", pad=8)
        config = Config("gemv", few, few, 0, ctas=0)
        machine = machine_of(index, capability)
        check(machine, config, x, w, bias=torch.randn(wide).to(dtype))
        check(machine, config, w.t(), x.t(), bias=torch.randn(few).to(dtype), activation="relu")
    batch = torch.randn(3, 2, 528).to(dtype), torch.randn(3, 21, 528).to(dtype).mT
    check(machine_of(0, capability), Config("gemv", 2, 2, 0, ctas=0), *batch)
    check(machine_of(1, capability), Config("gemv", 2, 2, 0, ctas=0), batch[0], batch[1][:1])


# What a row is followed by, and the first one led by: 16, 8, 4 and 2 bytes of alignment.
ALIGNMENTS = {"whole 16": (8, 0), "16": (8, 0), "8": (4, 4), "4": (2, 2), "2": (3, 1)}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("block", [(64, 64, 4), (128, 128, 4), (128, 256, 3)], ids=str)
def test_sm80(block: tuple[int, int, int], layout: str) -> None:
    for index, (alignment, splits) in enumerate(itertools.product(ALIGNMENTS, (1, 3))):
        whole, (pad, lead) = alignment == "whole 16", ALIGNMENTS[alignment]
        dtype = DTYPES[(index + index // 2) % 2]
        if block[1] == 256 and not whole:
            continue  # a tile for aligned operands only
        m, n, k = (200, 296, 264) if whole else (203, 269, 141)
        pads = [-extent % 8 + pad for extent in (m, n, k)]
        a = matrix(m, k, dtype, layout[0], pads[2] if layout[0] == "n" else pads[0], lead)
        b = matrix(k, n, dtype, layout[1], pads[1] if layout[1] == "n" else pads[2], lead)
        config = Config(
            "sm80", *block, ctas=5, splits=splits,
            workspace_bytes=4 * splits * m * -(-n // 4) * 4 if splits > 1 else 0,
        )  # fmt: skip
        bias = torch.randn(n).to(dtype) if index % 2 else None
        check(machine_of(index, 80), config, a, b, bias=bias, d_pad=8 - n % 8 if whole else 1)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float32], ids=str)
def test_simt(dtype: torch.dtype) -> None:
    for index, layout in enumerate(LAYOUTS):
        a, b = matrix(130, 70, dtype, layout[0], 1), matrix(70, 129, dtype, layout[1], 3)
        config = Config("simt", 64, 64, 0, ctas=3)
        check(machine_of(index), config, a, b, d_layout="nt"[index % 2], activation="gelu_tanh")


@pytest.mark.parametrize(("capability", "kernel"), [(80, "fp32 ("), (90, "fp32 sm90 (")])
def test_alpha_and_beta(capability: int, kernel: str) -> None:
    memory, machine = Memory(), Machine(capability)
    a, b = memory.copy(torch.randn(30, 40)), memory.copy(torch.randn(40, 50))
    c = memory.copy(torch.randn(30, 50), writable=True)
    expected = 0.5 * (a.double() @ b.double()) - 2.0 * c.double()
    said = run(make_problem(c, a, b, alpha=0.5, beta=-2.0), machine)
    assert f"kernel: {kernel}" in said
    torch.testing.assert_close(c.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("capability", [80, 90])
def test_without_k_the_product_is_zero(capability: int) -> None:
    for dtype in (*DTYPES, torch.float32):
        check(Machine(capability), None, torch.empty(20, 0).to(dtype), torch.empty(0, 24).to(dtype))
