"""The CUDA reductions as a library of their own, and the configurations a problem may run in.

It is linked from the objects of the last `make build`, so it holds what the op library holds.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from sweep.library import ROOT, Device, link

LIBRARY = ROOT / "build" / "sweep" / "libxgemm_reduce.so"
MOST_WORKSPACE = 64 << 20
SHARED_BYTES = 48 << 10  # of a block
KERNELS = (
    "short_rows", "ragged_rows", "team_rows", "lone_rows", "row_pieces", "rows", "runs", "columns",
    "shifted", "flat", "thin", "short_columns", "warp_columns", "wrapped", "strided", "copy",
)  # fmt: skip
OPS = ("sum", "mean", "prod", "amax", "amin", "norm", "argmax", "argmin")  # enum ReduceOp
DTYPES = ("float16", "bfloat16", "float32")  # enum DType


def build() -> Path:
    return link(LIBRARY, "reduce_entry.cpp", r"reduce/[^:]+")


@dataclass(frozen=True)
class Reduction:
    """Of a dense tensor over one dimension of up to three."""

    shape: tuple[int, ...]
    dim: int
    dtype: str = "float32"
    op: str = "sum"

    def __str__(self) -> str:
        sides = "x".join(map(str, self.shape))
        return f"{self.op} of {sides} {self.dtype} over {self.dim}"

    @property
    def element(self) -> int:
        return 4 if self.dtype == "float32" else 2

    @property
    def vector(self) -> int:
        return 16 // self.element

    @property
    def outputs(self) -> int:
        return math.prod(self.shape) // self.extent

    @property
    def extent(self) -> int:
        return self.shape[self.dim]

    @property
    def inner(self) -> int:
        """Neighbouring outputs whose elements are neighbours, too."""
        return math.prod(self.shape[self.dim + 1 :])

    @property
    def bytes(self) -> float:
        size = 8 if self.op.startswith("arg") else self.element
        return float(self.element) * math.prod(self.shape) + size * self.outputs


@dataclass(frozen=True)
class Config:
    """csrc/cuda/reduce/problem.h says what each field is."""

    kernel: str
    threads: int
    lanes: int = 1
    vectors: int = 1
    tiles: int = 0
    row_loads: int = 0
    pieces: int = 1
    cluster: int = 1
    mail: bool = False
    streams: bool = True
    sm90: bool = False
    one_shift: bool = False
    workspace_bytes: int = 0
    collectors: int = 0  # blocks that collect the mail, beside the pieces

    @property
    def key(self) -> str:
        """What tells configurations of one problem apart."""
        text = f"{self.kernel} t{self.threads} l{self.lanes}"
        if self.kernel in ("short_rows", "ragged_rows"):
            text += f" v{self.vectors}"
        if self.pieces > 1:
            way = "cluster" if self.cluster > 1 else "mail" if self.mail else "launch"
            text += f" {way} {self.pieces}"
            if self.collectors:
                text += f" to {self.collectors}"
        return text if self.streams else text + " kept"


class _Problem(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("op", "dtype", "kept_count", "reduced_count")),
        ("kept", ctypes.c_int64 * 12),
        ("reduced", ctypes.c_int64 * 8),
        ("source", ctypes.c_void_p),
        ("destination", ctypes.c_void_p),
    )


class _Config(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int64) for name in Config.__dataclass_fields__)


def _problem(of: Reduction, source: int, destination: int) -> _Problem:
    strides = [math.prod(of.shape[d + 1 :]) for d in range(len(of.shape))]
    kept = [d for d in range(len(of.shape)) if d != of.dim]
    out = [math.prod(of.shape[e] for e in kept[i + 1 :]) for i in range(len(kept))]
    flat = [n for i, d in enumerate(kept) for n in (of.shape[d], strides[d], out[i])]
    return _Problem(
        OPS.index(of.op), DTYPES.index(of.dtype), len(kept), 1, (ctypes.c_int64 * 12)(*flat),
        (ctypes.c_int64 * 8)(of.extent, strides[of.dim]), source, destination,
    )  # fmt: skip


class Library:
    def __init__(self, path: Path = LIBRARY) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.sweep_launch.restype = ctypes.c_char_p

    def select(self, of: Reduction, device: Device) -> Config:
        """select_config's choice for an aligned tensor."""
        found = _Config()
        problem = _problem(of, 1 << 20, 1 << 20)
        self._library.sweep_select(
            ctypes.byref(problem), device.sm_count, device.capability, ctypes.byref(found)
        )
        values = {name: getattr(found, name) for name in Config.__dataclass_fields__}
        values |= {name: bool(values[name]) for name in ("mail", "streams", "sm90", "one_shift")}
        return Config(**values | {"kernel": KERNELS[found.kernel]})

    def launch(
        self, of: Reduction, config: Config, x: torch.Tensor, y: torch.Tensor,
        workspace: torch.Tensor,
    ) -> None:  # fmt: skip
        assert workspace.numel() * workspace.element_size() >= config.workspace_bytes
        values = {**asdict(config), "kernel": KERNELS.index(config.kernel)}
        error = self._library.sweep_launch(
            ctypes.byref(_problem(of, x.data_ptr(), y.data_ptr())),
            ctypes.byref(_Config(**values)),
            ctypes.c_void_p(workspace.data_ptr()),
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
        )
        if error is not None:
            raise RuntimeError(f"{config.key}: {error.decode()}")


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class Candidates:
    """All that fits a problem whose choice is `chosen`, the choice among them."""

    of: Reduction
    device: Device
    chosen: Config

    @property
    def acc(self) -> int:
        return 16 if self.of.op.startswith("arg") else 8

    @cached_property
    def all(self) -> list[Config]:
        found = [self.chosen]
        found += self.small()
        if self.of.inner == 1:
            found += [*self.rows(), *self.team_rows(), *self.short_rows(), *self.thin()]
        else:
            found += [*self.columns(), *self.flat(), *self.thin(), *self.wrapped(), *self.strided()]
        if self.of.bytes > 100e6:
            found += [replace(config, streams=not config.streams) for config in found]
        return list({config.key: config for config in found}.values())

    def in_pieces(self, config: Config, most: int, per_tile: int) -> Iterator[Config]:
        """Not cut, in clusters, and in memory, as `most` allows; `per_tile` outputs of a tile."""
        yield config
        for cluster in (2, 4, 8) if config.sm90 else ():
            if cluster <= most and config.tiles * cluster <= 1 << 14:
                yield replace(config, pieces=cluster, cluster=cluster)
        cuts = {
            round(blocks * self.device.sm_count) // max(config.tiles, 1)
            for blocks in (0.25, 0.5, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
        }
        for pieces in sorted(cuts):
            if not 1 < pieces <= most:
                continue
            enough = pieces * per_tile <= 1 << 14 and per_tile <= config.threads
            for mail in (True, False) if per_tile >= 8 else (enough,):
                size = 2 * config.tiles * per_tile if mail else self.of.outputs
                size *= pieces * self.acc
                if size > MOST_WORKSPACE:
                    continue
                cut = replace(config, pieces=pieces, mail=mail, workspace_bytes=size)
                if enough or not mail:
                    yield cut
                if mail:
                    yield from self.collected(cut, per_tile)

    def collected(self, cut: Config, per_tile: int) -> Iterator[Config]:
        """By blocks of their own, which rows do not have."""
        collected = cut.kernel in ("columns", "shifted", "wrapped")
        for collectors in (1, 2, 4, 8, 16, 32) if collected else ():
            share = per_tile // collectors
            few = cut.tiles * collectors <= 2 * self.device.sm_count
            if few and 8 <= share <= cut.threads and cut.pieces * share <= 1 << 14:
                yield replace(cut, collectors=collectors)

    def rows(self) -> Iterator[Config]:
        vectors = ceil_div(self.of.extent, self.of.vector)
        for threads in (64, 128, 256, 512):
            config = Config(
                "rows", threads, tiles=self.of.outputs, sm90=self.device.capability == 90
            )
            if self.of.outputs <= 1 << 22 and threads <= 2 * vectors:
                yield from self.in_pieces(config, ceil_div(vectors, threads), 1)

    def small(self) -> Iterator[Config]:
        """What is compiled for a few ops only, and for one dimension that is kept."""
        of = self.of
        norm_of_half = (of.op, of.dtype) == ("norm", "float16")
        if of.op not in ("sum", "mean", "amax", "amin") and not norm_of_half:
            return
        if of.inner > 1 and of.outputs > of.inner:
            return
        for threads in (128, 256, 512):
            if of.inner == 1 and ceil_div(of.extent, of.vector) < 4 * threads:
                yield Config("lone_rows", threads, tiles=of.outputs)
            pieces = ceil_div(of.extent, 8 * of.vector * threads)
            fits = 1 < pieces <= 8 and pieces * of.outputs <= self.device.sm_count
            if of.inner == 1 and fits and self.device.capability == 90:
                yield Config(
                    "row_pieces", threads, tiles=of.outputs, pieces=pieces, cluster=pieces,
                    sm90=True,
                )  # fmt: skip
        for threads in (64, 128, 256):
            if of.extent <= 8:
                yield Config("short_columns", threads, tiles=ceil_div(of.outputs, threads))
        if of.inner > 1 and of.extent <= 4096:
            yield Config("warp_columns", 512, tiles=ceil_div(of.outputs, 32))

    def team_rows(self) -> Iterator[Config]:
        vectors = ceil_div(self.of.extent, self.of.vector)
        for lanes in (8, 16, 32):
            for threads in (32, 64, 128, 256):
                if 2 * self.of.vector <= lanes <= 2 * vectors <= 4096:
                    tiles = ceil_div(self.of.outputs, threads // lanes)
                    yield Config("team_rows", threads, lanes, tiles=tiles)

    def short_rows(self) -> Iterator[Config]:
        whole = self.of.extent % self.of.vector == 0
        vectors = ceil_div(self.of.extent + (0 if whole else self.of.vector - 1), self.of.vector)
        if vectors > 2048:
            return
        for lanes in (1, 2, 4, 8, 16, 32):
            for at_once in (1, 2, 4, 8):
                rounds = ceil_div(vectors, lanes * at_once)
                if lanes * at_once >= 4 * vectors or (rounds > 1 and lanes * at_once < 128):
                    continue
                for threads in (32, 64, 128, 256):
                    warps = ceil_div(self.of.outputs, 8 // at_once * (32 // lanes))
                    yield Config(
                        "short_rows" if whole else "ragged_rows", threads, lanes, at_once,
                        tiles=ceil_div(warps, threads // 32), row_loads=vectors,
                    )  # fmt: skip

    def columns(self) -> Iterator[Config]:
        of = self.of
        aligned = of.inner % of.vector == 0
        across = ceil_div(of.inner, of.vector)
        for lanes in (1, 2, 4, 8, 16, 32, 64, 128, 256):
            for threads in (64, 128, 256, 512):
                if lanes >= 2 * across or lanes > threads:
                    continue
                rows = threads // lanes
                one_shift = not aligned and lanes >= 4 and rows % of.vector == 0
                one_shift = one_shift and of.extent > rows
                tile = (lanes - one_shift) * of.vector
                config = Config(
                    "columns" if aligned else "shifted", threads, lanes,
                    tiles=of.outputs // of.inner * ceil_div(of.inner, tile),
                    sm90=aligned and self.device.capability == 90, one_shift=one_shift,
                )  # fmt: skip
                for cut in self.in_pieces(
                    config, ceil_div(of.extent * lanes, threads), lanes * of.vector
                ):
                    span = lanes if one_shift else max(lanes, 32)
                    own = self.acc * threads // span * lanes * (of.vector + 1)
                    if (cut.cluster > 1) * 16 * lanes * of.vector + own <= SHARED_BYTES - 64:
                        yield cut

    def flat(self) -> Iterator[Config]:
        vectors = self.of.outputs // self.of.inner * ceil_div(self.of.inner, self.of.vector)
        for threads in (64, 128, 256):
            if self.of.element == 2 and (self.of.extent <= 4096 or vectors >= 1 << 16):
                yield Config("flat", threads, tiles=ceil_div(vectors, threads))

    def thin(self) -> Iterator[Config]:
        for threads in (64, 128, 256):
            if self.of.extent <= 4096 // (1 if self.of.inner > 1 else 64):
                yield Config("thin", threads, tiles=ceil_div(self.of.outputs, threads))

    def wrapped(self) -> Iterator[Config]:
        of = self.of
        if of.op.startswith("arg"):
            return
        period = of.inner // math.gcd(of.inner, of.vector)
        lanes = 1 << (of.inner - 1).bit_length()
        elements = of.extent * of.inner
        for threads in (64, 128, 256, 512):
            if max(period, lanes) > threads or elements < 2 * of.vector:
                continue
            periods = threads // period
            config = Config(
                "wrapped", threads, lanes, periods, tiles=of.outputs // of.inner, row_loads=period
            )
            most = ceil_div(elements, of.vector * period * periods)
            yield from self.in_pieces(config, most, lanes)

    def strided(self) -> Iterator[Config]:
        if self.of.bytes > 64e6:
            return
        for lanes in (8, 32):
            for threads in (64, 128, 256, 512):
                config = Config("strided", threads, lanes, tiles=ceil_div(self.of.outputs, lanes))
                yield from self.in_pieces(config, ceil_div(self.of.extent * lanes, threads), lanes)
