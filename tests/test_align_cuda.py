"""Copies of operands that TMA cannot read: where each element goes, and where it is read from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

A, B, D = 1 << 20, 1 << 30, 1 << 40  # addresses of the operands
WORKSPACE = 1 << 50

extents = st.sampled_from([1, 2, 3, 5, 8, 9])


def grid(batch: list[tuple[int, ...]], index: int) -> Iterator[int]:
    """The offset of each product's matrix, in elements: outermost dimension first."""
    steps = [[at * dim[index] for at in range(dim[0])] for dim in batch]
    return map(sum, itertools.product(*steps))


def addresses(
    matrix: tuple[int, int, int], batch: list[tuple[int, ...]], index: int, rows: int, columns: int
) -> list[int]:
    """Where the elements of all products' operand lie, in the order of the products."""
    data, row_stride, column_stride = matrix
    return [
        data + 2 * (offset + i * row_stride + j * column_stride)
        for offset in grid(batch, index)
        for i in range(rows)
        for j in range(columns)
    ]


def copied(copy: Any, src: int, dst: int) -> dict[int, int]:
    """What a copy does: the address each element is written to, and the one it comes from."""
    where = {}
    for number, offset in enumerate(grid(copy.batch, 1)):
        for i, j in itertools.product(range(copy.outer), range(copy.inner)):
            row = number * copy.outer + i
            source = src + 2 * (offset + i * copy.outer_stride + j * copy.inner_stride)
            where[dst + 2 * (row * copy.leading_dimension + j)] = source
    return where


@st.composite
def problems(draw: st.DrawFn, cpp_problem: Any) -> Any:
    m, n, k = draw(extents), draw(extents), draw(extents)

    def strides(rows: int, columns: int) -> tuple[int, int]:
        pad, step = draw(st.sampled_from([0, 1, 8])), draw(st.sampled_from([1, 1, 2]))
        across = step * columns + pad if draw(st.booleans()) else 0
        if draw(st.booleans()):
            return across, step
        return step, step * rows + pad if across else 0

    a, b = strides(m, k), strides(k, n)
    batch = []
    steps = [m * k * 4 + 11, k * n * 4 + 11, m * n]
    for _ in range(draw(st.integers(0, 3))):
        size = draw(st.sampled_from([1, 2, 3]))
        of = [step if draw(st.booleans()) else 0 for step in steps[:2]]
        batch.insert(0, (size, *of, steps[2]))
        steps = [size * step + draw(st.sampled_from([0, 0, 3])) for step in steps[:2]] + [
            steps[2] * size
        ]
    return cpp_problem(
        m=m,
        n=n,
        k=k,
        dtype="float16",
        a=A,
        a_strides=a,
        b=B,
        b_strides=b,
        d=D,
        d_strides=(n, 1),
        batch=batch,
    ), (m, n, k)


@pytest.mark.parametrize("sides", ["a", "b", "ab"])
@settings(max_examples=300)
@given(data=st.data())
def test_copies_hold_what_the_problem_reads(
    cpp: ModuleType, sides: str, data: st.DataObject
) -> None:
    problem, (m, n, k) = data.draw(problems(cpp.GemmProblem))
    changed, made = cpp.read_copies(problem, sides, WORKSPACE)
    copies = dict(zip(sides, made, strict=True))
    assert made[0].dst == WORKSPACE
    assert made[-1].dst == WORKSPACE + sum(copy.bytes for copy in made[:-1])
    for name, index, rows, columns, src in (
        ("a", 1, m, k, A),
        ("b", 2, k, n, B),
        ("d", 3, m, n, D),
    ):
        before = addresses(getattr(problem, name), problem.batch, index, rows, columns)
        after = addresses(getattr(changed, name), changed.batch, index, rows, columns)
        copy = copies.get(name)
        if copy is None:
            assert after == before
            continue
        where = copied(copy, src, copy.dst)
        assert [where[address] for address in after] == before
        assert max(where) + 2 <= copy.dst + copy.bytes
        assert copy.bytes % 256 == 0
        _, *strides = getattr(changed, name)
        assert sorted(strides) == [1, copy.leading_dimension]
        assert copy.leading_dimension % 8 == 0
        assert all(dim[index] % 8 == 0 for dim in changed.batch)
        # No more than the distinct matrices, so that a broadcast operand is copied once.
        assert copy.matrices == math.prod(dim[0] for dim in problem.batch if dim[index])


@pytest.mark.parametrize("operand", ["a", "b"])
@pytest.mark.parametrize("size", [4095, 4097, 5555])
@pytest.mark.parametrize("by_column", [False, True])
def test_rows_of_a_large_copy_begin_with_a_cache_line(
    cpp: ModuleType, operand: str, size: int, by_column: bool
) -> None:
    """The contiguous dimension stays contiguous, and padding stays small."""
    strides = (1, size) if by_column else (size, 1)
    square = dict.fromkeys(("a_strides", "b_strides", "d_strides"), strides)
    problem = cpp.GemmProblem(m=size, n=size, k=size, dtype="float16", a=A, b=B, d=D, **square)
    _, (copy,) = cpp.read_copies(problem, operand, WORKSPACE)
    assert (copy.inner_stride, copy.outer_stride) == (1, size)
    assert copy.leading_dimension % 64 == 0
    assert copy.bytes <= 1.125 * 2 * size * size


def test_two_copied_batch_dimensions_become_one(cpp: ModuleType) -> None:
    """[2, 3] matrices that lie apart in the source lie behind one another in the copy."""
    problem = cpp.GemmProblem(
        m=5,
        n=7,
        k=9,
        dtype="float16",
        a=A,
        a_strides=(9, 1),
        b=B,
        b_strides=(7, 1),
        d=D,
        d_strides=(7, 1),
        batch=[(2, 1000, 0, 105), (3, 45, 0, 35)],
    )
    changed, (copy,) = cpp.read_copies(problem, "a", WORKSPACE)
    assert changed.batch == [(6, 5 * copy.leading_dimension, 0, 35)]
