"""What the fuzzers (fuzz_*.py) share: how long they run, from which seed, and what they say.

XGEMM_FUZZ_SECONDS  how long one fuzzer runs (20)
XGEMM_FUZZ_SEED     where its random numbers begin (0)
XGEMM_FUZZ_CASE     one case alone, by the number that a failure has shown
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable


def fuzz(name: str, case: Callable[[random.Random], None]) -> None:
    """Calls `case` until the time is up, and prints how many there were in how many seconds."""
    seconds = float(os.environ.get("XGEMM_FUZZ_SECONDS", "20"))
    seed = int(os.environ.get("XGEMM_FUZZ_SEED", "0"))
    only = os.environ.get("XGEMM_FUZZ_CASE")
    index = int(only or 0)
    done = 0
    started = time.monotonic()
    while done == 0 or (only is None and time.monotonic() - started < seconds):
        try:
            case(random.Random(f"{name} {seed} {index}"))
        except Exception:
            print(
                f"{name}: case {index} failed; XGEMM_FUZZ_SEED={seed} XGEMM_FUZZ_CASE={index} "
                f"{' '.join(sys.argv)} repeats it",
                flush=True,
            )
            raise
        index += 1
        done += 1
    print(f"{name}: {done} cases in {time.monotonic() - started:.0f} s, seed {seed}", flush=True)
