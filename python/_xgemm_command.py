"""The console script `xgemm`: it says what it waits for, on a terminal at once.

It lies beside the package because whatever imports a part of xgemm imports torch first. That takes
two seconds, and far longer from a cold disk.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

WAITING = "importing torch ..."
SILENT_S = 1.9  # without a terminal nobody hears of what takes less
_ERASE_LINE = "\r\x1b[K"


@contextmanager
def waiting() -> Iterator[None]:
    """While the block runs, stderr says that torch is imported; a terminal forgets it after."""
    if "_XGEMM_COMPLETE" in os.environ:  # by the shell, in the middle of a line
        yield
    elif sys.stderr.isatty():
        print(WAITING, end="", file=sys.stderr, flush=True)
        try:
            yield
        finally:
            print(_ERASE_LINE, end="", file=sys.stderr, flush=True)
    else:
        timer = threading.Timer(SILENT_S, lambda: print(WAITING, file=sys.stderr, flush=True))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def main() -> None:
    try:
        with waiting():
            from xgemm.cli import main as command
    except KeyboardInterrupt:
        sys.exit(130)
    command()
