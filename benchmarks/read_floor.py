"""Measures how long this GPU takes to read from a cold L2: the floor of a memory-bound product.

    python benchmarks/read_floor.py [--library FILE]

Prints the points of a `Ceiling` of python/xgemm/bench/floors.py: at each size the best of several
read kernels, medians, the launch included. Needs nvcc, unless the library is there already.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
from functools import partial
from pathlib import Path

import torch

from xgemm.bench.timing import time_cuda

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "build" / "read_floor" / "libread_floor.so"
MEGABYTES = (2, 4, 8, 12, 16, 32, 64, 128, 240, 512, 1024)
# (16-byte loads in flight a thread, threads a CTA, CTAs an SM; 0: a CTA for each piece)
KERNELS = (
    *((2, 1024, 2), (4, 512, 2), (4, 1024, 2), (8, 256, 4), (8, 512, 2), (16, 256, 2)),
    *((2, 512, 0), (4, 256, 0), (4, 512, 0), (8, 256, 0), (8, 512, 0), (16, 128, 0)),
)


def build() -> None:
    LIBRARY.parent.mkdir(parents=True, exist_ok=True)
    command = ["nvcc", "-shared", "-O3", "-std=c++17", "-Xcompiler", "-fPIC", "-cudart", "static"]
    command += ["-gencode=arch=compute_80,code=[sm_80,compute_80]", "-o", str(LIBRARY)]
    subprocess.run([*command, str(ROOT / "benchmarks" / "read_floor.cu")], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--library", type=Path, help="built before, as by another machine's nvcc")
    parser.add_argument("--build", action="store_true", help="build the library and stop")
    options = parser.parse_args()
    if options.library is None:
        build()
    if options.build:
        return
    library = ctypes.CDLL(str(options.library or LIBRARY))
    data = torch.randint(-(2**31), 2**31, (MEGABYTES[-1] * 250_000,), device="cuda")
    data = data.to(torch.int32)
    sink = torch.zeros(1, dtype=torch.int32, device="cuda")
    sm_count = torch.cuda.get_device_properties().multi_processor_count

    def run(in_flight: int, threads: int, per_sm: int, count: int) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        addresses = ctypes.c_void_p(data.data_ptr()), ctypes.c_void_p(sink.data_ptr())
        error = library.read_floor(
            addresses[0], ctypes.c_int64(count), in_flight, threads, per_sm * sm_count,
            addresses[1], ctypes.c_void_p(stream),
        )  # fmt: skip
        if error != 0:
            raise RuntimeError(f"read_floor: CUDA error {error}")

    def empty() -> None:
        library.empty(ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, sizes in 10^6 bytes")
    print(f"(0, {time_cuda({'': empty}, rounds=1)[''] * 1e6:.1f})")
    for megabytes in MEGABYTES:
        count = megabytes * 10**6 // 16 * 16
        seconds = time_cuda({str(kernel): partial(run, *kernel, count) for kernel in KERNELS}, 1)
        best = min(seconds, key=lambda kernel: seconds[kernel])
        rate = megabytes * 1e-6 / seconds[best]
        print(f"({megabytes}, {seconds[best] * 1e6:.1f})  {rate:.2f} TB/s by {best}")


if __name__ == "__main__":
    main()
