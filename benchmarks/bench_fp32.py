"""Times products of float32 operands on CUDA, in each precision, against cuBLAS: a table and JSON.

    python benchmarks/bench_fp32.py [--sizes squares,ragged,layers] [--json FILE] [--plot FILE]

"ieee" and "tf32x3" stand beside cuBLAS in fp32, "tf32" beside cuBLAS with TF32 allowed. Every
product is compared with float64 before it is timed.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

import xgemm  # noqa: F401  (registers the ops)
from xgemm.bench.run import environment
from xgemm.bench.timing import Call, time_calls

PRECISIONS = ("ieee", "tf32x3", "tf32")
OF_A_PRODUCT = {"ieee": 0.0, "tf32x3": 2.0**-22, "tf32": 2.0**-10}
SQUARES = tuple((size, size, size) for size in (512, 1024, 2048, 3072, 4096, 6144, 8192))
LAYERS = tuple(
    (m, n, k) for n, k in ((4096, 4096), (28672, 4096), (4096, 14336)) for m in (1, 16, 128, 1024)
)


@dataclass(frozen=True)
class Row:
    m: int
    n: int
    k: int
    layout: str  # of a and b; n: row-major, t: column-major
    precision: str
    microseconds: float
    cublas_microseconds: float
    error: float  # the largest, as a share of its bound

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
    share = float(((y[rows] - wide_a @ wide_b).abs() / bound).max())
    if not share <= 1:  # NaN too
        raise ArithmeticError(
            f"bench: {precision} differs from float64 by {share:.3g} of its bound"
        )
    return share


def cublas(a: torch.Tensor, b: torch.Tensor, tf32: bool) -> torch.Tensor:
    torch.backends.cuda.matmul.allow_tf32 = tf32
    return torch.mm(a, b)


def measure(m: int, n: int, k: int, layout: str) -> list[Row]:
    a, b = operand(m, k, layout[0]), operand(k, n, layout[1])
    op = torch.ops.xgemm.mul.default
    shares = {p: worst_share(op(a, b, precision=p), a, b, p) for p in PRECISIONS}
    calls: dict[str, Call] = {p: partial(op, a, b, precision=p) for p in PRECISIONS}
    calls |= {"cublas": partial(cublas, a, b, False), "cublas tf32": partial(cublas, a, b, True)}
    seconds = time_calls(calls, "cuda")
    peer = {p: "cublas tf32" if p == "tf32" else "cublas" for p in PRECISIONS}
    return [
        Row(m, n, k, layout, p, seconds[p] * 1e6, seconds[peer[p]] * 1e6, shares[p])
        for p in PRECISIONS
    ]


def plot(rows: list[Row], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots()
    for precision in PRECISIONS:
        best: dict[int, float] = {}  # of the layouts
        for row in rows:
            if row.precision == precision and row.m == row.n == row.k:
                best[row.m] = max(best.get(row.m, 0.0), row.teraflops)
        sizes = sorted(best)
        axes.plot(sizes, [best[size] for size in sizes], "o-", label=precision)
    axes.set(xscale="log", xlabel="M = N = K", ylabel="TFLOP/s", title="float32 products")
    axes.legend()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", default="squares,ragged,layers")
    parser.add_argument("--layouts", default="nn,nt")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    sets = {"squares": SQUARES, "ragged": ragged(options.seed), "layers": LAYERS}
    rows: list[Row] = []
    print("| MxNxK | layout | precision | us | TFLOP/s | x cuBLAS | error |")
    print("|---|---|---|---|---|---|---|")
    for name in options.sizes.split(","):
        for shape in sets[name]:
            for layout in options.layouts.split(","):
                for row in measure(*shape, layout):
                    rows.append(row)
                    size = "x".join(map(str, shape))
                    print(
                        f"| {size} | {layout} | {row.precision} | {row.microseconds:.1f} |"
                        f" {row.teraflops:.1f} | {row.speedup:.2f} | {row.error:.2f} |",
                        flush=True,
                    )
    for precision in PRECISIONS:
        speedups = [row.speedup for row in rows if row.precision == precision]
        mean = math.exp(sum(map(math.log, speedups)) / len(speedups))
        print(f"{precision}: geometric mean {mean:.3f}x cuBLAS, worst {min(speedups):.3f}x")
    if options.json:
        record = {**environment("cuda"), "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(record, indent=2) + "\n")
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
