"""What each op is compared with, as calls over the same operands."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import xgemm
from xgemm.bench.cub import sum_call as cub_sum_call
from xgemm.bench.timing import Call

Call1 = Callable[[torch.Tensor], object]

OURS = "xgemm"
TORCH = "torch"
COMPILED = "torch.compile"
DENSE = "torch dense"  # on CUDA: cuBLAS over the weight in 16 bits
HUMMING = "humming"
CUB = "CUB"


def mul_calls(a: torch.Tensor, b: torch.Tensor, compiled: bool = False) -> dict[str, Call]:
    """a times b; `compiled`: also by the kernel that torch.compile finds best for these operands.

    On CUDA torch.matmul is cuBLAS.
    """
    calls: dict[str, Call] = {
        OURS: partial(torch.ops.xgemm.mul.default, a, b),
        TORCH: partial(torch.matmul, a, b),
    }
    if compiled:
        calls[COMPILED] = compiled_product(a, b)
    return calls


def compiled_product(a: torch.Tensor, b: torch.Tensor) -> Call:
    """a times b by torch.compile, which tries what it has at the first call."""
    return _compiled(_product, a, b)


def _compiled(call: Callable[..., object], *arguments: torch.Tensor) -> Call:
    torch.compiler.reset()  # or the ninth shape would run uncompiled
    tuned = torch.compile(call, mode="max-autotune-no-cudagraphs", dynamic=False)
    return partial(tuned, *arguments)


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def humming_layer(w: torch.Tensor, group_size: int) -> Call1 | None:
    """The linear of humming-kernels over the same weight, as a function of x; None without it.

    It is optional (PyPI: humming-kernels, with nvcc at run time), compiles for some seconds at its
    first call, and takes only a K that the group divides.
    """
    n, k = w.shape
    usable = w.is_cuda and w.dtype in (torch.float16, torch.bfloat16) and k % group_size == 0
    if not usable or importlib.util.find_spec("humming") is None:
        return None
    from humming.layer import HummingLayer

    config = {"dtype": "int4", "group_size": group_size}
    layer: Any = HummingLayer(shape_n=n, shape_k=k, weight_config=config, torch_dtype=w.dtype)
    layer = layer.cuda()
    layer.load_from_unquantized(w)
    layer.transform()
    call: Call1 = layer
    return call


def w4a16_calls(
    x: torch.Tensor,
    packed: xgemm.PackedWeight,
    w: torch.Tensor,
    q: xgemm.QuantizedWeight,
    humming: Call1 | None = None,
    batch_invariant: bool = False,
) -> dict[str, Call]:
    """x times a 4-bit weight; torch's dense linear reads `w`, the same weight dequantized."""
    calls: dict[str, Call] = {
        OURS: partial(xgemm.linear, x, packed, batch_invariant=batch_invariant),
        DENSE: partial(torch.nn.functional.linear, x, w),
    }
    if humming is not None:
        calls[HUMMING] = partial(humming, x)
    takes = packed.n % 16 == 0 and q.zeros is None
    takes = takes and packed.group_size > 0 and packed.k % packed.group_size == 0
    if x.device.type == "cpu" and takes:
        calls["torch int4 (bf16)"] = _torch_int4(x, q)
    return calls


def _torch_int4(x: torch.Tensor, q: xgemm.QuantizedWeight) -> Call:
    """torch's own 4-bit op, with bf16 activations: it is many times slower with any other."""
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(q.codes.int(), 1)
    # It takes w = (code - 8) * scale + offset; offset 0 is our symmetric zero point.
    scales = q.scales.bfloat16()
    scales_and_offsets = torch.stack((scales, torch.zeros_like(scales)), dim=-1).contiguous()
    op = torch.ops.aten._weight_int4pack_mm_for_cpu
    return partial(op, x.bfloat16(), packed, q.group_size, scales_and_offsets)


def reduce_calls(
    op: str,
    x: torch.Tensor,
    dims: tuple[int, ...],
    compiled: bool = False,
    cub: Path | None = None,
) -> dict[str, Call]:
    """op of x over dims; `compiled`: by torch.compile, too, `cub`: sums by that library, too."""
    ours = getattr(torch.ops.xgemm, op).default
    theirs = torch.linalg.vector_norm if op == "norm" else getattr(torch, op)
    one = op in ("argmax", "argmin", "prod")  # torch takes one dimension here
    theirs = partial(theirs, dim=dims[0] if one else dims)
    argument = dims[0] if op in ("argmax", "argmin") else list(dims)
    calls: dict[str, Call] = {OURS: partial(ours, x, argument), TORCH: partial(theirs, x)}
    if compiled:
        calls[COMPILED] = _compiled(theirs, x)
    if cub is not None and op == "sum" and len(dims) == 1:
        call = cub_sum_call(cub, x, dims[0])
        if call is not None:
            calls[CUB] = call
    return calls
