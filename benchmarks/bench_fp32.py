"""Times products of float32 operands on CUDA, in each precision, against cuBLAS: a table and JSON.

    python benchmarks/bench_fp32.py [--sizes squares,ragged,layers] [--compile] [--json FILE]

"ieee" and "tf32x3" stand beside cuBLAS in fp32, "tf32" beside cuBLAS with TF32 allowed; with
--compile beside torch.compile's choice, too. Every product is compared with float64 before it is
timed. Ragged sizes are drawn fresh unless --seed is given.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

import xgemm  # noqa: F401  (registers the ops)
from xgemm.bench.check import checked
from xgemm.bench.peers import COMPILED, compiled_product
from xgemm.bench.plot import load_pyplot
from xgemm.bench.run import environment
from xgemm.bench.summary import geometric_mean
from xgemm.bench.timing import Call, time_calls

PRECISIONS = ("ieee", "tf32x3", "tf32")
OF_A_PRODUCT = {"ieee": 0.0, "tf32x3": 2.0**-22, "tf32": 2.0**-10}
SQUARES = tuple((size, size, size) for size in (512, 1024, 2048, 3072, 4096, 6144, 8192))
LARGE = 2048  # squares from here on are summed up apart
LAYERS = tuple(
    (m, n, k) for n, k in ((4096, 4096), (28672, 4096), (4096, 14336)) for m in (1, 16, 128, 1024)
)


@dataclass(frozen=True)
class Row:
    set: str
    m: int
    n: int
    k: int
    layout: str  # of a and b; n: row-major, t: column-major
    precision: str
    microseconds: float
    cublas_microseconds: float
    error: float  # the largest, as a share of its bound
    compiled_microseconds: float | None = None  # by torch.compile

    @property
    def teraflops(self) -> float:
        return 2e-6 * self.m * self.n * self.k / self.microseconds

    @property
    def speedup(self) -> float:
        return self.cublas_microseconds / self.microseconds


def ragged(seed: int, count: int = 12) -> tuple[tuple[int, int, int], ...]:
    draw = random.Random(seed)
    drawn = tuple(
        (draw.randint(300, 6000), draw.randint(300, 6000), draw.randint(300, 6000))
        for _ in range(count)
    )
    return ((1000, 3333, 5555), (4097, 4097, 4097), (2048, 511, 32001), *drawn)


def operand(rows: int, columns: int, layout: str) -> torch.Tensor:
    if layout == "n":
        return torch.randn(rows, columns, device="cuda")
    return torch.randn(columns, rows, device="cuda").t()


def worst_share(y: torch.Tensor, a: torch.Tensor, b: torch.Tensor, precision: str) -> float:
    """Of some rows: float64 takes long."""
    rows = torch.linspace(0, len(a) - 1, min(len(a), 256), device="cuda").round().long()
    wide_a, wide_b = a[rows].double(), b.double()
    unit = (a.shape[1] + 8) * 2.0**-24 + OF_A_PRODUCT[precision]
    bound = unit * (wide_a.abs() @ wide_b.abs()) + 1e-37
    return checked(precision, float(((y[rows] - wide_a @ wide_b).abs() / bound).max()))


def in_mode(tf32: bool, call: Call) -> object:
    torch.backends.cuda.matmul.allow_tf32 = tf32
    return call()


def measure(name: str, m: int, n: int, k: int, layout: str, compiled: bool) -> list[Row]:
    a, b = operand(m, k, layout[0]), operand(k, n, layout[1])
    op = torch.ops.xgemm.mul.default
    shares = {p: worst_share(op(a, b, precision=p), a, b, p) for p in PRECISIONS}
    calls: dict[str, Call] = {p: partial(op, a, b, precision=p) for p in PRECISIONS}
    peers = {"cublas": partial(torch.mm, a, b)}
    if compiled:  # once for each mode, by its guards
        peers[COMPILED] = compiled_product(a, b)
    for peer, call in peers.items():
        calls |= {f"{peer} {tf32}": partial(in_mode, tf32, call) for tf32 in (False, True)}
    us = {call: seconds * 1e6 for call, seconds in time_calls(calls, "cuda").items()}
    return [
        Row(
            name, m, n, k, layout, p, us[p], us[f"cublas {p == 'tf32'}"], shares[p],
            us.get(f"{COMPILED} {p == 'tf32'}"),
        )
        for p in PRECISIONS
    ]  # fmt: skip


def summary(rows: list[Row]) -> list[str]:
    """For each precision, and the large squares apart: what it is beside cuBLAS."""
    lines = []
    for precision in PRECISIONS:
        for large, kind in ((True, f"squares from {LARGE} on"), (False, "others")):
            group = [
                row for row in rows
                if row.precision == precision and large == (row.set == "squares" and row.m >= LARGE)
            ]  # fmt: skip
            if not group:
                continue
            ratios = [row.speedup for row in group]
            line = f"{precision}, {kind}: geometric mean {geometric_mean(ratios):.3f}x cuBLAS,"
            line += f" worst {min(ratios):.3f}x"
            ratios = [
                row.compiled_microseconds / row.microseconds
                for row in group if row.compiled_microseconds is not None
            ]  # fmt: skip
            if ratios:
                line += f"; {geometric_mean(ratios):.3f}x {COMPILED}, worst {min(ratios):.3f}x"
            lines.append(f"{line}; best {max(row.teraflops for row in group):.1f} TFLOP/s")
    return lines


def plot(rows: list[Row], path: Path) -> None:
    """TFLOP/s of squares, the better of the layouts: ours, and cuBLAS dashed."""
    figure, axes = load_pyplot().subplots()
    squares = [row for row in rows if row.set == "squares"]
    for precision in PRECISIONS:
        ours: dict[int, float] = {}
        theirs: dict[int, float] = {}
        for row in squares:
            if row.precision == precision:
                ours[row.m] = max(ours.get(row.m, 0.0), row.teraflops)
                theirs[row.m] = max(theirs.get(row.m, 0.0), row.teraflops / row.speedup)
        (line,) = axes.plot(list(ours), list(ours.values()), "o-", label=precision)
        if precision != "tf32x3":  # whose peer is that of ieee
            axes.plot(
                list(theirs), list(theirs.values()), "o--", markersize=3, alpha=0.6,
                color=line.get_color(), label=f"cuBLAS{' TF32' if precision == 'tf32' else ''}",
            )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="M = N = K", ylabel="TFLOP/s")
    axes.set_title(f"float32 products, {torch.cuda.get_device_name()}")
    sides = sorted({row.m for row in squares})
    axes.set_xticks(sides, [str(side) for side in sides], rotation=45)
    axes.minorticks_off()
    rates = (10, 20, 50, 100, 200, 400)
    axes.set_yticks(rates, [str(rate) for rate in rates])
    axes.legend()
    figure.savefig(path, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", default="squares,ragged,layers")
    parser.add_argument("--layouts", default="nn,nt")
    parser.add_argument("--compile", action="store_true", help="torch.compile; seconds a shape")
    parser.add_argument("--seed", type=int, help="of the ragged sizes; fresh if absent")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="of the squares")
    options = parser.parse_args()
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    sets = {"squares": SQUARES, "ragged": ragged(seed), "layers": LAYERS}
    rows: list[Row] = []
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, seed {seed}")
    print("| MxNxK | layout | precision | us | TFLOP/s | x cuBLAS | error |")
    print("|---|---|---|---|---|---|---|")
    for name in options.sizes.split(","):
        for shape in sets[name]:
            for layout in options.layouts.split(","):
                for row in measure(name, *shape, layout, options.compile):
                    rows.append(row)
                    size = "x".join(map(str, shape))
                    print(
                        f"| {size} | {layout} | {row.precision} | {row.microseconds:.1f} |"
                        f" {row.teraflops:.1f} | {row.speedup:.2f} | {row.error:.2f} |",
                        flush=True,
                    )
    print("\n".join(summary(rows)))
    if options.json:
        record = {**environment("cuda"), "seed": seed, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(record, indent=2) + "\n")
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
