"""Mixtures of experts for tests: random ones, and what `moe.w4a16` must make of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from helpers import randn, random_mxfp4, random_weight

import xgemm
from xgemm import reference
from xgemm.activations import activate

SLOPE, UNIT_F32 = 1.13, 2.0**-24  # of an activation at most; of float32


@dataclass
class Mixture:
    """One call of `moe.w4a16`: ids [T, k], a [T, K] or [T k, K]."""

    weights_4bit: list[xgemm.QuantizedWeight]
    ids: torch.Tensor
    a: torch.Tensor
    bias: torch.Tensor | None = None
    weights: torch.Tensor | None = None
    activation: str = "none"
    packed: list[xgemm.PackedWeight] = field(init=False)

    def __post_init__(self) -> None:
        self.packed = [xgemm.pack(q) for q in self.weights_4bit]

    def args(self, sorted: torch.Tensor) -> tuple[Any, ...]:
        """The arguments of the op but the options."""
        p = self.packed[0]
        qweight = torch.stack([e.qweight for e in self.packed])
        perm = None
        if any(e.perm is not None for e in self.packed):
            in_order = torch.arange(p.k, dtype=torch.int32, device=qweight.device)
            perm = torch.stack([in_order if e.perm is None else e.perm for e in self.packed])
        top_k = self.ids.shape[1]
        return (self.a, qweight, sorted, top_k, p.n, p.k, p.group_size, self.bias, perm,
                self.weights)  # fmt: skip

    def options(self) -> dict[str, Any]:
        p = self.packed[0]
        form = {"bf16_scales": p.bf16_scales, "zeros": p.has_zeros, "fp4": p.fp4}
        return {**form, "activation": self.activation}

    def to(self, device: str) -> Mixture:
        moved = {
            name: None if value is None else value.to(device)
            for name, value in vars(self).items()
            if name in ("ids", "a", "bias", "weights")
        }
        other = replace(self, **moved)
        other.packed = [p.to(device) for p in other.packed]
        return other


def mixture(
    tokens: int,
    top_k: int,
    experts: int,
    n: int,
    k: int,
    dtype: torch.dtype = torch.float16,
    group_size: int = 128,
    zeros: str = "none",
    scales: torch.dtype = torch.float16,
    *,
    act_order: bool = False,
    bias: bool = False,
    weights: torch.dtype | None = None,
    rows: str = "tokens",
    activation: str = "none",
    strangers: bool = False,
    seed: int = 0,
    fp4: bool = False,
) -> Mixture:
    """A random one; with `strangers` some slots are of no expert.

    fp4: of MXFP4 weights, whatever group_size, zeros and scales say.
    """
    generator = torch.Generator().manual_seed(seed)
    low, high = (-2, experts + 2) if strangers else (0, experts)
    ids = torch.randint(low, high, (tokens, top_k), generator=generator, dtype=torch.int32)
    quantized = [
        random_mxfp4(n, k, act_order=act_order, seed=seed + e)
        if fp4
        else random_weight(n, k, group_size, zeros, scales, act_order, seed=seed + e)
        for e in range(experts)
    ]
    return Mixture(
        quantized,
        ids,
        randn((tokens if rows == "tokens" else tokens * top_k, k), dtype, seed),
        randn((experts, n), dtype, seed + 1) if bias else None,
        None if weights is None else randn((tokens, top_k), weights, seed + 2),
        activation,
    )


def expected_and_bound(m: Mixture) -> tuple[torch.Tensor, torch.Tensor]:
    """The result in float64, and the largest error of each element."""
    tokens, top_k = m.ids.shape
    n = m.packed[0].n
    gated = m.activation.endswith("_and_mul")
    columns = n // 2 if gated else n
    y = torch.zeros(tokens * top_k, columns, dtype=torch.float64)
    bound = torch.zeros_like(y)
    of_token = m.a.shape[0] == tokens
    for s, e in enumerate(m.ids.flatten().tolist()):
        if not 0 <= e < len(m.packed):
            continue
        x = m.a[s // top_k if of_token else s][None]
        bias = None if m.bias is None else m.bias[e]
        activation = "none" if gated else m.activation
        q = m.weights_4bit[e]
        one = reference.w4a16(x, q, bias, activation)[0]
        error = reference.w4a16_bound(x, q, bias, activation)[0]
        if gated:
            one, error = _gated(one, error, m.activation.removesuffix("_and_mul"), x.dtype)
        y[s], bound[s] = one, error
    if m.weights is None:
        return y, bound
    weights = m.weights.double()[..., None]
    y, bound = y.view(tokens, top_k, columns), bound.view(tokens, top_k, columns)
    sums, magnitude = (weights * y).sum(1), (weights * y).abs().sum(1)
    error = (weights.abs() * bound).sum(1) + (top_k + 1) * UNIT_F32 * magnitude
    return sums, error + _rounding(sums.abs() + error, m.a.dtype)


def _gated(
    y: torch.Tensor, error: torch.Tensor, activation: str, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    gate, up = y.chunk(2)
    gate_error, up_error = error.chunk(2)
    acted = activate(gate, activation)
    acted_error = SLOPE * gate_error + 16 * UNIT_F32 * gate.abs()
    product = acted * up
    wrong = acted.abs() * up_error + up.abs() * acted_error + acted_error * up_error
    wrong = wrong + 2 * UNIT_F32 * product.abs()
    return product, wrong + _rounding(product.abs() + wrong, dtype)


def _rounding(magnitude: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    step = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    return reference.unit_roundoff(dtype) * magnitude + step


def sorted_slots(ids: torch.Tensor, experts: int) -> torch.Tensor:
    """What `moe_sort` must give."""
    flat = ids.flatten().long().cpu()
    flat = torch.where((flat < 0) | (flat >= experts), experts, flat)
    order = flat.argsort(stable=True)
    bounds = torch.searchsorted(flat[order], torch.arange(experts + 1))
    return torch.cat([bounds, order]).int()


def run_op(m: Mixture) -> torch.Tensor:
    sorted = torch.ops.xgemm.moe_sort(m.ids, len(m.packed))
    return torch.ops.xgemm.moe.w4a16(*m.args(sorted), **m.options())


def check(m: Mixture, run: Callable[[Mixture], torch.Tensor] = run_op) -> torch.Tensor:
    """What `run` gives, which is within the bound of float64."""
    y = run(m)
    ratio = reference.error_ratio(y.cpu(), *expected_and_bound(m.to("cpu")))
    assert ratio <= 1, f"{ratio:.3g} of the bound"
    return y


_FORMS = (("none", torch.float16), ("integer", torch.bfloat16), ("real", torch.float16))
FORMATS = [(size, zeros, scales) for size in (32, 64, 128, -1) for zeros, scales in _FORMS]
