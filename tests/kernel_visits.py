"""For each kernel and tile that the choice of kernels gives out, the least problem for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

LAYOUTS = ((False, False), (False, True), (True, False), (True, True))  # transa, transb
M = (1, 2, 4, 5, 8, 12, 16, 24, 32, 48, 64, 100, 128, 129, 200, 256, 384, 512, 640, 1024, 2560)
N = (
    *(1, 8, 16, 64, 65, 96, 128, 264, 520, 1024, 2560, 2563, 4104, 8192, 8640, 12000, 12960, 14336),
    33792,
)
K = (7, 8, 72, 136, 264, 520, 1032, 2056, 4104, 16392)
MOST_WORK = 10**10  # multiplications: what a sanitizer gets through in seconds
W4_M = (
    *(1, 5, 8, 9, 16, 17, 24, 32, 48, 64, 65, 80, 96, 100, 112, 128, 130, 192, 200, 256, 272),
    *(384, 512, 520, 1024),
)
W4_N = (64, 200, 1024, 4096, 10240, 12288, 13312, 14336, 17408, 28672, 40000, 57344)
W4_K = (96, 256, 512, 1100, 4096, 16384)
MOST_W4_WEIGHT = 1 << 24  # elements: packed on the host

# What says which kernel a product [m, k] x [k, n] gets, given also transa and transb.
Explain = Callable[[int, int, int, bool, bool], str]


class Sized(Protocol):
    @property
    def work(self) -> int: ...


Problem = TypeVar("Problem", bound=Sized)


def least(problems: Iterable[tuple[Hashable, Problem]]) -> tuple[Problem, ...]:
    """Of each key the problem with the least work."""
    found: dict[Hashable, Problem] = {}
    for key, problem in problems:
        if key not in found or problem.work < found[key].work:
            found[key] = problem
    return tuple(found.values())


@dataclass(frozen=True)
class Visit:
    kernel: str  # the explanation's line, without the numbers that follow from the shape
    m: int
    n: int
    k: int
    transa: bool = False
    transb: bool = False

    @property
    def work(self) -> int:
        return self.m * self.n * self.k


def kernel_of(said: str) -> str:
    """The kernel, its tile, stages, cluster, copies: not how many CTAs, parts of K or bytes."""
    line = next(line for line in said.splitlines() if line.startswith("kernel: "))
    line = re.sub(r",? \d+ CTAs|, workspace of \d+ bytes", "", line.removeprefix("kernel: "))
    line = re.sub(r"tile \d+x\d+ of at most", "tile", line)
    return re.sub(r"\d+ parts", "parts", line)


def shapes(most_work: int) -> Iterator[tuple[int, int, int]]:
    for m in M:
        for n in N:
            yield from ((m, n, k) for k in K if m * n * k <= most_work)


def find_visits(explain: Explain, most_work: int = MOST_WORK) -> tuple[Visit, ...]:
    """For each kernel and layout the problem with the least work."""

    def problems() -> Iterator[tuple[Hashable, Visit]]:
        for transa, transb in LAYOUTS:
            for m, n, k in shapes(most_work):
                visit = Visit(kernel_of(explain(m, n, k, transa, transb)), m, n, k, transa, transb)
                yield (visit.kernel, transa, transb), visit

    return least(problems())


def of_compiled(visits: Iterable[Visit]) -> tuple[Visit, ...]:
    """Of those that differ in the number of stages or a cluster's size alone one each."""

    def compiled(kernel: str) -> str:
        return re.sub(r"clusters of \d+", "clusters", re.sub(r", \d+ stages", "", kernel))

    return least(((compiled(v.kernel), v.transa, v.transb), v) for v in visits)


def find_w4_visits(explain: Callable[[int, int, int], str]) -> tuple[Visit, ...]:
    """The same of products with a packed weight, of any number of warps and stages."""

    def problems() -> Iterator[tuple[Hashable, Visit]]:
        for n in W4_N:
            for k in W4_K:
                for m in W4_M if n * k <= MOST_W4_WEIGHT else ():
                    visit = Visit(kernel_of(explain(m, n, k)), m, n, k)
                    key = re.sub(r", \d+ (stages|warps)", "", visit.kernel)
                    if re.search(
                        "rows|whole", key
                    ):  # it names them all, and is compiled for every 8
                        key = re.sub(r"tile \d+x(\d+)", rf"{-(-m // 8)} tiles, \1", key)
                    yield key, visit

    return least(problems())
