"""The device-free C++ that divides work: ranges, roundings, and the CPU GEMM's blocking table."""

from __future__ import annotations

import itertools
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

L1_BYTES, L2_BYTES = 32 * 1024, 256 * 1024  # the smallest of any x86-64 CPU with AVX2
AVX512_L2_BYTES = 512 * 1024  # the smallest of any with AVX-512


@given(
    total=st.integers(0, 10_000),
    parts=st.integers(1, 70),
    grain=st.sampled_from([1, 2, 6, 16, 64, 100]),
)
def test_ranges_cover_the_whole_once(cpp: ModuleType, total: int, parts: int, grain: int) -> None:
    ranges = [cpp.split_range(total, parts, i, grain) for i in range(parts)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == total
    for (_, end), (begin, _) in itertools.pairwise(ranges):
        assert end == begin
    for begin, end in ranges:
        assert begin <= end
        assert begin % grain == 0 or begin == total
    units = [-(-(end - begin) // grain) for begin, end in ranges]
    assert max(units) - min(units) <= 1


@given(a=st.integers(0, 2**40), b=st.integers(1, 2**20))
def test_roundings(cpp: ModuleType, a: int, b: int) -> None:
    assert cpp.ceil_div(a, b) == -(-a // b)
    assert cpp.round_up(a, b) == -(-a // b) * b


@given(x=st.integers(0, 2**31 - 1), by=st.one_of(st.integers(1, 2**31), st.integers(1, 300)))
def test_division_by_multiplication(cpp: ModuleType, x: int, by: int) -> None:
    for numerator in (x, x - x % by, max(x - x % by - 1, 0), 2**31 - 1):
        assert cpp.fast_divide(numerator, by) == numerator // by


@given(m=st.integers(0, 5000), mr=st.integers(1, 32))
def test_panels_are_as_few_as_can_be_and_nearly_equal(cpp: ModuleType, m: int, mr: int) -> None:
    rows = cpp.panel_rows(m, mr)
    assert 1 <= rows <= mr
    assert -(-m // rows) == -(-m // mr)


@pytest.mark.parametrize("isa", ["generic", "avx2", "avx512", "avx512vnni", "avx512bf16", "amx"])
def test_blocks_hold_whole_tiles_and_fit_their_caches(cpp: ModuleType, isa: str) -> None:
    blocking = cpp.BLOCKING[isa]
    assert blocking.mc % blocking.mr == 0
    assert blocking.nc % blocking.nr == 0
    block, panel = blocking.mc * blocking.kc * 4, blocking.kc * blocking.nr * 4
    if isa.startswith("avx512") or isa == "amx":
        assert block + panel <= AVX512_L2_BYTES
    else:
        assert panel <= L1_BYTES
        assert block <= L2_BYTES


@given(
    isa=st.sampled_from(["generic", "avx2", "avx512", "amx"]),
    l1=st.integers(16 << 10, 128 << 10),
    l2=st.integers(256 << 10, 4 << 20),
    l3=st.integers(2 << 20, 1 << 30),
)
def test_blocks_fit_the_caches_of_the_machine(
    cpp: ModuleType, isa: str, l1: int, l2: int, l3: int
) -> None:
    blocking, largest = cpp.blocking_of(isa, l1, l2, l3), cpp.BLOCKING[isa]
    assert (blocking.mr, blocking.nr) == (largest.mr, largest.nr)
    assert blocking.mc % blocking.mr == 0
    assert blocking.nc % blocking.nr == 0
    assert blocking.kc % 8 == 0
    assert blocking.mc > 0
    assert 0 < blocking.nc <= largest.nc
    assert 0 < blocking.kc <= largest.kc
    panel = blocking.kc * blocking.nr * 4
    assert panel <= (l2 // 16 if isa in ("avx512", "amx") else l1 // 2)
    assert blocking.mc * blocking.kc * 4 + panel <= l2 // 2
    assert blocking.nc * blocking.kc * 4 <= l3 // 4


def test_chosen_instruction_set_is_in_the_table(cpp: ModuleType) -> None:
    assert cpp.isa() in cpp.BLOCKING
