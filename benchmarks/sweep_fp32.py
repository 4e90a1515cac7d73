"""Which tile and split of K is best for a product of fp32 operands, over many shapes on this GPU.

    make build
    python benchmarks/sweep_mul.py build                  # links what is measured; needs nvcc
    python benchmarks/sweep_fp32.py [--seconds 60] [--output s.json]   # on the GPU

Every candidate is checked against float64 and timed from a cold L2 cache, all of a shape by turns,
beside cuBLAS and the present choice. The constants of csrc/cuda/gemm/fp32/select.cpp and of
tf32/tiles.h and tf32/select.cpp are fits over such runs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from sweep.library import LIBRARY, Library, Shape, current_device
from sweep_mul import time_by_turns

UNIT = {"ieee": 2.0**-24, "tf32x3": 2.0**-21, "tf32": 2.0**-9}
SIZES = (
    *((size, size, size) for size in (256, 512, 768, 1024, 1536, 2048, 3000, 4096, 8192)),
    *((m, 4096, 4096) for m in (1, 4, 16, 128)),
    (64, 14336, 4096), (256, 11008, 4096), (512, 512, 2048),
    (1000, 3333, 5555), (4097, 4097, 4097), (2048, 511, 32001),
)  # fmt: skip
MOST_WORKSPACE = 1 << 30


def operand(rows: int, columns: int, layout: str) -> torch.Tensor:
    if layout == "n":
        return torch.randn(rows, columns, device="cuda")
    return torch.randn(columns, rows, device="cuda").t()


def is_right(d: torch.Tensor, a: torch.Tensor, b: torch.Tensor, precision: str) -> bool:
    """Of some rows and columns, the first and the last among them, against float64."""
    rows = torch.linspace(0, len(d) - 1, min(len(d), 40), device="cuda").round().long()
    columns = torch.linspace(0, d.shape[1] - 1, min(d.shape[1], 300), device="cuda").round().long()
    wide_a, wide_b = a[rows].double(), b[:, columns].double()
    bound = (wide_a.abs() @ wide_b.abs()) * ((a.shape[1] + 8) * 2.0**-24 + UNIT[precision])
    return bool(((d[rows][:, columns].double() - wide_a @ wide_b).abs() <= bound).all())


def cublas(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, tf32: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.mm(a, b, out=d)
    torch.backends.cuda.matmul.allow_tf32 = False


def measure(library: Library, shape: Shape, workspace: torch.Tensor) -> dict[str, float]:
    """Microseconds of each candidate, of cuBLAS, and of the present choice."""
    device = current_device()
    a, b = operand(shape.m, shape.k, shape.layout[0]), operand(shape.k, shape.n, shape.layout[1])
    d = torch.empty(shape.m, shape.n, device="cuda")
    listed = library.open(shape, device, (a, b, d))
    calls: dict[str, Callable[[], object]] = {
        "cublas": partial(cublas, a, b, d, shape.precision == "tf32")
    }
    if listed.workspace_bytes > MOST_WORKSPACE:
        raise ValueError(f"{shape}: a workspace of {listed.workspace_bytes} bytes")
    for key in listed.numbers:
        run = listed.prepare(key, workspace)
        d.fill_(float("nan"))
        run()
        if not is_right(d, a, b, shape.precision):
            raise ArithmeticError(f"{shape}: {key}: a wrong result")
        calls[f"chosen {key}" if key == listed.chosen else key] = run
    repeats = 3 if shape.flops > 1e11 else 9
    times = time_by_turns(list(calls.values()), repeats)
    return {key: seconds * 1e6 for key, seconds in zip(calls, times, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--library", type=Path, default=LIBRARY)
    parser.add_argument("--seconds", type=float, default=600.0, help="stop after as many")
    parser.add_argument("--output", type=Path, help="write JSON here")
    options = parser.parse_args()
    library, start, records = Library(options.library), time.monotonic(), []
    workspace = torch.empty(MOST_WORKSPACE // 4, device="cuda")
    shapes = [
        Shape(m, n, k, layout, precision=precision)
        for m, n, k in SIZES
        for layout in ("nt", "nn", "tn")
        for precision in ("ieee", "tf32x3", "tf32")
    ]
    for shape in shapes:
        if time.monotonic() - start > options.seconds:
            break
        times = measure(library, shape, workspace)
        records.append({"shape": asdict(shape), "microseconds": times})
        best = sorted((us, key) for key, us in times.items() if key != "cublas")[:3]
        chosen = next((us, key) for key, us in times.items() if key.startswith("chosen"))
        print(
            f"{shape.m}x{shape.n}x{shape.k} {shape.layout} {shape.precision}:"
            f" cuBLAS {times['cublas']:.1f} us; {chosen[1]} {chosen[0]:.1f}; best "
            + "; ".join(f"{key} {us:.1f}" for us, key in best)
        )
    if options.output is not None:
        options.output.write_text(json.dumps(records) + "\n")


if __name__ == "__main__":
    main()
