"""The index functions that kernels, rungs and the emulator call, against xgemm.layouts' own."""

from __future__ import annotations

import pytest

from xgemm.layouts.banks import SWIZZLES, swizzled
from xgemm.layouts.fragments import FRAGMENTS, Owner
from xgemm.layouts.order import stripes, tiles_in_order


@pytest.mark.parametrize("name", SWIZZLES)
def test_swizzles(cpp, name: str):
    for address in range(0, 8192, 4):
        assert cpp.swizzled(address, SWIZZLES[name]) == swizzled(address, name)


@pytest.mark.parametrize("bits", range(4))
def test_a_swizzle_by_row_and_chunk(cpp, bits: int):
    row_bytes = 16 << bits
    for row in range(32):
        for chunk in range(1 << bits):
            at = row * row_bytes + (chunk ^ cpp.swizzle_xor(row, bits)) * 16
            assert at == cpp.swizzled(row * row_bytes + chunk * 16, bits)


@pytest.mark.parametrize("key", FRAGMENTS, ids=" ".join)
def test_fragments(cpp, key: tuple[str, str]):
    """Each thread's element is the one whose owner it is."""
    fragment = FRAGMENTS[key]
    owners = fragment.owners()
    seen = 0
    for row, found in enumerate(owners):
        for column, owner in enumerate(found):
            assert isinstance(owner, Owner)
            place = cpp.fragment_place(
                fragment.rows, fragment.core_columns, owner.thread, owner.index
            )
            assert place == (row, column)
            seen += 1
    assert seen == fragment.rows * fragment.columns


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 5), (8, 8), (9, 4), (16, 2)])
@pytest.mark.parametrize("group", [1, 4, 16])
def test_grouped_order(cpp, rows: int, columns: int, group: int):
    tiles = [cpp.grouped_tile(i, rows, columns, group) for i in range(rows * columns)]
    assert tiles == tiles_in_order("grouped", rows, columns, group)


@pytest.mark.parametrize("fast", [1, 2, 7, 10, 11, 16, 132])
def test_a_raster_gives_each_tile_to_one_cta(cpp, fast: int):
    """Group after group, and the CTAs without a tile are the last ones."""
    slow = 132 // fast
    for group in range(1, fast + 1):
        places = cpp.raster_places(fast, slow, group)
        assert all(place[1] >= slow for place in places[fast * slow :])
        expected = [
            (first + x, y)
            for first in range(0, fast, group)
            for y in range(slow)
            for x in range(min(group, fast - first))
        ]
        assert places[: fast * slow] == expected


def test_a_wave_has_groups_of_four_or_five_tiles(cpp):
    for fast in range(8, 133):
        group = cpp.raster_group(fast, 100)
        assert 4 <= group <= 5
    assert cpp.raster_group(12, 20) == 0  # a short K
    assert cpp.raster_group(7, 100) == 0


@pytest.mark.parametrize("side", [1, 2, 4, 16])
def test_hilbert_order(cpp, side: int):
    tiles = [cpp.hilbert_tile(i, side * side) for i in range(side * side)]
    assert tiles == tiles_in_order("hilbert", side, side)


@pytest.mark.parametrize("ctas", [1, 5, 7, 132])
@pytest.mark.parametrize(("n", "k"), [(768, 256), (4096, 4096), (128, 64)])
def test_stripes(cpp, n: int, k: int, ctas: int):
    depth, count = k // 64, k // 64 * (n // 128)
    share = cpp.stripe_share(count, ctas)
    assert stripes(n, k, ctas) == [(i % depth, i // depth) for i in range(0, count, share)]
