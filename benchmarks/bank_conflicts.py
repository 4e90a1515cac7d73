"""Lists what share of each CUDA kernel's accesses to shared memory waits for a bank.

    XGEMM_CUDA_CAPABILITY=80 python benchmarks/bank_conflicts.py dense    # kernels of older GPUs
    XGEMM_CUDA_SMS=8 python benchmarks/bank_conflicts.py w4a16 --part 0/4

Runs a family's problems of tests/visit_kernels.py under Nsight Compute (ncu), whose counters it
adds up over all launches of a kernel: the wavefronts that shared memory takes, and how many of them
conflicts have added.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from kernel_resources import short_name

VISITS = Path(__file__).resolve().parents[1] / "tests" / "visit_kernels.py"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
CONFLICTS = {  # that loads (ldmatrix, too), copies (cp.async) and stores have
    kind: f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{kind}.sum"
    for kind in ("ld", "ldgsts", "st")
}
METRICS = (WAVEFRONTS, *CONFLICTS.values())

Counts = dict[str, float]


def count(arguments: list[str]) -> str:
    """What ncu prints of the visits: a line of CSV for each metric of each launch."""
    untouched = ("--clock-control", "none", "--cache-control", "none")
    filters = ("--kernel-name-base", "demangled", "--kernel-name", "regex:xgemm")
    command = ["ncu", "--csv", "--metrics", ",".join(METRICS), *untouched, *filters]
    command += [sys.executable, str(VISITS), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"ncu failed with {done.returncode}: {done.stdout[-2000:]}")
    return done.stdout


def by_kernel(text: str) -> dict[str, Counts]:
    """The sum of each metric over a kernel's launches."""
    lines = [line for line in text.splitlines() if line.startswith('"')]  # not the visits' own
    found: dict[str, Counts] = defaultdict(lambda: dict.fromkeys(METRICS, 0.0))
    for row in csv.DictReader(lines):
        value = float(row["Metric Value"].replace(",", ""))
        name = short_name(row["Kernel Name"].replace("<unnamed>::", ""))
        found[name][row["Metric Name"]] += value
    return found


def table(kernels: dict[str, Counts]) -> Iterable[str]:
    yield "| wavefronts | conflicts of loads | of copies | of stores | kernel |"
    yield "|---|---|---|---|---|"
    for name, counts in sorted(kernels.items()):
        wavefronts = counts[WAVEFRONTS]
        if wavefronts == 0:
            continue
        shares = [f"{100 * counts[metric] / wavefronts:.2f} %" for metric in CONFLICTS.values()]
        yield f"| {wavefronts:.0f} | {' | '.join(shares)} | {name} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("family", choices=("dense", "fp32", "w4a16", "reduce"))
    parser.add_argument("--part", default="0/1", help="i/n: every n-th problem from the i-th on")
    options = parser.parse_args()
    if shutil.which("ncu") is None:
        sys.exit("bank_conflicts.py: ncu, of Nsight Compute, must be on PATH")
    text = count([options.family, "--part", options.part])
    print("\n".join(table(by_kernel(text))))


if __name__ == "__main__":
    main()
