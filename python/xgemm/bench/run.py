"""Runs a family's benchmark: operands, a check against float64, times, one record a case."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import xgemm
from xgemm import _library
from xgemm.bench import peers, shapes
from xgemm.bench.floors import floor_seconds
from xgemm.bench.record import Record
from xgemm.bench.summary import summarize, summarize_rows
from xgemm.bench.timing import time_calls

FAMILIES = ("mul", "w4a16", "reduce")
LAYOUTS = ("nn", "nt", "tn")  # of a and b; n: row-major, t: column-major
REDUCE_OPS = ("sum", "mean", "prod", "amax", "amin", "norm", "argmax", "argmin")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
ROUNDING = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
GROUP_SIZE = 128
CHECKED_ROWS, CHECKED_COLUMNS = 16, 256  # of a product are what is compared


def run_benchmark(
    family: str,
    sets: str,
    dtype: str,
    device: str,
    seed: int,
    on_record: Callable[[Record], None] = lambda record: None,
    layouts: str = "nt",
    compiled: bool = False,
    ops: str = "",
    cub: Path | None = None,
) -> dict[str, Any]:
    """Everything measured, ready for JSON; on_record hears each case as it comes.

    `layouts` (of a and b, separated by commas) are mul's; `compiled` (torch.compile as a peer) is
    mul's and reduce's; `ops` (separated by commas, all where it is empty) and `cub` (a library
    built from benchmarks/cub_reduce.cu, as a peer of sums) are reduce's.
    """
    if family not in FAMILIES:
        raise ValueError(f"bench: family must be one of {', '.join(FAMILIES)}, got {family!r}")
    if dtype not in DTYPES:
        raise ValueError(f"bench: dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    if device not in ("cpu", "cuda"):
        raise ValueError(f"bench: device must be cpu or cuda, got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("bench: device cuda: torch sees no GPU here")
    if (layouts != "nt" and family != "mul") or (compiled and family == "w4a16"):
        raise ValueError(
            f"bench: layouts are an option of mul, compile of mul and reduce, got family {family!r}"
        )
    if (ops or cub is not None) and family != "reduce":
        raise ValueError(f"bench: ops and cub are options of reduce, got family {family!r}")
    if family == "mul":
        made = _mul(sets, DTYPES[dtype], device, seed, _choose_layouts(layouts), compiled)
    elif family == "w4a16":
        made = _w4a16(sets, DTYPES[dtype], device, seed)
    else:
        made = _reduce(sets, DTYPES[dtype], device, seed, _choose_ops(ops), compiled, cub)
    records = []
    with torch.inference_mode():
        for record in made:
            records.append(record)
            on_record(record)
    return {
        "family": family,
        "dtype": dtype,
        "seed": seed,
        **environment(device),
        "summary": summarize(records),
        "rows": summarize_rows(records) if family == "w4a16" else [],
        "records": [{**asdict(record), "speedup": record.speedup()} for record in records],
    }


def _choose_layouts(names: str) -> list[str]:
    chosen = [name.strip() for name in names.split(",")]
    for name in chosen:
        if name not in LAYOUTS:
            raise ValueError(f"bench: layouts must be among {', '.join(LAYOUTS)}, got {name!r}")
    return chosen


def _choose_ops(names: str) -> list[str]:
    chosen = [name.strip() for name in names.split(",")] if names else list(REDUCE_OPS)
    for name in chosen:
        if name not in REDUCE_OPS:
            raise ValueError(f"bench: ops must be among {', '.join(REDUCE_OPS)}, got {name!r}")
    return chosen


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
    share = float(((result - expected).abs() / bound).max())
    if not share <= 1:  # NaN too: a wrong result is not worth a time
        raise ArithmeticError(f"bench: {what} differs from float64 by {share:.3g} of its bound")
    return share


def _mul(
    sets: str, dtype: torch.dtype, device: str, seed: int, layouts: list[str], compiled: bool
) -> Iterator[Record]:
    gpu = torch.cuda.get_device_name() if device == "cuda" else ""
    for p in shapes.products(shapes.choose(sets, shapes.PRODUCT_SETS), device, seed):
        bytes_moved = (p.m * p.k + p.n * p.k + p.m * p.n) * dtype.itemsize
        flops = 2.0 * p.m * p.n * p.k
        floor = floor_seconds(gpu, bytes_moved, flops) if dtype.itemsize == 2 else None
        for layout in layouts:
            a, b = _operands(p, layout, dtype, device, seed)
            calls = peers.mul_calls(a, b, compiled)
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


def _w4a16(sets: str, dtype: torch.dtype, device: str, seed: int) -> Iterator[Record]:
    gpu = torch.cuda.get_device_name() if device == "cuda" else ""
    made: tuple[Any, ...] = ()
    weight_of: tuple[int, int] | None = None
    for p in shapes.products(shapes.choose(sets, shapes.PRODUCT_SETS), device, seed):
        if weight_of != (p.n, p.k):  # successive cases often share a weight
            made = ()  # frees the last one's memory
            made, weight_of = _packed_weight(p.n, p.k, dtype, device, seed), (p.n, p.k)
        packed, dense, q, humming = made
        x = _random(seed, device, p.m, p.k).to(dtype)
        calls = peers.w4a16_calls(x, packed, dense, q, humming)
        error = _check_product(xgemm.linear(x, packed), x, dense, rounded_w=True)
        moved = packed.nbytes + (p.m * p.k + p.m * p.n) * dtype.itemsize
        flops = 2.0 * p.m * p.n * p.k
        floor = floor_seconds(gpu, moved, flops) if dtype.itemsize == 2 else None
        yield Record(
            p.name, f"{p.m}x{p.n}x{p.k}", time_calls(calls, device), flops, moved, error, set=p.set,
            floor_seconds=floor,
        )  # fmt: skip


def _packed_weight(
    n: int, k: int, dtype: torch.dtype, device: str, seed: int
) -> tuple[xgemm.PackedWeight, torch.Tensor, xgemm.QuantizedWeight, peers.Call1 | None]:
    """A random weight: packed, dense, canonical, and as humming's layer where that is here."""
    weight = _random(seed + 1, device, n, k)
    q = xgemm.quantize_weight(weight, group_size=GROUP_SIZE, scale_dtype=torch.float16)
    dense = q.dequantize(dtype)
    return xgemm.pack(q), dense, q, peers.humming_layer(dense, GROUP_SIZE)


def _reduce(
    sets: str,
    dtype: torch.dtype,
    device: str,
    seed: int,
    ops: list[str],
    compiled: bool,
    cub: Path | None,
) -> Iterator[Record]:
    gpu = torch.cuda.get_device_name() if device == "cuda" else ""
    for case in shapes.reductions(shapes.choose(sets, shapes.REDUCE_SETS), device, seed):
        x = _random(seed, device, *case.shape).to(dtype)
        size = "x".join(map(str, case.shape))
        for op in ops:
            calls = peers.reduce_calls(op, x, case.dims, compiled, cub)
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
