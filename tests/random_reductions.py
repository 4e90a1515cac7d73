"""Random reductions of any shape, strides and dtype, and the comparison with float64.

What the emulated kernels and those on a GPU are tested with.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import torch

Tensor = torch.Tensor

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool)
ORDERS = (0.0, 1.0, 2.0, 3.0, 1.5, -1.0, math.inf, -math.inf)
OPS = ("sum", "sum", "mean", "prod", "amax", "amin", "norm", "norm", "argmax", "argmin")
POSITIONS = ("argmax", "argmin")
SIDES = (1, 2, 3, 5, 8, 16, 17, 32, 33, 64, 70, 128, 256, 1000, 1024, 4096, 7777)


@dataclass(frozen=True)
class Case:
    op: str
    x: Tensor
    dims: tuple[int, ...]  # all of them, counted from the front
    p: float = 2.0

    def __str__(self) -> str:
        order = f" p={self.p:g}" if self.op == "norm" else ""
        x = f"{self.x.dtype} {tuple(self.x.shape)} strides {self.x.stride()}"
        return f"{self.op}{order} over {self.dims} of {x}"

    @property
    def extent(self) -> int:
        return math.prod(self.x.shape[d] for d in self.dims)


def random_case(draw: random.Random, most: int, device: str = "cpu") -> Case:
    """Of at most `most` elements."""
    op = draw.choice(OPS)
    dtype = draw.choice(FLOATS if op in ("mean", "norm") else FLOATS * 2 + INTEGERS)
    x = _view(draw, _values(draw, _shape(draw, most), dtype, device))
    if op == "prod" and dtype.is_floating_point and draw.random() < 0.7:
        x = (1 + 0.01 * x.double()).to(dtype)
    dims = sorted(draw.sample(range(x.dim()), draw.randint(1, x.dim()))) if x.dim() else []
    if op in POSITIONS and draw.random() < 0.5:
        dims = dims[:1]
    p = draw.choice(ORDERS) if op == "norm" else 2.0
    if x.dim() > 0 and draw.random() < 0.02:  # nothing to reduce, or no results
        empty = draw.randrange(x.dim())
        has_identity = op in ("sum", "mean", "prod") or (op == "norm" and 0 <= p < math.inf)
        x = x.narrow(empty, 0, 0) if has_identity or empty not in dims else x
    return Case(op, x, tuple(dims), p)


def _shape(draw: random.Random, most: int) -> list[int]:
    ndim = draw.choice((0, 1, 1, 2, 2, 2, 2, 3, 3, 4, 5))
    shape = [
        draw.choice(SIDES) if draw.random() < 0.7 else draw.randint(1, 300) for _ in range(ndim)
    ]
    if shape and draw.random() < 0.25:
        shape[draw.randrange(ndim)] = draw.randint(1, most)
    while math.prod(shape) > most:
        longest = shape.index(max(shape))
        shape[longest] = max(1, shape[longest] // draw.choice((2, 3, 7)))
    return shape


def _values(draw: random.Random, shape: list[int], dtype: torch.dtype, device: str) -> Tensor:
    """A corner of a larger tensor, at an address of any alignment."""
    generator = torch.Generator(device).manual_seed(draw.randrange(2**31))
    padded = draw.random() < 0.4
    full = [size + (draw.choice((0, 0, 0, 1, 8)) if padded else 0) for size in shape]
    offset = draw.choice((0, 0, 0, 0, 0, 1, 3))
    count = math.prod(full) + offset
    if dtype.is_floating_point:
        flat = torch.randn(count, generator=generator, dtype=torch.float64, device=device)
        if draw.random() < 0.3:
            flat = flat.round()  # ties, zeros and negative zeros
        flat = flat.to(dtype)
        if draw.random() < 0.15:
            where = torch.randint(count, (2,), generator=generator, device=device)
            flat[where] = draw.choice((math.nan, math.inf, -math.inf))
    elif dtype == torch.bool:
        flat = torch.rand(count, generator=generator, device=device) < 0.7
    else:
        info = torch.iinfo(dtype)
        low, high = max(info.min, -(2**40)), min(info.max, 2**40)
        flat = torch.randint(low, high, (count,), generator=generator, device=device).to(dtype)
    return flat[offset:].view(full)[tuple(slice(0, size) for size in shape)]


def _view(draw: random.Random, x: Tensor) -> Tensor:
    if x.dim() == 0:
        return x
    if draw.random() < 0.3:
        x = x.permute(draw.sample(range(x.dim()), x.dim()))
    if draw.random() < 0.15:
        x = x[tuple(slice(None, None, draw.choice((1, 1, 2, 3))) for _ in x.shape)]
    if draw.random() < 0.1:
        expanded = draw.randrange(x.dim())
        x = x.narrow(expanded, 0, 1)
        x = x.expand([40 if d == expanded else size for d, size in enumerate(x.shape)])
    return x


def expected(case: Case) -> Tensor:
    """torch's result, of x in float64 where it is floating."""
    x, dims = case.x, list(case.dims)
    wide = x.double() if x.dtype.is_floating_point else x
    kept = [d for d in range(x.dim()) if d not in dims]
    if case.op in (*POSITIONS, "prod"):  # torch takes one dimension here
        if case.op == "prod":
            wide = wide if x.dtype.is_floating_point else x.long()
        elif x.dtype == torch.bool:  # which torch refuses
            wide = x.to(torch.uint8)
        rows = wide.permute(kept + dims).reshape([x.shape[d] for d in kept] + [case.extent])
        return getattr(torch, case.op)(rows, dim=-1)
    if case.op == "norm":
        return torch.linalg.vector_norm(wide, case.p, dims if x.dim() else None)
    return getattr(torch, case.op)(wide, dim=dims) if x.dim() else getattr(torch, case.op)(wide)


def _depends_on_order(case: Case, got: Tensor) -> Tensor:
    """Where a product is excused: some of its numbers alone have one beyond float64, or below it.

    What overflows or vanishes on the way then depends on the order: 0 times inf is NaN.
    """
    dims = list(case.dims)
    x = case.x.double()

    def any_of(mask: Tensor) -> Tensor:
        return mask.any(dims) if dims else mask

    zero, infinite = any_of(x == 0), any_of(x.isinf())
    logs = torch.where((x == 0) | ~x.isfinite(), 1.0, x).abs().log2()
    large, small = logs.clamp(min=0), logs.clamp(max=0)
    overflows = (large.sum(dims) if dims else large) >= 1023
    vanishes = (small.sum(dims) if dims else small) <= -1022
    excused = torch.where(
        got.isnan(),
        (overflows | infinite) & (vanishes | zero),
        torch.where(got.isinf(), overflows & ~zero, (overflows | vanishes) & ~infinite)
        & ((got == 0) | ~zero),
    )
    return excused & ~any_of(x.isnan())


def fault(case: Case, got: Tensor) -> str:
    """What is wrong with a result, or an empty string."""
    want, x = expected(case), case.x
    if got.shape != want.shape:
        return f"shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    if not x.dtype.is_floating_point or case.op in ("amax", "amin", *POSITIONS):
        same = (got == want.to(got.dtype)) | ((got != got) & (want != want))
        return "" if bool(same.all()) else f"{int((~same).sum())} of {got.numel()} differ"
    rounded = want.to(x.dtype).double()
    added = rounded.abs()
    if case.op in ("sum", "mean"):  # rounding errors grow with what was added, not with the result
        added = added + expected(Case(case.op, x.abs(), case.dims))
    # float64: torch's own results, sums of one number after the other, are no better than this.
    exact = x.dtype == torch.float64
    # (A product of equal numbers errs the same way each time.)
    roundings = case.extent * 2 if case.op == "prod" else case.extent / 8
    unit = 2.0**-53 * (64 + roundings) if exact else 2.0**-24 * 8
    info = torch.finfo(x.dtype)
    bound = unit * added + 2 * info.eps * rounded.abs() + info.smallest_normal
    error = (got.double() - rounded).abs()
    same = (got.double() == rounded) | (got.isnan() & rounded.isnan()) | (error <= bound)
    if case.op == "prod":
        same |= _depends_on_order(case, got)
    if bool(same.all()):
        return ""
    share = float((error / bound)[~same].max())
    return f"{int((~same).sum())} of {got.numel()} differ, by {share:.3g} of the bound"
