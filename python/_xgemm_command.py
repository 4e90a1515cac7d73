"""The console script `xgemm`: on a terminal it says at once what it waits for.

It lies beside the package because whatever imports a part of xgemm imports torch first. That takes
two seconds, and far longer from a cold disk.
"""

from __future__ import annotations

import os
import sys

WAITING = "importing torch ..."
_ERASE_LINE = "\r\x1b[K"


def main() -> None:
    completion = "_XGEMM_COMPLETE" in os.environ  # by the shell, in the middle of a line
    shown = sys.stderr.isatty() and not completion
    if shown:
        print(WAITING, end="", file=sys.stderr, flush=True)
    try:
        from xgemm.cli import main as command
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        if shown:
            print(_ERASE_LINE, end="", file=sys.stderr, flush=True)
    command()
