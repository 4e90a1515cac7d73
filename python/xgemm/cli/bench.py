"""`xgemm bench`: prints what xgemm.bench measures."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from xgemm.bench.options import Options
from xgemm.bench.peers import OURS
from xgemm.bench.plot import load_pyplot, plot_benchmark
from xgemm.bench.record import Record
from xgemm.bench.run import run_benchmark
from xgemm.bench.shapes import PRODUCT_SETS, REDUCE_SETS
from xgemm.cli.output import check_writable, log, out, print_json, table

PIPED_WIDTH = 132  # a pipe or a file has no width, and 80 columns would fold every row


def run(
    family: str,
    options: Options,
    threads: int | None,
    as_json: bool,
    output: Path | None,
    plot: Path | None,
) -> None:
    if options.sets == "help":
        sets = REDUCE_SETS if family == "reduce" else PRODUCT_SETS
        out.print(table(f"shapes of {family}", ["set", ""], [[*pair] for pair in sets.items()]))
        return
    # What is missing is told now, and not after the last case.
    if output is not None:
        check_writable("bench: --output", output)
    if plot is not None:
        check_writable("bench: --plot", plot)
        load_pyplot()
    if threads is not None:
        torch.set_num_threads(threads)
    records: list[Record] = []

    def on_record(record: Record) -> None:
        records.append(record)
        ours = record.seconds[OURS]
        case = f"{record.case} {record.size} {record.layout}".rstrip()
        log.print(f"[dim]{case}: {ours * 1e6:.1f} us[/]")

    report = run_benchmark(family, options, on_record)
    if output is not None:
        output.write_text(json.dumps(report, indent=2) + "\n")
    if plot is not None:
        plot_benchmark(report, plot)
    if as_json:
        print_json(report)
        return
    commit = report["commit"] or "unknown"
    title = (
        f"{family}, {options.dtype}, {report['device']}, {report['threads']} threads, torch"
        f" {report['torch']}, commit {commit}, seed {options.seed}"
    )
    _print_records(title, records)
    _print_summary(report["summary"])
    if len(report["rows"]) > 1:
        _print_rows(report["rows"])


def _print_records(title: str, records: list[Record]) -> None:
    libraries = list(dict.fromkeys(name for record in records for name in record.seconds))
    with_layout = any(record.layout for record in records)
    with_floor = any(record.floor_seconds is not None for record in records)
    columns = ["case", "size", *(["layout"] if with_layout else [])]
    columns += [*(f"{name}, us" for name in libraries), "rate"]
    columns += [f"x {name}" for name in libraries if name != OURS]
    columns += ["floor, us", "of floor"] if with_floor else []
    rows = []
    for record in records:
        row = [record.case, record.size, *([record.layout] if with_layout else [])]
        row += [_number(record.seconds.get(name), "{:.1f}", 1e6) for name in libraries]
        row.append(_rate(record))
        row += [_number(record.speedup().get(n), "{:.2f}") for n in libraries if n != OURS]
        if with_floor:
            row.append(_number(record.floor_seconds, "{:.1f}", 1e6))
            row.append(_number(record.of_floor().get(OURS), "{:.2f}"))
        rows.append(row)
    folds_well = out.is_terminal or "COLUMNS" in os.environ
    console = out if folds_well else Console(highlight=False, width=PIPED_WIDTH)
    console.print(table(title, columns, rows))


def _print_summary(groups: list[dict[str, Any]]) -> None:
    for group in groups:
        label = f"{group['set']} {group['layout']}".strip() + f", {group['cases']} cases"
        for name, found in group["speedup"].items():
            line = f"{label}: {found['geomean']:.3f}x {name} (geometric mean)"
            line += f", {found['worst']:.3f}x at the least, {found['worst_case']}"
            out.print(line, soft_wrap=True)
        if group["of_floor"]:
            shares = [f"{name} {share:.3f}x" for name, share in group["of_floor"].items()]
            line = f"{label}: of the floor's time: {', '.join(shares)} (geometric mean)"
            out.print(line, soft_wrap=True)


def _print_rows(bands: list[dict[str, Any]]) -> None:
    """Geometric means by the number of rows, and the least of each."""
    names = list(dict.fromkeys(name for band in bands for name in band["speedup"]))
    columns = ["rows", "cases", *(text for n in names for text in (f"x {n}", "least")), "of floor"]
    lines = []
    for band in bands:
        line = [band["rows"], str(band["cases"])]
        for name in names:
            found = band["speedup"].get(name, {})
            line += [_number(found.get(key), "{:.2f}") for key in ("geomean", "worst")]
        lines.append([*line, _number(band["of_floor"].get(OURS), "{:.2f}")])
    out.print(table("by rows, geometric means", columns, lines))


def _rate(record: Record) -> str:
    count, unit = (record.flops, "FLOP/s") if record.flops else (record.bytes, "B/s")
    rate = count / record.seconds[OURS]
    return f"{rate * 1e-12:.1f} T{unit}" if rate >= 1e12 else f"{rate * 1e-9:.1f} G{unit}"


def _number(value: float | None, form: str, scale: float = 1.0) -> str:
    return "-" if value is None else form.format(value * scale)
