"""Which kernel, tile and split of K is best for a dense product, over many shapes on this GPU.

    make build
    python benchmarks/sweep_mul.py build                 # links what is measured; needs nvcc
    python benchmarks/sweep_mul.py run --output s.json   # on the GPU; cuBLAS in the same run
    python benchmarks/sweep_mul.py show s.json           # anywhere: regret of the present choice
    python benchmarks/sweep_mul.py compact s.json --output tests/data/dense_layers_h200.json.xz ...
    python benchmarks/sweep_mul.py tune s.json --source csrc/cuda/gemm/sm90/persistent/select.cpp

`run` times every candidate (sweep/candidates.py) from a cold L2 cache, all of a shape by turns, and
checks each against float64 first. `show` says how far select_config's choices are from the best,
which configurations win, and the constants that a cost model of tiles would have; it asks the
library that `build` has linked, so that a change of select.cpp is judged without a GPU. `tune` fits
the constants of a select.cpp to a sweep, says what that is worth for problems that were held out,
and with --write puts them there.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import secrets
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from sweep import recorded
from sweep.commands import Commands
from sweep.library import LIBRARY, Config, Device, Library, Shape, build, current_device
from sweep.model import Record, against_torch, estimates, fit, regret, winners
from sweep.tune import constants, tune_file, with_constants

FLUSH_BYTES = 256 << 20  # more than any L2
# Of a configuration, before those that take NEAR times the best one's time and more are left alone.
FIRST_REPEATS, NEAR = 3, 1.25
MOST_FLOPS = 2e12
MOST_BYTES = 8e9
ROUNDING = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}
# What is left out of a product of fp32 operands, or their rounding.
OF_A_PRODUCT = {"ieee": 0.0, "tf32x3": 2.0**-21, "tf32": 2.0**-9}
LAYER_SETS = ("decode", "prefill", "small", "large", "models")


def random_shape(rng: random.Random, ragged: bool) -> Shape:
    while True:
        m, n, k = (
            round(math.exp(rng.uniform(math.log(low), math.log(high))))
            for low, high in ((1, 16384), (16, 32768), (16, 32768))
        )
        if not ragged:
            n, k = -(-n // 8) * 8, -(-k // 8) * 8
        shape = Shape(m, n, k, rng.choice(("nt", "nt", "nn", "tn")), rng.random() < 0.5)
        if shape.flops <= MOST_FLOPS and shape.bytes <= MOST_BYTES:
            return shape


def layer_shapes(sets: list[str]) -> list[Shape]:
    from xgemm.bench.shapes import products

    found = [Shape(p.m, p.n, p.k) for p in products(sets, "cuda", 0)]
    return [shape for shape in dict.fromkeys(found) if shape.flops <= MOST_FLOPS]


def random_layer(rng: random.Random) -> Shape:
    from xgemm.bench.shapes import drawn_layer

    layer = drawn_layer(rng)
    return Shape(layer.m, layer.n, layer.k, "nt", rng.random() < 0.5)


def log_uniform(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def random_few(rng: random.Random) -> Shape:
    """A layer with up to 128 rows of x or, now and then, columns; in several layouts."""
    layer = random_layer(rng)
    m = int(log_uniform(rng, 1, 129))
    if layer.n * layer.k > 2.5e8 and rng.random() < 0.5:
        return random_few(rng)
    if rng.random() < 0.15:
        return Shape(layer.n, m, layer.k, rng.choice(("nt", "nn", "tn")), layer.bf16)
    return Shape(m, layer.n, layer.k, rng.choice((*4 * ("nt",), "nn", "tn")), layer.bf16)


def random_mixed(rng: random.Random) -> Shape:
    m, n, k = (round(log_uniform(rng, 64, 5000) / 8) * 8 for _ in range(3))
    return Shape(m, n, k, rng.choice(("nt", "nn", "tn", "tt")), rng.random() < 0.5)


def random_large(rng: random.Random) -> Shape:
    """A layer with 1024 to 12000 rows, or a square of 2000 to 9000."""
    while True:
        layer = random_layer(rng)
        m = int(log_uniform(rng, 1024, 12000))
        if 3e11 < 2.0 * m * layer.n * layer.k < 2 * MOST_FLOPS:
            break
    if rng.random() < 0.2:
        side = int(log_uniform(rng, 2000, 9000) / 8) * 8
        return Shape(side, side, side, rng.choice(("nt", "nn")), layer.bf16)
    return Shape(m, layer.n, layer.k, rng.choice((*3 * ("nt",), "nn")), layer.bf16)


# Of random problems: how they are drawn, and what the help says of them.
KINDS = {
    "layers": (random_layer, "layers of many models, of 129 to 2047 rows"),
    "few": (random_few, "such layers with up to 128 rows, in several layouts"),
    "mixed": (random_mixed, "M, N and K of 64 to 5000, in four layouts"),
    "large": (random_large, "layers of 1024 to 12000 rows, and squares"),
}


def make_operands(shape: Shape) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    half = torch.bfloat16 if shape.bf16 else torch.float16
    dtype = torch.float32 if shape.precision else half
    m, n, k = shape.m, shape.n, shape.k

    def matrix(rows: int, columns: int, letter: str) -> torch.Tensor:
        by_column = letter == "t"
        made = torch.empty((columns, rows) if by_column else (rows, columns), device="cuda")
        made = made.normal_().to(dtype)
        return made.t() if by_column else made

    d = torch.empty(m, n, device="cuda", dtype=dtype)
    return matrix(m, k, shape.layout[0]), matrix(k, n, shape.layout[1]), d


class Reference:
    """Some rows and columns of a product, the first and the last among them, in float64."""

    def __init__(self, a: torch.Tensor, b: torch.Tensor, precision: str = "ieee") -> None:
        self._rows = self._some(len(a), 40)
        self._columns = self._some(b.shape[1], 300)
        wide_a, wide_b = a[self._rows].double(), b[:, self._columns].double()
        self._expected = wide_a @ wide_b
        magnitude = wide_a.abs() @ wide_b.abs()
        of_a_product = (a.shape[1] + 8) * 2.0**-24 + OF_A_PRODUCT[precision]
        self._bound = of_a_product * magnitude + 2.0**-24
        self._bound += 1.01 * ROUNDING[a.dtype] * self._expected.abs()

    @staticmethod
    def _some(extent: int, count: int) -> torch.Tensor:
        return torch.linspace(0, extent - 1, min(extent, count), device="cuda").round().long()

    def agrees(self, d: torch.Tensor) -> bool:
        found = d[self._rows][:, self._columns].double()
        return bool(((found - self._expected).abs() <= self._bound).all())


def time_by_turns(calls: list[Callable[[], object]], repeats: int) -> list[float]:
    """Median seconds of each call, from a cold L2 cache; each repeat in another order.

    What runs behind a call of the same kernel finds its code in the SMs' caches.
    """
    flush = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
    events = [
        [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in calls]
        for _ in range(repeats)
    ]
    for row in events:
        for turn in random.sample(range(len(calls)), len(calls)):
            flush.zero_()
            row[turn][0].record()
            calls[turn]()
            row[turn][1].record()
    torch.cuda.synchronize()
    return [
        statistics.median(row[i][0].elapsed_time(row[i][1]) for row in events) * 1e-3
        for i in range(len(calls))
    ]


def measure(
    library: Library, device: Device, shape: Shape, repeats: int, most: int | None
) -> Record:
    a, b, d = operands = make_operands(shape)
    listed = library.open(shape, device, operands)
    configs = {key: Config.of(listed.fields[i]) for key, i in listed.numbers.items()}
    if most is not None:
        expected = sorted(configs, key=lambda key: configs[key].estimate_us or math.inf)
        configs = {key: configs[key] for key in {*expected[:most], listed.chosen}}
    workspace = torch.full((listed.workspace_bytes // 4 + 64,), float("nan"), device="cuda")

    def run(key: str) -> Callable[[], object]:
        return listed.prepare(key, workspace)

    reference = Reference(a, b, shape.precision or "ieee")
    torch.backends.cuda.matmul.allow_tf32 = shape.precision == "tf32"  # of torch.mm
    for key in list(configs):
        d.fill_(float("nan"))
        try:
            run(key)()
            wrong = None if reference.agrees(d) else "a wrong result"
        except RuntimeError as error:
            wrong = str(error)
        if wrong is None:
            continue
        if key == listed.chosen:
            raise ArithmeticError(f"{shape}: {key}: {wrong}")
        print(f"{shape}: left out {key}: {wrong}", file=sys.stderr)
        del configs[key]
    first = time_by_turns([run(key) for key in configs], FIRST_REPEATS)
    seconds = dict(zip(configs, first, strict=True))
    near = [key for key in configs if seconds[key] < NEAR * min(first) or key == listed.chosen]
    calls = [run(key) for key in near]
    calls.append(lambda: torch.mm(a, b, out=d))
    *times, peer = time_by_turns(calls, repeats)
    seconds.update(zip(near, times, strict=True))
    return Record(shape, seconds, configs, peer, listed.chosen)


def save(path: Path, device: Device, seed: int, records: list[Record]) -> None:
    report = {
        "device": asdict(device),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "seed": seed,
        "records": [asdict(record) for record in records],
    }
    path.write_text(json.dumps(report) + "\n")


def load(path: Path) -> tuple[Device, list[Record]]:
    report: dict[str, Any] = json.loads(path.read_text())
    records = [
        Record(
            Shape(**found["shape"]), found["seconds"],
            {key: Config.of(config) for key, config in found["configs"].items()},
            found["torch"], found["chosen"],
        )
        for found in report["records"]
    ]  # fmt: skip
    return Device(**report["device"]), records


def show(device: Device, records: list[Record], library: Library | None, worst: int) -> None:
    print("\n".join(regret(records, library, device).lines(worst)))
    print("\n".join(against_torch(records)))
    print("\n".join(winners(records)))
    print("\n".join(estimates(records)))
    for kernel in ("sm90_persistent", "sm80"):
        for found in fit(records, device, kernel):
            bm, bn, stages, cluster = found["tile"]
            print(
                f"{kernel} {bm}x{bn}, {stages} stages, cluster {cluster}:"
                f" {found['tflops']:.0f} TFLOP/s in the main loop, {found['overhead_us']:.2f} us a"
                f" tile ({found['overhead_k']:.0f} of k), {found['launch_us']:.1f} us a launch;"
                f" {found['shapes']} shapes within {found['mean_error']:.1%}"
            )


def sweep(options: argparse.Namespace) -> None:
    def draw_all(rng: random.Random) -> list[Shape]:
        shapes = layer_shapes(options.sets.split(",")) if options.sets else []
        shapes += [random_shape(rng, options.ragged) for _ in range(options.random)]
        for kind, (draw, _) in KINDS.items():
            shapes += [draw(rng) for _ in range(getattr(options, kind))]
        return shapes

    measure_all(options, draw_all)


def measure_all(options: argparse.Namespace, draw: Callable[[random.Random], list[Shape]]) -> None:
    library, device = Library(options.library), current_device()
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    rng = random.Random(seed)
    shapes = draw(rng)
    rng.shuffle(shapes)  # what a limited time leaves out is then no one kind
    print(f"{device.name}, torch {torch.__version__}, seed {seed}, {len(shapes)} shapes")
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    records: list[Record] = []
    start.record()
    for shape in shapes:
        records.append(measure(library, device, shape, options.repeats, options.most))
        end.record()
        end.synchronize()
        if start.elapsed_time(end) > 1e3 * options.seconds:
            break
    print(f"{len(records)} shapes measured")
    if options.output is not None:
        save(options.output, device, seed, records)
    show(device, records, None, options.worst)


def judge(options: argparse.Namespace) -> None:
    device, records = load(options.sweep)
    library = None if options.recorded else Library(options.library)
    show(device, records, library, options.worst)


def fit_constants(options: argparse.Namespace) -> None:
    device, records = load(options.sweep)
    source = options.source.resolve()
    old = constants(source.read_text())
    tuned = tune_file(source, device, records, options.rounds)
    print(tuned.line(source.parent.name))
    for name, value in tuned.values.items():
        if value != old[name]:
            print(f"  {name}: {old[name]:g} -> {value:.4g}")
    if options.write:
        source.write_text(with_constants(source.read_text(), tuned.values))


def compact(options: argparse.Namespace) -> None:
    _, records = load(options.sweep)
    timed = [recorded.Timed(each.shape, each.seconds, each.torch) for each in records]
    recorded.compact_sweep(options, timed)


def main() -> None:
    commands = Commands(__doc__, LIBRARY, "shapes")
    commands.run.add_argument(
        "--sets", default=",".join(LAYER_SETS), help="of `xgemm bench mul`, or ''"
    )
    commands.run.add_argument("--random", type=int, default=300, help="shapes drawn log-uniformly")
    for kind, (_, said) in KINDS.items():
        commands.run.add_argument(f"--{kind}", type=int, default=0, help=f"random: {said}")
    commands.run.add_argument("--ragged", action="store_true", help="random N and K of any size")
    commands.run.add_argument("--repeats", type=int, default=9, help="the median of how many")
    commands.run.add_argument(
        "--most",
        type=int,
        help="of the candidates of a shape, those of least estimate; all if absent",
    )
    commands.show.add_argument("sweep", type=Path)
    tune = commands.add("tune", help="fit a select.cpp to a sweep; needs nvcc, no GPU")
    tune.add_argument("sweep", type=Path)
    tune.add_argument("--source", type=Path, required=True, help="of csrc/cuda/gemm")
    tune.add_argument("--rounds", type=int, default=2, help="over all constants, at most")
    tune.add_argument("--write", action="store_true", help="into the source")
    commands.add_compact()
    commands.execute(build, sweep, judge, tune=fit_constants, compact=compact)


if __name__ == "__main__":
    main()
