"""Finds and loads the op library, `_C.abi3.so`, which holds every `torch.ops.xgemm` operator."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import torch

LIBRARY_PATH = Path(__file__).with_name("_C.abi3.so")
_INFO_PATH = Path(__file__).with_name("_build_info.json")


@functools.cache
def load() -> Path:
    """Registers the operators with torch, once a process; returns the library's path."""
    if not LIBRARY_PATH.is_file():
        raise ImportError(
            f"xgemm: the op library is missing: expected {LIBRARY_PATH}. In a checkout, build it"
            " with `make build` (or `python setup.py build_ext --inplace`); otherwise reinstall"
            " xgemm."
        )
    if _registered_by_another():
        raise ImportError(
            "xgemm: this process holds the operators of another xgemm already, and would crash with"
            f" those of {LIBRARY_PATH} as well: import xgemm first, or load one of the two alone"
        )
    try:
        torch.ops.load_library(str(LIBRARY_PATH))
    except OSError as error:
        raise ImportError(
            f"xgemm: {LIBRARY_PATH.name} did not load under torch {torch.__version__} (it needs"
            f" torch 2.10 or newer): {error}"
        ) from error
    return LIBRARY_PATH


def _registered_by_another() -> bool:
    registered = hasattr(torch.ops.xgemm, "explain")
    return registered and str(LIBRARY_PATH) not in torch.ops.loaded_libraries


@functools.cache
def build_info() -> dict[str, Any]:
    """What the library was built for; empty where the build left no record.

    Keys: `version`, `git_commit` (None outside git), `cuda` (toolkit version such as "13.0", None
    for a CPU-only library), `cuda_archs` (such as ["80+90+PTX", "90a"]), `torch` (version of the
    headers), `torch_target` (oldest torch that loads it), `compiler`.
    """
    if not _INFO_PATH.is_file():
        return {}
    info: dict[str, Any] = json.loads(_INFO_PATH.read_text())
    return info
