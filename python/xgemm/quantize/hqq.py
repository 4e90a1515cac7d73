"""Half-quadratic quantization (HQQ): scales and real zero points fitted to the weights, no data.

Badri, Shaji: Half-Quadratic Quantization of Large Machine Learning Models (2023),
https://mobiusml.github.io/hqq_blog/.

With the quantizer Q(W) = clamp(round(W / s + z), 0, 15) and its inverse D(C) = s (C - z), HQQ seeks

    min over z (and s) of phi(W - D(Q(W))),   phi(x) = sum |x|^p,   p < 1,

a norm that lets the few outliers of a group be far off. Half-quadratic splitting adds a variable
W_e for the error,

    min over z, W_e of phi(W_e) + beta / 2 ||W_e - (W - D(Q(W)))||^2,

and takes turns between two problems, beta growing by kappa with each turn:

    (sp1)  W_e = shrink(W - D(Q(W)), beta),   shrink(x) = sign(x) max(|x| - |x|^(p - 1) / beta, 0)
    (sp2)  z   = mean over the group of  Q(W) - (W - W_e) / s

Four things differ from the paper:

- (sp2) is solved for s as well: the least squares line through the points (Q(W), W - W_e). With
  z = 8 fixed (symmetric) only s is left.
- Errors are measured in steps of the group, so that a weight and its multiples get the same codes.
- p is 1/2, not 0.7: the error is the same, and x^(p - 1) takes a tenth of the time.
- Each turn is judged by the squared error of what is stored: s in fp16 or bf16, z in fp16. The best
  turn counts, group by group. The first one is the grid over the group's whole range.
"""

from __future__ import annotations

import torch

from xgemm.formats.quantized import SYMMETRIC_ZERO, QuantizedWeight
from xgemm.quantize.groups import (
    MAX_CODE,
    choose_scale_dtype,
    range_of,
    row_blocks,
    scale_of,
    stored,
)

Tensor = torch.Tensor

# beta of the first turn, for errors in steps: shrink() keeps those above 0.3 of a step. Of 4, 6, 8
# and 12 it gives all-MiniLM-L6-v2 and SmolLM2 the least error (benchmarks/bench_quality.py).
BETA = 6.0
KAPPA = 1.01  # as in the paper
TURNS = 20  # as in the paper; 10 lose 1 to 3 % of the squared error
MIN_SCALE = 0.5  # of the scale that covers the range: a fitted one stays above it


def quantize_hqq(
    w: Tensor, group_size: int, symmetric: bool, scale_dtype: torch.dtype | None
) -> QuantizedWeight:
    """quantize_weight(method="hqq") of a checked w [N, K]."""
    n, k = w.shape
    size = max(k, 1) if group_size == -1 else group_size
    groups = -(-k // size)
    blocks = list(row_blocks(w, size))
    dtype = choose_scale_dtype(w, blocks, size, symmetric, MIN_SCALE, scale_dtype)

    codes = torch.empty(n, k, dtype=torch.uint8, device=w.device)
    scales = torch.empty(groups, n, dtype=dtype, device=w.device)
    zeros = None if symmetric else torch.empty(groups, n, dtype=torch.float16, device=w.device)
    full = k // size
    for rows in blocks:
        # The short last group by itself: padding would take part in its means.
        for first, last in ((0, full), (full, groups)):
            if first == last:
                continue
            channels = slice(first * size, min(last * size, k))
            part = w[rows, channels].to(_wide(w.dtype))
            grouped = part.reshape(part.shape[0], last - first, -1)
            code, scale, zero = _solve(grouped, symmetric, dtype)
            codes[rows, channels] = code.to(torch.uint8).reshape(part.shape)
            scales[first:last, rows] = scale.t().to(dtype)
            if zeros is not None:
                zeros[first:last, rows] = zero.t().to(torch.float16)
    return QuantizedWeight(codes, scales, zeros, None, group_size)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _solve(grouped: Tensor, symmetric: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [rows, groups, size], scales and zero points [rows, groups] of `grouped`."""
    span = range_of(grouped, symmetric)
    step = stored(scale_of(span, 1.0), dtype)
    x = grouped / step[:, :, None]  # from here on in steps
    scale = torch.ones_like(step)
    zero = torch.full_like(step, SYMMETRIC_ZERO)
    if not symmetric:
        zero = (-span.low / step).to(torch.float16).to(step.dtype)
    best_scale, best_zero = scale, zero
    least = torch.full_like(step, torch.inf)
    beta = BETA
    for _ in range(TURNS):
        code = _encode(x, scale, zero)
        error = (zero[:, :, None] - code).mul_(scale[:, :, None]).add_(x)
        squares = error.square().sum(dim=2)
        better = squares < least
        least = torch.where(better, squares, least)
        best_scale = torch.where(better, scale, best_scale)
        best_zero = torch.where(better, zero, best_zero)
        target = x - _shrink(error, beta)
        mean_code = zero if symmetric else code.mean(dim=2)
        centred = code.sub_(mean_code[:, :, None])
        squares = centred.square().sum(dim=2)
        fitted = centred.mul_(target).sum(dim=2) / squares.clamp(min=1e-6)
        fitted = torch.where(squares > 0, fitted, scale).clamp_(MIN_SCALE, 1.0)
        scale = stored(fitted * step, dtype) / step
        if not symmetric:
            zero = (mean_code - target.mean(dim=2) / scale).to(torch.float16).to(scale.dtype)
        beta *= KAPPA
    return _encode(x, best_scale, best_zero), best_scale * step, best_zero


def _encode(x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """Q: unlike rtn's, the zero point is added before the rounding."""
    return (x / scale[:, :, None]).add_(zero[:, :, None]).round_().clamp_(0, MAX_CODE)


def _shrink(x: Tensor, beta: float) -> Tensor:
    """(sp1): the proximal operator of |x|^p, p = 1/2, as the paper approximates it."""
    size = x.abs()
    threshold = size.clamp(min=1e-6).rsqrt_().div_(beta)
    return size.sub_(threshold).clamp_(min=0).copysign_(x)
