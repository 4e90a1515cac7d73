"""The dense CUDA kernels as a library of their own, and the engine's candidates of a product.

It is linked from the objects of the last `make build`, so it holds what the op library holds.
"""

from __future__ import annotations

import ctypes
import dataclasses
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sweep.listing import Listed, load

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "build" / "sweep" / "libxgemm_sweep.so"
TYPES = ("fp16", "bf16", "ieee", "tf32x3", "tf32")


def link(library: Path, entry: str, objects: str) -> Path:
    """`entry` of this folder with the objects under csrc/cuda that match a pattern.

    And with those directly in it, which all families share.
    """
    ninja = (ROOT / "build" / "build.ninja").read_text()
    sources = rf"build/obj/csrc/cuda/(?:{objects}|[^:/]+)\.o"
    found = re.findall(rf"^build ({sources}):", ninja, re.MULTILINE)
    library.parent.mkdir(parents=True, exist_ok=True)
    command = ["nvcc", "-shared", "-std=c++20", "-O2", "-Xcompiler", "-fPIC", "-cudart", "static"]
    command += ["-Xlinker", "-z,defs", "-Icsrc", "-o", str(library)]
    command += [f"benchmarks/sweep/{entry}", *found]
    subprocess.run(command, cwd=ROOT, check=True)
    return library


def build() -> Path:
    return link(LIBRARY, "gemm_entry.cpp", r"(?!w4a16/)[^:]+")


@dataclass(frozen=True)
class Config:
    """csrc/cuda/gemm/select.h says what each field is."""

    kernel: str
    block_m: int
    block_n: int
    stages: int
    cluster: int = 1
    splits: int = 1
    ctas: int = 0
    tma_store: bool = False
    copy_a: bool = False
    copy_b: bool = False
    swapped: bool = False
    shifted: bool = False
    workspace_bytes: int = 0
    estimate_us: float = 0.0  # 0 where there is none
    compiled_m: int = 0  # what the single-tile kernel is compiled for
    compiled_n: int = 0

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Config:
        """Of what the engine says as JSON."""
        return cls(**{each.name: fields[each.name] or 0 for each in dataclasses.fields(cls)
                      if each.name in fields})  # fmt: skip

    @property
    def key(self) -> str:
        """What tells configurations of one problem apart."""
        tile = f"{self.block_m}x{self.block_n} stages {self.stages} cluster {self.cluster}"
        copies = "a" * self.copy_a + "b" * self.copy_b
        copied = f" copy {copies}" if copies else ""
        # Which tiles are split.
        some = f" ctas {self.ctas}" if self.kernel in ("fp32_sm90", "tf32_single_tile") else ""
        sides = " swapped" * self.swapped + " shifted" * self.shifted
        return f"{self.kernel} {tile}{copied}{sides} splits {self.splits}{some}"


class _Problem(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("m", "n", "k")),
        *((name, ctypes.c_void_p) for name in ("a", "b", "d")),
        *((f"{x}_{way}_stride", ctypes.c_int64) for x in "abd" for way in ("row", "col")),
        ("type", ctypes.c_int32),
    )


@dataclass(frozen=True)
class Shape:
    """a [m, k] times b [k, n], each row-major (n) or column-major (t), d row-major."""

    m: int
    n: int
    k: int
    layout: str = "nt"
    bf16: bool = False
    precision: str = ""  # of fp32 operands

    def strides(self) -> tuple[int, int, int, int]:
        a = (1, self.m) if self.layout[0] == "t" else (self.k, 1)
        b = (1, self.k) if self.layout[1] == "t" else (self.n, 1)
        return (*a, *b)

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k

    @property
    def bytes(self) -> float:
        of_element = 4.0 if self.precision else 2.0
        return of_element * (self.m * self.k + self.n * self.k + self.m * self.n)


@dataclass(frozen=True)
class Device:
    name: str
    sm_count: int
    capability: int


def current_device() -> Device:
    found = torch.cuda.get_device_properties()
    return Device(found.name, found.multi_processor_count, 10 * found.major + found.minor)


def _problem(shape: Shape, addresses: tuple[int, int, int]) -> _Problem:
    a_row, a_col, b_row, b_col = shape.strides()
    return _Problem(
        shape.m, shape.n, shape.k, *addresses, a_row, a_col, b_row, b_col, shape.n, 1,
        TYPES.index(shape.precision) if shape.precision else int(shape.bf16),
    )  # fmt: skip


class Library:
    def __init__(self, path: Path = LIBRARY) -> None:
        self._library = load(path)
        self._library.sweep_select.restype = ctypes.c_void_p

    def open(
        self,
        shape: Shape,
        device: Device,
        operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
    ) -> Listed:
        """The candidates, to be launched over a, b and d; without these only listed."""
        return self._listed(self._library.sweep_open, shape, device, operands)

    def select(self, shape: Shape, device: Device) -> Config:
        """The choice for operands that are aligned as far as their strides are."""
        listed = self._listed(self._library.sweep_select, shape, device, None)
        return Config.of(listed.fields[0])

    def chosen(self, shape: Shape, device: Device) -> str:
        return self.select(shape, device).key

    def _listed(
        self, call: Any, shape: Shape, device: Device, operands: tuple[torch.Tensor, ...] | None
    ) -> Listed:
        a, b, d = (t.data_ptr() for t in operands) if operands else [1 << 20] * 3
        problem = _problem(shape, (a, b, d))
        handle = call(ctypes.byref(problem), device.sm_count, device.capability)
        return Listed(self._library, handle, operands, lambda fields: Config.of(fields).key)
