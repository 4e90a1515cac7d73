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
ODD = ((1024, 1024, 1025), (1024, 1024, 2052))  # rows of A are read shifted
MOST_WORK = 10**10  # multiplications: what a sanitizer gets through in seconds
W4_M = (
    *(1, 5, 9, 12, 17, 32, 40, 56, 65, 88, 100, 128, 130, 160, 176, 200, 240, 272, 352, 512),
    *(520, 640, 768, 896, 1024),
)
W4_N = (
    *(64, 128, 192, 200, 320, 448, 640, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 5120),
    *(6144, 10240, 12288, 13312, 14336, 17408, 28672, 40000, 57344),
)
W4_K = (96, 256, 512, 640, 768, 1024, 1100, 1536, 2048, 2560, 4096, 8192, 16384)
MOST_W4_WEIGHT = 1 << 24  # elements: packed on the host
W4_RING_UNITS = 24  # of 128 k: more than the longest ring of a CTA holds

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
    yield from ODD
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


@dataclass(frozen=True)
class W4Form:
    """What kernels for packed weights are compiled for, beside their tiles."""

    group_size: int
    zeros: bool
    bf16_scales: bool
    dtype: str
    batch_invariant: bool = False  # takes tiles of few columns for many rows, too


# The first one's visits take each way to share K, to cluster and to copy, the others' each kernel.
W4_FORMS = (
    W4Form(128, zeros=False, bf16_scales=False, dtype="float16"),
    W4Form(128, zeros=False, bf16_scales=True, dtype="bfloat16"),
    W4Form(128, zeros=False, bf16_scales=False, dtype="float16", batch_invariant=True),
    W4Form(32, zeros=True, bf16_scales=False, dtype="float16"),
    W4Form(64, zeros=False, bf16_scales=True, dtype="bfloat16"),
    W4Form(32, zeros=True, bf16_scales=False, dtype="bfloat16"),
    W4Form(-1, zeros=True, bf16_scales=True, dtype="float16"),
    W4Form(-1, zeros=False, bf16_scales=True, dtype="bfloat16"),
)


def w4_turns(said: str, m: int, n: int, k: int) -> tuple[bool, bool]:
    """Whether CTAs have several tiles, and whether their rings are filled more than once."""
    line = next(line for line in said.splitlines() if line.startswith("kernel: "))

    def ceil_div(a: int, b: int) -> int:
        return -(-a // b)

    def number(pattern: str) -> int:
        found = re.search(pattern, line)
        return int(found[1]) if found else 1

    block_m, block_n = number(r"tile (\d+)x"), number(r"tile \d+x(\d+)")
    cluster, parts = number(r"clusters of (\d+)"), number(r"K in (\d+) parts")
    clusters = number(r"(\d+) CTAs") // cluster
    units = ceil_div(k, 128)
    if "wgmma" not in line:
        turns = ceil_div(ceil_div(n, block_n), clusters)
        ring = number(r"(\d+) warps") * number(r"(\d+) stages")
        return turns > 1, turns * units // cluster > ring
    tiles = ceil_div(m, block_m) * ceil_div(n, block_n * cluster // parts)
    if "stream-K" in line:
        return tiles > clusters, tiles * units // clusters > W4_RING_UNITS
    turns = ceil_div(tiles, clusters)
    return turns > 1, turns * (units // parts) > W4_RING_UNITS


def w4_kernel_of(said: str, m: int) -> str:
    """The kernel and its tile, of any number of warps and stages."""
    key = re.sub(r", \d+ (stages|warps)", "", kernel_of(said))
    if re.search("skinny|register-resident", key):  # it names them all, and is compiled for every 8
        key = re.sub(r"tile \d+x(\d+)", rf"{-(-m // 8)} tiles, \1", key)
    return key


def w4_compiled(kernel: str) -> str:
    """Without what is decided when it runs."""
    return re.sub(r", (clusters of \d+|stream-K|x copied first)", "", kernel)


def find_w4_visits(
    explain: Callable[[W4Form, int, int, int], str], form: W4Form
) -> tuple[Visit, ...]:
    """The same of products with a packed weight; rather some with several turns."""
    key = str if form == W4_FORMS[0] else w4_compiled
    found: dict[str, tuple[int, int, Visit]] = {}
    for n in W4_N:
        for k in W4_K:
            for m in W4_M if n * k <= MOST_W4_WEIGHT else ():
                said = explain(form, m, n, k)
                visit = Visit(kernel_of(said), m, n, k)
                rank = -sum(w4_turns(said, m, n, k)), visit.work
                kernel = key(w4_kernel_of(said, m))
                if kernel not in found or rank < found[kernel][:2]:
                    found[kernel] = (*rank, visit)
    return tuple(visit for *_, visit in found.values())
