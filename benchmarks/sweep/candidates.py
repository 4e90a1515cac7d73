"""The configurations that a problem may run in: every kernel, tile and split that fits it.

Which tiles there are is read from csrc/cuda/gemm, where the kernels are compiled for them.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from sweep.library import ROOT, Config, Device, Shape

SM90_BLOCK_M = 128
SM80_TILES = ((128, 256, 5), (128, 128, 4), (64, 64, 4))  # the first for aligned operands only
MOST_WORKSPACE = 1 << 28
MOST_TURNS = 8  # tiles of an SM, where CTAs have one each


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def sm90_tiles() -> list[tuple[int, int, int]]:
    """(block_n, stages, cluster)"""
    text = (ROOT / "csrc/cuda/gemm/sm90/persistent/tiles.h").read_text()
    found = re.findall(r"^\s*TILE\((\d+), (\d+)\)", text, re.MULTILINE)
    both = itertools.product(found, (1, 2))
    return [(int(n), int(stages), cluster) for (n, stages), cluster in both]


def aligned(shape: Shape) -> bool:
    """Whether one dimension of each operand is contiguous, the other in steps of 16 bytes."""
    a = (shape.k, shape.m) if shape.layout[0] == "t" else (shape.m, shape.k)
    b = (shape.n, shape.k) if shape.layout[1] == "t" else (shape.k, shape.n)
    return all(outer == 1 or inner == 1 or inner % 8 == 0 for outer, inner in (a, b))


def sm90_persistent(shape: Shape, device: Device, chosen: Config) -> Iterator[Config]:
    """Every tile, which CTAs take whole or share out, over D or its transpose; copies as chosen."""
    copies = 0
    if chosen.copy_a or chosen.copy_b:
        copies = chosen.workspace_bytes
        copies -= stream_k_bytes(chosen.block_n, chosen.ctas) if chosen.stream_k else 0
    k_tiles = ceil_div(shape.k, 64)
    for block_n, stages, cluster in sm90_tiles():
        for swapped in (False, True):
            rows, columns = (shape.n, shape.m) if swapped else (shape.m, shape.n)
            k_major = shape.layout[0] == "n" if swapped else shape.layout[1] == "t"
            if block_n % 64 and not k_major:
                continue
            clusters = ceil_div(rows, SM90_BLOCK_M * cluster) * ceil_div(columns, block_n)
            most = device.sm_count // cluster
            whole = replace(
                chosen, block_n=block_n, stages=stages, cluster=cluster, estimate_us=0.0,
                ctas=ceil_div(clusters, ceil_div(clusters, most)) * cluster, stream_k=False,
                workspace_bytes=copies, swapped=swapped, splits=1,
                tma_store=shape.n % 8 == 0,
            )  # fmt: skip
            yield whole
            tiles = ceil_div(rows, SM90_BLOCK_M) * ceil_div(columns, block_n)
            turns, rest = divmod(tiles, 2 * most)
            if cluster == 2 and 0 < rest <= most and k_tiles >= 8:
                least = ceil_div(tiles, 2 * turns + 1)
                halves = least if 2 * turns * least <= tiles else most
                yield replace(whole, splits=2, ctas=2 * halves)
            if clusters % most and clusters * k_tiles >= 2 * most:
                ctas = most * cluster
                yield replace(
                    whole, ctas=ctas, stream_k=True,
                    workspace_bytes=copies + stream_k_bytes(block_n, ctas),
                )  # fmt: skip


def stream_k_bytes(block_n: int, ctas: int) -> int:
    """stream_k_workspace of csrc/cuda/gemm/sm90/persistent/params.h"""
    return ceil_div(ctas * 16, 256) * 256 + ctas * SM90_BLOCK_M * block_n * 4


def sm80(shape: Shape, device: Device, chosen: Config) -> Iterator[Config]:
    for block_m, block_n, stages in SM80_TILES:
        if block_n == 256 and not aligned(shape):
            continue
        tiles = ceil_div(shape.m, block_m) * ceil_div(shape.n, block_n)
        most_ctas = device.sm_count if block_n == 256 else 2**31 - 1  # as select.cpp has
        for splits in splits_of(shape, tiles, device):
            workspace = 0 if splits == 1 else 4 * splits * shape.m * ceil_div(shape.n, 4) * 4
            if workspace <= MOST_WORKSPACE:
                yield replace(
                    chosen, block_m=block_m, block_n=block_n, stages=stages, splits=splits,
                    ctas=min(tiles * splits, most_ctas), workspace_bytes=workspace, estimate_us=0.0,
                )  # fmt: skip


def splits_of(shape: Shape, tiles: int, device: Device, block_k: int = 32) -> list[int]:
    """Splits of K worth a look: none, and where SMs are idle those that leave no part empty."""
    found = [1]
    for splits in (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64):
        part = ceil_div(ceil_div(shape.k, splits), block_k) * block_k
        fills = tiles * splits <= 4 * device.sm_count
        if fills and part >= 128 and ceil_div(shape.k, part) == splits:
            found.append(splits)
    return found


def gemv(shape: Shape, device: Device, chosen: Config) -> Iterator[Config]:
    """The choice in other splits: a cluster's CTAs, or a workspace. By rows there are none."""
    if chosen.block_m == chosen.block_n < 8:
        yield chosen
        return
    tiles = chosen.ctas // chosen.splits
    for splits in (1, 2, 4, 8):
        in_cluster = device.capability == 90
        yield replace(
            chosen, splits=splits, ctas=tiles * splits, cluster=splits if in_cluster else 1,
            workspace_bytes=0 if in_cluster or splits == 1 else 4 * splits * shape.m * shape.n,
            estimate_us=0.0,
        )  # fmt: skip


@dataclass(frozen=True)
class SmallShape:
    """Shape of csrc/cuda/gemm/sm90/single_tile/tile.h: what the kernel is compiled for."""

    block_m: int
    block_n: int
    stages: int
    k_major_only: bool

    @property
    def area(self) -> int:
        return self.block_m * self.block_n

    def compiled_for(self, a_mn: bool, b_mn: bool) -> bool:
        if self.k_major_only and (a_mn or b_mn):
            return False
        if b_mn and (self.block_m, self.block_n) == (64, 144):
            return False
        wide = self.block_m > 64 and self.block_n > 64
        return not a_mn or b_mn or not wide or (self.block_m == 128 and self.block_n <= 144)


@cache
def small_shapes() -> list[SmallShape]:
    text = (ROOT / "csrc/cuda/gemm/sm90/single_tile/tile.h").read_text()
    found = re.findall(r"\{(\d+), (\d+), (\d+)(, true)?\},", text)
    return [SmallShape(int(m), int(n), int(stages), bool(only)) for m, n, stages, only in found]


def compiled_shape(tile_m: int, tile_n: int, k_major: bool) -> SmallShape:
    """shape_of of tile.h: the least that holds a tile."""
    holding = [
        each for each in small_shapes()
        if tile_m <= each.block_m and tile_n <= each.block_n
        and (k_major or not each.k_major_only)
    ]  # fmt: skip
    return min(holding, key=lambda each: each.area)


def sm90_single_tile(shape: Shape, device: Device, chosen: Config) -> Iterator[Config]:
    """
    The choice in other tiles, over D or its transpose: whole ones and those that are cut so that
    all are of one size.
    """
    shapes = small_shapes()
    layout = shape.layout[0] == "t", shape.layout[1] == "n"
    for of, swapped in itertools.product(shapes, (False, True)):
        m, n = (shape.n, shape.m) if swapped else (shape.m, shape.n)
        m_mn, n_mn = layout[::-1] if swapped else layout
        rows, columns = ceil_div(m, of.block_m), ceil_div(n, of.block_n)
        if rows * columns > MOST_TURNS * device.sm_count or not of.compiled_for(m_mn, n_mn):
            continue
        cut_m = of.block_m if m_mn else ceil_div(ceil_div(m, rows), 8) * 8
        cut_n = of.block_n if n_mn else ceil_div(ceil_div(n, columns), 8) * 8
        tiles = [(of.block_m, of.block_n)]
        if compiled_shape(cut_m, cut_n, not (m_mn or n_mn)) == of and (cut_m, cut_n) != tiles[0]:
            tiles.append((cut_m, cut_n))
        for (tile_m, tile_n), cluster in itertools.product(tiles, (1, 2, 4)):
            rows, columns = ceil_div(m, tile_m), ceil_div(n, tile_n)
            by_columns = rows * ceil_div(columns, cluster) * cluster
            by_rows = columns * ceil_div(rows, cluster) * cluster
            if (tile_n if by_rows < by_columns else tile_m) % cluster:
                continue
            halves = (
                of.block_m == 128 and of.block_n <= 128
                and ceil_div(shape.k, 64) // 2 >= of.stages
            )  # fmt: skip
            for splits in (1, 2) if halves else (1,):
                yield replace(
                    chosen, block_m=tile_m, block_n=tile_n, stages=of.stages, cluster=cluster,
                    splits=splits, swapped=swapped, ctas=min(by_columns, by_rows) * splits,
                    estimate_us=0.0,
                )  # fmt: skip


FAMILIES = {
    "sm90_persistent": sm90_persistent,
    "sm80": sm80,
    "gemv": gemv,
    "sm90_single_tile": sm90_single_tile,
}


def candidates(
    shape: Shape, device: Device, families: list[Config], most: int | None = None
) -> list[Config]:
    """
    What each family of kernels has chosen for itself, and the other ways it could go: all, or the
    `most` that rough_us thinks most of.
    """
    found: list[Config] = []
    for chosen in families:
        if chosen.kernel in FAMILIES and not chosen.shifted:
            found += FAMILIES[chosen.kernel](shape, device, chosen)
    if most is not None:
        found = sorted(found, key=lambda config: rough_us(shape, device, config))[:most]
    return list({config.key: config for config in (*found, *families)}.values())


def rough_us(shape: Shape, device: Device, config: Config) -> float:
    """What tensor cores and memory need at the least, and the tiles of an SM one after another."""
    m, n = (shape.n, shape.m) if config.swapped else (shape.m, shape.n)
    tiles = ceil_div(m, config.block_m) * ceil_div(n, config.block_n) * config.splits
    turns = tiles / device.sm_count if config.stream_k else ceil_div(tiles, device.sm_count)
    block_m, block_n = config.block_m, config.block_n
    if config.kernel == "sm90_single_tile":
        least = compiled_shape(block_m, block_n, shape.layout == "nt")
        block_m, block_n = least.block_m, least.block_n
    steps = ceil_div(shape.k, 64) / config.splits
    rate = 1700 * (0.68 if config.kernel == "sm80" else 1)  # cycles a us
    multiply = turns * steps * block_m * block_n / 32 / rate
    extra = 1.5 * turns + 2 * (config.splits > 1) + 4 * config.stream_k
    return 5 + extra + math.hypot(multiply, shape.bytes / 4.5e6)
