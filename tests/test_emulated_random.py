"""Random dense products by the CUDA kernels on the CPU (emulator/README.md), against float64."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from emulator.library import ACTIVATIONS, make_problem, run
from random_emulated import (
    BEFORE_HOPPER,
    FAR,
    draw_machine,
    draw_memory,
    kernel_of,
    place,
    place_destination,
    reordered,
    run_problems,
)
from random_products import (
    PRECISIONS,
    SENTINEL,
    Limits,
    draw_batch,
    draw_bias,
    draw_extents,
    draw_matrix,
    sprinkle,
    worst_share,
)

pytestmark = pytest.mark.usefixtures("one_thread")

HALVES = (torch.float16, torch.bfloat16)
# Sides of one size, and a long one beside short ones.
LIMITS = (Limits(most=320, work=3 * 10**6), Limits(most=6000, work=3 * 10**6))


@dataclass(frozen=True)
class Family:
    capabilities: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    kernels: frozenset[str]  # that its problems must get
    problems: int


FAMILIES = {
    "halves_sm90": Family(
        (90,),
        HALVES,
        frozenset({"sm90 persistent", "sm90 skinny", "sm90 single-tile", "sm80", "gemv"}),
        200,
    ),
    "halves_sm80": Family(BEFORE_HOPPER, HALVES, frozenset({"sm80", "gemv"}), 150),
    "fp32_sm90": Family((90,), (torch.float32,), frozenset({"fp32 sm90", "fp32", "tf32"}), 150),
    "fp32_sm80": Family(BEFORE_HOPPER, (torch.float32,), frozenset({"fp32", "tf32"}), 100),
}


def run_problem(rng: random.Random, family: Family) -> tuple[str, str]:
    """The kernel that one problem got, and what was wrong, or nothing."""
    dtype = rng.choice(family.dtypes)
    precision = rng.choice(PRECISIONS) if dtype == torch.float32 else "ieee"
    batch_a, batch_b = draw_batch(rng)
    batch = list(torch.broadcast_shapes(batch_a, batch_b))
    m, n, k = draw_extents(rng, rng.choice(LIMITS), batch)
    machine, memory = draw_machine(rng, family.capabilities), draw_memory(rng)
    a, kind_a = draw_matrix(rng, m, k, dtype, batch_a, "cpu")
    b, kind_b = draw_matrix(rng, k, n, dtype, batch_b, "cpu")
    bias, activation = draw_bias(rng, n, dtype, "cpu"), rng.choice(ACTIVATIONS)
    special = rng.random() < 0.1
    if special:
        sprinkle(rng, rng.choice((a, b)))
        activation = activation if precision == "ieee" else "none"
    far = rng.random() < FAR
    d, buffer = place_destination(rng, memory, [*batch, m, n], dtype, far and rng.random() < 0.5)
    alpha, beta, added = 1.0, 0.0, bias
    if dtype == torch.float32 and bias is None and rng.random() < 0.5:  # as sgemm has it
        alpha, beta = rng.choice((0.5, -1.0)), rng.choice((0.0, 2.0))
        if beta != 0:
            d.copy_(torch.randn(d.shape))
            added = beta * d.double()
    placed_a, placed_b = place(rng, memory, a, far), place(rng, memory, b, far)
    placed_bias = None if bias is None else memory.copy(bias)
    problem = make_problem(d, placed_a, placed_b, placed_bias, activation, alpha, beta, precision)
    text = (
        f"{machine} {dtype} {precision} a {tuple(a.shape)} {placed_a.stride()} ({kind_a}),"
        f" b {tuple(b.shape)} {placed_b.stride()} ({kind_b}), d {d.stride()},"
        f" bias {bias is not None}, {activation}, {alpha} {beta}, not finite {special}"
    )
    try:
        said = run(problem, machine)
    except RuntimeError as error:
        return "", f"{text}: {error}"
    if beta == 0 and rng.random() < 0.1:
        first = d.clone()
        run(problem, reordered(rng, machine))
        if not torch.equal(d.nan_to_num(), first.nan_to_num()):
            return kernel_of(said), f"other bits in another order: {text}\n{said}"
    share = worst_share(d, alpha * a.double(), b, added, activation, precision).item()
    if not share <= 1:
        return kernel_of(said), f"an error of {share:.3g} times the bound: {text}\n{said}"
    d.fill_(SENTINEL)
    if not (buffer == SENTINEL).all():
        return kernel_of(said), f"written outside of the destination: {text}\n{said}"
    return kernel_of(said), ""


@pytest.mark.parametrize("name", FAMILIES)
def test_random_problems(name: str) -> None:
    family = FAMILIES[name]
    kernels = run_problems(lambda rng: run_problem(rng, family), family.problems)
    assert family.kernels <= set(kernels), kernels
