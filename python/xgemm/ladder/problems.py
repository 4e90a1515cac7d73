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
    bytes: float | None = None  # operands and result, each once, where work is FLOP

    def error_of_bound(self, result: torch.Tensor) -> float:
        """The largest error as a share of its bound; NaN where the result holds one."""
        return float(((result.double() - self.expected).abs() / self.bound).max())


def make_problem(ladder: Ladder, size: str, seed: int) -> Problem:
    make = {"reduce": _sum, "w4a16": _quantized}.get(ladder.name, _product)
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
        bytes=float(a.element_size() * (m * k + k * n + m * n)),
    )


GROUP = 128
CHUNK = 4096  # columns of W that are dequantized to float64 at a time


def _unpack(codes: torch.Tensor) -> torch.Tensor:
    """[k / 8, n] words, the lowest nibble first -> [k, n] codes, uint8."""
    nibbles = [(codes >> 4 * i & 15).to(torch.uint8) for i in range(8)]
    return torch.stack(nibbles, 1).flatten(0, 1)


def dequantized(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """[k, n], float64: what a rung multiplies."""
    weights = _unpack(codes).double() - 8
    return weights * scales.double().repeat_interleave(GROUP, 0)


def quantized_bound(x: torch.Tensor, weights: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Weights rounded to fp16, a sum of k products in fp32, and a rounding of the result."""
    magnitude = x.abs().double() @ weights.abs()
    share = ROUNDING[torch.float16] + (x.shape[1] + 8) * 2.0**-24
    return share * magnitude + ROUNDING[torch.float16] * expected.abs() + 2.0**-24


def _quantized(ladder: Ladder, size: str, seed: int) -> Problem:
    m, n, k = map(int, size.split("x"))
    x = _random(ladder, seed, m, k)
    generator = torch.Generator(ladder.device).manual_seed(seed + 1)
    limits = torch.iinfo(torch.int32)
    codes = torch.randint(
        limits.min,
        limits.max,
        (k // 8, n),
        dtype=torch.int32,
        generator=generator,
        device=ladder.device,
    )
    scales = (0.005 + 0.01 * _random(ladder, seed + 2, k // GROUP, n).abs()).to(ladder.dtype)
    locks = torch.zeros((m + 63) // 64 * (n // 64), dtype=torch.int64, device=ladder.device)
    plain, packed = (codes, scales), ops().w4a16_pack(codes, scales)
    expected, bound = [], []
    dense = torch.empty(k, n, dtype=ladder.dtype, device=ladder.device)
    for first in range(0, n, CHUNK):
        columns = slice(first, first + CHUNK)
        weights = dequantized(codes[:, columns], scales[:, columns])
        dense[:, columns] = weights
        expected.append(x.double() @ weights)
        bound.append(quantized_bound(x, weights, expected[-1]))
    product = torch.ops.xgemm.pack_w4.default(_unpack(codes).t().contiguous(), scales, None, GROUP)

    def rung(number: int) -> torch.Tensor:
        weights = packed if ops().w4a16_packed(number) else plain
        return ops().w4a16(x, *weights, locks, number)

    return Problem(
        rung=rung,
        peers={
            TORCH: lambda: x @ dense,  # fp16 weights
            PRODUCT: lambda: torch.ops.xgemm.mul.w4a16(x, product, n, k, GROUP),
        },
        expected=torch.cat(expected, 1),
        bound=torch.cat(bound, 1),
        work=n * k / 2 + 2.0 * (n * k // GROUP + m * k + m * n),
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
