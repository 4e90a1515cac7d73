"""The dense CUDA kernels as a library of their own, called with a configuration that is given.

It is linked from the objects of the last `make build`, so it holds what the op library holds.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "build" / "sweep" / "libxgemm_sweep.so"
FLAGS = ("tma_store", "copy_a", "copy_b", "stream_k", "swapped", "shifted")
MOST_FAMILIES = 6  # that sweep_families of gemm_entry.cpp writes
# enum Kernel of csrc/cuda/gemm/config.h
KERNELS = (
    "sm90_persistent", "sm90_skinny", "gemv", "sm80", "simt", "fp32", "tf32", "tf32_swapped",
    "tf32_sm80", "sm90_single_tile", "fp32_sm90", "tf32_single_tile",
)  # fmt: skip
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
    """csrc/cuda/gemm/config.h says what each field is."""

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
    stream_k: bool = False
    swapped: bool = False
    shifted: bool = False
    workspace_bytes: int = 0
    estimate_us: float = 0.0  # of the family's select that has chosen it; 0 where it says none

    @property
    def key(self) -> str:
        """What tells configurations of one problem apart."""
        tile = f"{self.block_m}x{self.block_n} stages {self.stages} cluster {self.cluster}"
        copies = "a" * self.copy_a + "b" * self.copy_b
        copied = f" copy {copies}" if copies else ""
        shares = "stream-K" if self.stream_k else f"splits {self.splits}"
        # Which tiles are split.
        some = f" ctas {self.ctas}" if self.kernel in ("fp32_sm90", "tf32_single_tile") else ""
        sides = " swapped" * self.swapped + " shifted" * self.shifted
        return f"{self.kernel} {tile}{copied}{sides} {shares}{some}"


class _Problem(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("m", "n", "k")),
        *((name, ctypes.c_void_p) for name in ("a", "b", "d")),
        *((f"{x}_{way}_stride", ctypes.c_int64) for x in "abd" for way in ("row", "col")),
        ("type", ctypes.c_int32),
    )


class _Config(ctypes.Structure):
    _fields_ = (
        *(
            (name, ctypes.c_int32)
            for name in ("kernel", "block_m", "block_n", "stages", "cluster", "splits", "ctas")
        ),
        *((name, ctypes.c_int32) for name in FLAGS),
        ("workspace_bytes", ctypes.c_int64),
        ("estimate_us", ctypes.c_double),
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
        return 2.0 * (self.m * self.k + self.n * self.k + self.m * self.n)


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


def _to_config(found: _Config) -> Config:
    values = {name: getattr(found, name) for name, *_ in _Config._fields_}
    values["kernel"] = KERNELS[found.kernel]
    values |= {name: bool(values[name]) for name in FLAGS}
    return Config(**values)


class Library:
    def __init__(self, path: Path = LIBRARY) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.sweep_launch.restype = ctypes.c_char_p

    def select(self, shape: Shape, device: Device) -> Config:
        """select_config's choice for operands that are aligned as far as their strides are."""
        found = _Config()
        self._library.sweep_select(*self._arguments(shape, device), ctypes.byref(found))
        return _to_config(found)

    def families(self, shape: Shape, device: Device) -> list[Config]:
        """What each family of kernels that chooses for itself would take."""
        found = (_Config * MOST_FAMILIES)()
        count = self._library.sweep_families(*self._arguments(shape, device), found)
        return [_to_config(each) for each in found[:count]]

    @staticmethod
    def _arguments(shape: Shape, device: Device) -> tuple[object, int, int]:
        problem = _problem(shape, (1 << 20, 1 << 20, 1 << 20))
        return ctypes.byref(problem), device.sm_count, device.capability

    def prepare(
        self,
        shape: Shape,
        config: Config,
        operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        workspace: torch.Tensor,
    ) -> Callable[[], None]:
        """A launch on the current stream, whose arguments are made once: the host is in time."""
        a, b, d = (tensor.data_ptr() for tensor in operands)
        problem = _problem(shape, (a, b, d))
        config_of = _Config(**{**asdict(config), "kernel": KERNELS.index(config.kernel)})
        assert workspace.numel() * workspace.element_size() >= config.workspace_bytes
        stream = torch.cuda.current_stream().cuda_stream
        arguments = (
            ctypes.byref(problem), ctypes.byref(config_of),
            ctypes.c_void_p(workspace.data_ptr()), ctypes.c_void_p(stream),
        )  # fmt: skip
        run = self._library.sweep_launch

        def launch() -> None:
            error = run(*arguments)
            if error is not None:
                raise RuntimeError(f"{config.key}: {error.decode()}")

        return launch
