"""A pattern of shared-memory addresses on the GPU: how many turns a warp's load takes there.

`xgemm layout smem ... --measure`. ncu counts wavefronts; where it is missing or may not read the
counters, the multiprocessor's clock tells: 32 warps load without a pause, and shared memory serves
one wavefront a cycle.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from xgemm.ladder.library import has_cuda_rungs, ops

WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
STEPS = 64
LIMIT_BYTES = 48 << 10  # of a block's shared memory
NCU_SECONDS = 120


@dataclass(frozen=True)
class Measured:
    wavefronts: float  # of a load
    by: str  # ncu or clock64
    reason: str | None  # why not ncu


def require_gpu() -> None:
    ops()
    if not (has_cuda_rungs() and torch.cuda.is_available()):
        raise ValueError("layout: --measure needs a GPU, and a build of xgemm with CUDA kernels")


def measure(addresses: Sequence[int], width: int) -> Measured:
    """Turns of a load of `width` bytes at each lane's address."""
    require_gpu()
    bytes_used(addresses, width)  # refused here, not in ncu's process
    counted = _count(addresses, width)
    if isinstance(counted, float):
        return Measured(counted, "ncu", None)
    loads, cycles = run_pattern(addresses, width)
    return Measured(cycles / loads, "clock64", counted)


def bytes_used(addresses: Sequence[int], width: int) -> int:
    used = -(-(max(addresses) + width) // 16) * 16
    if used > LIMIT_BYTES:
        raise ValueError(
            f"layout: --measure: addresses must lie within {LIMIT_BYTES} bytes of shared memory,"
            f" got {used}"
        )
    return used


def run_pattern(addresses: Sequence[int], width: int) -> tuple[int, int]:
    """Loads of all warps, and cycles; the second run counts, the first one loads the kernel."""
    used = bytes_used(addresses, width)
    given = torch.tensor(list(addresses), dtype=torch.int32, device="cuda")
    cycles = torch.zeros(1, dtype=torch.int64, device="cuda")
    for _ in range(2):
        loads = ops().probe_pattern(cycles, given, width, used, STEPS)
    return loads, int(cycles.item())


def _count(addresses: Sequence[int], width: int) -> float | str:
    """Wavefronts of a load by ncu, or why there is no count."""
    ncu = shutil.which("ncu")
    if ncu is None:
        return "ncu is not on PATH"
    child = [sys.executable, "-m", "xgemm.ladder.pattern", json.dumps(list(addresses)), str(width)]
    filters = ["--kernel-name", "regex:pattern_kernel", "--launch-count", "1"]
    command = [ncu, "--csv", "--clock-control", "none", "--metrics", WAVEFRONTS, *filters, *child]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=NCU_SECONDS)
    except subprocess.TimeoutExpired:
        return f"ncu took more than {NCU_SECONDS} s"
    total = _read_counter(done.stdout)
    if total is None:
        lines = [line for line in done.stdout.splitlines() if line.startswith("==ERROR==")]
        return lines[0].removeprefix("==ERROR==").strip() if lines else "ncu gave no counter"
    # The kernel fills the memory once before: a store of 128 bytes is a wavefront.
    loads = ops().probe_pattern_loads(STEPS)
    return (total - bytes_used(addresses, width) / 128) / float(loads)


def _read_counter(text: str) -> float | None:
    """The value in ncu's CSV, which follows lines of its own and of the process."""
    start = text.find('"ID"')
    if start < 0:
        return None
    for row in csv.DictReader(io.StringIO(text[start:])):
        if row.get("Metric Name") == WAVEFRONTS:
            return float(row["Metric Value"].replace(",", ""))
    return None


if __name__ == "__main__":
    run_pattern(json.loads(sys.argv[1]), int(sys.argv[2]))
