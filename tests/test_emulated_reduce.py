"""The CUDA reductions on the emulator, against float64: every candidate, cut up in every way."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from emulator.library import Machine, Memory, library
from random_emulated import (
    FAR,
    MOST_FAR,
    draw_machine,
    draw_memory,
    far_strides,
    kernel_of,
    reordered,
    run_problems,
)
from random_reductions import POSITIONS, Case, fault, random_case

pytestmark = pytest.mark.sampled

OPS = ("sum", "mean", "prod", "amax", "amin", "norm", "argmax", "argmin")  # enum ReduceOp
DTYPES = (  # enum DType
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool),
)
CASES = 1500


def output_dtype(case: Case) -> torch.dtype:
    if case.op in POSITIONS:
        return torch.int64
    wide = case.op in ("sum", "prod") and not case.x.dtype.is_floating_point
    return torch.int64 if wide else case.x.dtype


def run(
    case: Case,
    machine: Machine,
    memory: Memory | None = None,
    x_strides: Sequence[int] | None = None,
    **how: Any,
) -> tuple[torch.Tensor, str]:
    """The result, and how it was made; no read or write leaves x and the result.

    `how`, instead of what was chosen: the kernel or the candidate, and pieces, and whether they
    send mail.
    """
    memory = memory or Memory()
    x = memory.copy(case.x) if x_strides is None else memory.spread(case.x, x_strides)
    kept = [d for d in range(x.dim()) if d not in case.dims]
    out = memory.empty(tuple(x.shape[d] for d in kept), output_dtype(case))
    machine.use()
    said = library().reduce(
        op=OPS.index(case.op),
        dtype=DTYPES.index(x.dtype),
        source=x.data_ptr(),
        destination=out.data_ptr(),
        kept=[(x.shape[d], x.stride(d), out.stride(i)) for i, d in enumerate(kept)],
        reduced=[(x.shape[d], x.stride(d)) for d in case.dims],
        p=case.p,
        capability=machine.capability,
        sm_count=machine.sm_count,
        **how,
    )
    return out.clone(), said


def check(case: Case, machine: Machine, **how: Any) -> str:
    got, said = run(case, machine, **how)
    wrong = fault(case, got)
    assert not wrong, f"{case}: {wrong}\n{said}"
    return said


def run_problem(rng: random.Random) -> tuple[str, str]:
    """The kernel that one problem got, and what was wrong, or nothing."""
    most = 40_000 if rng.random() < 0.97 else 400_000
    case, machine = random_case(rng, most), draw_machine(rng, (80, 90))
    x, strides = case.x, None
    if rng.random() < FAR and 0 < x.numel() <= MOST_FAR and x.dim() > 0:
        strides = far_strides(rng, x)
    candidate = rng.choice((-1, rng.randrange(1 << 16)))
    try:
        got, said = run(case, machine, draw_memory(rng), strides, candidate=candidate)
        wrong = fault(case, got)
        if rng.random() < 0.1:
            again, _ = run(
                case, reordered(rng, machine), draw_memory(rng), strides, candidate=candidate
            )
            same = got.nan_to_num().equal(again.nan_to_num())
            wrong = wrong or ("" if same else "other bits in another order of threads")
    except RuntimeError as error:
        said, wrong = "", str(error)
    return kernel_of(said), wrong and f"{case}, strides {strides}, on {machine}: {wrong}\n{said}"


def test_random() -> None:
    visited = run_problems(run_problem, CASES)
    of_rows = {"short rows", "ragged rows", "team rows", "lone rows", "rows", "runs"}
    of_columns = {"columns", "shifted columns", "thin columns", "short columns", "wrapped columns"}
    of_columns |= {"flat columns", "warp columns"}
    assert {*of_rows, *of_columns, "strided", "copy"} <= set(visited), visited


@pytest.mark.parametrize("op", ["sum", "amin", "argmax"])
def test_flat_columns(op: str) -> None:  # many, for which random cases are too small
    x = torch.randn((302, 22, 37), generator=torch.Generator().manual_seed(0)).half()
    check(Case(op, x, (1,)), Machine(90, 2), kernel="flat columns")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("op", ["sum", "mean", "amax", "amin", "norm"])
def test_small(op: str, dtype: torch.dtype) -> None:  # what takes one line of constants
    generator = torch.Generator().manual_seed(0)
    for shape, dim, kernel in (
        ((9, 5001), 1, "lone rows"),
        ((5, 8003), 1, "lone rows"),
        ((7, 1003), 0, "short columns"),
        ((8, 1003), 0, "short columns"),
        ((150, 331), 0, "warp columns"),
        ((129, 481), 0, "warp columns"),
    ):
        x = torch.randn(shape, generator=generator).to(dtype)
        x[:, -1], x[-1] = -x[:, 0], -x[0]
        taken = kernel if op != "norm" or dtype == torch.float16 else ""
        check(Case(op, x, (dim,)), Machine(80, 4, seed=1), kernel=taken)
        x[shape[0] // 2, shape[1] // 3] = math.nan
        check(Case(op, x, (dim,)), Machine(80, 4), kernel=taken)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("op", ["sum", "mean", "amax", "amin", "norm"])
def test_row_pieces(op: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    for rows, extent in ((1, 60_011), (3, 50_001), (1, 120_000)):
        x = torch.randn((rows, extent), generator=generator).to(dtype)
        x[:, -1], x[:, 0] = -2 * x[:, 5], 3 * x[:, 7]
        kernel = "row pieces" if op != "norm" or dtype == torch.float16 else ""
        for seed in (0, 1):
            machine = Machine(90, 132, late_copies=True, seed=seed)
            check(Case(op, x, (1,)), machine, kernel=kernel)
        x[rows // 2, extent // 3] = math.nan
        check(Case(op, x, (1,)), Machine(90, 132), kernel=kernel)


WRAPPED = [
    *itertools.product(
        ("sum", "amin", "norm", "prod"), (torch.float16, torch.bfloat16, torch.float32)
    ),
    *itertools.product(("sum", "amin"), (torch.int8, torch.int32)),
]


@pytest.mark.parametrize(("op", "dtype"), WRAPPED)
def test_wrapped_columns(op: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 2, 3000), (3, 3, 2001), (6, 7, 999), (2, 3, 900), (13, 13, 8000)
    for columns, stride, rows in shapes:
        for offset in (0, 1, 5):
            flat = torch.randn(2 * rows * stride + offset, generator=generator)
            x = (1 + 0.01 * flat if op == "prod" else 20 * flat).to(dtype)[offset:]
            x = x.view(2, rows, stride)[:, :, :columns]
            machine = Machine(90, 4, late_copies=True, seed=offset)
            check(Case(op, x, (1,)), machine, kernel="wrapped columns")
            if dtype.is_floating_point:
                x[1, -1, 0] = x[0, 0, columns - 1] = math.nan
                check(Case(op, x, (1,)), Machine(80, 132), kernel="wrapped columns")


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int8])
@pytest.mark.parametrize("op", ["sum", "amin", "prod", "norm", "norm of order 3"])
def test_groups_of_columns(op: str, dtype: torch.dtype) -> None:
    """Short runs: columns first, of which a second launch brings those of an output together."""
    if op.startswith("norm") and dtype == torch.int8:
        pytest.skip("norms are of floating-point numbers")
    generator = torch.Generator().manual_seed(0)
    op, p = (op, 2.0) if op != "norm of order 3" else ("norm", 3.0)
    for shape, dims in (
        ((9, 3), (0, 2)),
        ((8, 3), (0, 2)),  # whole loads
        ((31, 2), (0, 2)),
        ((2, 33, 3), (0, 3)),  # dimensions 1 and 2 merge
        ((5, 4, 3), (0, 1, 3)),  # 0 and 1 merge
    ):
        few = max(2_000_000, 400_000 * dtype.itemsize * shape[-1])  # bytes
        rows = -(-few // (dtype.itemsize * math.prod(shape)))
        x = torch.randn((rows, *shape), generator=generator)
        x = (1 + 0.001 * x if op == "prod" and dtype.is_floating_point else 20 * x).to(dtype)
        said = check(Case(op, x, dims, p), Machine(90, 16, late_copies=True, seed=1))
        assert " columns an output" in said, said
    check(Case(op, x, dims, p), Machine(80, 2), pieces=3)


@pytest.mark.parametrize("op", ["sum", "mean", "amax", "argmin", "norm", "prod"])
def test_columns_of_one_thread(op: str) -> None:
    """Whose results go out together where they lie at multiples of 16 bytes."""
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float16, torch.float32):
        for shape, dim in (((11, 40_000), 0), ((3, 11, 20_008), 1), ((11, 40_002), 0)):
            x = 1 + 0.01 * torch.randn(shape, generator=generator).to(dtype)
            check(Case(op, x, (dim,)), Machine(90, 4, seed=1))


CUTS = ((2, "mail"), (33, "mail"), (7, "launch"), (9, "collect"))
FORMS = (  # of reductions, and a kernel for each
    ((40_000,), (0,), "rows"),
    ((2, 40_001), (1,), "rows"),
    ((2000, 8), (0,), "columns"),
    ((500, 72), (0,), "columns"),
    ((3, 1000, 4), (1,), "wrapped columns"),
    ((300, 1003), (0,), "shifted columns"),
    ((9, 100, 117), (0, 2), "runs"),
    ((30, 7, 40, 3), (0, 2), "strided"),
)


def cut_forms() -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...], str, int, str]]:
    for op, (shape, dims, kernel) in itertools.product(
        ("sum", "amax", "argmin", "norm", "prod"), FORMS
    ):
        taken = "strided" if kernel == "wrapped columns" and op == "argmin" else kernel
        for pieces, way in CUTS:
            if way == "collect" and taken not in ("columns", "shifted columns", "wrapped columns"):
                continue
            yield op, shape, dims, taken, pieces, way


@pytest.mark.parametrize(("op", "shape", "dims", "kernel", "pieces", "way"), list(cut_forms()))
def test_pieces(
    op: str, shape: tuple[int, ...], dims: tuple[int, ...], kernel: str, pieces: int, way: str
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    x = (1 + 0.01 * x if op == "prod" else x).half()
    cut = {"kernel": kernel, "pieces": pieces, "mail": way in ("mail", "collect")}
    if way == "collect":
        cut["collectors"] = 4
    check(Case(op, x, dims), Machine(90, 132, late_copies=True, seed=1), **cut)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_bits_do_not_depend_on_the_order_of_threads(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    for shape, dim in (((50_000,), 0), ((33, 1000), 1), ((900, 40), 0), ((30, 20, 50), 1)):
        case = Case("sum", torch.randn(shape, generator=generator).to(dtype), (dim,))
        results = [
            run(case, Machine(capability, 16, late_copies=late, seed=seed))[0]
            for capability, late, seed in ((90, False, 0), (90, True, 5), (90, False, 9))
        ]
        assert torch.equal(results[0], results[1])
        assert torch.equal(results[0], results[2])


def test_nothing_to_reduce() -> None:
    x = torch.zeros(3, 0)
    for op, value in (("sum", 0.0), ("prod", 1.0), ("mean", math.nan), ("norm", 0.0)):
        got, _ = run(Case(op, x, (1,)), Machine())
        assert torch.equal(got.nan_to_num(-1), torch.full((3,), value).nan_to_num(-1)), op


@pytest.mark.parametrize("p", [2.0, 3.0, 1.5, -1.0])
def test_norm_neither_overflows_nor_vanishes(p: float) -> None:
    for size in (1e-30, 1e30):
        for dtype in (torch.float32, torch.bfloat16):
            for shape, dim in (((5, 300), 1), ((300, 16), 0), ((40_000,), 0)):
                case = Case("norm", torch.full(shape, size).to(dtype), (dim,), p)
                check(case, Machine(90, 132))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_products_may_leave_fp32s_range_on_the_way(dtype: torch.dtype) -> None:
    """Pairs of 16-bit numbers are multiplied in fp32 where that is exact, and there only."""
    size = 2.0**12 if dtype == torch.float16 else 2.0**100
    for shape, dim in (((5, 300), 1), ((40, 16), 0), ((40_000,), 0), ((70, 9), 0)):
        for first in (size, 1 / size):
            x = torch.ones(shape, dtype=dtype).movedim(dim, 0)
            x[:2], x[2:4] = first, 1 / first
            got, said = run(Case("prod", x.movedim(0, dim), (dim,)), Machine(90, 132))
            assert torch.equal(got, torch.ones_like(got)), said


def test_means_are_rounded_once() -> None:
    # A hair above the tie between 1 and the next number, and the tie itself in fp32.
    for dtype, step in ((torch.float16, 2.0**-11), (torch.bfloat16, 2.0**-8)):
        x = torch.tensor([1.0, 1 + 2 * step], dtype=dtype).repeat(2**14)
        x = torch.cat([x, torch.tensor([1 + 4 * step, 1.0, 1.0], dtype=dtype)])
        got, _ = run(Case("mean", x, (0,)), Machine())
        assert got.item() == 1 + 2 * step
