"""The most that the hardware does, measured in the same run: what a ladder's share is taken of."""

from __future__ import annotations

from typing import Any

import torch

from xgemm.bench.timing import time_calls, time_cuda
from xgemm.ladder.library import ops
from xgemm.ladder.rungs import Ladder

CPU_SECONDS = 0.2
FFMA_STEPS, MMA_STEPS, WGMMA_STEPS = 4000, 20_000, 4000  # some milliseconds each on an H200
READ_ELEMENTS = 2**25
# What a GPU's ladders are held against.
INSTRUCTIONS = {
    "reduce": ("read", 0, "a plain read of 128 MiB"),
    "w4a16": ("read", 0, "a plain read of 128 MiB"),
    "sgemm": ("ffma", FFMA_STEPS, "independent FFMAs in registers"),
    "hopper": ("wgmma", WGMMA_STEPS, "wgmma.m64n256k16 on two tiles in shared memory"),
    "hgemm": ("mma", MMA_STEPS, "independent mma.m16n8k16 in registers"),
}


def measure_peak(ladder: Ladder) -> dict[str, Any]:
    """`rate` in the ladder's unit, of what, and the clock of a GPU's multiprocessors meanwhile.

    `bandwidth`: GB/s of a plain read, the roofline's other half; None where it is the rate itself.
    """
    if ladder.device == "cpu":
        rate = ops().cpu_peak(CPU_SECONDS) * 1e-9
        return {
            "rate": rate,
            "of": "independent AVX2 FMAs in registers",
            "clock_mhz": None,
            "bandwidth": _read_rate(ladder.device),
        }
    instruction, steps, of = INSTRUCTIONS[ladder.name]
    x = torch.ones(READ_ELEMENTS, device="cuda")
    cycles = torch.zeros(1, dtype=torch.int64, device="cuda")
    work = ops().peak(cycles, x, instruction, steps)
    call = {"peak": lambda: ops().peak(cycles, x, instruction, steps)}
    seconds = time_cuda(call)["peak"]
    unit = 1e12 if ladder.unit == "TFLOP/s" else 1e9
    # The lifetime of the only block of a multiprocessor is the kernel's, but for what starts and
    # ends it. Where there are several the first is preferred, and done long before the others.
    clock = float(cycles.item()) / seconds * 1e-6 if instruction == "wgmma" else None
    bandwidth = None if instruction == "read" else _read_rate(ladder.device)
    rate = work / seconds / unit
    return {"rate": rate, "of": of, "clock_mhz": clock, "bandwidth": bandwidth}


def _read_rate(device: str) -> float:
    """GB/s of a read of 128 MiB: on a CPU by one thread's sum."""
    x = torch.ones(READ_ELEMENTS, device=device)
    if device == "cpu":
        return x.nbytes / time_calls({"read": x.sum}, device)["read"] * 1e-9
    cycles = torch.zeros(1, dtype=torch.int64, device=device)
    work = ops().peak(cycles, x, "read", 0)
    return work / time_cuda({"read": lambda: ops().peak(cycles, x, "read", 0)})["read"] * 1e-9
