"""A sweep's times in a small file, for tests of the choice: what each candidate took."""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sweep.library import Shape


@dataclass(frozen=True)
class Recorded:
    shape: Any
    cublas_us: float  # 0 where no peer ran
    us: dict[str, float]  # by the candidates' keys

    def regret(self, key: str) -> float | None:
        """The time of a choice over the best one's, less one; None where it was not swept."""
        return self.us[key] / min(self.us.values()) - 1 if key in self.us else None


@dataclass(frozen=True)
class Timed:
    """A problem, a dataclass, and the seconds that its candidates took."""

    shape: Any
    seconds: dict[str, float]
    peer: float = 0.0


def compact(path: Path, provenance: dict[str, Any], timed: list[Timed], most: int) -> None:
    """`most` of the problems, evenly spread over their order, with times of four digits."""
    step = max(1, len(timed) // most)
    problems = [
        {
            "shape": {name: value for name, value in asdict(each.shape).items() if value != ""},
            "cublas_us": _digits(each.peer),
            "us": {key: _digits(seconds) for key, seconds in each.seconds.items()},
        }
        for each in timed[::step][:most]
    ]
    text = json.dumps({"provenance": provenance, "problems": problems}, separators=(",", ":"))
    path.write_bytes(lzma.compress(text.encode(), preset=9))


def compact_sweep(options: argparse.Namespace, timed: list[Timed]) -> None:
    """As Commands.add_compact has it."""
    report = json.loads(options.sweep.read_text())
    provenance = {
        "command": options.command_line,
        "gpu": report["device"]["name"],
        "torch": report["torch"],
        "cuda": report.get("cuda", ""),
        "seed": report["seed"],
        "measured": options.measured,
        "problems": f"{options.records} of {len(timed)}",
    }
    compact(options.output, provenance, timed, options.records)


def near(seconds: dict[str, float], always: str) -> dict[str, float]:
    """Of many candidates those that take up to 1.5 times the least time, and the choice."""
    least = min(seconds.values())
    return {key: s for key, s in seconds.items() if s < 1.5 * least or key == always}


def read(path: Path, shape: Callable[..., Any] = Shape) -> tuple[dict[str, Any], list[Recorded]]:
    """What `compact` wrote: where it is from, and the problems."""
    found = json.loads(lzma.decompress(path.read_bytes()))
    problems = [
        Recorded(shape(**each["shape"]), each["cublas_us"], each["us"])
        for each in found["problems"]
    ]
    return found["provenance"], problems


def _digits(seconds: float) -> float:
    return float(f"{seconds * 1e6:.4g}")
