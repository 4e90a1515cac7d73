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

import torch

from xgemm.formats.quantized import SYMMETRIC_ZERO, QuantizedWeight
from xgemm.quantize.groups import (
    MAX_CODE,
    choose_scale_dtype,
    encode,
    grouped_channels,
    range_of,
    row_blocks,
    scale_of,
    stored,
)

CLIPS = ("none", "mse")
SCALE_DTYPES = (torch.float16, torch.bfloat16)
# Shares of the range tried by clip="mse". Half of it is below the optimum of any bell-shaped group.
SHRINKS = tuple(1.0 - 0.025 * i for i in range(21))


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
    blocks = list(row_blocks(n, max(groups * size, 1)))
    dtype = choose_scale_dtype(w, blocks, size, symmetric, min(shrinks), scale_dtype)

    codes = torch.empty(n, k, dtype=torch.uint8, device=w.device)
    scales = torch.empty(groups, n, dtype=dtype, device=w.device)
    zeros = None if symmetric else torch.empty(groups, n, dtype=torch.float16, device=w.device)
    for rows in blocks:
        grouped = grouped_channels(w[rows], size)
        scale, zero = _search(grouped, symmetric, shrinks, dtype)
        code = encode(grouped, scale, zero).to(torch.uint8)
        codes[rows] = code.reshape(code.shape[0], -1)[:, :k]
        scales[:, rows] = scale.t().to(dtype)
        if zeros is not None:
            zeros[:, rows] = zero.t().to(torch.float16)
    return QuantizedWeight(codes, scales, zeros, None, group_size)


def _search(
    grouped: torch.Tensor, symmetric: bool, shrinks: tuple[float, ...], dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scale and zero point [rows, groups] of least squared error among `shrinks`."""
    span = range_of(grouped, symmetric)
    best: tuple[torch.Tensor, torch.Tensor] | None = None
    least = torch.empty(0)
    for shrink in shrinks:
        scale = stored(scale_of(span, shrink), dtype)
        if symmetric:
            zero = torch.full_like(scale, SYMMETRIC_ZERO)
        else:
            zero = (-span.low * shrink / scale).round_().clamp_(0, MAX_CODE)
        if len(shrinks) == 1:
            return scale, zero
        decoded = (encode(grouped, scale, zero) - zero[:, :, None]) * scale[:, :, None]
        # In units of the group's step, so that squares of huge or tiny weights stay finite.
        unit = stored(scale_of(span, 1.0), dtype)[:, :, None]
        error = ((decoded - grouped) / unit).square_().sum(dim=2)
        if best is None:
            best, least = (scale, zero), error
            continue
        better = error < least
        best = (torch.where(better, scale, best[0]), torch.where(better, zero, best[1]))
        least = torch.where(better, error, least)
    assert best is not None  # shrinks is never empty
    return best
