"""The plot of a quantization report: the error of each layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xgemm.quantize.report import QuantizationReport

MOST_KINDS = 20  # panels are drawn for the kinds of the largest error


def plot_errors(report: QuantizationReport, path: Path) -> None:
    """Writes the relative error of each layer to `path`: a line for each kind of layer, its layers
    in the model's order, errors of outputs above those of weights where they are known.

    Needs matplotlib. ValueError where the report has no layer.
    """
    from xgemm.bench.plot import load_pyplot

    if not report.errors:
        raise ValueError("plot_errors: the report has no quantized layer")
    pyplot = load_pyplot()
    kinds = sorted(report.layers_by_kind().items(), key=lambda kind: -_largest(report, kind[1]))
    kinds = kinds[:MOST_KINDS]
    known = any(error.outputs is not None for error in report.errors.values())
    quantities = ["outputs", "weights"] if known else ["weights"]
    longest = max(len(names) for _, names in kinds)
    size = (min(max(7.0, 0.3 * longest + 4), 24.0), 1.0 + 3.4 * len(quantities))
    figure, axes = pyplot.subplots(len(quantities), 1, figsize=size, squeeze=False, sharex=True)
    for axis, quantity in zip(axes[:, 0], quantities, strict=True):
        _draw(axis, quantity, kinds, report)
    axes[-1, 0].set_xlabel("layer of the kind, in the model's order")
    axes[0, 0].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.suptitle(report.title, fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _draw(
    axis: Any, quantity: str, kinds: list[tuple[str, list[str]]], report: QuantizationReport
) -> None:
    markers = "osv^D"
    for index, (kind, names) in enumerate(kinds):
        values = [getattr(report.errors[name], quantity) for name in names]
        points = [float("nan") if value is None else 100 * value for value in values]
        axis.plot(points, marker=markers[index // 10 % len(markers)], markersize=3, label=kind)
    axis.set_ylabel(f"relative error of {quantity}, %")
    axis.set_ylim(bottom=0)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.grid(alpha=0.3)


def _largest(report: QuantizationReport, names: list[str]) -> float:
    return max(report.errors[name].shown for name in names)
