"""The W4A16 kernels as a library of their own, and the candidates of a product.

It is linked from the objects of the last `make build`, so it holds what the op library holds.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sweep.library import ROOT, Device, link
from sweep.listing import Listed, load

LIBRARY = ROOT / "build" / "sweep" / "libxgemm_w4a16.so"


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


class _Problem(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("m", "n", "k", "group_size")),
        *((name, ctypes.c_void_p) for name in ("x", "weight", "d")),
        *((name, ctypes.c_int32) for name in ("bf16", "zeros")),
    )


class Library:
    def __init__(self, path: Path = LIBRARY) -> None:
        self._library = load(path)
        self._library.sweep_select.restype = ctypes.c_void_p

    def open(
        self,
        of: Product,
        device: Device,
        operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
    ) -> Listed:
        """The candidates, to be launched over x, the weight and d; without these only listed."""
        return self._listed(self._library.sweep_open, of, device, operands)

    def chosen(self, of: Product, device: Device) -> str:
        """The choice's key."""
        return self._listed(self._library.sweep_select, of, device, None).chosen

    def _listed(
        self, call: Any, of: Product, device: Device, operands: tuple[torch.Tensor, ...] | None
    ) -> Listed:
        addresses = [t.data_ptr() for t in operands] if operands else [1 << 20] * 3
        problem = _Problem(of.m, of.n, of.k, of.group_size, *addresses, int(of.bf16), int(of.zeros))
        handle = call(ctypes.byref(problem), device.sm_count, device.capability)
        return Listed(self._library, handle, operands)
