"""What the tests of the GEMM ops share: operands of any stride, weights, and the comparison."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import nn

from xgemm import PackedWeight, QuantizedWeight, pack, quantize_weight
from xgemm.bench.timing import time_host
from xgemm.formats.mxfp4 import e8m0_to_bfloat16
from xgemm.nn import QuantExperts
from xgemm.nn.float_experts import experts_projections
from xgemm.reference import error_ratio

ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
RAGGED = (0, 1, 2, 15, 16, 17, 33, 129)  # around the tiles' edges

sizes = st.sampled_from(RAGGED)
dtypes = st.sampled_from(DTYPES)
activations = st.sampled_from(ACTIVATIONS)
threads = st.sampled_from((1, 2))
layouts = st.sampled_from(("contiguous", "transposed", "padded", "strided", "expanded", "offset"))
seeds = st.integers(0, 2**31 - 1)


@contextlib.contextmanager
def num_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def laid_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The values of x (of one row, where `expanded`) behind other strides and offsets."""
    if layout == "transposed" and x.dim() >= 2:
        return x.mT.contiguous().mT
    if layout == "padded":  # a leading dimension longer than a row
        wide = torch.full((*x.shape[:-1], x.shape[-1] + 3), float("nan"), dtype=x.dtype)
        wide[..., : x.shape[-1]] = x
        return wide[..., : x.shape[-1]]
    if layout == "strided":
        wide = torch.full((*x.shape[:-1], 2 * x.shape[-1]), float("nan"), dtype=x.dtype)
        wide[..., ::2] = x
        return wide[..., ::2]
    if layout == "expanded" and x.dim() >= 2 and x.shape[-2] > 0:
        return x[..., :1, :].expand(x.shape)
    if layout == "offset":  # an address that no vector load is aligned to
        return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)
    return x


def randn(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def random_weight(
    n: int,
    k: int,
    group_size: int = 128,
    zeros: str = "none",
    scale_dtype: torch.dtype = torch.float16,
    act_order: bool = False,
    seed: int = 0,
) -> QuantizedWeight:
    """A weight of random codes; `zeros` is none, integer (GPTQ, AWQ) or real (HQQ, GGUF)."""
    generator = torch.Generator().manual_seed(seed)
    size = max(k, 1) if group_size == -1 else group_size
    groups = -(-k // size)
    codes = torch.randint(0, 16, (n, k), generator=generator, dtype=torch.uint8)
    scales = (torch.rand(groups, n, generator=generator) * 0.02 + 0.001).to(scale_dtype)
    points = None
    if zeros == "integer":
        points = torch.randint(0, 17, (groups, n), generator=generator).half()
    elif zeros == "real":
        points = (torch.rand(groups, n, generator=generator) * 15).half()
    g_idx = None
    if act_order:
        channels = torch.randperm(k, generator=generator)
        g_idx = (torch.arange(k) // size)[channels].int()
    return QuantizedWeight(codes, scales, points, g_idx, group_size)


def random_mxfp4(
    n: int, k: int, exponents: tuple[int, int] = (118, 124), act_order: bool = False, seed: int = 0
) -> QuantizedWeight:
    """An MXFP4 weight of random codes, with E8M0 scales of random bytes from that range."""
    generator = torch.Generator().manual_seed(seed)
    groups = -(-k // 32)
    codes = torch.randint(0, 16, (n, k), generator=generator, dtype=torch.uint8)
    low, high = exponents
    e8m0 = torch.randint(low, high, (groups, n), generator=generator, dtype=torch.uint8)
    g_idx = None
    if act_order:
        g_idx = (torch.arange(k) // 32)[torch.randperm(k, generator=generator)].int()
    return QuantizedWeight(codes, e8m0_to_bfloat16(e8m0), None, g_idx, 32, fp4=True)


def w4a16_args(p: PackedWeight) -> tuple[torch.Tensor, int, int, int]:
    return p.qweight, p.n, p.k, p.group_size


def w4a16_form(p: PackedWeight) -> dict[str, bool]:
    return {"bf16_scales": p.bf16_scales, "zeros": p.has_zeros}


def small_packed(
    n: int = 48, k: int = 64, **options: object
) -> tuple[QuantizedWeight, PackedWeight]:
    q = random_weight(n, k, **options)
    return q, pack(q)


def assert_within(actual: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor) -> None:
    assert actual.shape == expected.shape
    ratio = error_ratio(actual, expected, bound)
    assert ratio <= 1, f"an error of {ratio:.3g} times the bound"


def needs_memory(gigabytes: float) -> None:
    """Skips the test where the GPU has less to give."""
    free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()
    if free < gigabytes * 2**30:
        pytest.skip(f"needs {gigabytes} GiB of GPU memory, {free / 2**30:.0f} GiB are free")


HOST_ATTEMPTS = 6


def assert_host_time(
    limit: float,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    mode: Callable[[], Any] = torch.inference_mode,
) -> None:
    """One attempt in several must do: the machine may be busy."""
    found = []
    for _ in range(HOST_ATTEMPTS):
        times = time_host({"ours": ours, "theirs": theirs}, mode=mode)
        found.append(times["ours"] / times["theirs"])
        if found[-1] <= limit:
            return
    listed = ", ".join(f"{value:.2f}" for value in found)
    pytest.fail(f"took {listed} times torch's host time, expected at most {limit}")


def in_act_order(module: nn.Module, group_size: int = 32) -> QuantExperts:
    """transformers' experts in 4 bits, all but the first in an order of channels of its own."""
    packed: dict[str, list[PackedWeight]] = {}
    for name, (_, k) in experts_projections(module).items():
        packed[name] = []
        for e, weight in enumerate(getattr(module, name)):
            q = quantize_weight(weight, group_size=group_size)
            generator = torch.Generator().manual_seed(e)
            order = torch.randperm(k, generator=generator)
            g_idx = (order // group_size).int() if e > 0 else None
            packed[name].append(
                pack(QuantizedWeight(q.codes, q.scales, q.zeros, g_idx, group_size))
            )
    return QuantExperts.from_packed(module, packed)
