"""Pages of 2 MiB under packed weights on the CPU.

A decode step reads all weights once, and a page of 4 KiB holds the codes of two strips: reading
them is as much a matter of translating addresses as of moving bytes, on a virtual machine above
all. docs/measurements/cpu.md has the times.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

import torch

__all__ = ["ask_for_large_pages"]

LARGE_PAGE = 2 << 20
LEAST_BYTES = 64 << 10  # of a weight: less is read from few small pages
_MADV_COLLAPSE = 25  # Linux 6.1 and newer; older kernels refuse it
_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@functools.cache
def _madvise() -> Callable[..., int] | None:
    """The system's function; None where the administrator wants no large pages, or has none."""
    try:
        if "[never]" in _SETTING.read_text():
            return None
        madvise: Callable[..., int] = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    return madvise


def ask_for_large_pages(tensor: torch.Tensor) -> None:
    """Ask Linux to put the bytes of a CPU tensor into pages of 2 MiB, where they lie.

    The address stays and no byte changes. Each aligned block that `tensor` touches is asked for,
    with whatever else lies there: weights smaller than a page share one. What cannot be had (a
    mapped file, a block with a hole in it, an older Linux) stays in small pages.
    """
    if tensor.device.type != "cpu" or type(tensor.nbytes) is not int or tensor.nbytes < LEAST_BYTES:
        return
    madvise = _madvise()
    if madvise is None:
        return
    first = tensor.data_ptr()
    for block in range(first // LARGE_PAGE * LARGE_PAGE, first + tensor.nbytes, LARGE_PAGE):
        madvise(ctypes.c_void_p(block), ctypes.c_size_t(LARGE_PAGE), _MADV_COLLAPSE)
