"""Refits the constants of the dense models to recorded sweeps, and judges the fit by held-out ones.

    python benchmarks/fit_dense.py sweep.json [...]            # needs nvcc, no GPU
    python benchmarks/fit_dense.py tests/data/dense_layers_h200.json.xz --write
    python benchmarks/fit_dense.py sweep.json --nearest        # a table of winners instead: no fit

Sweeps are what `sweep_mul.py run` or `compact` has written. One half of the problems is fitted to,
the other judges; a fit is written only where it lowers the held-out regret.
"""

from __future__ import annotations

import argparse
import math
import random
from pathlib import Path

from sweep import recorded
from sweep.library import ROOT, Device
from sweep.model import Record
from sweep.tune import tune_file, with_constants
from sweep_mul import load

GEMM = ROOT / "csrc" / "cuda" / "gemm"
# In this order: what a later one takes is weighed against the earlier ones.
KERNELS = ("sm90/single_tile", "sm90/persistent", "sm90/skinny", "gemv")
SOURCES = tuple(f"{kernel}/select.cpp" for kernel in KERNELS)


def read(path: Path) -> list[Record]:
    if path.suffix != ".xz":
        return load(path)[1]
    return [Record(each.shape, each.us, {}, each.cublas_us) for each in recorded.read(path)[1]]


def nearest(fitted: list[Record], held_out: list[Record]) -> tuple[float, int]:
    """Regret of the nearest problem's best candidate, and how many there had not been swept.

    Nearest in the logarithms of M, N and K; a candidate without its count of CTAs.
    """

    def at(record: Record) -> tuple[float, ...]:
        return tuple(map(math.log, (record.shape.m, record.shape.n, record.shape.k)))

    logs, missed = [], 0
    for record in held_out:
        near = min(fitted, key=lambda each: math.dist(at(each), at(record)))
        seconds = record.seconds.get(near.best())
        missed += seconds is None
        if seconds is not None:
            logs.append(math.log(seconds / record.seconds[record.best()]))
    return math.exp(sum(logs) / max(1, len(logs))) - 1, missed


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sweeps", type=Path, nargs="+")
    parser.add_argument("--sources", nargs="+", default=SOURCES, help="of csrc/cuda/gemm")
    parser.add_argument("--sms", type=int, default=132, help="of the GPU that was swept")
    parser.add_argument(
        "--least-squares", type=int, default=0, help="rounds over all times, before these"
    )
    parser.add_argument("--rounds", type=int, default=1, help="over all constants, at most")
    parser.add_argument("--seed", type=int, default=0, help="of the halves")
    parser.add_argument("--nearest", action="store_true", help="judge a table of winners")
    parser.add_argument("--write", action="store_true", help="into the sources")
    options = parser.parse_args()
    records = [record for path in options.sweeps for record in read(path)]
    random.Random(options.seed).shuffle(records)
    if options.nearest:
        regret, missed = nearest(records[::2], records[1::2])
        print(f"nearest winner: held-out regret {regret:.2%}; {missed} had not been swept")
        return
    device = Device("", options.sms, 90)
    for name in options.sources:
        source = GEMM / name
        tuned = tune_file(source, device, records, options.rounds, squares=options.least_squares)
        print(tuned.line(name))
        if options.write and tuned.held_out_after < tuned.held_out_before:
            source.write_text(with_constants(source.read_text(), tuned.values))


if __name__ == "__main__":
    main()
