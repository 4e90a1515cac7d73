"""`xgemm bench`: prints what xgemm.bench measures."""

from __future__ import annotations

import json
import math
import secrets
from pathlib import Path

import torch

from xgemm.bench.peers import OURS
from xgemm.bench.plot import plot_benchmark
from xgemm.bench.run import Record, run_benchmark
from xgemm.bench.shapes import PRODUCT_SETS, REDUCE_SETS
from xgemm.cli.output import log, out, print_json, table


def run(
    family: str,
    shapes: str,
    dtype: str,
    device: str,
    threads: int | None,
    seed: int | None,
    as_json: bool,
    output: Path | None,
    plot: Path | None,
) -> None:
    if shapes == "help":
        sets = REDUCE_SETS if family == "reduce" else PRODUCT_SETS
        out.print(table(f"shapes of {family}", ["set", ""], [[*pair] for pair in sets.items()]))
        return
    if threads is not None:
        torch.set_num_threads(threads)
    if seed is None:
        seed = secrets.randbelow(2**31)
    records: list[Record] = []

    def on_record(record: Record) -> None:
        records.append(record)
        ours = record.seconds[OURS]
        log.print(f"[dim]{record.case} {record.size}: {ours * 1e6:.1f} us[/]")

    report = run_benchmark(family, shapes, dtype, device, seed, on_record)
    if output is not None:
        output.write_text(json.dumps(report, indent=2) + "\n")
    if plot is not None:
        plot_benchmark(report, plot)
    if as_json:
        print_json(report)
        return
    peers = list(dict.fromkeys(name for record in records for name in record.seconds))
    columns = ["case", "size", *(f"{name}, us" for name in peers), "rate"]
    columns += [f"x {name}" for name in peers if name != OURS]
    rows = [_cells(record, peers) for record in records]
    commit = report["commit"] or "unknown"
    title = (
        f"{family}, {dtype}, {report['device']}, {report['threads']} threads, torch"
        f" {report['torch']}, commit {commit}, seed {seed}"
    )
    out.print(table(title, columns, rows))
    for name in peers:
        ratios = [r.speedup()[name] for r in records if name in r.speedup()]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            out.print(f"{mean:.2f}x {name} (geometric mean), {min(ratios):.2f}x at the least")


def _cells(record: Record, peers: list[str]) -> list[str]:
    speedup = record.speedup()
    times = [_number(record.seconds.get(name), 1e6, "{:.1f}") for name in peers]
    ratios = [_number(speedup.get(name), 1.0, "{:.2f}") for name in peers if name != OURS]
    seconds = record.seconds[OURS]
    if record.flops:
        rate = f"{record.flops / seconds / 1e9:.1f} GFLOP/s"
    else:
        rate = f"{record.bytes / seconds / 1e9:.1f} GB/s"
    return [record.case, record.size, *times, rate, *ratios]


def _number(value: float | None, scale: float, form: str) -> str:
    return "-" if value is None else form.format(value * scale)
