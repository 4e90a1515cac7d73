"""Round to nearest: the scale from each group's range, each weight to its nearest code.

Symmetric: zero point 8, so codes stand for -8..7 steps, and scale = max|w| / 7.5. With it no weight
is off by more than half a step: +max rounds to 7, -max to -8 or -7. max|w| / 7 would keep the same
bound with a coarser step; max|w| / 8 has a finer one, but puts the largest weight, if positive, a
whole step off. (7.5 is also the usual (max - min) / 15 of a range made symmetric.)

Asymmetric: the range, widened to hold 0, is cut into 15 steps, with the zero point rounded to an
integer, so that 0 stays exactly 0.

Codes are computed against the scale as it is stored, so its rounding costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from xgemm.formats.quantized import SYMMETRIC_ZERO, QuantizedWeight

CLIPS = ("none", "mse")
SCALE_DTYPES = (torch.float16, torch.bfloat16)
MAX_CODE = 15
# Shares of the range tried by clip="mse". Half of it is below the optimum of any bell-shaped group.
SHRINKS = tuple(1.0 - 0.025 * i for i in range(21))
# Weights worked on at a time: the search holds a few copies of this many in float32.
BLOCK_WEIGHTS = 1 << 20


@dataclass(frozen=True)
class _Range:
    """What a group of weights [N, groups] spans."""

    low: torch.Tensor  # <= 0
    high: torch.Tensor  # >= 0


def quantize_rtn(
    w: torch.Tensor,
    group_size: int,
    symmetric: bool,
    clip: str,
    scale_dtype: torch.dtype | None,
) -> QuantizedWeight:
    """quantize_weight(method="rtn") of a checked w [N, K]."""
    n, k = w.shape
    size = max(k, 1) if group_size == -1 else group_size
    groups = -(-k // size)
    shrinks = SHRINKS if clip == "mse" else (1.0,)
    blocks = list(_row_blocks(n, max(groups * size, 1)))
    dtype = _choose_scale_dtype(w, blocks, size, symmetric, min(shrinks), scale_dtype)

    codes = torch.empty(n, k, dtype=torch.uint8, device=w.device)
    scales = torch.empty(groups, n, dtype=dtype, device=w.device)
    zeros = None if symmetric else torch.empty(groups, n, dtype=torch.float16, device=w.device)
    for rows in blocks:
        grouped = _grouped(w[rows], size)
        scale, zero = _search(grouped, symmetric, shrinks, dtype)
        code = _encode(grouped, scale, zero).to(torch.uint8)
        codes[rows] = code.reshape(code.shape[0], -1)[:, :k]
        scales[:, rows] = scale.t().to(dtype)
        if zeros is not None:
            zeros[:, rows] = zero.t().to(torch.float16)
    return QuantizedWeight(codes, scales, zeros, None, group_size)


def _row_blocks(n: int, padded_k: int) -> Iterator[slice]:
    step = max(BLOCK_WEIGHTS // padded_k, 1)
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


def _grouped(w: torch.Tensor, size: int) -> torch.Tensor:
    """[rows, K] as [rows, groups, size], the last group padded with 0 (which changes no range)."""
    wide = w.to(torch.float64 if w.dtype == torch.float64 else torch.float32)
    wide = F.pad(wide, (0, -wide.shape[1] % size))
    return wide.reshape(wide.shape[0], wide.shape[1] // size, size)


def _range(grouped: torch.Tensor, symmetric: bool) -> _Range:
    low = grouped.amin(dim=2).clamp_(max=0)
    high = grouped.amax(dim=2).clamp_(min=0)
    if symmetric:
        high = torch.maximum(-low, high)
        low = -high
    return _Range(low, high)


def _scale(span: _Range, shrink: float) -> torch.Tensor:
    # Each end by itself first: high - low may overflow where its fifteenth does not.
    return span.high * (shrink / MAX_CODE) - span.low * (shrink / MAX_CODE)


def _stored(scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The scale as `dtype` holds it; 1 for a group of zeros, whose codes then are all zero points.

    A scale below dtype's smallest normal is raised to it: with bf16, whose range is float32's, such
    a group holds weights under 1e-37.
    """
    tiny = torch.finfo(dtype).tiny
    rounded = scale.clamp(min=tiny).to(dtype).to(scale.dtype)
    return torch.where(scale > 0, rounded, torch.ones_like(scale))


def _encode(grouped: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    code = (grouped / scale[:, :, None]).round_() + zero[:, :, None]
    return code.clamp_(0, MAX_CODE)


def _search(
    grouped: torch.Tensor, symmetric: bool, shrinks: tuple[float, ...], dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scale and zero point [rows, groups] of least squared error among `shrinks`."""
    span = _range(grouped, symmetric)
    best: tuple[torch.Tensor, torch.Tensor] | None = None
    least = torch.empty(0)
    for shrink in shrinks:
        scale = _stored(_scale(span, shrink), dtype)
        if symmetric:
            zero = torch.full_like(scale, SYMMETRIC_ZERO)
        else:
            zero = (-span.low * shrink / scale).round_().clamp_(0, MAX_CODE)
        if len(shrinks) == 1:
            return scale, zero
        decoded = (_encode(grouped, scale, zero) - zero[:, :, None]) * scale[:, :, None]
        # In units of the group's step, so that squares of huge or tiny weights stay finite.
        unit = _stored(_scale(span, 1.0), dtype)[:, :, None]
        error = ((decoded - grouped) / unit).square_().sum(dim=2)
        if best is None:
            best, least = (scale, zero), error
            continue
        better = error < least
        best = (torch.where(better, scale, best[0]), torch.where(better, zero, best[1]))
        least = torch.where(better, error, least)
    assert best is not None  # shrinks is never empty
    return best


def _choose_scale_dtype(
    w: torch.Tensor,
    blocks: list[slice],
    size: int,
    symmetric: bool,
    shrink: float,
    asked: torch.dtype | None,
) -> torch.dtype:
    """fp16 where its normal range holds every scale, else bf16; or `asked`, if it holds them."""
    if w.numel() == 0:
        return asked or torch.float16
    largest, smallest = 0.0, float("inf")
    for rows in blocks:
        scale = _scale(_range(_grouped(w[rows], size), symmetric), 1.0)
        largest = max(largest, float(scale.max()))
        positive = scale[scale > 0]
        if positive.numel() > 0:
            smallest = min(smallest, float(positive.min()) * shrink)
    fp16, bf16 = torch.finfo(torch.float16), torch.finfo(torch.bfloat16)
    fits_fp16 = largest <= fp16.max and smallest >= fp16.tiny
    dtype = asked or (torch.float16 if fits_fp16 else torch.bfloat16)
    if dtype == torch.bfloat16 and largest > bf16.max:
        raise ValueError(
            f"quantize_weight: w needs a scale of {largest:.3g}, above bf16's {bf16.max:.3g}"
        )
    if dtype == torch.float16 and not fits_fp16:
        value = largest if largest > fp16.max else smallest
        raise ValueError(
            f"quantize_weight: scale_dtype torch.float16 holds scales within {fp16.tiny:.3g}.."
            f"{fp16.max:.3g}, w needs {value:.3g}: pass torch.bfloat16, or None to choose"
        )
    return dtype
