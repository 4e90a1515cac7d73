"""Which of the matrix-vector kernels one or two rows (or columns) get."""

from __future__ import annotations

from types import ModuleType

import pytest
from dense_problems import HOPPER, Case, matrix, product
from test_select_cuda import check, check_near

AMPERE = (80, 108)


def near(
    cpp: ModuleType, case: Case, block_m: int, block_n: int, device: tuple[int, int] = HOPPER
) -> None:
    check_near(cpp, case, device, kernel="gemv", block_m=block_m, block_n=block_n)


def linear(m: int, n: int, k: int) -> Case:
    """x @ w.t()"""
    return Case(matrix(m, k), matrix(k, n, "columns"), matrix(m, n))


@pytest.mark.parametrize("device", [HOPPER, AMPERE])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_cta_reads_as_many_rows_of_w_as_there_are_of_x(
    cpp: ModuleType, rows: int, device: tuple[int, int]
) -> None:
    for n, k in ((4096, 4096), (8192, 8192), (4096, 14336), (28672, 4096), (600, 2560)):
        near(cpp, linear(rows, n, k), rows, rows, device)
        columns = Case(matrix(n, k), matrix(k, rows, "columns"), matrix(n, rows))
        near(cpp, columns, rows, rows, device)


def test_many_short_rows_do_not_wait_for_the_launch_before_one_by_one(cpp: ModuleType) -> None:
    for n, k, rows in ((262208, 2560, 2), (262208, 2752, 1), (30000, 2560, 1)):
        near(cpp, linear(1, n, k), 1, rows)


def test_short_or_unaligned_rows_are_read_in_tiles(cpp: ModuleType) -> None:
    near(cpp, linear(1, 8192, 2552), 1, 2, AMPERE)
    near(cpp, linear(2, 8192, 2040), 2, 4, AMPERE)
    near(cpp, linear(3, 8192, 8192), 4, 8, AMPERE)
    assert check(cpp, linear(1, 8192, 4097), AMPERE).block_n > 1  # not aligned
    config = check(cpp, product(1, 8192, 8192), AMPERE)  # W along its rows
    assert config.kernel == "gemv"
    assert config.block_n > 2
