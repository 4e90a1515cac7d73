"""Climbs a ladder: each rung is checked against float64, then all are timed by turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from xgemm.bench.run import environment
from xgemm.bench.timing import time_calls
from xgemm.ladder.library import has_cuda_rungs, ops
from xgemm.ladder.peak import measure_peak
from xgemm.ladder.problems import GROUP, Problem, make_problem
from xgemm.ladder.rungs import Ladder
from xgemm.ladder.source import read_rung

UNITS = {"GFLOP/s": 1e9, "TFLOP/s": 1e12, "GB/s": 1e9}


@dataclass(frozen=True)
class Climb:
    """What is asked for."""

    ladder: Ladder
    sizes: list[str]
    rungs: list[int]
    seed: int = 0


@dataclass(frozen=True)
class Measured:
    """A rung, torch's call or the product's kernel at one size."""

    name: str  # "rung 3", "torch" or "xgemm"
    rung: int | None
    size: str
    changed: str
    seconds: float
    rate: float  # in the ladder's unit
    of_peak: float | None
    gain: float | None  # over the rung before, where that was measured
    published: float | None  # in the ladder's unit
    published_gain: float | None
    error_of_bound: float
    intensity: float | None  # FLOP a byte of operands and result, each once


def skip_reason(ladder: Ladder) -> str | None:
    """Why the ladder cannot be climbed here; None where it can."""
    if ladder.device == "cpu":
        capability = torch.backends.cpu.get_cpu_capability()
        has_avx2 = capability in ("AVX2", "AVX512")
        return None if has_avx2 else f"needs a CPU with AVX2; torch finds {capability}"
    if not has_cuda_rungs():
        return "this build of xgemm holds no CUDA kernels"
    if not torch.cuda.is_available():
        return "torch sees no GPU here"
    major, minor = torch.cuda.get_device_capability()
    found = 10 * major + minor
    wrong = found != ladder.capability if ladder.only_capability else found < ladder.capability
    if wrong:
        more = "" if ladder.only_capability else " or more"
        needed = f"{ladder.capability / 10:.1f}{more}"
        return f"needs a GPU of compute capability {needed}; this one has {found / 10:.1f}"
    return None


def check_sizes(asked: Climb) -> None:
    """A GPU's rungs take sizes that their tiles divide; the CPU's take any."""
    ladder = asked.ladder
    if ladder.device == "cpu":
        return
    names = ["the number of elements"] if ladder.name == "reduce" else ["m", "n", "k"]
    for size in asked.sizes:
        found = dict(zip(names, map(int, size.split("x")), strict=True))
        if ladder.name == "w4a16" and found["k"] % GROUP:
            raise ValueError(f"ladder: w4a16: k must be a multiple of the group's {GROUP}: {size}")
        for number in asked.rungs:
            tile = ops().tile(ladder.name, number)
            for (name, value), multiple in zip(found.items(), tile, strict=False):
                if value % multiple:
                    raise ValueError(
                        f"ladder: {ladder.name} rung {number}: {name} must be a multiple of the"
                        f" tile's {multiple}, got {value}"
                    )


def climb(asked: Climb, on_step: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Everything measured, ready for JSON; `on_step` hears what is being done."""
    ladder = asked.ladder
    reason = skip_reason(ladder)
    report: dict[str, Any] = {
        "ladder": ladder.name,
        "unit": ladder.unit,
        "seed": asked.seed,
        "skipped": reason,
        "rungs": asked.rungs,
        "published_on": ladder.published_on,
        "records": [],
    }
    if reason is not None:
        return report
    check_sizes(asked)
    threads = torch.get_num_threads()
    if ladder.device == "cpu":
        torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            on_step("the peak")
            peak = measure_peak(ladder)
            records = [r for size in asked.sizes for r in _climb_size(asked, size, peak, on_step)]
    finally:
        torch.set_num_threads(threads)
    report.update(environment(ladder.device))
    if ladder.device == "cpu":
        report["threads"] = 1
    report["peak"] = peak
    report["records"] = [asdict(record) for record in records]
    return report


def _climb_size(
    asked: Climb, size: str, peak: dict[str, Any], on_step: Callable[[str], None]
) -> list[Measured]:
    ladder = asked.ladder
    problem = make_problem(ladder, size, asked.seed)
    errors: dict[str, float] = {}
    for number in asked.rungs:
        on_step(f"{size}: checking rung {number}")
        errors[f"rung {number}"] = _checked(ladder, size, problem, number)
    on_step(f"{size}: timing")
    calls: dict[str, Callable[[], object]] = {
        f"rung {number}": lambda number=number: problem.rung(number)  # type: ignore[misc]
        for number in asked.rungs
    }
    seconds = time_calls({**calls, **problem.peers}, ladder.device)
    return [
        _record(ladder, size, problem, name, seconds, errors, peak)
        for name in (*errors, *problem.peers)
    ]


def _checked(ladder: Ladder, size: str, problem: Problem, number: int) -> float:
    """The rung's error as a share of its bound; an ArithmeticError beyond it, before any time."""
    share = problem.error_of_bound(problem.rung(number))
    if not share <= 1:  # NaN too
        raise ArithmeticError(
            f"ladder: {ladder.name} rung {number} at {size} differs from float64 by {share:.3g} of"
            " its bound"
        )
    return share


def _record(
    ladder: Ladder,
    size: str,
    problem: Problem,
    name: str,
    seconds: dict[str, float],
    errors: dict[str, float],
    peak: dict[str, Any],
) -> Measured:
    number = int(name.removeprefix("rung ")) if name in errors else None
    rate = problem.work / seconds[name] / UNITS[ladder.unit]
    gain = published = published_gain = None
    if number is not None:
        published = ladder.published_at(number, size)
        before = seconds.get(f"rung {number - 1}")
        gain = None if before is None else before / seconds[name]
        published_before = ladder.published_at(number - 1, size) if number > 0 else None
        if published is not None and published_before is not None:
            published_gain = published / published_before
    return Measured(
        name=name,
        rung=number,
        size=size,
        changed="" if number is None else read_rung(ladder.name, number).title,
        seconds=seconds[name],
        rate=rate,
        of_peak=rate / peak["rate"] if peak["rate"] else None,
        gain=gain,
        published=published,
        published_gain=published_gain,
        error_of_bound=errors.get(
            name, 0.0 if number is not None else problem.error_of_bound(problem.peers[name]())
        ),
        intensity=problem.work / problem.bytes if problem.bytes else None,
    )
