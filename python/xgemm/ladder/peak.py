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
    """`rate` in the ladder's unit, of what, and the clock meanwhile: the core's, or the SMs'.

    `bandwidth`: GB/s of a plain read, the roofline's other half; None where it is the rate itself.
    """
    if ladder.device == "cpu":
        flops, hertz = ops().cpu_peak(CPU_SECONDS)
        return {
            "rate": flops * 1e-9,
            "of": "independent AVX2 FMAs in registers",
            "clock_mhz": hertz * 1e-6,
            "bandwidth": _read_rate(ladder.device),
        }
    instruction, steps, of = INSTRUCTIONS[ladder.name]
    per_second, clock = _loop(instruction, steps)
    bandwidth = None if instruction == "read" else _read_rate(ladder.device)
    unit = 1e12 if ladder.unit == "TFLOP/s" else 1e9
    return {"rate": per_second / unit, "of": of, "clock_mhz": clock, "bandwidth": bandwidth}


def _loop(instruction: str, steps: int) -> tuple[float, float]:
    """FLOP or bytes a second, and the clock in MHz, a mean of all launches."""
    x = torch.ones(READ_ELEMENTS, device="cuda")
    clocks = torch.zeros(2, dtype=torch.int64, device="cuda")
    work = ops().peak(clocks, x, instruction, steps)
    seconds = time_cuda({"peak": lambda: ops().peak(clocks, x, instruction, steps)})["peak"]
    cycles, nanoseconds = clocks.tolist()
    return work / seconds, cycles / nanoseconds * 1e3


def _read_rate(device: str) -> float:
    """GB/s of a read of 128 MiB: on a CPU by one thread's sum."""
    if device == "cuda":
        return _loop("read", 0)[0] * 1e-9
    x = torch.ones(READ_ELEMENTS, device=device)
    return x.nbytes / time_calls({"read": x.sum}, device)["read"] * 1e-9
