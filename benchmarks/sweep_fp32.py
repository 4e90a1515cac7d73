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
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from sweep.library import LIBRARY, ROOT, Config, Library, Shape, current_device
from sweep_mul import time_by_turns

UNIT = {"ieee": 2.0**-24, "tf32x3": 2.0**-21, "tf32": 2.0**-9}
SIZES = (
    *((size, size, size) for size in (256, 512, 768, 1024, 1536, 2048, 3000, 4096, 8192)),
    *((m, 4096, 4096) for m in (1, 4, 16, 128)),
    (64, 14336, 4096), (256, 11008, 4096), (512, 512, 2048),
    (1000, 3333, 5555), (4097, 4097, 4097), (2048, 511, 32001),
)  # fmt: skip
MOST_WORKSPACE = 1 << 30
# Rows, columns, stages, k of a stage, CTAs of an SM where TMA loads, and where threads copy.
TMA_TILES = {
    "fp32_sm90": (
        (64, 64, 3, 32, 4, 3), (32, 128, 3, 32, 3, 3),
        (32, 32, 2, 32, 12, 12), (32, 32, 3, 64, 4, 3),
    ),
    "tf32_single_tile": ((32, 32, 4, 64, 3, 3),),
}  # fmt: skip


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def parts(k: int, unit: int, wanted: list[int]) -> list[int]:
    """How many parts of K there are, each a multiple of `unit` and none empty."""
    units = ceil_div(k, unit)
    sizes = (ceil_div(units, max(1, min(count, units // 4))) for count in wanted)
    return sorted({ceil_div(units, size) for size in sizes})


def operand(rows: int, columns: int, layout: str) -> torch.Tensor:
    if layout == "n":
        return torch.randn(rows, columns, device="cuda")
    return torch.randn(columns, rows, device="cuda").t()


def fits(x: torch.Tensor, dim: int) -> bool:
    """Whether the dimension is contiguous, in 16-byte aligned lines."""
    return x.stride(dim) == 1 and x.stride(1 - dim) % 4 == 0


def tiles_of(shape: Shape, block_m: int, block_n: int) -> int:
    """Flat tiles take D's shorter side as rows."""
    rows, columns = shape.m, shape.n
    if block_m < block_n:
        rows, columns = sorted((rows, columns))
    return ceil_div(rows, block_m) * ceil_div(columns, block_n)


def fp32_candidates(shape: Shape, a: torch.Tensor, b: torch.Tensor, sms: int) -> Iterator[Config]:
    for block_m, block_n, ctas, copies in (
        (128, 128, 2, True), (128, 128, 2, False), (64, 64, 6, False), (16, 128, 6, False),
    ):  # fmt: skip
        tiles = tiles_of(shape, block_m, block_n)
        wanted = [1, 2, 3, *(sms * turns // tiles for turns in range(1, ctas + 1))]
        for splits in parts(shape.k, 16, wanted):
            yield Config(
                "fp32", block_m, block_n, 0, splits=splits,
                copy_a=copies and not fits(a, 0), copy_b=copies and not fits(b, 1),
            )  # fmt: skip
    hopper = torch.cuda.get_device_capability() == (9, 0)
    if min(shape.m, shape.n) <= 4:
        yield from few_candidates(shape, a, b, hopper)
    if hopper:
        yield from tma_candidates(shape, a, b, sms, "fp32_sm90")


def few_candidates(
    shape: Shape, a: torch.Tensor, b: torch.Tensor, hopper: bool
) -> Iterator[Config]:
    """Parts of K are a cluster on Hopper."""
    few, wide = sorted((shape.m, shape.n))
    along_k = b.stride(0) == 1 if shape.m <= shape.n else a.stride(1) == 1
    for columns in (4, 8, 16, 32) if along_k else (32, 128):
        for splits in parts(shape.k, 16, [1, 2, 4, 8]):
            yield Config(
                "fp32", 4 if few == 3 else few, columns, 0, cluster=splits if hopper else 1,
                splits=splits, ctas=ceil_div(wide, columns) * splits,
            )  # fmt: skip


def tma_candidates(
    shape: Shape, a: torch.Tensor, b: torch.Tensor, sms: int, kernel: str
) -> Iterator[Config]:
    """The tiles of fp32/sm90/tiles.h, all whole, or those from a round on split over K; what
    TMA cannot read is copied before, or by the threads."""
    needed = not (fits(a, 0) or fits(a, 1)), not (fits(b, 0) or fits(b, 1))
    for block_m, block_n, stages, depth, by_tma, by_threads in TMA_TILES[kernel]:
        if depth == 32 and block_m == 32 and min(shape.m, shape.n) > 96:
            continue
        tiles = tiles_of(shape, block_m, block_n)
        for copies in {needed, (False, False)}:
            slots = sms * (by_tma if copies == needed else by_threads)
            rounds = tiles // slots
            for whole in {tiles, rounds * slots, max(0, rounds - 1) * slots, 0}:
                wanted = [2, 3, 4, 5, 6, 8, 10, 12, *(sms * n // tiles for n in range(1, 5))]
                for splits in [1] if whole == tiles else parts(shape.k, depth, wanted):
                    if (splits == 1) != (whole == tiles):
                        continue
                    yield Config(
                        kernel, block_m, block_n, stages, splits=splits,
                        ctas=whole + (tiles - whole) * splits, copy_a=copies[0], copy_b=copies[1],
                    )  # fmt: skip


def tf32_candidates(shape: Shape, a: torch.Tensor, b: torch.Tensor, sms: int) -> Iterator[Config]:
    if shape.precision == "tf32":
        yield from tma_candidates(shape, a, b, sms, "tf32_single_tile")
    text = (ROOT / "csrc/cuda/gemm/tf32/tiles.h").read_text()
    name = "XGEMM_TF32X3_TILES" if shape.precision == "tf32x3" else "XGEMM_TF32_TILES"
    lines = text.partition(f"#define {name}(TILE)")[2].split("#define")[0]
    for x, y, cluster in (
        tuple(map(int, found)) for found in re.findall(r"TILE\((\d+), (\d+), (\d+), \d+\)", lines)
    ):
        for swapped in (False, True):
            rows_x, rows_y = (shape.n, shape.m) if swapped else (shape.m, shape.n)
            x_is, y_is = (b, a) if swapped else (a, b)
            x_k, y_k = (0, 1) if swapped else (1, 0)  # the dimensions along k
            copy_x, copy_y = not (fits(x_is, x_k) or fits(x_is, 1 - x_k)), not fits(y_is, y_k)
            tiles, slots = ceil_div(rows_x, x * cluster) * ceil_div(rows_y, y), sms // cluster
            for splits in parts(shape.k, 32, [1, slots // tiles, 2 * slots // tiles]):
                yield Config(
                    "tf32_swapped" if swapped else "tf32",
                    y if swapped else x, x if swapped else y, 0,
                    cluster=cluster, splits=splits, ctas=min(tiles * splits, slots) * cluster,
                    copy_a=copy_y if swapped else copy_x, copy_b=copy_x if swapped else copy_y,
                )  # fmt: skip


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
    find = fp32_candidates if shape.precision == "ieee" else tf32_candidates
    chosen = library.select(shape, device)
    configs = {f"chosen {chosen.key}": chosen}
    configs |= {config.key: config for config in find(shape, a, b, device.sm_count)}
    calls: dict[str, Callable[[], object]] = {
        "cublas": partial(cublas, a, b, d, shape.precision == "tf32")
    }
    for key, config in configs.items():
        if 4 * config.splits * shape.m * shape.n > MOST_WORKSPACE // 2:
            continue
        run = library.prepare(shape, config, (a, b, d), workspace)
        d.fill_(float("nan"))
        run()
        if not is_right(d, a, b, shape.precision):
            raise ArithmeticError(f"{shape}: {key}: a wrong result")
        calls[key] = run
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
