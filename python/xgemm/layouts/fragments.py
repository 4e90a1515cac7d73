"""Which thread holds which element of an operand of mma or wgmma, and where.

One rule gives all of them. A core matrix is 8 rows of 16 bytes: lane 4 r + t has bytes 4 t to
4 t + 3 of row r, in one register. Sums are 8 x 8, and lane 4 r + t has columns 2 t and 2 t + 1 of
row r. What an instruction takes is core matrices in an order: down the rows first, then along.
"""

from __future__ import annotations

from dataclasses import dataclass

CORE_ROWS, CORE_BYTES, WARP_ROWS = 8, 16, 16


@dataclass(frozen=True)
class Owner:
    """Of an element: a thread of the warp or warpgroup, and the number of its own elements."""

    thread: int
    index: int


@dataclass(frozen=True)
class Fragment:
    """rows x columns elements; B's rows are n, as it lies by columns."""

    rows: int
    columns: int
    element_bits: int  # of an operand; 32: sums

    @property
    def core_columns(self) -> int:
        """Elements of a row of a core matrix."""
        return CORE_ROWS if self.is_sums else CORE_BYTES * 8 // self.element_bits

    @property
    def is_sums(self) -> bool:
        return self.element_bits == 32

    @property
    def per_lane(self) -> int:
        """A lane's elements of one core matrix."""
        return self.core_columns // 4

    def owner(self, row: int, column: int) -> Owner:
        if not (0 <= row < self.rows and 0 <= column < self.columns):
            raise ValueError(
                f"layout: mma: row and column must be below {self.rows} and {self.columns},"
                f" got {row} and {column}"
            )
        warp, row = divmod(row, WARP_ROWS)
        core_row, core_column = row // CORE_ROWS, column // self.core_columns
        cores_down = min(self.rows, WARP_ROWS) // CORE_ROWS
        core = core_column * cores_down + core_row
        within = column % self.core_columns
        lane = row % CORE_ROWS * 4 + within // self.per_lane
        return Owner(warp * 32 + lane, core * self.per_lane + within % self.per_lane)

    def owners(self) -> list[list[Owner]]:
        return [[self.owner(r, c) for c in range(self.columns)] for r in range(self.rows)]


# By instruction and operand. wgmma's D is 64 x N; its first 64 x 16 show the rule.
FRAGMENTS = {
    ("m16n8k8", "a"): Fragment(16, 8, 16),
    ("m16n8k8", "b"): Fragment(8, 8, 16),
    ("m16n8k8", "c"): Fragment(16, 8, 32),
    ("m16n8k16", "a"): Fragment(16, 16, 16),
    ("m16n8k16", "b"): Fragment(8, 16, 16),
    ("m16n8k16", "c"): Fragment(16, 8, 32),
    ("m8n8k32", "a"): Fragment(8, 32, 4),
    ("m8n8k32", "b"): Fragment(8, 32, 4),
    ("m8n8k32", "c"): Fragment(8, 8, 32),
    ("wgmma", "a"): Fragment(64, 16, 16),
    ("wgmma", "d"): Fragment(64, 16, 32),
}


def find_fragment(instruction: str, operand: str) -> Fragment:
    found = FRAGMENTS.get((instruction, operand))
    if found is None:
        known = ", ".join([*(f"{name} {of}" for name, of in FRAGMENTS), *LDMATRIX_NAMES])
        raise ValueError(f"layout: mma must be one of {known}, got {instruction!r} {operand!r}")
    return found


LDMATRIX = ("x1", "x2", "x4", "x1.trans", "x2.trans", "x4.trans")
LDMATRIX_NAMES = tuple(f"ldmatrix {variant}" for variant in LDMATRIX)


def ldmatrix_owners(variant: str) -> list[list[Owner]]:
    """Who gets what of 8 x 8 matrices of 16-bit elements, one below the other.

    Row r of matrix i lies where lane 8 i + r says. Lane 4 r + t gets elements 2 t and 2 t + 1 of
    row r of each matrix; with .trans, of column r.
    """
    if variant not in LDMATRIX:
        raise ValueError(f"layout: mma: ldmatrix is one of {', '.join(LDMATRIX)}, got {variant!r}")
    matrices, trans = int(variant[1]), variant.endswith(".trans")

    def owner(matrix: int, row: int, column: int) -> Owner:
        line, along = (column, row) if trans else (row, column)
        return Owner(4 * line + along // 2, 2 * matrix + along % 2)

    return [
        [owner(matrix, row, column) for column in range(8)]
        for matrix in range(matrices)
        for row in range(8)
    ]
