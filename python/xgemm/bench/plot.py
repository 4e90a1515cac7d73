"""A benchmark's picture."""

from __future__ import annotations

from collections.abc import Iterable
from math import log
from pathlib import Path
from typing import Any

RATIOS = (
    *(0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1),
    *(1.1, 1.2, 1.5, 2, 3, 5, 10, 20, 50),
)


def load_pyplot() -> Any:
    """matplotlib's, where no screen is needed: an error tells that it is not installed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def spaced(
    values: Iterable[float], low: float, high: float, most: int, keep: Iterable[float] = ()
) -> list[float]:
    """The `values` within low..high whose labels fit on a log axis that has room for `most`.

    `keep` comes first; the others follow in their order where they stay clear of those taken.
    """
    apart = log(high / low) / most
    shown = list(keep)
    for value in values:
        if low <= value <= high and all(abs(log(value / other)) > apart for other in shown):
            shown.append(value)
    return sorted(shown)


def plain_ticks(axis: Any, values: list[float]) -> None:
    """Ticks of a log axis (a figure's xaxis or yaxis) at `values`, as plain numbers: 1, 2, 50."""
    axis.set_ticks(values, [f"{value:g}" for value in values])
    axis.set_ticks([], minor=True)


def label_decades(axis: Any, low: float, high: float) -> None:
    """Ticks of a log axis that shows low..high: 1, 2, 5 times powers of ten, as plain numbers."""
    plain_ticks(axis, spaced(_decades(low, high), low, high, 10))


def _decades(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten around low..high; whole decades first."""
    values = [step * 10.0**exponent for step in (1, 2, 5) for exponent in range(-9, 10)]
    return [value for value in values if low <= value <= high]


def plot_benchmark(report: dict[str, Any], path: Path) -> None:
    layouts = {record.get("layout") for record in report["records"]}
    several_rows = len(_layers(report)) * 2 <= len(report["records"])
    if report["family"] in ("mul", "w4a16") and len(layouts) == 1 and several_rows:
        plot_rows(report, path)
    else:
        plot_cases(report, path)


def _layers(report: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(record["case"] for record in report["records"]))


def _rows(record: dict[str, Any]) -> int:
    return int(record["size"].partition("x")[0])


def _powers_first(rows: list[int]) -> list[int]:
    return sorted(set(rows), key=lambda row: (row & (row - 1) != 0, row))


def plot_rows(report: dict[str, Any], path: Path) -> None:
    """Microseconds against rows, a panel for each weight: every library, and the floor."""
    pyplot = load_pyplot()
    layers = _layers(report)
    wide = min(len(layers), 4)
    high = -(-len(layers) // wide)
    figure, axes = pyplot.subplots(high, wide, figsize=(4.0 * wide, 3.2 * high), squeeze=False)
    for axis in axes.flat[len(layers) :]:
        axis.set_axis_off()
    for axis, layer in zip(axes.flat, layers, strict=False):
        records = [record for record in report["records"] if record["case"] == layer]
        records.sort(key=_rows)
        rows = [_rows(record) for record in records]
        for name in dict.fromkeys(name for record in records for name in record["seconds"]):
            times = [record["seconds"].get(name, float("nan")) * 1e6 for record in records]
            axis.plot(rows, times, marker="o", markersize=3, label=name)
        if all(record["floor_seconds"] is not None for record in records):
            floors = [record["floor_seconds"] * 1e6 for record in records]
            axis.plot(rows, floors, color="black", linestyle=":", label="floor")
        axis.set_xscale("log", base=2)
        plain_ticks(axis.xaxis, spaced(_powers_first(rows), min(rows), max(rows), 11))
        axis.set_yscale("log")
        label_decades(axis.yaxis, *axis.get_ylim())
        axis.tick_params(labelsize=7)
        axis.set_title(f"{layer} ({records[0]['size'].partition('x')[2]})", fontsize=9)
        axis.set_xlabel("rows")
        axis.set_ylabel("us")
        axis.grid(alpha=0.3)
    axes.flat[0].legend(fontsize=7)
    family = "W4A16" if report["family"] == "w4a16" else "dense products"
    where = f"{report['dtype']}, {report['device']}, torch {report['torch']}"
    figure.suptitle(f"{family}, {where}", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def plot_cases(report: dict[str, Any], path: Path) -> None:
    """How many times faster than each peer, case by case."""
    pyplot = load_pyplot()
    records = report["records"]
    labels = [f"{r['case']} {r['size']} {r['layout']}".rstrip() for r in records]
    peers = list(dict.fromkeys(name for record in records for name in record["speedup"]))
    # Up to 300 cases stay legible when the picture is opened in full.
    width = min(max(6.0, 0.32 * len(labels)), 40.0)
    figure, axis = pyplot.subplots(figsize=(width, 4.8))
    for peer in peers:
        points = [(i, r["speedup"][peer]) for i, r in enumerate(records) if peer in r["speedup"]]
        axis.plot(*zip(*points, strict=True), marker="o", markersize=4, label=f"against {peer}")
    axis.axhline(1.0, color="black", linewidth=0.8)
    starts = [i for i, r in enumerate(records) if i == 0 or r["set"] != records[i - 1]["set"]]
    for start in starts:
        if start > 0:
            axis.axvline(start - 0.5, color="grey", linewidth=0.6, linestyle=":")
        place = (start - 0.4, 0.98)
        axis.text(*place, records[start]["set"], transform=axis.get_xaxis_transform(), va="top")
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    plain_ticks(axis.yaxis, spaced(RATIOS, low, high, 25, keep=[1.0]))
    axis.set_ylabel("times faster (above 1: xgemm)")
    axis.set_xticks(range(len(labels)), labels, rotation=90, fontsize=min(7.0, 1600 / len(labels)))
    axis.set_title(
        f"{report['family']}, {report['dtype']}, {report['device']}, "
        f"torch {report['torch']}, {report['threads']} threads",
        fontsize=9,
    )
    axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
