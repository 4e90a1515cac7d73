"""`xgemm ladder`: prints what xgemm.ladder measures, or a rung's source."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xgemm.bench.plot import load_pyplot
from xgemm.cli.output import check_writable, log, out, print_json, table
from xgemm.cli.progress import step
from xgemm.ladder import probes
from xgemm.ladder.plot import plot_ladder
from xgemm.ladder.run import Climb, climb
from xgemm.ladder.rungs import LADDERS, Ladder, find_ladder, parse_rungs, parse_sizes
from xgemm.ladder.source import diff_to_previous, read_rung


@dataclass(frozen=True)
class Output:
    as_json: bool
    output: Path | None
    plot: Path | None


def run(name: str, size: str, rungs: str, seed: int, output: Output) -> None:
    ladder = find_ladder(name)
    asked = Climb(ladder, parse_sizes(ladder, size), parse_rungs(ladder, rungs), seed)
    _check_files(output)
    steps = 1 + len(asked.sizes) * (len(asked.rungs) + 1)
    with step(f"ladder {name}", steps) as shown:
        report = climb(asked, lambda text: shown.update(shown.done + 1, text=text))
    if output.output is not None:
        output.output.write_text(json.dumps(report, indent=2) + "\n")
    _present(report, output)


def replay(name: str, measured: Path, output: Output) -> None:
    """What --output wrote, as tables and a plot: the GPU's machine may have no matplotlib."""
    find_ladder(name)
    try:
        report = json.loads(measured.read_text())
        found = report["ladder"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"ladder: --from: {measured} is no JSON that --output wrote") from error
    if found != name:
        raise ValueError(f"ladder: --from: {measured} is of {found}, not of {name}")
    _check_files(output)
    _present(report, output)


def _check_files(output: Output) -> None:
    """What cannot be written is told now, and not after the last rung."""
    if output.output is not None:
        check_writable("ladder: --output", output.output)
    if output.plot is not None:
        check_writable("ladder: --plot", output.plot)
        load_pyplot()


def _present(report: dict[str, Any], output: Output) -> None:
    if output.plot is not None and report["skipped"] is None:
        plot_ladder(report, output.plot)
    if output.as_json:
        print_json(report)
    elif report["skipped"] is not None:
        for number in report["rungs"]:
            text = f"{report['ladder']} rung {number}: skipped: {report['skipped']}"
            out.print(text, soft_wrap=True)
    else:
        for one in dict.fromkeys(record["size"] for record in report["records"]):
            _print_size(report, one)


def run_probes(output: Output) -> None:
    """What one thing costs; probes have no rungs, sizes or plot."""
    if output.plot is not None:
        raise ValueError("ladder: probes have no plot")
    if output.output is not None:
        check_writable("ladder: --output", output.output)
    with step("ladder probes", len(probes.PROBES)) as shown:
        report = probes.measure(lambda text: shown.update(shown.done + 1, text=text))
    if output.output is not None:
        output.output.write_text(json.dumps(report, indent=2) + "\n")
    if output.as_json:
        print_json(report)
    elif report["skipped"] is not None:
        out.print(f"probes: skipped: {report['skipped']}", soft_wrap=True)
    else:
        rows = [
            [
                record["probe"],
                record["setting"],
                f"{record['value']:.4g}",
                record["unit"],
                _number(record["relative"], "{:.2f}x"),
                _number(record["published"], "{:g}"),
            ]
            for record in report["records"]
        ]
        columns = ["", "", "value", "unit", "to the first", "published"]
        out.print(table(f"probes, {report['device']}, torch {report['torch']}", columns, rows))


def _print_size(report: dict[str, Any], size: str) -> None:
    unit, peak = report["unit"], report["peak"]
    columns = ["", "time, us", unit, "of peak", "gain", "published gain", "what changed"]
    rows = [
        [
            record["name"],
            f"{record['seconds'] * 1e6:.1f}",
            f"{record['rate']:.4g}",
            _number(record["of_peak"], "{:.1%}"),
            _number(record["gain"], "{:.2f}x"),
            _number(record["published_gain"], "{:.2f}x"),
            record["changed"],
        ]
        for record in report["records"]
        if record["size"] == size
    ]
    title = f"{report['ladder']} {size}, {report['device']}, torch {report['torch']}"
    if peak["rate"] is not None:
        title += f"; peak {peak['rate']:.4g} {unit}: {peak['of']}"
    if peak["clock_mhz"] is not None:
        title += f", at {peak['clock_mhz']:.0f} MHz"
    made = table(title, columns, rows)
    made.columns[-1].justify = "left"
    made.columns[-1].ratio = 1
    out.print(made)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def list_ladders(name: str | None, as_json: bool) -> None:
    """The rungs of one ladder, or of all."""
    chosen = LADDERS.values() if name is None else [find_ladder(name)]
    if as_json:
        print_json([_describe(ladder) for ladder in chosen])
        return
    for ladder in chosen:
        found = _describe(ladder)
        rows = [
            [str(rung["rung"]), rung["title"], rung["published"], rung["source"]]
            for rung in found["rungs"]
        ]
        sizes = ", ".join(ladder.sizes)
        made = table(
            f"{ladder.name}: {ladder.what}; {sizes}", ["", "rung", "published", "source"], rows
        )
        for column in made.columns[1:]:
            column.justify = "left"
        out.print(made)


def _describe(ladder: Ladder) -> dict[str, Any]:
    rungs = [read_rung(ladder.name, number) for number in range(ladder.rungs)]
    return {
        "ladder": ladder.name,
        "what": ladder.what,
        "sizes": list(ladder.sizes),
        "rungs": [
            {
                "rung": number,
                "title": rung.title,
                "changed": rung.changed,
                "published": rung.published,
                "source": rung.source,
                "file": rung.path.name,
            }
            for number, rung in enumerate(rungs)
        ],
    }


def show(name: str, number: int) -> None:
    """A rung's source, then the diff to the rung before; beside each other where there is room."""
    find_ladder(name)
    rung = read_rung(name, number)
    diff = diff_to_previous(name, number)
    if not out.is_terminal:  # as plain text that a tool can read
        print(rung.text, end="")
        if diff:
            print(f"\n{diff}", end="")
        return
    from rich.columns import Columns
    from rich.panel import Panel
    from rich.syntax import Syntax

    panels = [Panel(Syntax(rung.text, "cpp", word_wrap=True), title=rung.path.name)]
    if diff:
        panels.append(Panel(Syntax(diff, "diff", word_wrap=True), title=f"from rung {number - 1}"))
    wide = out.width >= 2 * 90
    log.print(f"[dim]{rung.path}[/]")
    out.print(Columns(panels, equal=True, expand=True) if wide else panels[0])
    if diff and not wide:
        out.print(panels[1])
