"""What the commands print with: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

out = Console(highlight=False)
log = Console(stderr=True, highlight=False)


def print_json(value: Any) -> None:
    """One JSON document on stdout; NaN and infinity, which JSON lacks, are refused."""
    print(json.dumps(value, indent=2, allow_nan=False))


def check_writable(option: str, path: Path) -> None:
    """Refuse what cannot be written now, and not after the work."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{option}: {path}: its directory does not exist")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PermissionError(f"{option}: {path} may not be written")


def choose_device(command: str, device: str) -> str:
    """The device that --device names, if torch sees it here; "auto" is the GPU, if there is one."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(device)
    except RuntimeError:
        found = torch.device("meta")
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"{command}: --device must be auto, cpu, cuda or cuda:N, got {device!r}")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"{command}: --device {device}: torch sees no such GPU here")
    return device


def table(title: str, columns: list[str], rows: list[list[str]]) -> Table:
    """The first column left, the others right: names, then numbers."""
    made = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made
