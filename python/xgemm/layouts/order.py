"""In which order tiles of C are made, and where CTAs begin that share the tiles of one product."""

from __future__ import annotations

ORDERS = ("row-major", "grouped", "hilbert")
Place = tuple[int, int]  # row, column of a tile


def tiles_in_order(order: str, rows: int, columns: int, group: int = 4) -> list[Place]:
    if order not in ORDERS:
        raise ValueError(f"layout: order must be one of {', '.join(ORDERS)}, got {order!r}")
    if min(rows, columns, group) < 1:
        raise ValueError(f"layout: order: sizes must be positive, got {rows} {columns} {group}")
    if order == "row-major":
        return [(row, column) for row in range(rows) for column in range(columns)]
    if order == "grouped":  # down `group` rows of tiles, then to the next column
        return [
            (row, column)
            for first in range(0, rows, group)
            for column in range(columns)
            for row in range(first, min(first + group, rows))
        ]
    side = 1 << (max(rows, columns) - 1).bit_length()
    places = (_hilbert(index, side) for index in range(side * side))
    return [(row, column) for row, column in places if row < rows and column < columns]


def _hilbert(index: int, side: int) -> Place:
    """The curve's point: each step of the loop places it in a square twice as large."""
    row = column = 0
    size = 1
    while size < side:
        right = index // 2 & 1
        down = (index ^ right) & 1
        if down == 0:  # the quadrant is turned
            if right == 1:
                row, column = size - 1 - row, size - 1 - column
            row, column = column, row
        row += size * down
        column += size * right
        index //= 4
        size *= 2
    return row, column


def panels_by_wave(tiles: list[Place], wave: int) -> list[int]:
    """How many different row panels of A and column panels of B each wave of CTAs reads."""
    if wave < 1:
        raise ValueError(f"layout: order: a wave must have tiles, got {wave}")
    waves = [tiles[first : first + wave] for first in range(0, len(tiles), wave)]
    return [len({r for r, _ in part}) + len({c for _, c in part}) for part in waves]


def stripes(n: int, k: int, ctas: int, tile_n: int = 128, tile_k: int = 64) -> list[Place]:
    """(k tile, column) where each CTA begins: equal shares of tiles, down column after column."""
    if n % tile_n or k % tile_k or min(n, k, ctas) < 1:
        raise ValueError(
            f"layout: stripes: n and k must be positive multiples of {tile_n} and {tile_k}, and"
            f" ctas positive, got {n}, {k} and {ctas}"
        )
    depth = k // tile_k
    count = depth * (n // tile_n)
    share = -(-count // ctas)
    return [(first % depth, first // depth) for first in range(0, count, share)]
