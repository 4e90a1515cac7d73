"""Which kernel, tile, pipeline and split of K is best for a W4A16 product, over many layers and M.

    make build
    python benchmarks/sweep_w4a16.py build                 # links what is measured; needs nvcc
    python benchmarks/sweep_w4a16.py run --output s.json   # on the GPU
    python benchmarks/sweep_w4a16.py show s.json           # anywhere: regret of the present choice
    python benchmarks/sweep_w4a16.py tune s.json --sources csrc/cuda/w4a16/sm90/*/select.cpp

`run` times the engine's candidates from a cold L2 cache, all of a product by turns, and checks each
against float64 first. `show` says how far the choice is from the best; it asks the library that
`build` has linked, so that a change of the choice is judged without a GPU.
"""

from __future__ import annotations

import argparse
import bisect
import json
import math
import random
import secrets
import sys
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from sweep import recorded
from sweep.commands import Commands
from sweep.library import ROOT, Device, current_device
from sweep.tune import Family, tune_file, with_constants
from sweep.w4a16 import LIBRARY, Library, Product, build
from sweep_mul import FIRST_REPEATS, NEAR, log_uniform, time_by_turns

from xgemm.bench.shapes import LLAMA_8B, LLAMA_70B, OTHER_MODELS, drawn_layer

FAMILY = Family(ROOT / "csrc" / "cuda" / "w4a16", "w4a16_entry.cpp", Library)
ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
FINALISTS = 4
DRAWN_ROWS = 6  # of each of `run --layers`
MOST_ROWS = 4096  # of these
RANGES = (1, 2, 9, 65, 129, 513, 1 << 31)  # of rows, in what `show` prints


@dataclass
class Record:
    """A product, and the seconds that each configuration took."""

    shape: Product
    seconds: dict[str, float]
    chosen: str
    # Once more, of the choice and the fastest: the least of many medians is a lucky one.
    again: dict[str, float] = field(default_factory=dict)

    def regret(self) -> float | None:
        """The choice's time over the best one's, less one; None where it was not swept."""
        seconds = self.again if self.chosen in self.again else self.seconds
        found = seconds.get(self.chosen)
        return None if found is None else found / min(seconds.values()) - 1

    def best(self) -> str:
        return min(self.seconds, key=lambda key: self.seconds[key])


def random_layer(rng: random.Random) -> tuple[int, int]:
    n, k = (round(math.exp(rng.uniform(math.log(512), math.log(32768)))) for _ in range(2))
    return -(-n // 8) * 8, -(-k // 128) * 128


def random_weight(n: int, k: int, group_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed, and [n, k] in float64 for a few of its rows: all of them where they are few."""
    import xgemm  # noqa: F401  (the ops)

    codes = torch.randint(0, 16, (n, k), device="cuda", dtype=torch.uint8)
    groups = -(-k // group_size)
    scales = (torch.rand(groups, n, device="cuda") * 0.01 + 0.005).half()
    packed = torch.ops.xgemm.pack_w4(codes, scales, None, group_size)
    rows = _some(n)
    spread = scales[:, rows].t().double().repeat_interleave(group_size, 1)[:, :k]
    return packed, (codes[rows].double() - 8) * spread


def _some(n: int) -> torch.Tensor:
    return torch.linspace(0, n - 1, min(n, 300), device="cuda").round().long()


def measure(
    library: Library, device: Device, product: Product, packed: torch.Tensor, wide: torch.Tensor,
    repeats: int,
) -> Record:  # fmt: skip
    x = torch.randn(product.m, product.k, device="cuda").half()
    d = torch.empty(product.m, product.n, device="cuda").half()
    columns = _some(product.n)
    expected, magnitude = x.double() @ wide.t(), x.double().abs() @ wide.abs().t()
    # Sums in fp32 of weights that may be rounded once, and one rounding of the result.
    bound = ((product.k + 8) * 2.0**-24 + 2.0**-11) * magnitude
    bound += 1.01 * 2.0**-11 * expected.abs() + 2.0**-24
    listed = library.open(product, device, (x, packed, d))
    workspace = torch.full((listed.workspace_bytes // 4 + 64,), float("nan"), device="cuda")
    launches = {key: listed.prepare(key, workspace) for key in listed.numbers}
    for key, launch in list(launches.items()):
        d.fill_(float("nan"))
        try:
            launch()
        except RuntimeError as error:  # a pipeline that the GPU has no shared memory for
            if key == listed.chosen:
                raise
            print(f"{product}: left out {error}", file=sys.stderr)
            del launches[key]
            continue
        if not bool(((d[:, columns].double() - expected).abs() <= bound).all()):
            raise ArithmeticError(f"{product}: {key}: a wrong result")
    first = time_by_turns(list(launches.values()), FIRST_REPEATS)
    seconds = dict(zip(launches, first, strict=True))
    near = [key for key in launches if seconds[key] < NEAR * min(first) or key == listed.chosen]
    seconds |= zip(near, time_by_turns([launches[key] for key in near], repeats), strict=True)
    fastest = [*sorted(seconds, key=lambda key: seconds[key])[:FINALISTS], listed.chosen]
    finalists = list(dict.fromkeys(fastest))
    again = time_by_turns([launches[key] for key in finalists], 2 * repeats)
    return Record(product, seconds, listed.chosen, dict(zip(finalists, again, strict=True)))


def mean_of(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def show(device: Device, records: list[Record], library: Library | None, worst: int) -> None:
    by_rows: dict[tuple[int, int], list[tuple[float, Record]]] = defaultdict(list)
    unmeasured = []
    for record in records:
        if library is not None:
            record.chosen = library.chosen(record.shape, device)
        regret = record.regret()
        if regret is not None:
            ratio = 1 + regret
            at = bisect.bisect(RANGES, record.shape.m)
            by_rows[RANGES[at - 1], RANGES[at] - 1].append((ratio, record))
        else:
            unmeasured.append(record)
    for (least, most), found in sorted(by_rows.items()):
        ratios = sorted(ratio for ratio, _ in found)
        print(
            f"{least} to {most} rows: the choice takes {mean_of(ratios):.3f}x the best of the sweep"
            f" (geometric mean), 99 % at most {ratios[math.ceil(0.99 * len(ratios)) - 1]:.3f}x,"
            f" {len(found)} products"
        )
    everything = sorted((pair for found in by_rows.values() for pair in found), key=lambda p: -p[0])
    for ratio, record in everything[:worst]:
        best, seconds = record.best(), record.seconds
        print(
            f"  {ratio:.3f}x {record.shape.m}x{record.shape.n}x{record.shape.k}:"
            f" {record.chosen} {seconds[record.chosen] * 1e6:.1f} us;"
            f" {best} {seconds[best] * 1e6:.1f} us"
        )
    for record in unmeasured[:worst]:
        print(f"  not swept: {record.chosen} for {record.shape}")


def load(path: Path) -> tuple[Device, list[Record]]:
    report = json.loads(path.read_text())
    records = [
        Record(Product(**found["shape"]), found["seconds"], found["chosen"], found.get("again", {}))
        for found in report["records"]
    ]
    return Device(**report["device"]), records


def sweep(options: argparse.Namespace) -> None:
    library, device = Library(options.library), current_device()
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    rng = random.Random(seed)
    torch.manual_seed(seed)
    named = [*LLAMA_8B.values(), *LLAMA_70B.values()] if options.named else []
    named += OTHER_MODELS.values() if options.models else []
    named += [random_layer(rng) for _ in range(options.random)]
    layers = [(*layer, options.rows) for layer in named]
    for drawn in (drawn_layer(rng) for _ in range(options.layers)):
        rows = [int(log_uniform(rng, 1, MOST_ROWS + 1)) for _ in range(DRAWN_ROWS)]
        layers.append((drawn.n, -(-drawn.k // 128) * 128, rows))
    rng.shuffle(layers)  # what a limited time leaves out is then no one kind
    print(f"{device.name}, torch {torch.__version__}, seed {seed}, {len(layers)} layers")
    start, records = time.perf_counter(), []
    for n, k, rows in layers:
        if time.perf_counter() - start > options.seconds:
            break
        packed, wide = random_weight(n, k, 128)
        for m in rows:
            if time.perf_counter() - start > options.seconds:
                break
            product = Product(m, n, k)
            records.append(measure(library, device, product, packed, wide, options.repeats))
    print(f"{len(records)} products measured in {time.perf_counter() - start:.1f} s")
    if options.output is not None:
        report = {
            "device": asdict(device), "torch": torch.__version__, "seed": seed,
            "records": [asdict(record) for record in records],
        }  # fmt: skip
        options.output.write_text(json.dumps(report) + "\n")
    show(device, records, None, options.worst)


def judge(options: argparse.Namespace) -> None:
    device, records = load(options.sweep)
    library = None if options.recorded else Library(options.library)
    show(device, records, library, options.worst)


def fit_constants(options: argparse.Namespace) -> None:
    loaded = [load(path) for path in options.sweeps]
    device, records = loaded[0][0], [record for _, found in loaded for record in found]
    random.Random(0).shuffle(records)
    for source in map(Path.resolve, options.sources):
        tuned = tune_file(source, device, records, options.rounds, FAMILY, options.least_squares)
        print(tuned.line(source.parent.name))
        if options.write and tuned.held_out_after <= tuned.held_out_before:
            source.write_text(with_constants(source.read_text(), tuned.values))


def compact(options: argparse.Namespace) -> None:
    _, records = load(options.sweep)
    timed = [
        recorded.Timed(each.shape, recorded.near({**each.seconds, **each.again}, each.chosen))
        for each in records
    ]
    recorded.compact_sweep(options, timed)


def main() -> None:
    commands = Commands(__doc__, LIBRARY, "products")
    commands.run.add_argument("--rows", type=int, nargs="*", default=ROWS, help="M")
    commands.run.add_argument(
        "--named", action=argparse.BooleanOptionalAction, default=True, help="layers of Llama"
    )
    commands.run.add_argument("--models", action="store_true", help="other models' layers, too")
    commands.run.add_argument(
        "--layers", type=int, default=0, help=f"of many models, {DRAWN_ROWS} random M each"
    )
    commands.run.add_argument("--random", type=int, default=12, help="layers drawn log-uniformly")
    commands.run.add_argument("--repeats", type=int, default=7, help="the median of how many")
    commands.show.add_argument("sweep", type=Path)
    tune = commands.add("tune", help="fit select.cpp's to a sweep; needs nvcc, no GPU")
    tune.add_argument("sweeps", type=Path, nargs="+")
    tune.add_argument("--sources", type=Path, nargs="+", required=True, help="of csrc/cuda/w4a16")
    tune.add_argument("--least-squares", type=int, default=0, help="rounds of it, before these")
    tune.add_argument("--rounds", type=int, default=2, help="over all constants, at most")
    tune.add_argument("--write", action="store_true", help="where the held-out regret falls")
    commands.add_compact()
    commands.execute(build, sweep, judge, tune=fit_constants, compact=compact)


if __name__ == "__main__":
    main()
