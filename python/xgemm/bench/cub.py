"""CUB's sums as a peer, through a library built from benchmarks/cub_reduce.cu."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch


@cache
def _library(path: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(path))


def sum_call(path: Path, x: torch.Tensor, dim: int) -> Callable[[], torch.Tensor] | None:
    """CUB's sum of x over dim, or None where CUB has none: along a dense last dimension it has."""
    if x.dtype not in (torch.float16, torch.float32) or not x.is_contiguous():
        return None
    if dim % x.dim() != x.dim() - 1 or not x.is_cuda:
        return None
    length = x.shape[-1]
    rows = x.numel() // max(length, 1)
    out = torch.empty(x.shape[:-1], dtype=x.dtype, device=x.device)
    function, half = _library(path).cub_sum, int(x.dtype == torch.float16)

    def run(temporary: int | None, size: ctypes.c_size_t) -> None:
        error = function(
            half, ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(out.data_ptr()),
            ctypes.c_int64(rows), ctypes.c_int64(length), ctypes.c_void_p(temporary),
            ctypes.byref(size), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
        )  # fmt: skip
        if error:
            raise RuntimeError(f"CUB: CUDA error {error}")

    size = ctypes.c_size_t(0)
    run(None, size)
    temporary = torch.empty(max(size.value, 1), dtype=torch.uint8, device=x.device)

    def call() -> torch.Tensor:
        run(temporary.data_ptr(), size)
        return out

    return call
