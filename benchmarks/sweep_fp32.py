"""Which kernel, tile and split of K is best for a product of fp32 operands, over many shapes.

    make build
    python benchmarks/sweep_fp32.py build                    # links what is measured; needs nvcc
    python benchmarks/sweep_fp32.py run --output s.json      # on the GPU; cuBLAS in the same run
    python benchmarks/sweep_fp32.py run --no-sizes --few 300 --mixed 300 --output r.json
    python benchmarks/sweep_fp32.py show r.json              # anywhere: the choice's regret

Candidates are measured and judged as sweep_mul.py does it, whose `tune` and fit_dense.py fit the
constants of csrc/cuda/gemm/fp32 and tf32 to such a sweep.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from sweep.commands import Commands
from sweep.library import LIBRARY, Shape, build
from sweep_mul import judge, log_uniform, measure_all

MOST_FLOPS = 1e11  # of a random product
PRECISIONS = ("ieee", "tf32x3", "tf32")
SIZES = (
    *((size, size, size) for size in (256, 512, 768, 1024, 1536, 2048, 3000, 4096, 8192)),
    *((m, 4096, 4096) for m in (1, 4, 16, 128)),
    (64, 14336, 4096), (256, 11008, 4096), (512, 512, 2048),
    (1000, 3333, 5555), (4097, 4097, 4097), (2048, 511, 32001),
)  # fmt: skip


def random_few(rng: random.Random, precision: str) -> Shape:
    """One to four rows or columns; every second one of aligned rows."""
    few, align = rng.randint(1, 4), rng.choice((1, 8))
    wide = round(log_uniform(rng, 32, 32768) / align) * align
    k = round(log_uniform(rng, 32, 32768) / align) * align
    if wide * k > 1.5e8:
        return random_few(rng, precision)
    m, n = (few, wide) if rng.random() < 0.7 else (wide, few)
    return Shape(m, n, k, rng.choice(("nn", "nt", "tn", "tt")), precision=precision)


def random_mixed(rng: random.Random, precision: str) -> Shape:
    """M, N and K of 8 to 6000, log-uniform; two in three are multiples of eight."""
    align = rng.choice((1, 8, 8))
    m, n, k = (round(log_uniform(rng, 8, 6000) / align) * align for _ in range(3))
    if 2.0 * m * n * k > MOST_FLOPS:
        return random_mixed(rng, precision)
    return Shape(m, n, k, rng.choice(("nn", "nt", "tn", "tt")), precision=precision)


def sweep(options: argparse.Namespace) -> None:
    precisions = options.precisions.split(",")

    def draw(rng: random.Random) -> list[Shape]:
        shapes = [random_few(rng, rng.choice(precisions)) for _ in range(options.few)]
        shapes += [random_mixed(rng, rng.choice(precisions)) for _ in range(options.mixed)]
        if options.sizes:
            shapes += [
                Shape(m, n, k, layout, precision=precision)
                for m, n, k in SIZES
                for layout in ("nt", "nn", "tn")
                for precision in precisions
            ]
        return shapes

    measure_all(options, draw)


def main() -> None:
    commands = Commands(__doc__, LIBRARY, "shapes")
    commands.run.add_argument(
        "--sizes", action=argparse.BooleanOptionalAction, default=True, help="squares and others"
    )
    commands.run.add_argument(
        "--few", type=int, default=0, help="random products of 1 to 4 rows or columns"
    )
    commands.run.add_argument(
        "--mixed", type=int, default=0, help="random products of 8 to 6000 a side"
    )
    commands.run.add_argument("--precisions", default=",".join(PRECISIONS), help="of all shapes")
    commands.run.add_argument("--repeats", type=int, default=9, help="the median of how many")
    commands.run.add_argument("--most", type=int, help="candidates of a shape, of least estimate")
    commands.show.add_argument("sweep", type=Path)
    commands.execute(build, sweep, judge)


if __name__ == "__main__":
    main()
