"""Random products with packed weights, by the kernels that the choice takes, on the CPU
(emulator/README.md), against float64."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
import torch
from emulator.library import ACTIVATIONS, Machine
from emulator.w4a16 import linear
from random_w4 import draw_format, random_weight_on

from xgemm import reference

pytestmark = pytest.mark.usefixtures("one_thread")

# XGEMM_RANDOM_PROBLEMS=100000 XGEMM_RANDOM_SEED=1 runs longer, over other problems.
PROBLEMS = int(os.environ.get("XGEMM_RANDOM_PROBLEMS", "400"))
SEED = int(os.environ.get("XGEMM_RANDOM_SEED", "0"))
MOST_WORK = 10**7
CHUNKS = 4


def draw_extents(rng: random.Random) -> tuple[int, int, int]:
    while True:
        m = rng.randint(*rng.choice(((1, 8), (9, 70), (60, 140))))
        n, k = rng.randint(1, rng.choice((40, 300, 700))), rng.randint(1, rng.choice((300, 4200)))
        if m * n * k <= MOST_WORK:
            return m, n, k


def run_problem(rng: random.Random) -> tuple[str, str]:
    """The kernel that one problem got, and what was wrong, or nothing."""
    (m, n, k), form = draw_extents(rng), draw_format(rng)
    dtype = rng.choice((torch.float16, torch.bfloat16))
    q, x = random_weight_on("cpu", n, k, form), torch.randn(m, k).to(dtype)
    bias = torch.randn(n).to(dtype) if rng.random() < 0.5 else None
    activation, invariant = rng.choice(list(ACTIVATIONS)), rng.random() < 0.2
    sm_count = rng.choice((1, 2, 4, 8, 16, 33, 66, 132))
    machine = Machine(90, sm_count, rng.random() < 0.5, seed=rng.randrange(4))
    text = f"{m}x{n}x{k} {dtype} {form} {machine} {bias is not None} {activation} {invariant}"
    try:
        y, said = linear(x, q, bias, activation, machine=machine, batch_invariant=invariant)
    except RuntimeError as error:
        return "", f"{text}: {error}"
    expected = reference.w4a16(x, q, bias, activation)
    bound = reference.w4a16_bound(x, q, bias, activation)
    share = reference.error_ratio(y, expected, bound)
    kernel = said.partition("kernel: ")[2].partition(" (")[0]
    return kernel, "" if share <= 1 else f"an error of {share:.3g} times the bound: {text}\n{said}"


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_problems(chunk: int) -> None:
    visited: Counter[str] = Counter()
    for index in range(chunk, PROBLEMS, CHUNKS):
        seed = SEED * 10**7 + index
        torch.manual_seed(seed)
        kernel, wrong = run_problem(random.Random(seed))
        assert not wrong, f"seed {seed}: {wrong}"
        visited[kernel] += 1
    assert {"sm90 rows", "sm90 wgmma"} <= set(visited), visited
