"""One case of a benchmark, as it is measured."""

from __future__ import annotations

from dataclasses import dataclass

from xgemm.bench.peers import OURS


@dataclass(frozen=True)
class Record:
    """A case: its sizes, the seconds of each library, and the work that a rate is made of."""

    case: str
    size: str
    seconds: dict[str, float]
    flops: float  # 0 where bytes are what counts
    bytes: float
    error_of_bound: float  # xgemm's largest error against float64, as a share of what is allowed
    set: str = ""
    layout: str = ""  # of a and b, where it is an option: nn, nt or tn
    floor_seconds: float | None = None  # the least that the device takes, where that is known

    @property
    def rows(self) -> int:
        """M, of a product."""
        return int(self.size.partition("x")[0])

    def speedup(self) -> dict[str, float]:
        """How many times faster than each peer."""
        ours = self.seconds[OURS]
        return {name: t / ours for name, t in self.seconds.items() if name != OURS}

    def of_floor(self) -> dict[str, float]:
        """Each library's time, in units of the floor."""
        if self.floor_seconds is None:
            return {}
        return {name: t / self.floor_seconds for name, t in self.seconds.items()}
