"""Random dense products by the CUDA kernels on the CPU (emulator/README.md), against float64."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
import torch
from emulator.library import ACTIVATIONS, Machine, Memory, make_problem, run
from random_products import (
    DTYPES,
    SENTINEL,
    Limits,
    draw_batch,
    draw_bias,
    draw_destination,
    draw_extent,
    draw_matrix,
    worst_share,
)

pytestmark = pytest.mark.usefixtures("one_thread")

# XGEMM_RANDOM_PROBLEMS=100000 XGEMM_RANDOM_SEED=1 runs longer, over other problems.
PROBLEMS = int(os.environ.get("XGEMM_RANDOM_PROBLEMS", "400"))
SEED = int(os.environ.get("XGEMM_RANDOM_SEED", "0"))
LIMITS = Limits(most=320, work=3 * 10**6)
MACHINES = ((90, 132), (90, 4), (80, 108), (80, 4), (89, 4))  # capability, multiprocessors
CHUNKS = 4


def draw_machine(rng: random.Random) -> Machine:
    return Machine(
        *rng.choice(MACHINES),
        late_copies=rng.random() < 0.5,
        late_products=rng.random() < 0.5,
        seed=rng.randrange(4),
    )


def run_problem(rng: random.Random) -> tuple[str, str]:
    """The kernel that one problem got, and what was wrong, or nothing."""
    dtype = rng.choices(DTYPES, (4, 4, 1))[0]
    batch_a, batch_b = draw_batch(rng)
    batch = list(torch.broadcast_shapes(batch_a, batch_b))
    while True:
        m, n, k = (draw_extent(rng, LIMITS) for _ in range(3))
        if m * n * k * torch.Size(batch).numel() <= LIMITS.work:
            break
    memory, machine = Memory(), draw_machine(rng)
    a, kind_a = draw_matrix(rng, m, k, dtype, batch_a, "cpu")
    b, kind_b = draw_matrix(rng, k, n, dtype, batch_b, "cpu")
    bias, activation = draw_bias(rng, n, dtype, "cpu"), rng.choice(ACTIVATIONS)
    drawn, buffer = draw_destination(rng, [*batch, m, n], dtype, "cpu")
    buffer = memory.copy(buffer)
    d = buffer.as_strided(drawn.shape, drawn.stride(), drawn.storage_offset())
    problem = make_problem(
        d, memory.copy(a), memory.copy(b), None if bias is None else memory.copy(bias), activation
    )
    text = (
        f"{machine} {dtype} a {tuple(a.shape)} {a.stride()} ({kind_a}), b {tuple(b.shape)}"
        f" {b.stride()} ({kind_b}), d {d.stride()}, bias {bias is not None}, {activation}"
    )
    try:
        said = run(problem, machine)
    except RuntimeError as error:
        return "", f"{text}: {error}"
    share = worst_share(d, a, b, bias, activation).item()
    kernel = said.partition("kernel: ")[2].partition(" (")[0]
    if not share <= 1:
        return kernel, f"an error of {share:.3g} times the bound: {text}\n{said}"
    d.fill_(SENTINEL)
    if not (buffer == SENTINEL).all():
        return kernel, f"written outside of the destination: {text}\n{said}"
    return kernel, ""


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_problems(chunk: int) -> None:
    rng = random.Random(SEED * CHUNKS + chunk)
    torch.manual_seed(rng.randrange(2**32))
    kernels: Counter[str] = Counter()
    found = []
    for _ in range(-(-PROBLEMS // CHUNKS)):
        kernel, wrong = run_problem(rng)
        kernels[kernel] += 1
        found += [wrong] if wrong else []
    assert not found, "\n".join([f"{len(found)} failures:", *found[:5]])
    assert {"sm80", "gemv", "fp32"} <= set(kernels), kernels
