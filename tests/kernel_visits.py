"""For each kernel and tile that the choice of dense kernels gives out, the least problem for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

LAYOUTS = ((False, False), (False, True), (True, False), (True, True))  # transa, transb
M = (1, 2, 4, 5, 8, 12, 16, 24, 32, 48, 64, 100, 128, 129, 200, 256, 512, 1024, 2560)
N = (1, 8, 16, 64, 65, 96, 128, 264, 520, 1024, 2560, 2563, 4104, 8192, 14336, 33792)
K = (7, 8, 72, 136, 264, 520, 1032, 2056, 4104, 16392)
MOST_WORK = 10**10  # multiplications: what a sanitizer gets through in seconds

# What says which kernel a product [m, k] x [k, n] gets, given also transa and transb.
Explain = Callable[[int, int, int, bool, bool], str]


@dataclass(frozen=True)
class Visit:
    kernel: str  # the explanation's line, without the numbers that follow from the shape
    m: int
    n: int
    k: int
    transa: bool
    transb: bool

    @property
    def work(self) -> int:
        return self.m * self.n * self.k


def kernel_of(said: str) -> str:
    """The kernel, tile, stages, cluster, what is copied: not how many CTAs, parts of K or bytes."""
    line = next(line for line in said.splitlines() if line.startswith("kernel: "))
    line = re.sub(r",? \d+ CTAs|, workspace of \d+ bytes", "", line.removeprefix("kernel: "))
    return re.sub(r"\d+ parts", "parts", line)


def shapes() -> Iterator[tuple[int, int, int]]:
    for m in M:
        for n in N:
            yield from ((m, n, k) for k in K if m * n * k <= MOST_WORK)


def find_visits(explain: Explain) -> tuple[Visit, ...]:
    """For each kernel and layout the problem with the least work."""
    found: dict[tuple[str, bool, bool], Visit] = {}
    for transa, transb in LAYOUTS:
        for m, n, k in shapes():
            visit = Visit(kernel_of(explain(m, n, k, transa, transb)), m, n, k, transa, transb)
            key = visit.kernel, transa, transb
            if key not in found or visit.work < found[key].work:
                found[key] = visit
    return tuple(found.values())
