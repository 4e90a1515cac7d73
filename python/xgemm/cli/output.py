"""What the commands print with: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

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


def table(title: str, columns: list[str], rows: list[list[str]]) -> Table:
    """The first column left, the others right: names, then numbers."""
    made = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made
