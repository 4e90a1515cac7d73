"""The sm_80 W4A16 kernels as a library of their own, and the configurations of a problem.

It is linked from the objects of the last `make build`, so it holds what the op library holds.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from sweep.library import ROOT, Device, link

LIBRARY = ROOT / "build" / "sweep" / "libxgemm_w4a16.so"
MOST_WORKSPACE = 1 << 28
STRIP_COLUMNS, UNIT_K = 16, 128  # of the packed layout
SPLITS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 48, 64)


def build() -> Path:
    return link(LIBRARY, "w4a16_entry.cpp", r"w4a16/[^:]+")


@dataclass(frozen=True)
class Product:
    """x [m, k] times a packed weight [n, k]."""

    m: int
    n: int
    k: int
    group_size: int = 128
    zeros: bool = False
    bf16: bool = False


@dataclass(frozen=True)
class Config:
    """csrc/cuda/w4a16/problem.h says what each field is."""

    block_m: int
    block_n: int
    stages: int
    splits: int
    ctas: int = 0
    workspace_bytes: int = 0
    estimate_us: float = 0.0  # of select, where it has chosen it

    @property
    def key(self) -> str:
        """What tells configurations of one problem apart."""
        return f"{self.block_m}x{self.block_n} stages {self.stages} splits {self.splits}"


@dataclass(frozen=True)
class Tile:
    """TileConfig of csrc/cuda/w4a16/sm80/tile.h."""

    block_m: int
    block_n: int
    warps_k: int
    ctas_per_sm: int


def tiles() -> list[Tile]:
    text = (ROOT / "csrc/cuda/w4a16/sm80/tile.h").read_text()
    found = re.findall(r"= TileConfig<(.*)>;", text)  # `true`: it multiplies scales into weights
    return [
        Tile(8 * rows8 * warps_m, STRIP_COLUMNS * strips * warps_n, warps_k, ctas)
        for rows8, strips, warps_m, warps_n, warps_k, ctas in (
            map(int, each.removesuffix(", true").split(",")) for each in found
        )
    ]


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def candidates(product: Product, device: Device, chosen: Config) -> list[Config]:
    """The choice, and every tile that is not much too large or small, in the splits that fill."""
    found = {chosen.key: chosen}
    for tile in tiles():
        if tile.block_m > 16 and tile.block_m >= 4 * product.m:
            continue
        if tile.block_m * 16 <= product.m and tile.block_m < max(t.block_m for t in tiles()):
            continue
        for config in _splits(tile, product, device):
            found.setdefault(config.key, config)
    return list(found.values())


def _splits(tile: Tile, product: Product, device: Device) -> Iterator[Config]:
    count = ceil_div(product.m, tile.block_m) * ceil_div(product.n, tile.block_n)
    units = ceil_div(product.k, UNIT_K)
    for splits in SPLITS:
        part = ceil_div(ceil_div(units, splits), tile.warps_k) * tile.warps_k
        workspace = 0 if splits == 1 else 4 * splits * product.m * ceil_div(product.n, 4) * 4
        fills = count * splits <= 3 * tile.ctas_per_sm * device.sm_count
        none_empty = ceil_div(units, part) == splits
        if splits > 1 and not (fills and none_empty and workspace <= MOST_WORKSPACE):
            continue
        for stages in (2, 3, 4):
            yield Config(tile.block_m, tile.block_n, stages, splits, count * splits, workspace)


class _Problem(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("m", "n", "k", "group_size")),
        *((name, ctypes.c_void_p) for name in ("x", "weight", "d")),
        *((name, ctypes.c_int32) for name in ("bf16", "zeros")),
    )


class _Config(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("block_m", "block_n", "stages", "splits", "ctas")),
        ("workspace_bytes", ctypes.c_int64),
        ("estimate_us", ctypes.c_double),
    )


def _problem(of: Product, x: int, weight: int, d: int) -> _Problem:
    return _Problem(of.m, of.n, of.k, of.group_size, x, weight, d, int(of.bf16), int(of.zeros))


class Library:
    def __init__(self, path: Path = LIBRARY) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.sweep_launch.restype = ctypes.c_char_p

    def select(self, product: Product, device: Device) -> Config:
        """The choice of csrc/cuda/w4a16/sm80/select.cpp."""
        found = _Config()
        problem = _problem(product, 1 << 20, 1 << 20, 1 << 20)
        self._library.sweep_select(
            ctypes.byref(problem), device.sm_count, device.capability, ctypes.byref(found)
        )
        return Config(**{name: getattr(found, name) for name, *_ in _Config._fields_})

    def launch(
        self,
        product: Product,
        config: Config,
        operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        workspace: torch.Tensor,
    ) -> None:
        problem = _problem(product, *(tensor.data_ptr() for tensor in operands))
        assert workspace.numel() * workspace.element_size() >= config.workspace_bytes
        error = self._library.sweep_launch(
            ctypes.byref(problem),
            ctypes.byref(_Config(**asdict(config))),
            ctypes.c_void_p(workspace.data_ptr()),
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
        )
        if error is not None:
            raise RuntimeError(f"{config.key}: {error.decode()}")
