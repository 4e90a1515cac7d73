"""The demo's picture."""

from __future__ import annotations

from pathlib import Path

from xgemm.bench.plot import load_pyplot
from xgemm.hf.demo import BF16, FP32, FREE, XGEMM, XGEMM_BF16, DemoReport

COLOURS = {FP32: "#9aa5b1", BF16: "#5d8aa8", XGEMM: "#d1495b", XGEMM_BF16: "#a11d33"}


def plot_demo(report: DemoReport, path: Path) -> None:
    """Writes decode speed, prefill speed, bytes and perplexity of the models to `path`."""
    pyplot = load_pyplot()
    rows = [row for row in report.rows if row.name != FREE]
    names = [row.name.replace(", ", "\n") for row in rows]
    colours = [COLOURS[row.name] for row in rows]
    panels = [
        ("decode, tokens/s", [row.decode_tokens_per_s or 0.0 for row in rows], "{:.1f}"),
        ("prefill, tokens/s", [row.prefill_tokens_per_s or 0.0 for row in rows], "{:.0f}"),
        ("linear weights, MB", [(row.linear_bytes or 0) / 1e6 for row in rows], "{:.0f}"),
        ("perplexity", [row.perplexity or 0.0 for row in rows], "{:.3f}"),
    ]
    figure, axes = pyplot.subplots(1, len(panels), figsize=(3.2 * len(panels), 3.6))
    for axis, (title, values, form) in zip(axes, panels, strict=True):
        bars = axis.bar(names, values, color=colours)
        axis.bar_label(bars, [form.format(value) for value in values])
        axis.set_title(title)
        axis.margins(y=0.15)
        axis.tick_params(axis="x", labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    limit = report.row(FREE).decode_tokens_per_s
    if limit is not None:
        axes[0].axhline(limit, color="black", linestyle=":", linewidth=1)
        axes[0].text(-0.4, limit, "linears free", fontsize=8, va="bottom")
    where = f"{report.threads} threads" if report.device == "cpu" else report.device
    figure.suptitle(f"{report.model}, {where}", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
