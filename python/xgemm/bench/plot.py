"""A benchmark's picture: how many times faster than each peer, case by case."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def plot_benchmark(report: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    records = report["records"]
    labels = [f"{record['case']} {record['size']}" for record in records]
    peers = list(dict.fromkeys(name for record in records for name in record["speedup"]))
    figure, axis = pyplot.subplots(figsize=(max(6.0, 0.32 * len(labels)), 4.8))
    for peer in peers:
        points = [(i, r["speedup"][peer]) for i, r in enumerate(records) if peer in r["speedup"]]
        axis.plot(*zip(*points, strict=True), marker="o", markersize=4, label=f"against {peer}")
    axis.axhline(1.0, color="black", linewidth=0.8)
    axis.set_yscale("log")
    axis.set_ylabel("times faster (above 1: xgemm)")
    axis.set_xticks(range(len(labels)), labels, rotation=90, fontsize=7)
    axis.set_title(
        f"{report['family']}, {report['dtype']}, {report['device']}, "
        f"torch {report['torch']}, {report['threads']} threads",
        fontsize=9,
    )
    axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
