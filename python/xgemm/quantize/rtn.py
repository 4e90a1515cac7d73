"""Round to nearest: the scale from each group's range, each weight to its nearest code.

Symmetric: zero point 8, so codes stand for -8..7 steps, and scale = max|w| / 7.5. With it no weight
is off by more than half a step: +max rounds to 7, -max to -8 or -7. max|w| / 7 would keep the same
bound with a coarser step; max|w| / 8 has a finer one, but puts the largest weight, if positive, a
whole step off. (7.5 is also the usual (max - min) / 15 of a range made symmetric.)

Asymmetric: the range, widened to hold 0, is cut into 15 steps, with the zero point rounded to an
integer, so that 0 stays exactly 0.

Codes are computed against the scale as it is stored, so its rounding costs next to nothing.

clip="mse" shrinks each group's range to where the squared error of its weights is least, each
weighted by its part in the outputs: by the mean square of its channel's inputs where that is known,
else by |w|. Without these weights the many small weights of a group decide, and the perplexity of a
model rises (docs/measurements/quality.md).
"""

from __future__ import annotations

import torch

from xgemm.formats.quantized import SYMMETRIC_ZERO, QuantizedWeight
from xgemm.quantize.groups import (
    MAX_CODE,
    Range,
    choose_scale_dtype,
    encode,
    grouped_channels,
    range_of,
    row_blocks,
    scale_of,
    stored,
)

Tensor = torch.Tensor

CLIPS = ("none", "mse")
SCALE_DTYPES = (torch.float16, torch.bfloat16)
# Shares of the range tried by clip="mse". Half of it is below the optimum of any bell-shaped group.
SHRINKS = tuple(1.0 - 0.025 * i for i in range(21))


def quantize_rtn(
    w: Tensor,
    group_size: int,
    symmetric: bool,
    clip: str,
    scale_dtype: torch.dtype | None,
    importance: Tensor | None = None,
) -> QuantizedWeight:
    """quantize_weight(method="rtn") of a checked w [N, K].

    importance: [K], the mean (or sum) of each channel's squared inputs; for clip="mse".
    """
    n, k = w.shape
    size = max(k, 1) if group_size == -1 else group_size
    groups = -(-k // size)
    blocks = list(row_blocks(w, size))
    smallest = SHRINKS[-1] if clip == "mse" else 1.0
    dtype = choose_scale_dtype(w, blocks, size, symmetric, smallest, scale_dtype)
    if importance is not None:
        importance = grouped_channels(importance[None], size)

    codes = torch.empty(n, k, dtype=torch.uint8, device=w.device)
    scales = torch.empty(groups, n, dtype=dtype, device=w.device)
    zeros = None if symmetric else torch.empty(groups, n, dtype=torch.float16, device=w.device)
    for rows in blocks:
        grouped = grouped_channels(w[rows], size)
        scale, zero = choose_grid(grouped, symmetric, clip, dtype, importance)
        code = encode(grouped, scale, zero).to(torch.uint8)
        codes[rows] = code.reshape(code.shape[0], -1)[:, :k]
        scales[:, rows] = scale.t().to(dtype)
        if zeros is not None:
            zeros[:, rows] = zero.t().to(torch.float16)
    return QuantizedWeight(codes, scales, zeros, None, group_size)


def choose_grid(
    grouped: Tensor,
    symmetric: bool,
    clip: str,
    dtype: torch.dtype,
    importance: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The scale, as `dtype` holds it, and the zero point of each group, [rows, groups].

    grouped: weights [rows, groups, size].
    importance: as in `quantize_rtn`, [rows or 1, groups, size].
    """
    span = range_of(grouped, symmetric)
    if clip == "none":
        return grid_of(span, symmetric, 1.0, dtype)
    # In steps of the whole range, so that squares of huge or tiny weights stay finite.
    step = stored(scale_of(span, 1.0), dtype)
    x = grouped / step[:, :, None]
    weights = x.abs() if importance is None else importance
    error = torch.empty_like(x)
    best_scale, best_zero = grid_of(span, symmetric, 1.0, dtype)
    least = torch.full_like(step, torch.inf)
    for shrink in SHRINKS:
        scale, zero = grid_of(span, symmetric, shrink, dtype)
        ratio = (scale / step)[:, :, None]
        torch.div(x, ratio, out=error).round_()
        if symmetric:
            error.clamp_(-SYMMETRIC_ZERO, MAX_CODE - SYMMETRIC_ZERO)
        else:
            error.clamp_(-zero[:, :, None], MAX_CODE - zero[:, :, None])
        loss = error.mul_(ratio).sub_(x).square_().mul_(weights).sum(dim=2)
        better = loss < least
        least = torch.where(better, loss, least)
        best_scale = torch.where(better, scale, best_scale)
        best_zero = torch.where(better, zero, best_zero)
    return best_scale, best_zero


def grid_of(
    span: Range, symmetric: bool, shrink: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The scale and zero point of a share of the range."""
    scale = stored(scale_of(span, shrink), dtype)
    if symmetric:
        return scale, torch.full_like(scale, SYMMETRIC_ZERO)
    return scale, (-span.low * shrink / scale).round_().clamp_(0, MAX_CODE)
