"""Probes: what one thing costs on this GPU. `xgemm ladder probes`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from xgemm.bench.run import environment
from xgemm.bench.timing import time_cuda
from xgemm.ladder.library import ops
from xgemm.ladder.pattern import run_pattern
from xgemm.ladder.run import skip_reason
from xgemm.ladder.rungs import HGEMM

NAME = "probes"
STRIDES = WAYS = (1, 2, 4, 8, 16, 32)
STRIDE_LOADS = 2**23  # 32 MiB of what is asked for
FMA_STEPS = 1000
FMAS = {"dependent": 12.0, "independent": 6.0}  # cycles, as published
WAVE_ROWS, WAVE_COLUMNS, WAVE_K, WAVE_RUNG = 128, 256, 8192, 7  # hgemm's: one block an SM
POWER_SIZE, POWER_CALLS, POWER_TURNS = 8192, 60, 3


@dataclass(frozen=True)
class Probe:
    """One value."""

    probe: str
    setting: str
    value: float
    unit: str
    relative: float | None  # to the probe's first setting
    published: float | None


def measure(on_step: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """All probes, ready for JSON."""
    reason = skip_reason(HGEMM)
    report: dict[str, Any] = {"ladder": NAME, "skipped": reason, "records": []}
    if reason is not None:
        return report
    records: list[Probe] = []
    with torch.inference_mode():
        for name, run in PROBES.items():
            on_step(name)
            records += run()
    report.update(environment("cuda"))
    report["records"] = [asdict(record) for record in records]
    return report


def _compared(
    probe: str, unit: str, values: Iterator[tuple[str, float]], published: dict[str, float]
) -> list[Probe]:
    found = list(values)
    first = found[0][1]
    return [
        Probe(probe, setting, value, unit, value / first, published.get(setting))
        for setting, value in found
    ]


def _strides() -> list[Probe]:
    """Useful bytes a second of loads of 4 bytes a lane."""

    def rates() -> Iterator[tuple[str, float]]:
        x = torch.zeros(STRIDE_LOADS * max(STRIDES), device="cuda")
        found = torch.zeros(1, dtype=torch.int64, device="cuda")
        calls = {
            f"stride {n}": lambda n=n: ops().probe_stride(found, x[: STRIDE_LOADS * n], n, 1.0)
            for n in STRIDES
        }
        for name, seconds in time_cuda(calls).items():
            yield name, 4 * STRIDE_LOADS / seconds * 1e-9

    return _compared("global loads", "GB/s", rates(), {})


def _conflicts() -> list[Probe]:
    def cycles() -> Iterator[tuple[str, float]]:
        for ways in WAYS:
            loads, clocks = run_pattern([lane * 4 * ways for lane in range(32)], 4)
            yield f"{ways}-way", clocks / loads

    return _compared("shared loads", "cycles a load", cycles(), {})


def _fmas() -> list[Probe]:
    def cycles() -> Iterator[tuple[str, float]]:
        count = torch.zeros(1, dtype=torch.int64, device="cuda")
        for name in FMAS:
            for _ in range(2):  # the first one loads the kernel
                fmas = ops().probe_fma(count, name == "dependent", FMA_STEPS)
            yield name, count.item() / fmas

    return _compared("FMAs of a warp", "cycles", cycles(), FMAS)


def _waves() -> list[Probe]:
    """hgemm's rung 7, with as many tiles as SMs, and with one more."""

    def times() -> Iterator[tuple[str, float]]:
        sms = torch.cuda.get_device_properties("cuda").multi_processor_count
        a = torch.randn(WAVE_ROWS, WAVE_K, device="cuda").half()
        operands = {
            f"{tiles} tiles": torch.randn(WAVE_K, tiles * WAVE_COLUMNS, device="cuda").half()
            for tiles in (sms, sms + 1)
        }
        calls = {name: lambda b=b: ops().hgemm(a, b, WAVE_RUNG) for name, b in operands.items()}
        for name, seconds in time_cuda(calls).items():
            yield name, seconds * 1e6

    return _compared("one tile more than SMs", "us", times(), {})


def _power() -> list[Probe]:
    """One product over and over, of zeros and of random numbers: only the bits differ."""

    def rates() -> Iterator[tuple[str, float]]:
        size = POWER_SIZE
        operands = {
            "zeros": torch.zeros(size, size, device="cuda", dtype=torch.bfloat16),
            "random": torch.randn(size, size, device="cuda", dtype=torch.bfloat16),
        }
        seconds: dict[str, list[float]] = {name: [] for name in operands}
        for _ in range(POWER_TURNS):
            for name, x in operands.items():
                seconds[name].append(_back_to_back(x))
        for name, found in seconds.items():
            yield name, 2.0 * size**3 / statistics.median(found) * 1e-12

    return _compared("a bf16 product of zeros or random bits", "TFLOP/s", rates(), {})


def _back_to_back(x: torch.Tensor) -> float:
    """Seconds of a product among many without a pause; the first third warms up."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for call in range(POWER_CALLS):
        if call == POWER_CALLS // 3:
            begin.record()
        torch.ops.xgemm.mul.default(x, x)
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e-3 / (POWER_CALLS - POWER_CALLS // 3)


PROBES: dict[str, Callable[[], list[Probe]]] = {
    "strides": _strides,
    "bank conflicts": _conflicts,
    "FMAs": _fmas,
    "waves": _waves,
    "power": _power,
}
