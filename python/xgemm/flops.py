"""Operations of the GEMM ops, for torch.utils.flop_counter.FlopCounterMode."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

_ops = torch.ops.xgemm


@register_flop_formula(_ops.mul)
def _mul(a: Any, b: Any, *args: Any, out_shape: Any = None, **options: Any) -> int:
    if args and isinstance(args[0], int):  # mul.w4a16(a, qweight, n, k, group_size)
        n, k = args[0], args[1]
        return 2 * math.prod(a[:-1]) * n * k
    return 2 * math.prod(out_shape) * a[-1]


@register_flop_formula(_ops.w4a16_grad_a)
def _w4a16_grad_a(grad: Any, qweight: Any, n: int, k: int, *args: Any, **options: Any) -> int:
    return 2 * math.prod(grad[:-1]) * n * k


@register_flop_formula(_ops.sgemm)
def _sgemm(a: Any, b: Any, *args: Any, out_shape: Any = None, **options: Any) -> int:
    k = a[-2] if options.get("transa", False) else a[-1]
    return 2 * math.prod(out_shape) * k
