"""Which kernel and which cut is best for a reduction, over many shapes on this GPU.

    make build
    python benchmarks/sweep_reduce.py build                 # links what is measured; needs nvcc
    python benchmarks/sweep_reduce.py run --output r.json   # on the GPU; torch in the same run
    python benchmarks/sweep_reduce.py show r.json           # anywhere: regret of the present choice

`run` times the engine's candidates (sweep/reductions.py) from a cold L2 cache, all of a shape by
turns, then the fastest of them twice more, and checks these against float64. The first series says
which is the best and the second how long it takes: of many that are equal, the least time of one
series is the luckiest's. `show` says how far select_config's choices are from the best; it asks the
library that `build` has linked, so that a change of the choice is judged without a GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import secrets
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from sweep import recorded
from sweep.commands import Commands
from sweep.library import Device, current_device
from sweep.reductions import LIBRARY, Library, Reduction, build
from sweep_mul import time_by_turns

MOST_ELEMENTS = 1 << 28
FINALISTS, REPEATS = 12, 9
NAMED = (
    (4096, 4096), (128, 1 << 20), (1 << 20, 128), (8192, 28672), (16384, 16384), (333, 7777),
    (1 << 22, 8), (50257, 768), (7, 100003),
)  # fmt: skip


@dataclass
class Record:
    """A problem and the seconds that each candidate took."""

    of: Reduction
    chosen: str  # the key of select_config's
    torch: float
    seconds: dict[str, float]
    fastest: str  # in a series whose times are not among `seconds`


def named() -> list[Reduction]:
    found = [
        Reduction(shape, dim, dtype)
        for shape in NAMED
        for dim in (0, 1)
        for dtype in ("float16", "float32")
    ]
    for power in range(13, 29):
        found += [Reduction((1 << power,), 0, dtype) for dtype in ("float16", "float32")]
    return found


def random_reduction(rng: random.Random) -> Reduction:
    while True:
        elements = 2 ** rng.uniform(12, 28)
        extent = round(elements ** rng.uniform(0.1, 1))
        outer = round((elements / extent) ** rng.choice((0, 1, 1, rng.random())))
        inner = round(elements / extent / outer)
        if rng.random() < 0.6:  # what rows and columns of 16 bytes need
            extent, inner = (n if n < 8 else -(-n // 8) * 8 for n in (extent, inner))
        if inner > 1 and rng.random() < 0.2:
            extent, inner = inner, extent
        shape: tuple[int, ...] = (outer, extent, inner) if outer > 1 else (extent, inner)
        dim = len(shape) - 2
        if inner == 1:
            shape = shape[:-1]
        if math.prod(shape) <= MOST_ELEMENTS and extent > 1:
            return Reduction(shape, dim, rng.choice(("float16", "float32")))


def is_right(y: torch.Tensor, x: torch.Tensor, dim: int) -> bool:
    sum_of = torch.sum(x, dim, dtype=torch.float64)
    rounding = 2.0**-10 if y.dtype == torch.float16 else 2.0**-22
    magnitude = torch.linalg.vector_norm(x, 1, dim, dtype=torch.float32).double()
    bound = 2.0**-20 * magnitude + rounding * sum_of.abs() + 2.0**-24
    return bool(((y.double() - sum_of).abs() <= bound).all())


def measure(library: Library, device: Device, of: Reduction) -> Record:
    x = torch.empty(of.shape, device="cuda").normal_().to(getattr(torch, of.dtype))
    kept = [size for d, size in enumerate(of.shape) if d != of.dim]
    y = torch.empty(kept, dtype=x.dtype, device="cuda")
    listed = library.open(of, device, (x, y))
    workspace = torch.zeros(listed.workspace_bytes + 16, dtype=torch.uint8, device="cuda")
    launches = {key: listed.prepare(key, workspace) for key in listed.numbers}
    seconds = dict(zip(launches, time_by_turns(list(launches.values()), 3), strict=True))
    finalists = sorted(seconds, key=lambda key: seconds[key])[:FINALISTS]
    finalists = list(dict.fromkeys([listed.chosen, *finalists]))
    for key in finalists:
        y.fill_(float("nan"))
        launches[key]()
        if not is_right(y, x, of.dim):
            print(f"{of}: {key}: a wrong result", file=sys.stderr)
    calls = [launches[key] for key in finalists]
    times = time_by_turns(calls, REPEATS)
    fastest = finalists[times.index(min(times))]
    *times, torch_time = time_by_turns([*calls, lambda: torch.sum(x, of.dim)], REPEATS)
    seconds |= dict(zip(finalists, times, strict=True))
    return Record(of, listed.chosen, torch_time, seconds, fastest)


def save(path: Path, device: Device, seed: int, records: list[Record]) -> None:
    report = {
        "device": asdict(device),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "seed": seed,
        "records": [asdict(record) for record in records],
    }
    path.write_text(json.dumps(report) + "\n")


def load(paths: list[Path]) -> tuple[Device, list[Record]]:
    reports: list[dict[str, Any]] = [json.loads(path.read_text()) for path in paths]
    records = [
        Record(
            Reduction(**found["of"] | {"shape": tuple(found["of"]["shape"])}), found["chosen"],
            found["torch"], found["seconds"], found["fastest"],
        )
        for report in reports
        for found in report["records"]
    ]  # fmt: skip
    return Device(**reports[0]["device"]), records


def mean_of(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def show(records: list[Record], device: Device, library: Library | None, worst: int) -> None:
    """Of the recorded choices, or with a library of what its select_config chooses now."""
    ratios: list[tuple[float, Record]] = []
    missing = []
    for record in records:
        if library is not None:
            record.chosen = library.open(record.of, device).chosen
        if record.chosen in record.seconds:
            fastest = record.seconds[record.fastest]
            ratios.append((record.seconds[record.chosen] / fastest, record))
        else:
            missing.append(record)
    ratios.sort(key=lambda pair: -pair[0])
    for ratio, record in ratios[:worst]:
        best = record.fastest
        print(
            f"  {ratio:.3f}x {record.of}: {record.chosen}"
            f" {record.seconds[record.chosen] * 1e6:.1f} us; {best}"
            f" {record.seconds[best] * 1e6:.1f}; torch {record.torch * 1e6:.1f}"
        )
    values = [ratio for ratio, _ in ratios]
    if values:
        print(
            f"select_config against the best of the sweep, {len(values)} problems: geometric mean"
            f" {mean_of(values):.3f}x, median {values[len(values) // 2]:.3f}x,"
            f" 90 % {values[len(values) // 10]:.3f}x, 99 % {values[len(values) // 100]:.3f}x,"
            f" worst {values[0]:.3f}x"
        )
        against = [record.torch / record.seconds[record.chosen] for _, record in ratios]
        print(
            f"against torch: geometric mean {mean_of(against):.3f}x, least {min(against):.3f}x,"
            f" under 0.97x in {sum(ratio < 0.97 for ratio in against)}"
        )
    for record in missing[:20]:
        print(f"  not swept: {record.of}: {record.chosen}")


def sweep(options: argparse.Namespace) -> None:
    library, device = Library(options.library), current_device()
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    rng = random.Random(seed)
    found = named() if options.named else []
    found += [random_reduction(rng) for _ in range(options.random)]
    rng.shuffle(found)  # what a limited time leaves out is then no one kind
    print(f"{device.name}, torch {torch.__version__}, seed {seed}, {len(found)} problems")
    records: list[Record] = []
    end = time.monotonic() + options.seconds
    for of in found:
        if time.monotonic() > end:
            break
        records.append(measure(library, device, of))
    if options.output is not None:
        save(options.output, device, seed, records)
    show(records, device, None, options.worst)


def judge(options: argparse.Namespace) -> None:
    device, records = load(options.sweep)
    library = None if options.recorded else Library(options.library)
    show(records, device, library, options.worst)


def compact(options: argparse.Namespace) -> None:
    _, records = load([options.sweep])
    timed = [
        recorded.Timed(each.of, recorded.near(each.seconds, each.chosen), each.torch)
        for each in records
    ]
    recorded.compact_sweep(options, timed)


def main() -> None:
    commands = Commands(__doc__, LIBRARY, "problems")
    commands.run.add_argument("--named", action="store_true", help="the benchmark's shapes, too")
    commands.run.add_argument(
        "--random", type=int, default=300, help="problems drawn log-uniformly"
    )
    commands.show.add_argument("sweep", type=Path, nargs="+")
    commands.add_compact()
    commands.execute(build, sweep, judge, compact=compact)


if __name__ == "__main__":
    main()
