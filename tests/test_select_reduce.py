"""Which kernel a reduction gets on a GPU: the choice is pure, so no GPU is needed."""

from __future__ import annotations

import json
import math
import random
from types import ModuleType
from typing import Any

import pytest

OPS = ("sum", "mean", "prod", "amax", "amin", "norm", "argmax", "argmin")  # enum ReduceOp
FLOAT16, BFLOAT16, FLOAT32, FLOAT64, INT8 = 0, 1, 2, 3, 4  # enum DType
ELEMENT = {FLOAT16: 2, FLOAT32: 4, FLOAT64: 8, INT8: 1}


def select(
    cpp: ModuleType,
    shape: tuple[int, ...],
    dims: tuple[int, ...],
    op: str = "sum",
    dtype: int = FLOAT16,
    strides: tuple[int, ...] | None = None,
    **options: Any,
) -> Any:
    if strides is None:
        strides = tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))
    kept = [d for d in range(len(shape)) if d not in dims]
    out = [math.prod(shape[e] for e in kept[i + 1 :]) for i in range(len(kept))]
    return cpp.select_reduce(
        op=OPS.index(op),
        dtype=dtype,
        address=options.pop("address", 4096),
        kept=[(shape[d], strides[d], out[i]) for i, d in enumerate(kept)],
        reduced=[(shape[d], strides[d]) for d in dims],
        **options,
    )


# Shapes and the dimensions that are reduced, by what neighbouring threads should read.
ROWS = (
    ((1 << 24,), (0,)),
    ((1 << 18,), (0,)),
    ((4, 1 << 20), (1,)),
    ((4, 1 << 18), (1,)),
    ((8192, 28672), (1,)),
    ((1 << 20, 128), (1,)),
    ((1 << 22, 8), (1,)),
    ((50257, 768), (1,)),
    ((333, 7777), (1,)),
    ((333, 20_000), (1,)),
    ((40_000, 4100), (1,)),
    ((1000, 30), (1,)),
    ((82191, 1254), (1,)),
    ((64, 256, 3136), (0, 2)),
    ((64, 256, 3135), (0, 2)),
)
COLUMNS = (
    ((1 << 20, 128), (0,)),
    ((16384, 16384), (0,)),
    ((333, 7777), (0,)),
    ((500, 7777), (0,)),
    ((50_000, 99), (0,)),
    ((1 << 20, 24), (0,)),
    ((7, 100_003), (0,)),
    ((9, 100_003), (0,)),
    ((32, 512, 64), (1,)),
    ((200_000, 22, 38), (1,)),
    ((2, 1 << 20, 3), (1,)),
    ((10_000, 80, 3), (0, 2)),  # short runs, one beside the other
    ((10_000, 99, 3), (0, 2)),
)


def along_rows(kernel: Any) -> set[Any]:
    """Kernels of which neighbouring threads read what one output is made of."""
    return {
        *(kernel.SHORT_ROWS, kernel.RAGGED_ROWS, kernel.TEAM_ROWS, kernel.LONE_ROWS),
        *(kernel.ROW_PIECES, kernel.ROWS, kernel.RUNS),
    }


def along_columns(kernel: Any) -> set[Any]:
    """Kernels of which neighbouring threads read for neighbouring outputs."""
    return {
        *(kernel.COLUMNS, kernel.SHIFTED, kernel.FLAT, kernel.THIN),
        *(kernel.SHORT_COLUMNS, kernel.WARP_COLUMNS, kernel.WRAPPED),
    }


@pytest.mark.parametrize("op", ["sum", "norm", "amax", "argmax"])
@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32])
def test_neighbouring_threads_read_neighbouring_elements(
    cpp: ModuleType, op: str, dtype: int
) -> None:
    for problems, kernels in ((ROWS, along_rows), (COLUMNS, along_columns)):
        for shape, dims in problems:
            if op == "argmax" and (len(dims) > 1 or shape[-1] == 3):
                continue  # positions: not in the order of memory
            choice = select(cpp, shape, dims, op, dtype)
            assert choice.kernel in kernels(cpp.ReduceKernel), f"{shape} over {dims}: {choice}"
    transposed = select(cpp, (512, 512), (1,), op, dtype, strides=(1, 512))
    assert transposed.kernel in along_columns(cpp.ReduceKernel), transposed


def test_every_kernel_is_chosen(cpp: ModuleType) -> None:
    """A kernel that no problem gets could go."""
    chosen = {select(cpp, *problem).kernel for problem in (*ROWS, *COLUMNS)}
    for seed in range(2000):
        shape, dims, options = random_problem(random.Random(seed))
        chosen.add(select(cpp, shape, dims, **options).kernel)
    assert chosen == set(cpp.ReduceKernel.__members__.values())


def test_columns_in_whole_loads_are_aligned(cpp: ModuleType) -> None:
    for shape, dims, options in (
        ((500, 7777), (0,), {}),
        ((50_000, 99), (0,), {}),
        ((512, 4096), (0,), {"address": 4098}),
        ((512, 4096), (0,), {"strides": (4097, 1)}),
    ):
        choice = select(cpp, shape, dims, **options)
        assert choice.kernel != cpp.ReduceKernel.COLUMNS, f"{shape}, {options}: {choice}"


def test_one_element_for_each_output_is_copied(cpp: ModuleType) -> None:
    copy = cpp.ReduceKernel.COPY
    assert select(cpp, (1, 100_000), (0,)).kernel == copy
    assert select(cpp, (1, 512), (0,), "mean").kernel == copy
    assert select(cpp, (1, 512), (0,), "argmax").kernel == copy
    assert select(cpp, (1, 512), (0,), "norm").kernel != copy  # of its absolute value
    assert select(cpp, (1, 512), (0,), dtype=INT8).kernel != copy  # to int64
    assert select(cpp, (1, 512), (0,), strides=(1024, 2)).kernel != copy
    # Positions are zeros, however it lies.
    spread = {"strides": (1, 512, 512)}
    assert select(cpp, (512, 1, 512), (1,), "argmin", **spread).kernel == copy
    assert select(cpp, (512, 1, 512), (1,), **spread).kernel != copy


def test_what_few_kernels_are_compiled_for(cpp: ModuleType) -> None:
    """Rare operations have no kernel of short rows, runs or columns in whole loads."""
    kernel = cpp.ReduceKernel
    common = {kernel.SHORT_ROWS, kernel.RAGGED_ROWS, kernel.RUNS, kernel.COLUMNS}
    for rare in ({"op": "norm", "p": 3.0}, {"op": "prod", "dtype": INT8}):
        for shape, dims in (*ROWS, *COLUMNS):
            choice = select(cpp, shape, dims, **rare)
            assert choice.kernel not in common, f"{rare} of {shape} over {dims}: {choice}"


def test_dimensions_are_merged(cpp: ModuleType) -> None:
    choice = select(cpp, (4, 1, 5, 6, 7), (2, 3, 4))
    assert choice.kept == [(4, 210)]
    assert choice.reduced == [(210, 1)]
    transposed = select(cpp, (6, 7), (0, 1), strides=(1, 6))
    assert transposed.reduced == [(42, 1)]
    positions = select(cpp, (6, 7), (0, 1), op="argmax", strides=(1, 6))
    assert positions.reduced == [(6, 1), (7, 6)]  # whose order counts


def test_few_outputs_are_cut_into_pieces(cpp: ModuleType) -> None:
    assert select(cpp, (1 << 13,), (0,)).pieces == 1
    small = select(cpp, (1 << 16,), (0,))  # 128 KB
    assert small.cluster > 1
    assert small.cluster == small.pieces
    assert small.workspace_bytes == 0
    large = select(cpp, (1 << 28,), (0,))
    assert large.cluster == 1
    assert large.mail
    assert large.pieces >= 4 * 132  # more than are under way: some are faster than others
    assert large.workspace_bytes == large.pieces * 16
    assert select(cpp, (1 << 28,), (0,), op="argmax").workspace_bytes == large.pieces * 32
    old = select(cpp, (1 << 16,), (0,), capability=80, sm_count=108)
    assert old.cluster == 1
    assert select(cpp, (16384, 16384), (1,)).pieces == 1
    many = select(cpp, (100_000, 200), (0,))  # too many partial results for one block to read
    assert many.mail
    assert many.collectors > 1
    # Large columns of whole lines need no second launch, whatever each of their results takes.
    for op, shape in (("sum", (8192, 28672)), ("argmax", (200_000, 512))):
        large = select(cpp, shape, (0,), op)
        assert large.pieces == 1 or large.mail, large
        assert large.lanes >= 8, large
    narrow = select(cpp, (1 << 20, 128), (0,))
    assert narrow.tiles * narrow.pieces >= 132


def latencies(choice: Any) -> dict[tuple[Any, ...], float]:
    """Of all candidates, by what tells them apart: the us of their turns."""
    said = json.loads(choice.json())["candidates"]
    beside = ("estimate_us", "parts_us", "reason")
    return {
        tuple(value for name, value in each.items() if name not in beside): each["parts_us"][
            "first_bytes"
        ]
        for each in said
    }


def test_what_registers_leave_room_for(cpp: ModuleType) -> None:
    """Fewer threads of an SM take more turns."""
    for op, dtype in (("norm", BFLOAT16), ("prod", FLOAT32), ("amax", FLOAT32)):
        plain = latencies(select(cpp, (16384, 16384), (0,), "sum", dtype))
        fewer = latencies(select(cpp, (16384, 16384), (0,), op, dtype))
        both = {key for key in plain.keys() & fewer.keys() if key[0] == "columns"}
        assert len(both) > 50
        assert all(fewer[key] >= plain[key] for key in both), op
        assert sum(fewer[key] > 1.05 * plain[key] for key in both) > 10, op


def test_what_l2_keeps(cpp: ModuleType) -> None:
    assert select(cpp, (1 << 26,), (0,)).streams  # 128 MB
    assert not select(cpp, (1 << 28,), (0,)).streams
    assert select(cpp, (1 << 24, 16), (1,)).streams  # short rows


def random_problem(draw: random.Random) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    ndim = draw.randint(1, 5)
    shape = tuple(round(2 ** draw.uniform(0, 34 / ndim)) for _ in range(ndim))
    order = draw.sample(range(ndim), ndim) if draw.random() < 0.3 else list(range(ndim))
    strides = [0] * ndim
    stride = draw.choice((1, 1, 1, 2))
    for d in reversed(order):
        strides[d] = stride
        stride *= shape[d] + draw.choice((0, 0, 0, 8))
    dims = tuple(sorted(draw.sample(range(ndim), draw.randint(1, ndim))))
    dtype = draw.choice(list(ELEMENT))
    options = {
        "op": draw.choice([op for op in OPS if dtype != INT8 or op not in ("mean", "norm")]),
        "dtype": dtype,
        "strides": tuple(strides),
        "address": 4096 + ELEMENT[dtype] * draw.choice((0, 0, 1)),
        "capability": draw.choice((80, 86, 90, 100)),
        "sm_count": draw.choice((1, 14, 40, 108, 132)),
    }
    return shape, dims, options


def test_short_runs_are_columns_in_groups(cpp: ModuleType) -> None:
    for shape, dims, op, group in (
        ((10_000, 80, 3), (0, 2), "sum", 3),
        ((200, 50, 100, 3), (0, 1, 3), "amax", 3),
        ((200, 20_000, 16), (0, 2), "mean", 16),
        ((10_000, 80, 3), (0, 2), "argmax", 1),  # positions
        ((10_000, 80, 3), (0,), "sum", 1),
    ):
        choice = select(cpp, shape, dims, op)
        assert choice.group == group, f"{op} of {shape} over {dims}: {choice}"
        assert group == 1 or choice.workspace_bytes > 0, shape
    assert select(cpp, (10_000, 80, 3), (0, 2), strides=(241, 3, 1)).group == 3
    assert select(cpp, (10_000, 80, 3), (0, 2), strides=(320, 4, 1)).group == 1


def test_every_choice_is_one_that_the_kernels_take(cpp: ModuleType) -> None:
    """Grids, shared memory and the widths of indices, over problems up to 2^34 elements."""
    for seed in range(4000):
        shape, dims, options = random_problem(random.Random(seed))
        choice = select(cpp, shape, dims, **options)
        where = f"{shape} over {dims}, {options}: {choice}"
        outputs = math.prod(size for d, size in enumerate(shape) if d not in dims)
        extent = math.prod(shape[d] for d in dims)
        if choice.kernel == cpp.ReduceKernel.COPY:
            assert extent == 1, where
            assert options["op"] != "norm", where
            continue
        assert choice.threads in (32, 64, 128, 256, 512), where
        assert choice.lanes in (1, 2, 4, 8, 16, 32, 64, 128, 256), where
        assert choice.lanes <= max(choice.threads, 32), where
        assert choice.tiles >= 1, where
        assert 1 <= choice.pieces < 2**31, where
        assert choice.cluster in (1, choice.pieces), where
        if choice.cluster > 1:
            assert choice.kernel == cpp.ReduceKernel.ROW_PIECES, where
            assert choice.cluster <= 8, where
            assert options["capability"] == 90, where
        if choice.collectors > 0:
            assert choice.mail, where
            tiled = cpp.ReduceKernel.COLUMNS, cpp.ReduceKernel.SHIFTED, cpp.ReduceKernel.WRAPPED
            assert choice.kernel in tiled, where
        in_memory = choice.pieces > choice.cluster or choice.group > 1
        assert choice.group == 1 or (choice.cluster == 1 and not choice.mail), where
        assert (choice.workspace_bytes > 0) == in_memory, where
        assert choice.workspace_bytes < 2**31, where
        kernel, vector = choice.kernel, 16 // ELEMENT[options["dtype"]]
        positions = options["op"] in ("argmax", "argmin")
        if kernel in (cpp.ReduceKernel.SHORT_ROWS, cpp.ReduceKernel.RAGGED_ROWS):
            assert choice.pieces == 1, where
            assert choice.vectors in (1, 2, 4, 8), where
            assert choice.row_loads <= 32, where
        elif kernel == cpp.ReduceKernel.TEAM_ROWS:
            assert choice.pieces == 1, where
            assert 2 * vector <= choice.lanes <= 32, where
            assert choice.tiles * (choice.threads // choice.lanes) >= outputs, where
        elif kernel == cpp.ReduceKernel.LONE_ROWS:
            assert choice.pieces == 1, where
            assert choice.tiles == outputs < 2**31, where
            assert extent // vector + 2 <= 4 * choice.threads + 2, where
        elif kernel == cpp.ReduceKernel.ROW_PIECES:
            assert choice.tiles == outputs, where
            assert extent // vector + 2 <= 8 * choice.threads * choice.pieces + 2, where
            assert choice.tiles * choice.pieces <= options["sm_count"], where
            assert choice.cluster > 1, where
        elif kernel in (cpp.ReduceKernel.ROWS, cpp.ReduceKernel.RUNS):
            assert choice.tiles == outputs, where
            assert extent // vector + 2 < 2**31, where
            assert not positions or extent < 2**31, where
        elif kernel in (cpp.ReduceKernel.COLUMNS, cpp.ReduceKernel.SHIFTED):
            assert extent < 2**31, where
            assert choice.tiles < 2**31, where
            assert choice.tiles * choice.lanes * vector >= outputs, where
            share = choice.lanes * vector // max(choice.collectors, 1)
            assert not choice.mail or 1 <= share <= choice.threads, where
        elif kernel == cpp.ReduceKernel.FLAT:
            assert choice.pieces == 1, where
            assert outputs / vector <= choice.tiles * choice.threads < 2**31, where
            assert ELEMENT[options["dtype"]] < 4, where
        elif kernel == cpp.ReduceKernel.THIN:
            assert choice.pieces == 1, where
            assert extent <= 4096, where
            assert outputs <= choice.tiles * choice.threads, where
        elif kernel == cpp.ReduceKernel.SHORT_COLUMNS:
            assert choice.pieces == 1, where
            assert extent <= 8, where
            assert outputs <= choice.tiles * choice.threads < 2**31, where
        elif kernel == cpp.ReduceKernel.WARP_COLUMNS:
            assert choice.pieces == 1, where
            assert outputs <= 32 * choice.tiles < 2**31, where
        elif kernel == cpp.ReduceKernel.WRAPPED:
            assert not positions, where
            assert choice.tiles * choice.lanes >= outputs, where
            assert 1 <= choice.row_loads * choice.vectors <= choice.threads, where
            assert not choice.mail or choice.lanes <= choice.threads, where
        else:
            assert choice.tiles * choice.lanes >= outputs, where
            assert -(-extent // choice.pieces) <= 2**30, where


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 641, 65537, 2**30, 2**30 + 1, 2**31 - 1])
def test_fast_division(cpp: ModuleType, divisor: int) -> None:
    draw = random.Random(divisor)
    edges = [m * divisor + e for m in (1, 2, 3, (2**31 - 1) // divisor) for e in (-1, 0, 1)]
    for n in [0, 1, 2**31 - 1, *edges, *(draw.randrange(2**31) for _ in range(2000))]:
        if 0 <= n < 2**31:
            assert cpp.fast_divide(n, divisor) == n // divisor, n


def test_fast_division_by_anything(cpp: ModuleType) -> None:
    draw = random.Random(0)
    for _ in range(20000):
        divisor = min(round(2 ** draw.uniform(0, 31)), 2**31 - 1)
        n = draw.randrange(2**31)
        for numerator in (n, n // divisor * divisor, max(n // divisor * divisor - 1, 0)):
            assert cpp.fast_divide(numerator, divisor) == numerator // divisor
