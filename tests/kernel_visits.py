"""For each kernel and tile that the choice of kernels gives out, the least problem for it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

LAYOUTS = ((False, False), (False, True), (True, False), (True, True))  # transa, transb
M = (1, 2, 4, 5, 8, 12, 16, 24, 32, 48, 64, 100, 128, 129, 200, 256, 384, 512, 640, 1024, 2560)
N = (
    *(1, 8, 16, 64, 65, 96, 128, 264, 520, 1024, 2560, 2563, 4104, 8192, 8640, 12000, 12960, 14336),
    *(17160, 25536, 33792, 34456),
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
W4_PIPELINE_UNITS = 24  # of 128 k: more than the longest pipeline of a CTA holds

# What says which kernel a product [m, k] x [k, n] gets, given also transa and transb: the `choice`
# of explain's JSON.
Choice = dict[str, Any]
Explain = Callable[[int, int, int, bool, bool], Choice]


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
class Kernel:
    """A choice, without the numbers that follow from the shape."""

    name: str
    tile: tuple[int, int]  # of single-tile kernels the compiled one
    stages: int
    cluster: int
    warps: int
    flags: frozenset[str]  # in_parts, stream_k, swapped, shifted, copy_a, tma_store...


FLAGS = ("stream_k", "swapped", "shifted", "copy_a", "copy_b", "copy_x", "tma_store")


def kernel_of(choice: Choice) -> Kernel:
    """The kernel, its tile, stages, cluster, copies: not how many CTAs, parts of K or bytes."""
    tile = [choice.get(f"compiled_{side}", choice[f"block_{side}"]) for side in "mn"]
    flags = {name for name in FLAGS if choice.get(name)}
    if choice["splits"] > 1:
        flags.add("in_parts")
    return Kernel(
        name=choice["kernel"], tile=(tile[0], tile[1]), stages=choice["stages"],
        cluster=choice["cluster"], warps=choice.get("warps", 0), flags=frozenset(flags),
    )  # fmt: skip


@dataclass(frozen=True)
class Visit:
    kernel: Kernel | str
    m: int
    n: int
    k: int
    transa: bool = False
    transb: bool = False

    @property
    def work(self) -> int:
        return self.m * self.n * self.k


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

    def compiled(visit: Visit) -> Hashable:
        assert isinstance(visit.kernel, Kernel)
        return replace(visit.kernel, stages=0, cluster=min(visit.kernel.cluster, 2))

    return least(((compiled(v), v.transa, v.transb), v) for v in visits)


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


def w4_waves(choice: Choice, m: int, n: int, k: int) -> tuple[bool, bool]:
    """Whether CTAs have several tiles, and whether their pipelines are filled more than once."""

    def ceil_div(a: int, b: int) -> int:
        return -(-a // b)

    block_m, block_n, cluster = choice["block_m"], choice["block_n"], choice["cluster"]
    clusters, units = choice["ctas"] // cluster, ceil_div(k, 128)
    if choice["kernel"] != "sm90_wgmma":
        waves = ceil_div(ceil_div(n, block_n), clusters)
        return waves > 1, waves * units // cluster > choice["warps"] * choice["stages"]
    parts = choice["splits"]
    tiles = ceil_div(m, block_m) * ceil_div(n, block_n * cluster // parts)
    if choice["stream_k"]:
        return tiles > clusters, tiles * units // clusters > W4_PIPELINE_UNITS
    waves = ceil_div(tiles, clusters)
    return waves > 1, waves * (units // parts) > W4_PIPELINE_UNITS


def w4_kernel_of(kernel: Kernel, m: int) -> Kernel:
    """The kernel and its tile, of any number of warps and stages."""
    tile = kernel.tile
    if kernel.name in ("sm90_skinny", "sm90_register_resident"):  # compiled for every 8 rows
        tile = (-(-m // 8), tile[1])
    return replace(kernel, tile=tile, warps=0, stages=0)


def w4_compiled(kernel: Kernel) -> Kernel:
    """Without what is decided when it runs."""
    decided = {"stream_k", "copy_x"}
    return replace(kernel, cluster=1, flags=kernel.flags - decided)


def find_w4_visits(
    explain: Callable[[W4Form, int, int, int], Choice], form: W4Form
) -> tuple[Visit, ...]:
    """The same of products with a packed weight; rather some with several waves."""
    whole = form == W4_FORMS[0]
    found: dict[Kernel, tuple[int, int, Visit]] = {}
    for n in W4_N:
        for k in W4_K:
            for m in W4_M if n * k <= MOST_W4_WEIGHT else ():
                choice = explain(form, m, n, k)
                kernel = kernel_of(choice)
                visit = Visit(kernel, m, n, k)
                rank = -sum(w4_waves(choice, m, n, k)), visit.work
                key = w4_kernel_of(kernel, m)
                key = key if whole else w4_compiled(key)
                if key not in found or rank < found[key][:2]:
                    found[key] = (*rank, visit)
    return tuple(visit for *_, visit in found.values())
