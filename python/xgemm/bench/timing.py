"""How a call is timed; benchmarks compare times of one run only."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

Call = Callable[[], object]

REPEATS = 11
SAMPLE_SECONDS = 2e-3  # a sample repeats the call until it takes about this long
CUDA_ROUNDS = 3
WARMUP_MS, REPEAT_MS = 10, 50  # of a call's turn in each round


def time_cpu(calls: Mapping[str, Call], repeats: int = REPEATS) -> dict[str, float]:
    """Median seconds of each call; within each repeat every library has its turn.

    The first in turn moves on by one each repeat, so that none always follows the same other.
    """
    names = list(calls)
    loops = {name: _calls_per_sample(calls[name]) for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(repeats):
        first = repeat % len(names)
        for name in names[first:] + names[:first]:
            call, count = calls[name], loops[name]
            start = time.perf_counter()
            for _ in range(count):
                call()
            seconds[name].append((time.perf_counter() - start) / count)
    return {name: statistics.median(times) for name, times in seconds.items()}


def _calls_per_sample(call: Call) -> int:
    call()  # first-call costs
    start = time.perf_counter()
    call()
    return max(1, round(SAMPLE_SECONDS / max(time.perf_counter() - start, 1e-7)))


def time_cuda(calls: Mapping[str, Call], rounds: int = CUDA_ROUNDS) -> dict[str, float]:
    """Median seconds of each call from a cold L2 cache (triton's do_bench); they alternate."""
    from triton.testing import do_bench  # type: ignore[import-not-found]

    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            median = do_bench(call, warmup=WARMUP_MS, rep=REPEAT_MS, return_mode="median")
            seconds[name].append(median * 1e-3)
    return {name: statistics.median(times) for name, times in seconds.items()}


def time_calls(calls: Mapping[str, Call], device: str) -> dict[str, float]:
    return time_cuda(calls) if device == "cuda" else time_cpu(calls)
