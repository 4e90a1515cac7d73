"""The engine's candidates for a problem, and a launch of each, from a library of this folder."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

# What a candidate's JSON has beside its configuration.
BESIDE = ("estimate_us", "parts_us", "reason", "workspace_bytes")


def key_of(fields: dict[str, Any]) -> str:
    """What tells configurations of one problem apart: all fields, but for those that say no."""
    shown = (f"{k}={v}" for k, v in fields.items() if k not in (*BESIDE, "kernel") and v)
    return " ".join((fields["kernel"], *shown))


class Listed:
    """The candidates of one problem by their keys, the engine's choice first."""

    def __init__(
        self,
        library: ctypes.CDLL,
        handle: int,
        alive: object,
        key: Callable[[dict[str, Any]], str] = key_of,
    ) -> None:
        self._library, self._handle, self._alive = library, ctypes.c_void_p(handle), alive
        self.fields: list[dict[str, Any]] = json.loads(library.sweep_text(self._handle))
        keys = list(map(key, self.fields))
        self.chosen = keys[0]
        # The first of those that a key does not tell apart.
        self.numbers = {keys[i]: i for i in reversed(range(len(keys)))}

    def __del__(self) -> None:
        self._library.sweep_close(self._handle)

    @property
    def estimates(self) -> dict[str, float]:
        """Microseconds, by key."""
        return {key: self.fields[number]["estimate_us"] for key, number in self.numbers.items()}

    @property
    def workspace_bytes(self) -> int:
        return max(each["workspace_bytes"] for each in self.fields)

    def prepare(self, key: str, workspace: torch.Tensor) -> Callable[[], None]:
        """A launch on the current stream, whose arguments are made once: the host is in time."""
        assert workspace.numel() * workspace.element_size() >= self.workspace_bytes
        stream = torch.cuda.current_stream().cuda_stream
        arguments = (
            self._handle, ctypes.c_int(self.numbers[key]),
            ctypes.c_void_p(workspace.data_ptr()), ctypes.c_void_p(stream),
        )  # fmt: skip
        run = self._library.sweep_launch

        def launch() -> None:
            error = run(*arguments)
            if error is not None:
                raise RuntimeError(f"{key}: {error.decode()}")

        return launch


def load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    library.sweep_open.restype = ctypes.c_void_p
    library.sweep_text.restype = ctypes.c_char_p
    library.sweep_close.restype = None
    if hasattr(library, "sweep_launch"):  # else the choice alone
        library.sweep_launch.restype = ctypes.c_char_p
    return library
