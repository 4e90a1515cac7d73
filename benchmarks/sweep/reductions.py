"""The CUDA reductions as a library of their own, and the candidates of a reduction.

It is linked from the objects of the last `make build`, so it holds what the op library holds.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from pathlib import Path

import torch

from sweep.library import ROOT, Device, link
from sweep.listing import Listed, load

LIBRARY = ROOT / "build" / "sweep" / "libxgemm_reduce.so"
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
    def outputs(self) -> int:
        return math.prod(self.shape) // self.extent

    @property
    def kept(self) -> list[tuple[int, int, int]]:
        """Size, stride of the input, stride of the result of each dimension that stays."""
        rest = [d for d in range(len(self.shape)) if d != self.dim]
        return [
            (self.shape[d], math.prod(self.shape[d + 1 :]), math.prod(
                self.shape[e] for e in rest[i + 1 :]
            ))
            for i, d in enumerate(rest)
        ]  # fmt: skip

    @property
    def reduced(self) -> tuple[int, int]:
        """Size and stride of the dimension that goes."""
        return self.extent, math.prod(self.shape[self.dim + 1 :])

    @property
    def extent(self) -> int:
        return self.shape[self.dim]


class _Problem(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("op", "dtype", "kept_count", "reduced_count")),
        ("kept", ctypes.c_int64 * 12),
        ("reduced", ctypes.c_int64 * 8),
        ("source", ctypes.c_void_p),
        ("destination", ctypes.c_void_p),
    )


def _problem(of: Reduction, source: int, destination: int) -> _Problem:
    flat = [number for dim in of.kept for number in dim]
    return _Problem(
        OPS.index(of.op), DTYPES.index(of.dtype), len(of.kept), 1, (ctypes.c_int64 * 12)(*flat),
        (ctypes.c_int64 * 8)(*of.reduced), source, destination,
    )  # fmt: skip


class Library:
    def __init__(self, path: Path = LIBRARY) -> None:
        self._library = load(path)

    def open(
        self,
        of: Reduction,
        device: Device,
        operands: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> Listed:
        """The candidates, to be launched over x and y; without these only listed."""
        addresses = [t.data_ptr() for t in operands] if operands else [1 << 20] * 2
        problem = _problem(of, *addresses)
        handle = self._library.sweep_open(ctypes.byref(problem), device.sm_count, device.capability)
        return Listed(self._library, handle, operands)
