"""A ladder's problem at one size: operands, the calls to time, and the check against float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from xgemm.ladder.library import ops
from xgemm.ladder.rungs import Ladder

ROUNDING = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
TORCH, PRODUCT = "torch", "xgemm"


@dataclass(frozen=True)
class Problem:
    """What a rung computes, and what it is compared with."""

    rung: Callable[[int], torch.Tensor]
    peers: dict[str, Callable[[], torch.Tensor]]  # torch's call, and the product's kernel
    expected: torch.Tensor  # float64
    bound: torch.Tensor  # of the error, element by element
    work: float  # FLOP, or bytes where the ladder's unit is GB/s

    def error_of_bound(self, result: torch.Tensor) -> float:
        """The largest error as a share of its bound; NaN where the result holds one."""
        return float(((result.double() - self.expected).abs() / self.bound).max())


def make_problem(ladder: Ladder, size: str, seed: int) -> Problem:
    make = {"reduce": _sum}.get(ladder.name, _product)
    return make(ladder, size, seed)


def _random(ladder: Ladder, seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator(ladder.device).manual_seed(seed)
    return torch.randn(*shape, generator=generator, device=ladder.device).to(ladder.dtype)


def _product(ladder: Ladder, size: str, seed: int) -> Problem:
    m, n, k = map(int, size.split("x"))
    a = _random(ladder, seed, m, k)
    # The hopper ladder has B by its columns: what a rung gets is [n, k].
    stored = _random(ladder, seed + 1, *((n, k) if ladder.name == "hopper" else (k, n)))
    b = stored.t() if ladder.name == "hopper" else stored
    op = getattr(ops(), ladder.name)
    expected = a.double() @ b.double()
    # A sum of k products in fp32, rounded once to the result's type.
    magnitude = a.abs().double() @ b.abs().double()
    bound = (k + 8) * 2.0**-24 * magnitude + ROUNDING[ladder.dtype] * expected.abs() + 2.0**-24
    return Problem(
        rung=lambda number: op(a, stored, number),
        peers={
            TORCH: lambda: a @ b,
            PRODUCT: lambda: torch.ops.xgemm.mul.default(a, b),
        },
        expected=expected,
        bound=bound,
        work=2.0 * m * n * k,
    )


def _sum(ladder: Ladder, size: str, seed: int) -> Problem:
    x = _random(ladder, seed, int(size))
    op = ops().reduce
    expected = x.double().sum()
    # Additions of a tree; the longest chain is that of a thread of the second launch.
    bound = 1024 * 2.0**-24 * x.double().abs().sum()
    return Problem(
        rung=lambda number: op(x, number),
        peers={TORCH: x.sum, PRODUCT: lambda: torch.ops.xgemm.sum.default(x)},
        expected=expected,
        bound=bound,
        work=4.0 * x.numel(),
    )
