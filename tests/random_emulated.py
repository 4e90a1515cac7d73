"""Random problems for the emulated kernels (emulator/README.md): how many, on what, in what memory.

A third of them runs without XGEMM_TEST_ALL=1. XGEMM_RANDOM_PROBLEMS=100000 XGEMM_RANDOM_SEED=1 runs
longer, over other problems.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from emulator.library import Machine, Memory
from random_products import draw_destination

SEED = int(os.environ.get("XGEMM_RANDOM_SEED", "0"))
BEFORE_HOPPER = (80, 86, 89)
SM_COUNTS = (1, 2, 4, 8, 16, 33, 66, 108, 132)
SHOWN = 5  # of the failures
FAR = 0.1  # of the problems have strides beyond 32 bits
MOST_FAR = 20_000  # elements, each of which may take a page
MOST_REACH = 2**41  # elements, from the first to the last: addresses have 47 bits

# The kernel that one problem got, and what was wrong, or nothing.
RunProblem = Callable[[random.Random], tuple[str, str]]


def run_problems(run_problem: RunProblem, count: int) -> Counter[str]:
    """How often each kernel was run; each problem is drawn from a seed of its own, which is told
    when it fails."""
    usual = count if "XGEMM_TEST_ALL" in os.environ else -(-count // 3)
    count = int(os.environ.get("XGEMM_RANDOM_PROBLEMS", str(usual)))
    kernels: Counter[str] = Counter()
    failures = []
    for seed in range(SEED * 10**7, SEED * 10**7 + count):
        torch.manual_seed(seed)
        kernel, wrong = run_problem(random.Random(seed))
        kernels[kernel] += 1
        failures += [f"seed {seed}: {wrong}"] if wrong else []
    assert not failures, "\n".join([f"{len(failures)} failures:", *failures[:SHOWN]])
    return kernels


def kernel_of(said: str) -> str:
    return said.partition("kernel: ")[2].partition("\n")[0].partition(" (")[0].partition(",")[0]


def draw_machine(rng: random.Random, capabilities: Sequence[int]) -> Machine:
    return reordered(rng, Machine(rng.choice(capabilities), rng.choice(SM_COUNTS)))


def reordered(rng: random.Random, machine: Machine) -> Machine:
    """The same, but for the order in which things happen: bits must not depend on that."""
    return replace(
        machine,
        late_copies=rng.random() < 0.5,
        late_products=rng.random() < 0.5,
        seed=rng.randrange(4),
    )


def draw_memory(rng: random.Random) -> Memory:
    return Memory(at_front=rng.random() < 0.5)


def place(
    rng: random.Random, memory: Memory, tensor: torch.Tensor, far: bool = False
) -> torch.Tensor:
    """A copy, in half of those cases where it may be so with elements that lie far apart."""
    apart = far and 0 < tensor.numel() <= MOST_FAR and rng.random() < 0.5
    return memory.spread(tensor, far_strides(rng, tensor)) if apart else memory.copy(tensor)


def far_strides(rng: random.Random, tensor: torch.Tensor) -> list[int]:
    """Those of its order in memory, but for one beyond 32 bits."""
    strides, dim = list(torch.empty_like(tensor).stride()), rng.randrange(tensor.dim())
    far = rng.choice((2**31, 2**32, 2**33)) + rng.choice((-8, 0, 1, 8))
    if far * tensor.shape[dim] <= MOST_REACH:
        strides[dim] = far
    return strides


def place_destination(
    rng: random.Random,
    memory: Memory,
    shape: Sequence[int],
    dtype: torch.dtype,
    far: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """draw_destination's view and buffer, in `memory`; or `far` apart, which is its own buffer."""
    drawn, buffer = draw_destination(rng, shape, dtype, "cpu")
    if far and 0 < drawn.numel() <= MOST_FAR:
        drawn = memory.spread(drawn, far_strides(rng, drawn), writable=True)
        return drawn, drawn
    buffer = memory.copy(buffer, writable=True)
    return buffer.as_strided(drawn.shape, drawn.stride(), drawn.storage_offset()), buffer
