"""How a call is timed; benchmarks compare times of one run only."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

Call = Callable[[], object]

REPEATS = 11
SAMPLE_SECONDS = 2e-3  # a sample repeats the call until it takes about this long
# Even: in half of them a call follows what it precedes in the others.
CUDA_ROUNDS, LONG_CUDA_ROUNDS = 4, 6
LONG_SECONDS = 200e-6  # from here on calls may bring a GPU to its power limit
WARMUP_SECONDS, TURN_SECONDS = 25e-3, 25e-3  # of a call in each round
FLUSH_BYTES = 256 << 20  # more than any L2
FLUSH_SECONDS = 40e-6  # a flush takes at least this long on any GPU
HOST_REPEATS = 41
HOST_CALLS = (
    100  # of a sample; fewer than a stream's queue holds, so that none waits for the device
)
SPIN_HERTZ = 2e9  # clocks a second that torch.cuda._sleep counts, at the most


def time_cpu(
    calls: Mapping[str, Call],
    repeats: int = REPEATS,
    turn: Callable[[str, Call], AbstractContextManager[Any]] = lambda name, call: nullcontext(),
) -> dict[str, float]:
    """Median seconds of each call; within each repeat every library has its turn.

    The first in turn moves on by one each repeat, so that none always follows the same other. Each
    sample is taken within `turn` of the library's name and call.
    """
    names, loops = list(calls), {}
    for name, call in calls.items():
        with turn(name, call):
            loops[name] = _calls_per_sample(call)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(repeats):
        first = repeat % len(names)
        for name in names[first:] + names[:first]:
            call, count = calls[name], loops[name]
            with turn(name, call):
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
    """Median seconds of each call on the GPU, from a cold L2 cache.

    The calls alternate, every second round backwards: what ran before leaves the chip warmer or
    cooler, and at the power limit that is a few per cent of a long call's time. Long calls have
    more rounds, after one that does not count: a chip that has rested is up to 15 % faster for some
    60 ms, and now and then it is as much slower for as long.
    """
    medians = [_round(calls)]
    if rounds > 1 and max(medians[0].values()) >= LONG_SECONDS:
        medians, rounds = [], LONG_CUDA_ROUNDS
    while len(medians) < rounds:
        medians.append(_round(calls, backwards=len(medians) % 2 == 1))
    return {name: statistics.median(found[name] for found in medians) for name in calls}


def _round(calls: Mapping[str, Call], backwards: bool = False) -> dict[str, float]:
    """A turn of each call."""
    return {name: _median_on_gpu(calls[name]) for name in list(calls)[:: -1 if backwards else 1]}


def _median_on_gpu(call: Call) -> float:
    """What triton's do_bench measures, and no less: a host slower than the flush is hidden, too.

    (A function from torch.compile takes the host up to 100 us, and do_bench counts what of it the
    flush does not cover as the kernel's.)
    """
    flush = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
    host = _host_seconds(call)
    spin = round(max(0.0, host - FLUSH_SECONDS) * SPIN_HERTZ)

    def sample(count: int) -> list[float]:
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        for before, after in events:
            flush.zero_()
            if spin:
                torch.cuda._sleep(spin)
            before.record()
            call()
            after.record()
        torch.cuda.synchronize()
        return [before.elapsed_time(after) * 1e-3 for before, after in events]

    each = statistics.median(sample(3)) + max(FLUSH_SECONDS, host)
    sample(max(1, round(WARMUP_SECONDS / each)))
    return statistics.median(sample(max(3, round(TURN_SECONDS / each))))


def _host_seconds(call: Call) -> float:
    """An upper estimate of how long the host needs to queue the call."""
    times = []
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    return 1.5 * min(times)


def time_host(
    calls: Mapping[str, Call],
    repeats: int = HOST_REPEATS,
    mode: Callable[[], AbstractContextManager[Any]] = torch.inference_mode,
) -> dict[str, float]:
    """Median seconds that the host needs for each call, within `mode`; the calls alternate.

    It is the thread's own CPU time, which does not grow while others have the core. On CUDA the
    calls of a sample are queued and not waited for.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    with mode():
        for repeat in range(repeats + 1):
            for name, call in calls.items():
                sample = _host_sample(call)
                if repeat > 0:  # the first one loads kernels and fills caches
                    seconds[name].append(sample)
    return {name: statistics.median(times) for name, times in seconds.items()}


def _host_sample(call: Call) -> float:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    start = time.thread_time()
    for _ in range(HOST_CALLS):
        call()
    return (time.thread_time() - start) / HOST_CALLS


def time_calls(calls: Mapping[str, Call], device: str) -> dict[str, float]:
    return time_cuda(calls) if device == "cuda" else time_cpu(calls)
