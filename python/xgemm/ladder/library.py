"""Loads `_ladder.abi3.so`, which holds every `torch.ops.xgemm_ladder` operator."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch

LIBRARY_PATH = Path(__file__).parents[1] / "_ladder.abi3.so"


@functools.cache
def ops() -> Any:
    """torch.ops.xgemm_ladder, registered once a process."""
    if not LIBRARY_PATH.is_file():
        raise ImportError(
            f"ladder: the library is missing: expected {LIBRARY_PATH}. In a checkout, build it with"
            " `make build`; otherwise reinstall xgemm."
        )
    torch.ops.load_library(str(LIBRARY_PATH))
    return torch.ops.xgemm_ladder


def has_cuda_rungs() -> bool:
    """Whether the library was built with nvcc."""
    ops()
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(_PROBE, "CUDA"))


_PROBE = "xgemm_ladder::reduce"
