"""Groups of a weight: their ranges, their scales as they are stored, and their codes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

MAX_CODE = 15
# Weights worked on at a time: a search holds a few copies of this many in float32. A GPU needs more
# of them, or launches take the time: 8e9 weights by rtn, 38 s with 2^20, 4 s with 2^24 (H200).
BLOCK_WEIGHTS = 1 << 20
GPU_BLOCK_WEIGHTS = 1 << 24


@dataclass(frozen=True)
class Range:
    """What a group of weights [N, groups] spans."""

    low: torch.Tensor  # <= 0
    high: torch.Tensor  # >= 0


def row_blocks(w: torch.Tensor, size: int) -> Iterator[slice]:
    """Rows of `w` [N, K] that are worked on at a time, in groups of `size`."""
    n, k = w.shape
    weights = BLOCK_WEIGHTS if w.device.type == "cpu" else GPU_BLOCK_WEIGHTS
    step = max(weights // max(-(-k // size) * size, 1), 1)
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


def grouped_channels(w: torch.Tensor, size: int) -> torch.Tensor:
    """[rows, K] as [rows, groups, size], the last group padded with 0 (which changes no range)."""
    wide = w.to(torch.float64 if w.dtype == torch.float64 else torch.float32)
    wide = F.pad(wide, (0, -wide.shape[1] % size))
    return wide.reshape(wide.shape[0], wide.shape[1] // size, size)


def range_of(grouped: torch.Tensor, symmetric: bool) -> Range:
    low = grouped.amin(dim=2).clamp_(max=0)
    high = grouped.amax(dim=2).clamp_(min=0)
    if symmetric:
        high = torch.maximum(-low, high)
        low = -high
    return Range(low, high)


def scale_of(span: Range, shrink: float) -> torch.Tensor:
    # Each end by itself first: high - low may overflow where its fifteenth does not.
    return span.high * (shrink / MAX_CODE) - span.low * (shrink / MAX_CODE)


def stored(scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The scale as `dtype` holds it; 1 for a group of zeros, whose codes then are all zero points.

    A scale below dtype's smallest normal is raised to it: with bf16, whose range is float32's, such
    a group holds weights under 1e-37.
    """
    tiny = torch.finfo(dtype).tiny
    rounded = scale.clamp(min=tiny).to(dtype).to(scale.dtype)
    return torch.where(scale > 0, rounded, torch.ones_like(scale))


def encode(grouped: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    code = (grouped / scale[:, :, None]).round_() + zero[:, :, None]
    return code.clamp_(0, MAX_CODE)


def choose_scale_dtype(
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
        scale = scale_of(range_of(grouped_channels(w[rows], size), symmetric), 1.0)
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
