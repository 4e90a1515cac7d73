"""Random dense products: operands of any shape, stride, offset and batch, and what comes of them.

Nothing here waits for the device: what was found wrong is read once for many problems, so that
thousands of them take seconds on a GPU.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from xgemm.activations import activate

ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
UNIT = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}
SMALLEST = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133, torch.float32: 2.0**-149}
# How an operand's matrix may lie in memory.
KINDS = ("rows", "columns", "padded", "padded columns", "aligned", "strided", "repeated", "sliding")
PRECISIONS = ("ieee", "tf32x3", "tf32")  # of float32 operands
# Of a product, beyond fp32's own rounding: the parts that are dropped, or the operands' rounding;
# and what is flushed to zero.
OF_A_PRODUCT = {"ieee": 0.0, "tf32x3": 2.0**-22, "tf32": 2.0**-10}
FLUSHED = {"ieee": 0.0, "tf32x3": 1e-37, "tf32": 1e-37}
SENTINEL = 7.0  # what surrounds a destination, and must survive


@dataclass(frozen=True)
class Limits:
    """What is drawn: extents up to `most`, and at most `work` multiplications a problem.

    Operands and result have at most `elements`, batch dimensions included: float64 copies of them,
    and of what they are compared with, take 64 bytes an element.
    """

    most: int
    work: int
    elements: int = 3 * 10**7


ON_CUDA = Limits(most=5000, work=5000**3)
ON_CPU = Limits(most=300, work=10**7)


def worst_share(
    y: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str = "none",
    precision: str = "ieee",
) -> torch.Tensor:
    """The largest error of y against float64, as a share of its bound.

    The bound, element by element: fp32 accumulation over K of |a||b| + |bias|, what the precision
    leaves out of each product, and one rounding. What is not finite in one of them only is
    infinitely wrong; so is, with precision ieee, NaN for an infinity or the other way round.
    """
    wide_a, wide_b = a.double(), b.double()
    exact, magnitude = torch.matmul(wide_a, wide_b), torch.matmul(wide_a.abs(), wide_b.abs())
    if bias is not None:
        wide_bias = bias.double().reshape(bias.shape if b.dim() > 1 else ())
        exact, magnitude = exact + wide_bias, magnitude + wide_bias.abs()
    assert y.shape == exact.shape, f"got shape {tuple(y.shape)}, not {tuple(exact.shape)}"
    if y.numel() == 0:
        return torch.zeros((), dtype=torch.float64, device=y.device)
    error = magnitude * ((a.shape[-1] + 8) * 2.0**-24 + OF_A_PRODUCT[precision])
    error = error + FLUSHED[precision]
    if activation != "none":  # a slope below 1.13, and some roundings of fp32 for the function
        error = 1.13 * error + exact.abs() * 2.0**-20
        exact = activate(exact, activation)
    error = error + (exact.abs() + error) * (1.01 * UNIT[y.dtype]) + SMALLEST[y.dtype]
    wide = y.double()
    same = (wide == exact) | (wide.isnan() & exact.isnan())
    if precision != "ieee":
        same |= ~wide.isfinite() & ~exact.isfinite()
    share = ((wide - exact).abs() / error).nan_to_num(nan=float("inf"))
    return torch.where(same, 0.0, torch.where(exact.isfinite(), share, float("inf"))).max()


def draw_extent(rng: random.Random, limits: Limits) -> int:
    """Log-uniform from 1, sometimes 0; half of the larger ones are multiples of 8."""
    if rng.random() < 0.02:
        return 0
    extent = round(limits.most ** rng.random())
    return -(-extent // 8) * 8 if rng.random() < 0.5 and 4 < extent <= limits.most - 8 else extent


def draw_extents(
    rng: random.Random, limits: Limits, batch: Sequence[int] = ()
) -> tuple[int, int, int]:
    """m, n, k of products of which there are batch[0] * batch[1] ..."""
    count = math.prod(batch)
    while True:
        m, n, k = (draw_extent(rng, limits) for _ in range(3))
        elements = m * n + m * k + k * n
        if m * n * k * count <= limits.work and elements * count <= limits.elements:
            return m, n, k


def draw_batch(rng: random.Random) -> tuple[list[int], list[int]]:
    """The batch dimensions of a and of b: none, equal, broadcast or missing."""
    count = rng.choice((0, 0, 0, 1, 2, 3))
    sizes = [rng.randint(1, 4) for _ in range(count)]
    operands = []
    for _ in range(2):
        own = [1 if rng.random() < 0.25 else size for size in sizes]
        operands.append(own[rng.randint(0, count) if rng.random() < 0.3 else 0 :])
    return operands[0], operands[1]


def random_values(shape: Sequence[int], dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch.randn(tuple(shape), device=device, dtype=torch.float32).to(dtype)


def draw_matrix(
    rng: random.Random, rows: int, columns: int, dtype: torch.dtype, batch: list[int], device: str
) -> tuple[torch.Tensor, str]:
    """A view [*batch, rows, columns], what it lies in being NaN, and how it lies."""
    kind = rng.choice(KINDS)
    lead, tail = rng.choice((0, 0, 1, 2, 3, 4, 8)), rng.choice((1, 2, 4, 8, 24))
    order = rng.sample(range(len(batch)), len(batch))  # of the batch dimensions in memory
    stored = [batch[i] for i in order]
    if kind == "sliding":  # rows that overlap, as a window over a signal has them
        signal = random_values([*stored, rows + columns + 1], dtype, device)
        view = signal.as_strided(
            (*stored, rows, columns), (*signal.stride()[:-1], 1, 1), signal.storage_offset()
        )
    elif kind == "repeated":  # one row for all
        view = random_values([*stored, min(rows, 1), columns], dtype, device)
        view = view.expand(*stored, rows, columns)
    else:
        by_column = kind in ("columns", "padded columns")
        outer, inner = (columns, rows) if by_column else (rows, columns)
        step = rng.choice((2, 3)) if kind == "strided" else 1
        after = tail if kind in ("padded", "padded columns", "strided") else 0
        if kind == "aligned":  # a leading dimension that is a multiple of 8, offset or not
            lead = rng.choice((0, 8))
            after = -(lead + inner) % 8
        shape = (*stored, outer, lead + inner * step + after)
        buffer = torch.full(shape, float("nan"), dtype=dtype, device=device)
        view = buffer[..., lead : lead + inner * step : step]
        view.copy_(random_values(view.shape, dtype, device))
        view = view.mT if by_column else view
    back = [order.index(i) for i in range(len(batch))]
    return view.permute(*back, len(batch), len(batch) + 1), f"{kind}, offset {lead}"


def sprinkle(rng: random.Random, matrix: torch.Tensor) -> None:
    """A few elements of it become infinite or NaN."""
    for _ in range(rng.randint(1, 3) if matrix.numel() > 0 else 0):
        place = tuple(rng.randrange(size) for size in matrix.shape)
        matrix[place] = rng.choice((float("nan"), float("inf"), float("-inf")))


def draw_bias(rng: random.Random, n: int, dtype: torch.dtype, device: str) -> torch.Tensor | None:
    if rng.random() < 0.5:
        return None
    step = rng.choice((1, 1, 2))
    return random_values([n * step + 1], dtype, device)[1 : 1 + n * step : step]


def draw_destination(
    rng: random.Random, shape: Sequence[int], dtype: torch.dtype, device: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """A NaN-filled view of any strides, and the buffer it lies in, filled with SENTINEL."""
    *batch, m, n = shape
    kind = rng.choice(("contiguous", "padded", "columns", "strided"))
    lead, tail = (0, 0) if kind == "contiguous" else (rng.choice((0, 1, 8)), rng.choice((1, 8)))
    outer, inner = (n, m) if kind == "columns" else (m, n)
    step = 2 if kind == "strided" else 1
    size = (*batch, outer, lead + inner * step + tail)
    buffer = torch.full(size, SENTINEL, dtype=dtype, device=device)
    view = buffer[..., lead : lead + inner * step : step]
    view = view.mT if kind == "columns" else view
    return view.fill_(float("nan")), buffer


def poison(shape: Sequence[int], dtype: torch.dtype, device: str) -> None:
    """Leaves NaN where the allocator will likely place the next tensor of this shape."""
    torch.full(tuple(shape), float("nan"), dtype=dtype, device=device)


@dataclass
class Verdict:
    """What one problem showed; the tensors are not read yet."""

    problem: str
    share: torch.Tensor  # of the bound, at most 1 where right
    same_bits: torch.Tensor  # of a second run
    kept: torch.Tensor  # what surrounds the destination


def run_problem(rng: random.Random, limits: Limits, device: str) -> Verdict:
    dtype = rng.choices(DTYPES, (4, 4, 1))[0]
    batch_a, batch_b = draw_batch(rng)
    batch = list(torch.broadcast_shapes(batch_a, batch_b))
    m, n, k = draw_extents(rng, limits, batch)
    a, kind_a = draw_matrix(rng, m, k, dtype, batch_a, device)
    b, kind_b = draw_matrix(rng, k, n, dtype, batch_b, device)
    if not batch and rng.random() < 0.04:  # a vector
        a, kind_a = a[0] if m else a.new_zeros(k), "vector"
    if not batch and rng.random() < 0.04:
        b, kind_b, n = b[:, 0] if n else b.new_zeros(k), "vector", 1
    bias, activation = draw_bias(rng, n, dtype, device), rng.choice(ACTIVATIONS)
    precision = rng.choice(PRECISIONS) if dtype == torch.float32 else "ieee"
    special = rng.random() < 0.05
    if special:
        sprinkle(rng, rng.choice((a, b)))
        activation = activation if precision == "ieee" else "none"
    options = {"activation": activation, "precision": precision}
    shape = torch.matmul(a.to("meta"), b.to("meta")).shape
    kept = torch.ones((), dtype=torch.bool, device=device)
    into = rng.random() < 0.3 and len(shape) >= 2
    if into:
        y, buffer = draw_destination(rng, shape, dtype, device)
        torch.ops.xgemm.mul_into(y, a, b, bias, **options)
        result = y.clone()
        y.fill_(SENTINEL)
        kept = (buffer == SENTINEL).all()
        y.fill_(float("nan"))
        torch.ops.xgemm.mul_into(y, a, b, bias, **options)
        again = y
    else:
        poison(shape, dtype, device)
        result = torch.ops.xgemm.mul(a, b, bias, **options)
        again = torch.ops.xgemm.mul(a, b, bias, **options)
    text = (
        f"{'mul_into' if into else 'mul'} {dtype} a {tuple(a.shape)} {a.stride()} ({kind_a}),"
        f" b {tuple(b.shape)} {b.stride()} ({kind_b}), bias {bias is not None}, {activation},"
        f" {precision}, not finite {special}"
    )
    share = worst_share(result, a, b, bias, activation, precision)
    same_bits = ((result == again) | (result.isnan() & again.isnan())).all()
    return Verdict(text, share, same_bits, kept)


def failures(verdicts: list[Verdict]) -> list[str]:
    """What is wrong, in words; this waits for the device."""
    shares = torch.stack([verdict.share for verdict in verdicts]).tolist()
    same = torch.stack([verdict.same_bits for verdict in verdicts]).tolist()
    kept = torch.stack([verdict.kept for verdict in verdicts]).tolist()
    found = []
    for verdict, share, repeats, guarded in zip(verdicts, shares, same, kept, strict=True):
        if not share <= 1:
            found.append(f"an error of {share:.3g} times the bound: {verdict.problem}")
        elif not repeats:
            found.append(f"other bits in a second run: {verdict.problem}")
        if not guarded:
            found.append(f"written outside the destination: {verdict.problem}")
    return found
