"""What a sweep says: how far select_config is from the best, and the constants of a cost model."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch

from sweep.library import Config, Device, Library, Shape


@dataclass
class Record:
    """A shape and the seconds that each configuration took; `torch` is cuBLAS."""

    shape: Shape
    seconds: dict[str, float]
    configs: dict[str, Config]
    torch: float
    chosen: str = ""  # the key of select_config's

    def best(self) -> str:
        return min(self.seconds, key=lambda key: self.seconds[key])


@dataclass
class Regret:
    """select_config's time over the best one's, shape by shape."""

    ratios: list[tuple[float, Record]] = field(default_factory=list)
    unmeasured: list[Record] = field(default_factory=list)  # what it chose was not swept

    def lines(self, worst: int) -> list[str]:
        values = sorted(ratio for ratio, _ in self.ratios)
        if not values:
            return ["nothing to compare"]
        mean = math.exp(sum(map(math.log, values)) / len(values))
        at = [values[min(len(values) - 1, int(share * len(values)))] for share in (0.5, 0.9, 0.99)]
        lines = [
            f"select_config against the best of the sweep, {len(values)} shapes: geometric mean"
            f" {mean:.3f}x, median {at[0]:.3f}x, 90 % {at[1]:.3f}x, 99 % {at[2]:.3f}x,"
            f" worst {values[-1]:.3f}x"
        ]
        for ratio, record in sorted(self.ratios, key=lambda pair: -pair[0])[:worst]:
            s, best = record.shape, record.best()
            lines.append(
                f"  {ratio:.3f}x {s.m}x{s.n}x{s.k} {s.layout}: {record.chosen}"
                f" {record.seconds[record.chosen] * 1e6:.1f} us; {best}"
                f" {record.seconds[best] * 1e6:.1f} us; torch {record.torch * 1e6:.1f} us"
            )
        if self.unmeasured:
            s = self.unmeasured[0].shape
            lines.append(
                f"  {len(self.unmeasured)} choices were not swept, as {self.unmeasured[0].chosen}"
                f" for {s.m}x{s.n}x{s.k} {s.layout}: sweep/candidates.py lacks them"
            )
        return lines


def regret(records: list[Record], library: Library | None, device: Device) -> Regret:
    """Of the recorded choices, or with a library of what its select_config chooses now."""
    found = Regret()
    for record in records:
        if library is not None:
            record.chosen = library.select(record.shape, device).key
        if record.chosen in record.seconds:
            ratio = record.seconds[record.chosen] / record.seconds[record.best()]
            found.ratios.append((ratio, record))
        else:
            found.unmeasured.append(record)
    return found


def against_torch(records: list[Record]) -> list[str]:
    lines = []
    for name, key_of in (("the choice", lambda r: r.chosen), ("the best", Record.best)):
        ratios = [r.torch / r.seconds[key_of(r)] for r in records if key_of(r) in r.seconds]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            slower = sum(ratio < 0.97 for ratio in ratios)
            lines.append(
                f"{name} against torch: geometric mean {mean:.3f}x, least {min(ratios):.3f}x,"
                f" under 0.97x in {slower} of {len(ratios)}"
            )
    return lines


def winners(records: list[Record]) -> list[str]:
    """How often each configuration is the best, and how much is lost without it."""
    wins: dict[str, int] = defaultdict(int)
    lost: dict[str, float] = defaultdict(float)
    for record in records:
        order = sorted(record.seconds, key=lambda key: record.seconds[key])
        tile = order[0].partition(" splits")[0]
        wins[tile] += 1
        others = [key for key in order if key.partition(" splits")[0] != tile]
        if others:
            without = record.seconds[others[0]] / record.seconds[order[0]]
            lost[tile] = max(lost[tile], without)
    return [
        f"{wins[tile]:5d} wins, by {lost[tile]:.2f}x at the most: {tile}"
        for tile in sorted(wins, key=lambda tile: -wins[tile])
    ]


def estimates(records: list[Record]) -> list[str]:
    """How far what each family's select expects of its own choice is from what was measured."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for record in records:
        for key, config in record.configs.items():
            if config.estimate_us > 0 and key in record.seconds:
                ratios[config.kernel].append(record.seconds[key] * 1e6 / config.estimate_us)
    lines = []
    for kernel, values in sorted(ratios.items()):
        logs = [math.log(value) for value in values]
        mean = sum(logs) / len(logs)
        spread = math.sqrt(sum((value - mean) ** 2 for value in logs) / len(logs))
        lines.append(
            f"{kernel}: {math.exp(mean):.3f}x the time that its select expects (geometric mean,"
            f" times or over {math.exp(spread):.2f}), {min(values):.2f}x to {max(values):.2f}x,"
            f" {len(values)} shapes"
        )
    return lines


def turns(record: Record, config: Config, device: Device) -> int:
    """How many tiles the busiest CTA has, where CTAs are persistent or an SM holds one."""
    tiles = math.ceil(record.shape.m / config.block_m) * math.ceil(record.shape.n / config.block_n)
    together = device.sm_count // config.cluster * config.cluster
    return math.ceil(tiles * config.splits / together)


def fit(records: list[Record], device: Device, kernel: str) -> list[dict[str, Any]]:
    """us = launch + turns (overhead + k / rate) for each tile of a kernel, by least squares.

    Of shapes whose arithmetic takes longer than their bytes; errors count relative to the time.
    """
    rows: dict[tuple[int, int, int, int], list[tuple[float, float, float]]] = defaultdict(list)
    for record in records:
        shape = record.shape
        if shape.flops / 800e12 < shape.bytes / 4e12:
            continue
        for key, config in record.configs.items():
            whole = config.kernel == kernel and config.splits == 1
            if whole and key in record.seconds:
                tile = (config.block_m, config.block_n, config.stages, config.cluster)
                rows[tile].append((turns(record, config, device), shape.k, record.seconds[key]))
    found = []
    for tile, measured in sorted(rows.items()):
        if len(measured) < 8:
            continue
        data = torch.tensor(measured, dtype=torch.float64)
        count, k, seconds = data.unbind(1)
        columns = torch.stack([torch.ones_like(count), count, count * k], 1)
        weights = 1 / seconds[:, None]
        solved = torch.linalg.lstsq(columns * weights, torch.ones_like(weights)).solution[:, 0]
        launch, overhead, per_k = solved.tolist()
        error = ((columns @ solved) / seconds).log().abs().mean().exp() - 1
        rate = 2.0 * tile[0] * tile[1] * device.sm_count / per_k
        found.append({
            "tile": tile, "shapes": len(measured), "launch_us": launch * 1e6,
            "overhead_us": overhead * 1e6, "overhead_k": overhead / per_k,
            "tflops": rate * 1e-12, "mean_error": float(error),
        })  # fmt: skip
    return found
