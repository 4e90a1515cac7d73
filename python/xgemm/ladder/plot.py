"""A ladder's picture: rates by rung, with the published points, and a roofline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xgemm.bench.plot import label_decades, load_pyplot


def plot_ladder(report: dict[str, Any], path: Path) -> None:
    pyplot = load_pyplot()
    sizes = list(dict.fromkeys(record["size"] for record in report["records"]))
    figure, axes = pyplot.subplots(
        1, len(sizes), figsize=(5.2 * len(sizes), 4.2), squeeze=False, sharey=True
    )
    for axis, size in zip(axes.flat, sizes, strict=True):
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
            label = f"peak: {report['peak']['of']}"
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
