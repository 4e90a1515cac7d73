"""Dense products without operands, for tests of which kernel they get."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

# (compute capability, multiprocessors), and the shared memory a CTA may have.
DEVICES = {(80, 108): 163, (86, 82): 99, (89, 128): 99, (90, 132): 227, (100, 148): 227}
HOPPER = (90, 132)
HALF_TYPES = ("float16", "bfloat16")
MOST_STRIDE_BYTES = 2**40  # of a tensor map
MOST_ELEMENTS = 2**38  # of a result: more than any GPU's memory
BASE = 1 << 20  # where operands lie, before their offset: aligned to anything

devices = st.sampled_from([HOPPER] * len(DEVICES) + list(DEVICES))


@dataclass(frozen=True)
class Matrix:
    """A [rows, columns] operand: its address and strides, in elements."""

    rows: int
    columns: int
    row_stride: int
    column_stride: int
    address: int = BASE

    @property
    def strides(self) -> tuple[int, int]:
        return self.row_stride, self.column_stride

    def fits_tma(self) -> bool:
        """A 16-byte aligned base, one dimension contiguous, the other a multiple of 16 bytes."""
        ways = (
            (self.column_stride, self.row_stride, self.rows),
            (self.row_stride, self.column_stride, self.columns),
        )
        return self.address % 16 == 0 and any(
            inner == 1
            and (extent <= 1 or (outer > 0 and outer % 8 == 0 and 2 * outer < MOST_STRIDE_BYTES))
            for inner, outer, extent in ways
        )


@dataclass(frozen=True)
class Case:
    a: Matrix
    b: Matrix
    d: Matrix
    dtype: str = "float16"
    alpha: float = 1.0
    beta: float = 0.0
    batch: tuple[tuple[int, int, int, int], ...] = ()  # size, strides of a, b and d

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.a.rows, self.b.columns, self.a.columns

    @property
    def products(self) -> int:
        return math.prod(size for size, *_ in self.batch)

    def problem(self, cpp: ModuleType, **options: Any) -> Any:
        m, n, k = self.sizes
        return cpp.GemmProblem(
            m=m,
            n=n,
            k=k,
            a=self.a.address,
            a_strides=self.a.strides,
            b=self.b.address,
            b_strides=self.b.strides,
            d=self.d.address,
            d_strides=self.d.strides,
            alpha=self.alpha,
            beta=self.beta,
            batch=list(self.batch),
            **{"dtype": self.dtype, **options},
        )


def matrix(
    rows: int, columns: int, layout: str = "rows", padding: int = 0, offset: int = 0
) -> Matrix:
    address = BASE + 2 * offset
    if layout == "rows":
        return Matrix(rows, columns, max(columns, 1) + padding, 1, address)
    if layout == "columns":
        return Matrix(rows, columns, 1, max(rows, 1) + padding, address)
    if layout == "expanded":
        return Matrix(rows, columns, 0, 1, address)
    return Matrix(rows, columns, 2 * max(columns, 1) + padding, 2, address)


def product(m: int, n: int, k: int, **options: Any) -> Case:
    return Case(matrix(m, k), matrix(k, n), matrix(m, n), **options)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


EXTENTS = st.one_of(
    st.integers(0, 40),
    st.integers(1, 700).map(lambda x: 8 * x),
    st.integers(1, 20_000),
    st.sampled_from([64, 128, 256, 512, 1024, 4096, 8192, 28672, 128256, 2**20, 2**31 - 8, 2**33]),
)


@st.composite
def matrices(draw: st.DrawFn, rows: int, columns: int, layouts: tuple[str, ...]) -> Matrix:
    return matrix(
        rows,
        columns,
        draw(st.sampled_from(layouts)),
        draw(st.sampled_from([0, 0, 0, 1, 3, 8, 64])),
        draw(st.sampled_from([0, 0, 0, 0, 1, 4, 8, 100])),
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    m, n, k = draw(EXTENTS), draw(EXTENTS), draw(EXTENTS)
    assume(max(m * n, m * k, k * n) <= MOST_ELEMENTS)
    inputs = ("rows", "rows", "columns", "columns", "strided", "expanded")
    a, b = draw(matrices(m, k, inputs)), draw(matrices(k, n, inputs))
    d = draw(matrices(m, n, ("rows", "rows", "rows", "columns", "strided")))
    batch = []
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 2, 3, 8]))):
        apart = draw(st.sampled_from([0, 0, 8, 3]))
        shared_a, shared_b = draw(st.booleans()), draw(st.booleans())
        batch.append(
            (
                draw(st.sampled_from([1, 2, 3, 16, 300])),
                0 if shared_a else 2 * m * k + apart,
                0 if shared_b else 2 * k * n + apart,
                2 * m * n + apart,
            )
        )
    assume(max(m * n, m * k, k * n, 1) * math.prod(dim[0] for dim in batch) <= MOST_ELEMENTS)
    alpha, beta = draw(st.sampled_from([(1.0, 0.0)] * 4 + [(0.5, 0.0), (1.0, 2.0)]))
    dtype = draw(st.sampled_from(["float16", "float16", "bfloat16", "float32"]))
    return Case(a, b, d, dtype, alpha, beta, tuple(batch))


def fields(config: Any) -> dict[str, Any]:
    names = [name for name in dir(config) if not name.startswith("_")]
    return {name: getattr(config, name) for name in names}
