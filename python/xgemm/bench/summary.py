"""What the cases of a set come to: geometric means, and the worst case."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from xgemm.bench.record import Record


def geometric_mean(values: Iterable[float]) -> float:
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms))


def summarize(records: list[Record]) -> list[dict[str, Any]]:
    """For each set and layout, and for a set's layouts together where there are several."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record.set, record.layout), []).append(record)
    for name in dict.fromkeys(record.set for record in records):
        layouts = [layout for group, layout in groups if group == name]
        if len(layouts) > 1:
            groups[name, "all"] = [record for record in records if record.set == name]
    return [
        {"set": name, "layout": layout, "cases": len(group), **_numbers(group)}
        for (name, layout), group in groups.items()
    ]


# How many rows of activations: one token, a few, a batch, a prompt.
ROW_BANDS = ((1, 1), (2, 8), (9, 16), (17, 64), (65, 128), (129, 256), (257, None))


def summarize_rows(records: list[Record]) -> list[dict[str, Any]]:
    """For each band of M: what a product with a packed weight is limited by depends on it."""
    found = []
    for first, last in ROW_BANDS:
        group = [r for r in records if first <= r.rows and (last is None or r.rows <= last)]
        if group:
            rows = sorted({record.rows for record in group})
            label = f"{rows[0]}" if len(rows) == 1 else f"{rows[0]} .. {rows[-1]}"
            found.append({"rows": label, "cases": len(group), **_numbers(group)})
    return found


def _numbers(records: list[Record]) -> dict[str, Any]:
    peers: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(name for record in records for name in record.speedup()):
        compared = [record for record in records if name in record.seconds]
        worst = min(compared, key=lambda record: record.speedup()[name])
        peers[name] = {
            "geomean": geometric_mean(record.speedup()[name] for record in compared),
            "worst": worst.speedup()[name],
            "worst_case": f"{worst.size} {worst.layout}".rstrip(),
        }
    floors: dict[str, float] = {}
    with_floor = [record for record in records if record.floor_seconds is not None]
    for name in dict.fromkeys(name for record in with_floor for name in record.seconds):
        timed = [record for record in with_floor if name in record.seconds]
        floors[name] = geometric_mean(record.of_floor()[name] for record in timed)
    return {"speedup": peers, "of_floor": floors}
