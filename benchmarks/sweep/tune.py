"""Fits the constants of a select.cpp of csrc/cuda to what a sweep has measured.

The file is compiled with its `constexpr double`s, and the fields of its `constexpr Costs`, as
variables, by the host's compiler alone. Each in turn is changed by a few factors, and a change
stays where the choices then take less time by the sweep. Every second problem is held out: what the
others' fit is worth, these tell. Before that all may be fitted to the candidates' times at once,
by least squares: the choice alone is a matter of luck where candidates are as fast as each other.
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
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sweep.library import ROOT, Device, Library

STATEMENT = re.compile(
    r"^constexpr (?:double (?:k\w+ = [^;{}]*)|Costs (?P<costs>k\w+){[^;{}]*});", re.MULTILINE
)
CONSTANT = re.compile(r"(?:\b(k[A-Z]\w*)|(\.\w+))(\s*=\s*)([\d.][\d.e+-]*)(?=[,;}]|$)")
NAMESPACE = re.compile(r"^}  // namespace (xgemm::\S+)$", re.MULTILINE)
FACTORS = (0.8, 0.9, 0.96, 1.04, 1.1, 1.25)
NEAR = 1.6  # times the best one's time: candidates whose estimates are fitted
NOT_SWEPT = 1.1  # the ratio that a choice without a time counts as


def constants(text: str) -> dict[str, float]:
    """Of a select.cpp: its scalars of type double, but for those that are computed."""
    return {
        (match[1] or f"{statement['costs']}{match[2]}"): float(match[4])
        for statement in STATEMENT.finditer(text)
        for match in CONSTANT.finditer(statement[0])
    }


def with_constants(text: str, values: dict[str, float]) -> str:
    """The file with other numbers, four digits of each."""

    def of(statement: re.Match[str]) -> str:
        def number(match: re.Match[str]) -> str:
            name = match[1] or f"{statement['costs']}{match[2]}"
            same = name not in values or values[name] == float(match[4])
            start = match[0].removesuffix(match[4])
            return match[0] if same else f"{start}{values[name]:.4g}"

        return CONSTANT.sub(number, statement[0])

    return STATEMENT.sub(of, text)


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


@dataclass(frozen=True)
class Family:
    """Kernels among which one choice picks."""

    folder: Path
    entry: str  # of benchmarks/sweep
    library: Callable[[Path], Any]

    def choice_sources(self) -> list[Path]:
        names = ("select*", "plan", "explain")
        return [path for name in names for path in self.folder.rglob(f"{name}.cpp")]


GEMM = Family(ROOT / "csrc" / "cuda" / "gemm", "gemm_entry.cpp", Library)


class TunedLibrary:
    """The choice of kernels alone, whose constants may be changed.

    objects: of the choice's other sources, where they are compiled already.
    """

    def __init__(
        self, source: Path, folder: Path, objects: Sequence[Path] = (), family: Family = GEMM
    ) -> None:
        text = source.read_text()
        self.values = constants(text)
        self._names = list(self.values)
        variables, library = folder / "tuned.cpp", folder / "libtuned.so"
        variables.write_text(as_variables(text, self._names))
        others = objects or [path for path in family.choice_sources() if path != source]
        command = [os.environ.get("CXX", "g++"), "-shared", "-std=c++20", "-O2", "-fPIC"]
        command += ["-DXGEMM_SWEEP_HOST_ONLY", "-Icsrc", "-o", str(library)]
        command += [f"benchmarks/sweep/{family.entry}", *map(str, [variables, *others])]
        subprocess.run(command, cwd=ROOT, check=True)
        self.choice = family.library(library)
        self._constant = ctypes.CDLL(str(library)).sweep_constant
        self._constant.restype = ctypes.POINTER(ctypes.c_double)

    def set(self, name: str, value: float) -> None:
        self.values[name] = value
        self._constant(self._names.index(name))[0] = value


@dataclass(frozen=True)
class Tuned:
    values: dict[str, float]
    before: float  # the choice's time over the best one's, of the problems that were fitted to
    after: float
    held_out_before: float  # and of the others
    held_out_after: float

    def line(self, name: str) -> str:
        return (
            f"{name}: regret {self.before - 1:.2%} -> {self.after - 1:.2%},"
            f" held out {self.held_out_before - 1:.2%} -> {self.held_out_after - 1:.2%}"
        )


def regret(library: Any, device: Device, records: Sequence[Any]) -> float:
    """Of a family's library, over records of its sweep."""
    logs = []
    for record in records:
        seconds = record.seconds.get(library.chosen(record.shape, device))
        best = record.seconds[record.best()]
        logs.append(math.log(NOT_SWEPT if seconds is None else seconds / best))
    return math.exp(sum(logs) / len(logs))


class Residuals:
    """How far a kernel's estimates are off, for the candidates near the best of each record.

    As logarithms: of each candidate beside the record's others, which decides what is chosen, and
    of all of a record together, which decides between kernels. A candidate that takes a tenth more
    than the best counts a third of it.
    """

    def __init__(
        self, library: Any, device: Device, records: Sequence[Any], is_of: Callable[[str], bool]
    ) -> None:
        self._library, self._device = library, device
        self._of: list[tuple[Any, list[str], torch.Tensor, torch.Tensor]] = []
        for record in records:
            best = record.seconds[record.best()]
            near = {
                key: seconds
                for key, seconds in record.seconds.items()
                if is_of(key) and seconds < NEAR * best
            }
            near = {key: near[key] for key in near.keys() & self._estimates(record).keys()}
            if near:
                logs = torch.tensor(list(near.values()), dtype=torch.float64).log()
                weights = torch.exp(-(logs - math.log(best)) / 0.1)
                self._of.append((record, list(near), logs, weights / weights.sum()))

    def _estimates(self, record: Any) -> dict[str, float]:
        found: dict[str, float] = self._library.open(record.shape, self._device).estimates
        return found

    def __call__(self) -> torch.Tensor:
        parts = []
        for record, keys, logs, weights in self._of:
            estimates = self._estimates(record)
            now = [estimates[key] * 1e-6 for key in keys]
            off = logs - torch.tensor(now, dtype=torch.float64).log()
            mean = (weights * off).sum()
            parts += [(off - mean) * weights.sqrt(), mean[None]]
        return torch.cat(parts)


def least_squares(
    values: dict[str, float],
    change: Callable[[str, float], None],
    residuals: Callable[[], torch.Tensor],
    rounds: int,
) -> None:
    """Changes all `values` at once, by Levenberg and Marquardt's method in their logarithms."""
    step, damping = math.log(1.02), 1e-2
    off = residuals()
    for _ in range(rounds):
        slopes = []
        for name, value in list(values.items()):
            change(name, value * math.exp(step))
            slopes.append((residuals() - off) / step)
            change(name, value)
        jacobian = torch.stack(slopes, 1)
        square = jacobian.T @ jacobian
        damped = (
            square + damping * square.diagonal().diag() + 1e-6 * torch.eye(len(square)).double()
        )
        moves = torch.linalg.solve(damped, -jacobian.T @ off).clamp(-0.5, 0.5).tolist()
        before = dict(values)
        for (name, value), move in zip(before.items(), moves, strict=True):
            change(name, value * math.exp(move))
        found = residuals()
        if found.square().sum() < off.square().sum():
            off, damping = found, damping / 3
            continue
        damping *= 5
        for name, value in before.items():
            change(name, value)


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


def tune_file(
    source: Path,
    device: Device,
    records: Sequence[Any],
    rounds: int,
    family: Family = GEMM,
    squares: int = 0,
) -> Tuned:
    """Fits all estimates in `squares` rounds first, then the choice in `rounds`."""
    fitted, held_out = records[::2], records[1::2]
    with tempfile.TemporaryDirectory() as folder:
        library = TunedLibrary(source, Path(folder), family=family)
        cost = partial(regret, library.choice, device)
        before = [cost(part) for part in (fitted, held_out)]
        if squares > 0:
            name = source.parent.name
            residuals = Residuals(
                library.choice, device, fitted, lambda key: key.split()[0].endswith(name)
            )
            least_squares(library.values, library.set, residuals, squares)
        after = tune(library.values, library.set, lambda: cost(fitted), rounds)
        return Tuned(dict(library.values), before[0], after, before[1], cost(held_out))
