"""A ladder's picture: rates by rung, with the published points, and a roofline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xgemm.bench.plot import label_decades, load_pyplot

ONE_ROW, PANELS_WIDE = 3, 3  # more panels than the first are laid out by rows of the second


def plot_ladder(report: dict[str, Any], path: Path) -> None:
    pyplot = load_pyplot()
    sizes = list(dict.fromkeys(record["size"] for record in report["records"]))
    bandwidth = report["peak"]["bandwidth"]
    panels = len(sizes) + (bandwidth is not None)
    wide = panels if panels <= ONE_ROW else PANELS_WIDE
    high = -(-panels // wide)
    figure, axes = pyplot.subplots(
        high, wide, figsize=(5.2 * wide, 4.2 * high), squeeze=False, sharey=True
    )
    for axis in axes.flat[panels:]:
        axis.remove()
    if bandwidth is not None:
        _draw_roofline(axes.flat[panels - 1], report)
    for axis, size in zip(axes.flat[: len(sizes)], sizes, strict=True):
        records = [record for record in report["records"] if record["size"] == size]
        rungs = [record for record in records if record["rung"] is not None]
        numbers = [record["rung"] for record in rungs]
        axis.plot(
            numbers, [r["rate"] for r in rungs], marker="o", label=f"rungs, {report['device']}"
        )
        known = [(r["rung"], r["published"]) for r in rungs if r["published"] is not None]
        if known:
            label = f"published, {report['published_on']}"
            axis.plot(*zip(*known, strict=True), marker="s", linestyle="--", label=label)
        for record in records:
            if record["rung"] is None:
                style = ":" if record["name"] == "torch" else "-."
                axis.axhline(record["rate"], color="grey", linestyle=style, label=record["name"])
        if report["peak"]["rate"] is not None:
            peak = report["peak"]
            kind = "roof" if bandwidth is None else "peak"
            label = f"{kind}: {peak['of']}, {peak['clock_mhz']:.0f} MHz"
            axis.axhline(report["peak"]["rate"], color="black", linewidth=0.8, label=label)
        axis.set_yscale("log")
        label_decades(axis.yaxis, *axis.get_ylim())
        axis.set_xticks(numbers)
        axis.set_xlabel("rung")
        axis.set_ylabel(report["unit"])
        axis.set_title(size, fontsize=9)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    figure.suptitle(f"ladder {report['ladder']}, torch {report['torch']}", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def roofline(peak: dict[str, Any], unit: str, intensity: float) -> float:
    """The most that a product of so many FLOP a byte reaches, in `unit`."""
    scale = 1e-3 if unit == "TFLOP/s" else 1.0
    return min(float(peak["rate"]), float(peak["bandwidth"]) * intensity * scale)


def _draw_roofline(axis: Any, report: dict[str, Any]) -> None:
    """Rates over arithmetic intensity: the highest rung, torch and the product at each size."""
    peak, unit = report["peak"], report["unit"]
    top = max((r["rung"] for r in report["records"] if r["rung"] is not None), default=None)
    for name in (f"rung {top}", "torch", "xgemm"):
        points = [(r["intensity"], r["rate"]) for r in report["records"] if r["name"] == name]
        if points:
            axis.plot(*zip(*points, strict=True), marker="o", linestyle="", label=name)
    ridge = peak["rate"] / roofline({**peak, "rate": float("inf")}, unit, 1.0)
    shown = [r["intensity"] for r in report["records"]] + [ridge]
    ends = sorted({min(shown) / 2, ridge, max(shown) * 2})
    roof = [roofline(peak, unit, intensity) for intensity in ends]
    label = f"{peak['bandwidth']:.4g} GB/s read, then {peak['rate']:.4g} {unit}"
    axis.plot(ends, roof, color="black", linewidth=0.8, label=label)
    axis.set_xscale("log")
    axis.set_yscale("log")
    label_decades(axis.xaxis, *axis.get_xlim())
    axis.set_xlabel("FLOP a byte of operands and result, each once")
    axis.set_title("roofline", fontsize=9)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7)
