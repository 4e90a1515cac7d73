"""What each op is compared with, as calls over the same operands."""

from __future__ import annotations

from functools import partial

import torch

import xgemm
from xgemm.bench.timing import Call

OURS = "xgemm"
TORCH = "torch"
COMPILED = "torch.compile"


def mul_calls(a: torch.Tensor, b: torch.Tensor, compiled: bool = False) -> dict[str, Call]:
    """a times b; `compiled`: also by the kernel that torch.compile finds best for these operands.

    On CUDA torch.matmul is cuBLAS.
    """
    calls: dict[str, Call] = {
        OURS: partial(torch.ops.xgemm.mul.default, a, b),
        TORCH: partial(torch.matmul, a, b),
    }
    if compiled:
        torch.compiler.reset()  # or the ninth shape would run uncompiled
        tuned = torch.compile(_product, mode="max-autotune-no-cudagraphs", dynamic=False)
        calls[COMPILED] = partial(tuned, a, b)
    return calls


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def w4a16_calls(
    x: torch.Tensor, packed: xgemm.PackedWeight, w: torch.Tensor, q: xgemm.QuantizedWeight
) -> dict[str, Call]:
    """x times a 4-bit weight; torch's dense linear reads `w`, the same weight dequantized."""
    options = {"bf16_scales": True} if packed.bf16_scales else {}
    op = torch.ops.xgemm.mul.w4a16
    calls: dict[str, Call] = {
        OURS: partial(op, x, packed.qweight, packed.n, packed.k, packed.group_size, **options),
        "torch dense": partial(torch.nn.functional.linear, x, w),
    }
    divides = packed.n % 16 == 0 and packed.k % packed.group_size == 0
    if x.device.type == "cpu" and divides and packed.group_size > 0:
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


def reduce_calls(op: str, x: torch.Tensor, dims: tuple[int, ...]) -> dict[str, Call]:
    ours = getattr(torch.ops.xgemm, op).default
    theirs = torch.linalg.vector_norm if op == "norm" else getattr(torch, op)
    if op in ("argmax", "argmin", "prod"):  # torch takes one dimension here
        calls: dict[str, Call] = {TORCH: partial(theirs, x, dim=dims[0])}
    else:
        calls = {TORCH: partial(theirs, x, dim=dims)}
    argument = dims[0] if op in ("argmax", "argmin") else list(dims)
    return {OURS: partial(ours, x, argument), **calls}
