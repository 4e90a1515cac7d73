"""Fits the constants of a select.cpp of csrc/cuda/gemm to what a sweep has measured.

The file is compiled with its `constexpr double`s as variables, by the host's compiler alone. Each
in turn is changed by a few factors, and a change stays where the choices then take less time by
the sweep. Every second problem is held out: what the others' fit is worth, these tell.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweep.library import ROOT, Device, Library
from sweep.model import Record

STATEMENT = re.compile(r"^constexpr double (k\w+ = [^;{}]*);", re.MULTILINE)
CONSTANT = re.compile(r"\b(k[A-Z]\w*)(\s*=\s*)([\d.][\d.e+-]*)(?=[,;]|$)")
NAMESPACE = re.compile(r"^}  // namespace (xgemm::\S+)$", re.MULTILINE)
FACTORS = (0.8, 0.9, 0.96, 1.04, 1.1, 1.25)
NOT_SWEPT = 1.1  # the ratio that a choice without a time counts as


def constants(text: str) -> dict[str, float]:
    """Of a select.cpp: its scalars of type double, but for those that are computed."""
    statements = [match[1] for match in STATEMENT.finditer(text)]
    return {name: float(value) for each in statements for name, _, value in CONSTANT.findall(each)}


def with_constants(text: str, values: dict[str, float]) -> str:
    """The file with other numbers, four digits of each."""

    def number(match: re.Match[str]) -> str:
        name, equals, old = match.groups()
        same = name not in values or values[name] == float(old)
        return match[0] if same else f"{name}{equals}{values[name]:.4g}"

    return STATEMENT.sub(lambda statement: CONSTANT.sub(number, statement[0]), text)


def as_variables(text: str, names: Sequence[str]) -> str:
    """The file with its constants as variables, and sweep_constant(i), which says where one is."""
    statement = STATEMENT.sub(lambda match: match[0].removeprefix("constexpr "), text)
    spaces = NAMESPACE.findall(text)
    places = ", ".join(f"&{name}" for name in names)
    return (
        f"{statement}\nusing namespace {spaces[-1]};\n"
        f'extern "C" double* sweep_constant(int i) {{\n'
        f"  static double* const all[] = {{{places}}};\n  return all[i];\n}}\n"
    )


def choice_sources() -> list[Path]:
    gemm = ROOT / "csrc" / "cuda" / "gemm"
    return [path for name in ("select*", "plan", "explain") for path in gemm.rglob(f"{name}.cpp")]


class TunedLibrary(Library):
    """The choice of kernels alone, whose constants may be changed.

    objects: of the choice's other sources, where they are compiled already.
    """

    def __init__(self, source: Path, folder: Path, objects: Sequence[Path] = ()) -> None:
        text = source.read_text()
        self.values = constants(text)
        self._names = list(self.values)
        variables, library = folder / "tuned.cpp", folder / "libtuned.so"
        variables.write_text(as_variables(text, self._names))
        others = objects or [path for path in choice_sources() if path != source]
        command = [os.environ.get("CXX", "g++"), "-shared", "-std=c++20", "-O2", "-fPIC"]
        command += ["-DXGEMM_SWEEP_HOST_ONLY", "-Icsrc", "-o", str(library)]
        command += ["benchmarks/sweep/gemm_entry.cpp", *map(str, [variables, *others])]
        subprocess.run(command, cwd=ROOT, check=True)
        super().__init__(library)
        self._library.sweep_constant.restype = ctypes.POINTER(ctypes.c_double)

    def set(self, name: str, value: float) -> None:
        self.values[name] = value
        self._library.sweep_constant(self._names.index(name))[0] = value


@dataclass(frozen=True)
class Tuned:
    values: dict[str, float]
    before: float  # the choice's time over the best one's, of the problems that were fitted to
    after: float
    held_out_before: float  # and of the others
    held_out_after: float


def regret(library: Library, device: Device, records: list[Record]) -> float:
    logs = []
    for record in records:
        seconds = record.seconds.get(library.select(record.shape, device).key)
        best = record.seconds[record.best()]
        logs.append(math.log(NOT_SWEPT if seconds is None else seconds / best))
    return math.exp(sum(logs) / len(logs))


def tune(
    values: dict[str, float],
    change: Callable[[str, float], None],
    cost: Callable[[], float],
    rounds: int,
) -> float:
    """Changes `values` one by one while `cost` falls; what it is in the end."""
    best = cost()
    for _ in range(rounds):
        start = best
        for name, value in list(values.items()):
            kept = value
            for factor in FACTORS:
                change(name, value * factor)
                found = cost()
                if found < best - 1e-6:
                    best, kept = found, value * factor
            change(name, kept)
        if start - best < 1e-5:
            break
    return best


def tune_file(source: Path, device: Device, records: list[Record], rounds: int) -> Tuned:
    fitted, held_out = records[::2], records[1::2]
    with tempfile.TemporaryDirectory() as folder:
        library = TunedLibrary(source, Path(folder))
        before = [regret(library, device, part) for part in (fitted, held_out)]
        after = tune(library.values, library.set, lambda: regret(library, device, fitted), rounds)
        return Tuned(
            dict(library.values), before[0], after, before[1], regret(library, device, held_out)
        )
