"""Which of the matrix-vector kernels one or two rows (or columns) get."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from dense_problems import HOPPER, Case, matrix, product
from test_select_cuda import check

AMPERE = (80, 108)


def tile(cpp: ModuleType, case: Case, device: tuple[int, int] = HOPPER) -> tuple[Any, ...]:
    config = check(cpp, case, device)
    return config.kernel, config.block_m, config.block_n, config.splits


def linear(m: int, n: int, k: int) -> Case:
    """x @ w.t()"""
    return Case(matrix(m, k), matrix(k, n, "columns"), matrix(m, n))


@pytest.mark.parametrize("device", [HOPPER, AMPERE])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_cta_reads_as_many_rows_of_w_as_there_are_of_x(
    cpp: ModuleType, rows: int, device: tuple[int, int]
) -> None:
    for n, k in ((4096, 4096), (8192, 8192), (4096, 14336), (28672, 4096), (600, 2560)):
        assert tile(cpp, linear(rows, n, k), device) == ("gemv", rows, rows, 1), (n, k)
        columns = Case(matrix(n, k), matrix(k, rows, "columns"), matrix(n, rows))
        assert tile(cpp, columns, device) == ("gemv", rows, rows, 1), (n, k)


def test_many_short_rows_do_not_wait_for_the_launch_before_one_by_one(cpp: ModuleType) -> None:
    for n, k, rows in ((262208, 2560, 2), (262208, 2752, 1), (30000, 2560, 1)):
        assert tile(cpp, linear(1, n, k)) == ("gemv", 1, rows, 1), (n, k)


def test_short_few_or_unaligned_rows_are_read_in_tiles(cpp: ModuleType) -> None:
    assert tile(cpp, linear(1, 8192, 2552), AMPERE)[:3] == ("gemv", 1, 2)
    assert tile(cpp, linear(2, 8192, 2040), AMPERE)[:3] == ("gemv", 2, 4)
    assert tile(cpp, linear(1, 300, 8192), AMPERE)[:3] == ("gemv", 1, 2)
    assert tile(cpp, linear(1, 8192, 4097), AMPERE)[:3] == ("gemv", 1, 2)
    assert tile(cpp, linear(3, 8192, 8192), AMPERE)[:3] == ("gemv", 4, 8)
    assert tile(cpp, product(1, 8192, 8192), AMPERE)[2] > 2  # W along its rows
