"""Runs every kernel and tile of a family on small problems, for compute-sanitizer to watch.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --kernel-name kns=xgemm \
        --error-exitcode 1 python tests/visit_kernels.py dense

Families are dense, fp32, w4a16 and reduce. Operands are made on the GPU, by kernels of torch that
the tool passes over; results are only looked at for numbers that are not finite: that they are
right is tested elsewhere. Without torch's caching every tensor is an allocation of its own, which
ends with the aligned 16 bytes that hold its last element: kernels read those whole, and no
allocation of CUDA's ends within them. Packed weights need a tenth of the work by
XGEMM_CUDA_SMS=8.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cache

import torch
from kernel_visits import (
    MOST_WORK,
    W4_FORMS,
    Choice,
    Visit,
    W4Form,
    find_visits,
    find_w4_visits,
    of_compiled,
)

import xgemm

HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*HALVES, torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool)
PRECISIONS = ("ieee", "tf32x3", "tf32")
MOST_FP32_WORK = 10**9  # its kernels are the slowest of all

Job = tuple[str, Callable[[], torch.Tensor]]

PROGRESS = 20  # problems from one line of it to the next

_draw = random.Random(0)


@cache
def values() -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(0)
    return torch.rand(1 << 22, generator=generator, device="cuda") * 2 - 1


def operand(shape: tuple[int, ...], dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
    """Values from -1 to 1; the storage begins `offset` elements before it."""
    count = offset + torch.Size(shape).numel()
    whole = -(-count * dtype.itemsize // 16) * 16 // dtype.itemsize
    source = values()[_draw.randrange(1 << 12) :]
    flat = torch.empty(whole, dtype=dtype, device="cuda")
    for piece in flat.split(source.numel()):
        piece.copy_(source[: piece.numel()] * (1 if dtype.is_floating_point else 100))
    return flat[offset:count].view(shape)


def matrix(rows: int, columns: int, transposed: bool, dtype: torch.dtype) -> torch.Tensor:
    return operand((columns, rows), dtype).t() if transposed else operand((rows, columns), dtype)


def product(visit: Visit, dtype: torch.dtype, precision: str = "ieee") -> torch.Tensor:
    a = matrix(visit.m, visit.k, visit.transa, dtype)
    b = matrix(visit.k, visit.n, visit.transb, dtype)
    bias = operand((visit.n,), dtype)
    return torch.ops.xgemm.mul(a, b, bias, activation="relu", precision=precision)


def strided_product(m: int, n: int, k: int, dtype: torch.dtype, offset: int) -> torch.Tensor:
    """Operands and a result whose rows have gaps and begin anywhere."""
    a = operand((m, k + offset), dtype, offset)[:, :k]
    b = operand((n, k + 1), dtype, offset)[:, :k].t()
    y = operand((m, n + 3), dtype, offset)[:, :n]
    torch.ops.xgemm.mul_into(y, a, b)
    return y


def dense_visits(dtype: str, precision: str, most_work: int) -> tuple[Visit, ...]:
    def explain(m: int, n: int, k: int, transa: bool, transb: bool) -> Choice:
        options = {"dtype": dtype, "device": "cuda", "transa": transa, "transb": transb}
        options |= {"precision": precision, "candidates": False}
        choice: Choice = xgemm.explain("mul", m, n, k, **options)["choice"]
        return choice

    return of_compiled(find_visits(explain, most_work))


def dense() -> Iterator[Job]:
    visits = dense_visits("float16", "ieee", MOST_WORK)
    for visit, dtype in zip(visits, itertools.cycle(HALVES), strict=False):
        yield f"{dtype} {visit}", lambda v=visit, d=dtype: product(v, d)
    for m, n, k in ((1, 300, 500), (7, 300, 500), (40, 100, 77), (200, 333, 129)):
        for dtype, offset in itertools.product(HALVES, (0, 1, 8)):
            yield (
                f"strided {dtype} {m}x{n}x{k} + {offset}",
                lambda args=(m, n, k, dtype, offset): strided_product(*args),
            )


def fp32() -> Iterator[Job]:
    for precision in PRECISIONS:
        for visit in dense_visits("float32", precision, MOST_FP32_WORK):
            yield f"{precision} {visit}", lambda v=visit, p=precision: product(v, torch.float32, p)
    for m, n, k in ((1, 300, 500), (40, 100, 77), (200, 333, 129)):
        yield (
            f"strided {m}x{n}x{k}",
            lambda args=(m, n, k, torch.float32, 1): strided_product(*args),
        )


def codes(n: int, k: int) -> torch.Tensor:
    return operand((n, k), torch.uint8).bitwise_and_(15)


def packed(n: int, k: int, group_size: int, zeros: bool, bf16: bool) -> xgemm.PackedWeight:
    size = k if group_size == -1 else group_size
    scales = operand((-(-k // size), n), torch.bfloat16 if bf16 else torch.float16)
    offsets = operand(tuple(scales.shape), torch.float16).add_(7.5) if zeros else None
    return xgemm.pack(xgemm.QuantizedWeight(codes(n, k), scales, offsets, None, group_size))


def quantized_product(visit: Visit, form: W4Form, dtype: torch.dtype) -> torch.Tensor:
    p = packed(visit.n, visit.k, form.group_size, form.zeros, form.bf16_scales)
    x, bias = operand((visit.m, visit.k), dtype), operand((visit.n,), dtype)
    return xgemm.linear(x, p, bias, batch_invariant=form.batch_invariant)


def quantized_gradient(dtype: torch.dtype) -> torch.Tensor:
    p = packed(200, 300, 64, True, False)
    x = operand((5, 300), dtype).requires_grad_()
    xgemm.linear(x, p).backward(operand((5, 200), dtype))
    assert x.grad is not None
    return x.grad


def act_order_product(m: int, k: int, dtype: torch.dtype) -> torch.Tensor:
    """Channels in another order, forward and backward."""
    g_idx = (torch.randperm(k, device="cuda") // 128).int()
    scales = operand((-(-k // 128), 64), torch.float16)
    p = xgemm.pack(xgemm.QuantizedWeight(codes(64, k), scales, None, g_idx, 128))
    x = operand((m, k), dtype).requires_grad_()
    xgemm.linear(x, p).backward(operand((m, 64), dtype))
    assert x.grad is not None
    return x.grad


def pack_there_and_back(group_size: int) -> torch.Tensor:
    groups = 1 if group_size == -1 else -(-300 // group_size)
    scales = operand((groups, 200), torch.float16)
    p = xgemm.pack(xgemm.QuantizedWeight(codes(200, 300), scales, None, None, group_size))
    return xgemm.unpack(p).scales


def explain_w4(form: W4Form, m: int, n: int, k: int) -> Choice:
    options = {"device": "cuda", "candidates": False, **asdict(form)}
    choice: Choice = xgemm.explain("mul.w4a16", m, n, k, **options)["choice"]
    return choice


def w4a16() -> Iterator[Job]:
    def job(visit: Visit, form: W4Form, dtype: torch.dtype) -> Job:
        return f"{form} {visit}", lambda: quantized_product(visit, form, dtype)

    for form in W4_FORMS:
        for visit in find_w4_visits(explain_w4, form):
            yield job(visit, form, getattr(torch, form.dtype))
        for m in (1, 20, 100):
            yield job(Visit("fp32", m, 200, 300), form, torch.float32)
    for dtype in HALVES:
        yield f"gradient {dtype}", lambda d=dtype: quantized_gradient(d)
    # Copies by columns, of any number; by rows, of which fewer of so many channels fit.
    by_columns = itertools.product((1, 20), (512, 301), (torch.float16, torch.float32))
    for args in (*by_columns, (300, 512, torch.float16), (260, 29_184, torch.bfloat16)):
        yield f"act-order {args}", lambda args=args: act_order_product(*args)
    for group_size in (32, -1):
        yield f"pack {group_size}", lambda g=group_size: pack_there_and_back(g)


# Shapes and dimensions for each of the kernels of csrc/cuda/reduce, and each way to meet.
REDUCTIONS = (
    ((3000, 24), (1,)), ((20_000, 32), (1,)), ((3000, 37), (1,)), ((9001, 61), (1,)),  # short rows
    ((3000, 61), (1,)), ((700, 1003), (1,)), ((30, 160), (1,)),  # team rows
    ((300, 9001), (1,)), ((300, 60_001), (1,)), ((4_500_003,), (0,)),  # lone rows, rows
    ((3, 50_011), (1,)), ((100_003,), (0,)), ((7, 70_001), (1,)),  # row pieces
    ((16, 8, 1024), (0, 2)), ((16, 8, 1021), (0, 2)), ((300, 5, 13), (0, 2)),  # runs
    ((700, 512), (0,)), ((20_000, 64), (0,)), ((65_536, 8), (0,)),  # columns
    ((700, 333), (0,)), ((20_001, 61), (0,)), ((30, 7, 40, 33), (0, 2)),  # shifted columns
    ((20_000, 512), (0,)), ((20_000, 100), (0,)),  # mail for collectors
    ((30_000, 5, 38), (1,)), ((3000, 16), (1,)), ((9, 3, 5), (1,)),  # flat, thin columns
    ((7, 5003), (0,)), ((2, 3), (1,)), ((9, 331), (0,)),  # short columns, warp columns
    ((100_000, 2), (0,)), ((3, 3001, 5), (1,)),  # wrapped columns
    ((20, 100_000), (0,)),  # columns of one thread
    ((200_000, 9, 3), (0, 2)), ((30_000, 9, 8), (0, 2)),  # columns in groups
    ((30, 7, 40, 3), (0, 2)),  # strided
)  # fmt: skip


def reduction(op: str, x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    if op in ("argmax", "argmin"):
        return getattr(torch.ops.xgemm, op)(x, dims[0])
    return getattr(torch.ops.xgemm, op)(x, list(dims))


def reduce() -> Iterator[Job]:
    def job(op: str, shape: tuple[int, ...], dims: tuple[int, ...], dtype: torch.dtype) -> Job:
        offset = len(op) % 3  # some begin between two multiples of 16 bytes
        return (
            f"{op} of {dtype} {shape} over {dims}",
            lambda: reduction(op, operand(shape, dtype, offset), dims),
        )

    others = itertools.cycle((torch.bfloat16, torch.float64, *INTEGERS))
    for shape, dims in REDUCTIONS:
        for dtype in (torch.float16, torch.float32, next(others), next(others)):
            yield job("sum", shape, dims, dtype)
        halves = itertools.cycle((torch.float16, torch.float32))
        for op, dtype in zip(("mean", "amax", "argmin", "norm", "prod"), halves, strict=False):
            yield job(op, shape, dims, dtype)
    for dtype in (*FLOATS, torch.int32):
        x = ((40, 30, 200), dtype)
        yield (
            f"strided {dtype}",
            lambda x=x: torch.ops.xgemm.sum(operand(*x)[:, ::3, ::7], [0, 2]),
        )


FAMILIES = {"dense": dense, "fp32": fp32, "w4a16": w4a16, "reduce": reduce}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("--part", default="0/1", help="i/n: every n-th problem from the i-th on")
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop after as many")
    parser.add_argument("--list", action="store_true", help="say what is run before it is")
    options = parser.parse_args()
    torch.set_num_threads(1)  # several processes run beside each other
    start = time.monotonic()
    part, parts = map(int, options.part.split("/"))
    jobs = list(FAMILIES[options.family]())[part::parts]
    for count, (name, run) in enumerate(jobs):
        if time.monotonic() - start > options.seconds:
            sys.exit(f"{options.family}: out of time after {count} of {len(jobs)} problems")
        if options.list:
            print(name, flush=True)
        if not run().isfinite().all():
            sys.exit(f"{options.family}: a result that is not finite: {name}")
        if (count + 1) % PROGRESS == 0:
            seconds = time.monotonic() - start
            print(f"{options.family}: {count + 1} of {len(jobs)}, {seconds:.0f} s", flush=True)
    print(f"{options.family}: {len(jobs)} problems, {time.monotonic() - start:.1f} s")


if __name__ == "__main__":
    main()
