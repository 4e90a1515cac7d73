"""Measures the plain physical constants of this GPU that the models of kernels share.

    python benchmarks/calibrate.py --output h200.json      # on the GPU, about a minute; needs nvcc
    python benchmarks/calibrate.py --header h200.json --name H200 > csrc/cuda/choose/h200.h

Launch latency, reads from a cold L2 (benchmarks/read_floor.cu), and the clock that tensor cores and
FMA units hold under load. Constants of a kernel's own, as what its main loop reaches, are fits of
sweeps and stay with its model.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import textwrap
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from read_floor import KERNELS, LIBRARY, MEGABYTES, build

from xgemm.bench.timing import time_cuda

# By which the GPU is known again; what models use. The rest of the JSON is for people.
KNOWN = ("sm_count", "clock_khz", "memory_clock_khz", "memory_bus_bits")
USED = ("mma_cycles_per_us", "fma_cycles_per_us", "mma_flops_per_cycle")
# Of an SM, by capability: flops of fp16 products, dense, that its tensor cores start each cycle.
MMA_FLOPS = {80: 2048, 86: 1024, 89: 1024, 90: 4096, 100: 8192, 120: 1024}
SMI = ("nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits", "-i")
# By their numbers in cuda.h: what is known of any GPU before anything is measured.
ATTRIBUTES = {"clock_khz": 13, "memory_clock_khz": 36, "memory_bus_bits": 37, "l2_bytes": 38}


def clock_under(work: Callable[[], object], seconds: float) -> float:
    """Megahertz, so cycles a microsecond: the median of the last half of what nvidia-smi says."""
    # Its own numbers of GPUs are not those of CUDA_VISIBLE_DEVICES.
    device = f"GPU-{torch.cuda.get_device_properties().uuid}"
    found: list[float] = []
    over = threading.Event()

    def sample() -> None:
        while not over.is_set():
            said = subprocess.run([*SMI, device], capture_output=True, text=True, check=True)
            found.append(float(said.stdout.strip()))

    thread = threading.Thread(target=sample)
    thread.start()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(20):
            work()
        torch.cuda.synchronize()
    over.set()
    thread.join()
    return statistics.median(found[len(found) // 2 :])


def attributes() -> dict[str, int]:
    driver, device = ctypes.CDLL("libcuda.so.1"), torch.cuda.current_device()
    found = {}
    for name, number in ATTRIBUTES.items():
        value = ctypes.c_int()
        error = driver.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        if error != 0:
            raise RuntimeError(f"cuDeviceGetAttribute({number}): CUDA error {error}")
        found[name] = value.value
    return found


def measure(library: ctypes.CDLL) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties()
    data = torch.randint(-(2**31), 2**31, (MEGABYTES[-1] * 250_000,), device="cuda")
    data = data.to(torch.int32)
    sink = torch.zeros(1, dtype=torch.int32, device="cuda")

    def read(in_flight: int, threads: int, per_sm: int, count: int) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        error = library.read_floor(
            ctypes.c_void_p(data.data_ptr()), ctypes.c_int64(count), in_flight, threads,
            per_sm * properties.multi_processor_count, ctypes.c_void_p(sink.data_ptr()), stream,
        )  # fmt: skip
        if error != 0:
            raise RuntimeError(f"read_floor: CUDA error {error}")

    def cold_us(megabytes: float) -> float:
        count = int(megabytes * 10**6) // 16 * 16
        calls = {str(kernel): partial(read, *kernel, count) for kernel in KERNELS}
        return min(time_cuda(calls, 1).values()) * 1e6

    half = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    single = torch.randn(4096, 4096, device="cuda")
    empty = partial(library.empty, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
    return {
        "gpu": properties.name,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "sm_count": properties.multi_processor_count,
        "attributes": attributes(),
        "reads": [[megabytes, cold_us(megabytes)] for megabytes in MEGABYTES],
        "launch_us": time_cuda({"": empty}, rounds=1)[""] * 1e6,
        "mma_cycles_per_us": clock_under(lambda: half @ half, 5),
        "fma_cycles_per_us": clock_under(lambda: single @ single, 5),
        "mma_flops_per_cycle": MMA_FLOPS[10 * properties.major + properties.minor],
    }


def header(found: dict[str, Any], name: str) -> str:
    """A generated header with these constants."""

    def number(value: float) -> str:
        return f"{value:.4g}".replace("e+0", "e")

    points = [f"{{{number(megabytes)}, {number(us)}}}" for megabytes, us in found["reads"]]
    rows = [", ".join(points[i : i + 4]) for i in range(0, len(points), 4)]
    reads = ",\n              ".join(rows)
    known = {"sm_count": found["sm_count"], **found["attributes"]}
    names = ", ".join(f".{each} = {known[each]}" for each in KNOWN)
    fields = "".join(f"    .{each} = {number(found[each])},\n" for each in USED)
    comment = textwrap.fill(
        f"Generated by benchmarks/calibrate.py. {found['source']}", 97, initial_indent="// ",
        subsequent_indent="// ",
    )  # fmt: skip
    return (
        f"{comment}\n#pragma once\n\n"
        '#include "cuda/choose/device_constants.h"\n\n'
        "namespace xgemm::cuda::choose {\n\n// clang-format off\n"
        f"inline constexpr DeviceConstants k{name}{{\n"
        f"    {names},\n    .reads = {{{reads}}},\n{fields}}};\n"
        "// clang-format on\n\n}  // namespace xgemm::cuda::choose\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--library", type=Path, help="of read_floor.cu, built before")
    parser.add_argument("--output", type=Path, help="write JSON here")
    parser.add_argument("--header", type=Path, help="print the header of a JSON; needs no GPU")
    parser.add_argument("--name", default="H200", help="of the GPU, in the header")
    options = parser.parse_args()
    if options.header is not None:
        print(header(json.loads(options.header.read_text()), options.name), end="")
        return
    if options.library is None:
        build()
    found = measure(ctypes.CDLL(str(options.library or LIBRARY)))
    found["source"] = f"{found['gpu']}, torch {found['torch']}, CUDA {found['cuda']}."
    text = json.dumps(found, indent=1)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
