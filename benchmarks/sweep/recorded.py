"""A sweep's times in a small file, for tests of the choice: what each candidate took."""

from __future__ import annotations

import json
import lzma
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sweep.library import Shape
from sweep.model import Record


@dataclass(frozen=True)
class Recorded:
    shape: Shape
    cublas_us: float
    us: dict[str, float]  # by Config.key

    def regret(self, key: str) -> float | None:
        """The time of a choice over the best one's, less one; None where it was not swept."""
        return self.us[key] / min(self.us.values()) - 1 if key in self.us else None


def compact(path: Path, provenance: dict[str, Any], records: list[Record], most: int) -> None:
    """`most` of the records, evenly spread over their order, with times of three digits."""
    step = max(1, len(records) // most)
    problems = [
        {
            "shape": {name: value for name, value in asdict(record.shape).items() if value != ""},
            "cublas_us": _digits(record.torch),
            "us": {key: _digits(seconds) for key, seconds in record.seconds.items()},
        }
        for record in records[::step][:most]
    ]
    text = json.dumps({"provenance": provenance, "problems": problems}, separators=(",", ":"))
    path.write_bytes(lzma.compress(text.encode(), preset=9))


def read(path: Path) -> tuple[dict[str, Any], list[Recorded]]:
    """What `compact` wrote: where it is from, and the problems."""
    found = json.loads(lzma.decompress(path.read_bytes()))
    problems = [
        Recorded(Shape(**each["shape"]), each["cublas_us"], each["us"])
        for each in found["problems"]
    ]
    return found["provenance"], problems


def _digits(seconds: float) -> float:
    return float(f"{seconds * 1e6:.4g}")
