"""Random products with packed weights of every format, and what comes of them.

Like random_products, whose verdicts they are: nothing waits for the device but packing.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import torch
from random_products import (
    ACTIVATIONS,
    SENTINEL,
    Limits,
    Verdict,
    draw_bias,
    draw_destination,
    draw_extent,
    draw_matrix,
    poison,
)

import xgemm
from xgemm import PackedWeight, QuantizedWeight, reference

ON_CUDA = Limits(most=3000, work=1500**3)
ON_CPU = Limits(most=300, work=10**6)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
FEW_ROWS = 0.6  # of the problems have at most 130 rows
GROUP_SIZES = (32, 64, 128, -1)


@dataclass(frozen=True)
class Format:
    group_size: int
    zeros: str  # none, integer (GPTQ, AWQ) or real (HQQ, GGUF)
    scale_dtype: torch.dtype
    act_order: bool


def draw_format(rng: random.Random, act_order: float = 0.2) -> Format:
    return Format(
        rng.choice(GROUP_SIZES),
        rng.choice(("none", "integer", "real")),
        rng.choice((torch.float16, torch.bfloat16)),
        rng.random() < act_order,
    )


def random_weight_on(device: str, n: int, k: int, form: Format) -> QuantizedWeight:
    """Random codes, scales and zeros, drawn on the device; some scales differ by powers of two."""
    size = max(k, 1) if form.group_size == -1 else form.group_size
    groups = -(-k // size)
    codes = torch.randint(0, 16, (n, k), dtype=torch.uint8, device=device)
    scales = torch.rand(groups, n, device=device) * 0.02 + 0.001
    if torch.rand(()) < 0.3:
        scales *= 2.0 ** torch.randint(-8, 9, scales.shape, device=device)
    scales = scales.to(form.scale_dtype)
    zeros = None
    if form.zeros == "integer":
        zeros = torch.randint(0, 17, (groups, n), device=device).half()
    elif form.zeros == "real":
        zeros = (torch.rand(groups, n, device=device) * 15).half()
    g_idx = None
    if form.act_order:
        order = torch.randperm(k, device=device)
        g_idx = (torch.arange(k, device=device) // size)[order].int()
    return QuantizedWeight(codes, scales, zeros, g_idx, form.group_size)


def share_of_bound(
    actual: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor
) -> torch.Tensor:
    """The largest error as a share of its bound, not read yet; infinite where NaN."""
    assert actual.shape == expected.shape
    if actual.numel() == 0:
        return torch.zeros((), dtype=torch.float64, device=actual.device)
    share = (actual.double() - expected).abs() / bound
    return share.nan_to_num(nan=math.inf).max()


def multiply(
    x: torch.Tensor,
    p: PackedWeight,
    bias: torch.Tensor | None,
    activation: str,
    batch_invariant: bool,
    dst: torch.Tensor | None = None,
) -> torch.Tensor:
    shape = (p.qweight, p.n, p.k, p.group_size)
    form = {"bf16_scales": p.bf16_scales, "zeros": p.has_zeros, "activation": activation}
    form["batch_invariant"] = batch_invariant
    if dst is None:
        return torch.ops.xgemm.mul.w4a16(x, *shape, bias, p.perm, **form)
    torch.ops.xgemm.mul_into.w4a16(dst, x, *shape, bias, p.perm, **form)
    return dst


def run_problem(rng: random.Random, limits: Limits, device: str) -> Verdict:
    dtype = rng.choices(DTYPES, (4, 4, 1))[0]
    form = draw_format(rng)
    while True:
        m, n, k = (draw_extent(rng, limits) for _ in range(3))
        if rng.random() < FEW_ROWS:
            m = rng.randint(0, 130)
        if m * n * k <= limits.work and n * k <= limits.work:
            break
    batch = [rng.randint(1, 3) for _ in range(rng.choice((0, 0, 0, 1, 2)))]
    x, kind = draw_matrix(rng, m, k, dtype, batch, device)
    if not batch and m == 1 and rng.random() < 0.3:
        x, kind = x[0], "vector"
    q = random_weight_on(device, n, k, form)
    p = xgemm.pack(q)
    bias, activation = draw_bias(rng, n, dtype, device), rng.choice(ACTIVATIONS)
    invariant = rng.random() < 0.2
    shape = (*x.shape[:-1], n)
    kept = torch.ones((), dtype=torch.bool, device=device)
    if rng.random() < 0.3 and len(shape) >= 2:
        y, buffer = draw_destination(rng, shape, dtype, device)
        result = multiply(x, p, bias, activation, invariant, y).clone()
        y.fill_(SENTINEL)
        kept = (buffer == SENTINEL).all()
        again = multiply(x, p, bias, activation, invariant, y.fill_(math.nan))
    else:
        poison(shape, dtype, device)
        result = multiply(x, p, bias, activation, invariant)
        again = multiply(x, p, bias, activation, invariant)
    text = (
        f"{dtype} x {tuple(x.shape)} {x.stride()} ({kind}), w [{n}, {k}] {form},"
        f" bias {bias is not None}, {activation}, batch_invariant {invariant}"
    )
    expected = reference.w4a16(x, q, bias, activation)
    share = share_of_bound(result, expected, reference.w4a16_bound(x, q, bias, activation))
    return Verdict(text, share, (result == again).all(), kept)


def run_gradient(rng: random.Random, limits: Limits, device: str) -> Verdict:
    """The gradient in a, of a random grad."""
    dtype = rng.choices(DTYPES, (4, 4, 1))[0]
    form = draw_format(rng)
    while True:
        m, n, k = (draw_extent(rng, limits) for _ in range(3))
        if m * n * k <= limits.work and n * k <= limits.work:
            break
    grad, kind = draw_matrix(rng, m, n, dtype, [], device)
    q = random_weight_on(device, n, k, form)
    p = xgemm.pack(q)
    arguments = (grad, p.qweight, p.n, p.k, p.group_size, p.perm)
    options = {"bf16_scales": p.bf16_scales, "zeros": p.has_zeros}
    poison((m, k), dtype, device)
    result = torch.ops.xgemm.w4a16_grad_a(*arguments, **options)
    again = torch.ops.xgemm.w4a16_grad_a(*arguments, **options)
    share = share_of_bound(
        result, reference.w4a16_grad_a(grad, q), reference.w4a16_grad_a_bound(grad, q)
    )
    text = f"gradient {dtype} grad {(m, n)} {grad.stride()} ({kind}), w [{n}, {k}] {form}"
    kept = torch.ones((), dtype=torch.bool, device=device)
    return Verdict(text, share, (result == again).all(), kept)
