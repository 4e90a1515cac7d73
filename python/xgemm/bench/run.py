"""Runs a family's benchmark: operands, a check against float64, times, one record a case."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import torch

import xgemm
from xgemm import _library
from xgemm.bench import peers, shapes
from xgemm.bench.check import checked
from xgemm.bench.floors import floor_seconds
from xgemm.bench.options import DTYPES, Options
from xgemm.bench.record import Record
from xgemm.bench.summary import summarize, summarize_rows
from xgemm.bench.timing import time_calls

ROUNDING = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
CHECKED_ROWS, CHECKED_COLUMNS = 16, 256  # of a product are what is compared


def run_benchmark(
    family: str, options: Options, on_record: Callable[[Record], None] = lambda record: None
) -> dict[str, Any]:
    """Everything measured, ready for JSON; on_record hears each case as it comes."""
    options.check(family)
    make = {"mul": _mul, "w4a16": _w4a16, "reduce": _reduce}[family]
    records = []
    with torch.inference_mode():
        for record in make(options):
            records.append(record)
            on_record(record)
    return {
        "family": family,
        "dtype": options.dtype,
        "seed": options.seed,
        "options": {**asdict(options), "cub": options.cub and str(options.cub)},
        **environment(options.device),
        "summary": summarize(records),
        "rows": summarize_rows([r for r in records if r.set in shapes.LINEAR_SETS]),
        "records": [{**asdict(record), "speedup": record.speedup()} for record in records],
    }


def environment(device: str) -> dict[str, Any]:
    """Where a benchmark ran, and of what."""
    name = torch.cuda.get_device_name() if device == "cuda" else _cpu_name()
    return {
        "device": name,
        "threads": torch.get_num_threads(),
        "xgemm": xgemm.__version__,
        "commit": _library.build_info().get("git_commit"),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
    }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if "model name" in line]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def _random(seed: int, device: str, *shape: int) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(*shape, generator=generator, device=device)


def _spread(extent: int, count: int, device: str | torch.device) -> torch.Tensor:
    """`count` indices from the first to the last."""
    return torch.linspace(0, extent - 1, min(count, extent), device=device).round().long()


def _check_product(y: torch.Tensor, x: torch.Tensor, w: torch.Tensor, rounded_w: bool) -> float:
    """Largest error of some of y = x w^T against float64, as a share of its bound."""
    i, j = _spread(len(x), CHECKED_ROWS, x.device), _spread(len(w), CHECKED_COLUMNS, x.device)
    rows, columns = x[i].double(), w[j].double()
    expected = rows @ columns.t()
    magnitude = rows.abs() @ columns.abs().t()
    rounding = ROUNDING[y.dtype]
    bound = (x.shape[1] + 8) * 2.0**-24 * magnitude + rounding * expected.abs() + 2.0**-24
    if rounded_w:  # W may be rounded once to the activations' type
        bound += 16 * rounding * magnitude
    return _share("product", y[i][:, j].double(), expected, bound)


def _share(what: str, result: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor) -> float:
    return checked(what, float(((result - expected).abs() / bound).max()))


def _mul(options: Options) -> Iterator[Record]:
    device, dtype, seed = options.device, DTYPES[options.dtype], options.seed
    layouts = options.chosen_layouts()
    gpu = torch.cuda.get_device_name() if device == "cuda" else ""
    for p in _products(options):
        bytes_moved = (p.m * p.k + p.n * p.k + p.m * p.n) * dtype.itemsize
        flops = 2.0 * p.m * p.n * p.k
        floor = floor_seconds(gpu, bytes_moved, flops) if dtype.itemsize == 2 else None
        for layout in layouts:
            a, b = _operands(p, layout, dtype, device, seed)
            calls = peers.mul_calls(a, b, options.compile)
            error = _check_product(torch.ops.xgemm.mul.default(a, b), a, b.t(), rounded_w=False)
            yield Record(
                p.name, f"{p.m}x{p.n}x{p.k}", time_calls(calls, device), flops, bytes_moved, error,
                set=p.set, layout=layout, floor_seconds=floor,
            )  # fmt: skip


def _operands(
    p: shapes.Product, layout: str, dtype: torch.dtype, device: str, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random a [m, k] and b [k, n], each row-major (n) or column-major (t)."""
    shape_a, shape_b = (p.m, p.k), (p.k, p.n)
    if layout[0] == "t":
        a = _random(seed, device, *reversed(shape_a)).to(dtype).t()
    else:
        a = _random(seed, device, *shape_a).to(dtype)
    if layout[1] == "t":
        return a, _random(seed + 1, device, *reversed(shape_b)).to(dtype).t()
    return a, _random(seed + 1, device, *shape_b).to(dtype)


def _products(options: Options) -> list[shapes.Product]:
    sets = shapes.choose(options.sets, shapes.PRODUCT_SETS)
    return shapes.products(sets, options.device, options.seed, options.chosen_rows())


def _w4a16(options: Options) -> Iterator[Record]:
    device, dtype, seed = options.device, DTYPES[options.dtype], options.seed
    invariant = options.batch_invariant
    gpu = torch.cuda.get_device_name() if device == "cuda" else ""
    made: tuple[Any, ...] = ()
    weight_of: tuple[int, int] | None = None
    for p in _products(options):
        if weight_of != (p.n, p.k):  # successive cases often share a weight
            made = ()  # frees the last one's memory
            made, weight_of = _packed_weight(p.n, p.k, options), (p.n, p.k)
        packed, dense, q, humming = made
        x = _random(seed, device, p.m, p.k).to(dtype)
        calls = peers.w4a16_calls(x, packed, dense, q, humming, invariant)
        y = xgemm.linear(x, packed, batch_invariant=invariant)
        error = _check_product(y, x, dense, rounded_w=True)
        moved = packed.nbytes + (p.m * p.k + p.m * p.n) * dtype.itemsize
        flops = 2.0 * p.m * p.n * p.k
        floor = floor_seconds(gpu, moved, flops) if dtype.itemsize == 2 else None
        yield Record(
            p.name, f"{p.m}x{p.n}x{p.k}", time_calls(calls, device), flops, moved, error, set=p.set,
            floor_seconds=floor,
        )  # fmt: skip


def _packed_weight(
    n: int, k: int, options: Options
) -> tuple[xgemm.PackedWeight, torch.Tensor, xgemm.QuantizedWeight, peers.Call1 | None]:
    """A random weight: packed, dense, canonical, and as humming's layer where that is here."""
    weight = _random(options.seed + 1, options.device, n, k)
    q = xgemm.quantize_weight(
        weight,
        group_size=options.group_size,
        symmetric=not options.asymmetric,
        scale_dtype=torch.float16,
    )
    dense = q.dequantize(DTYPES[options.dtype])
    humming = None if options.asymmetric else peers.humming_layer(dense, options.group_size)
    return xgemm.pack(q), dense, q, humming


def _reduce(options: Options) -> Iterator[Record]:
    device, dtype, seed = options.device, DTYPES[options.dtype], options.seed
    ops, sets = options.chosen_ops(), shapes.choose(options.sets, shapes.REDUCE_SETS)
    gpu = torch.cuda.get_device_name() if device == "cuda" else ""
    for case in shapes.reductions(sets, device, seed):
        x = _random(seed, device, *case.shape).to(dtype)
        size = "x".join(map(str, case.shape))
        for op in ops:
            calls = peers.reduce_calls(op, x, case.dims, options.compile, options.cub)
            error = _check_reduction(op, x, case.dims)
            outputs = x.numel() // max(math.prod(case.shape[d] for d in case.dims), 1)
            moved = x.numel() * dtype.itemsize + outputs * dtype.itemsize
            yield Record(
                f"{op} {case.name}", size, time_calls(calls, device), 0.0, moved, error,
                set=case.name, floor_seconds=floor_seconds(gpu, moved, 0.0),
            )  # fmt: skip


def _check_reduction(op: str, x: torch.Tensor, dims: tuple[int, ...]) -> float:
    result = peers.reduce_calls(op, x, dims)[peers.OURS]()
    expected = peers.reduce_calls(op, x.double(), dims)[peers.TORCH]()
    assert isinstance(result, torch.Tensor)
    assert isinstance(expected, torch.Tensor)
    if op in ("argmax", "argmin"):  # equal values may stand at several positions
        picked = x.double().gather(dims[0], result.unsqueeze(dims[0])).squeeze(dims[0])
        extreme = x.double().amax(dims) if op == "argmax" else x.double().amin(dims)
        return _share(op, picked, extreme, torch.full_like(extreme, 1e-30))
    count = x.numel() // max(expected.numel(), 1)
    magnitude = x.double().abs().sum(dims)
    if op == "mean":
        magnitude = magnitude / count
    elif op != "sum":
        magnitude = expected.abs()
    bound = (count + 8) * 2.0**-23 * magnitude + ROUNDING[x.dtype] * expected.abs() + 2.0**-24
    # A sum beyond the type's range is infinite: 2^30 normal numbers get there in fp16.
    infinite = expected.to(x.dtype).isinf() & (result == expected.to(x.dtype))
    return _share(op, result.double().where(~infinite, expected), expected, bound)
