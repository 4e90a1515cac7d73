"""What TMA puts into shared memory for a box: its pieces of 16 bytes, and zeros outside."""

from __future__ import annotations

from dataclasses import dataclass

from xgemm.layouts.banks import SWIZZLES, swizzled

PIECE = 16
MOST_BOX = 256  # elements of a box along a dimension


@dataclass(frozen=True)
class Box:
    """`height` x `width` elements of a matrix rows x columns, from (row, column) on."""

    rows: int
    columns: int
    height: int
    width: int
    row: int
    column: int
    element_bytes: int = 2
    swizzle: str = "128"

    def __post_init__(self) -> None:
        if self.swizzle not in SWIZZLES:
            known = ", ".join(SWIZZLES)
            raise ValueError(f"layout: swizzle must be one of {known}, got {self.swizzle!r}")
        if self.element_bytes not in (1, 2, 4, 8):
            raise ValueError(
                f"layout: tma: an element has 1, 2, 4 or 8 bytes, got {self.element_bytes}"
            )
        if not (1 <= self.height <= MOST_BOX and 1 <= self.width <= MOST_BOX):
            raise ValueError(
                f"layout: tma: a box has 1 to {MOST_BOX} elements each way, got"
                f" {self.height}x{self.width}"
            )
        for what, count in (("a box's row", self.width), ("a matrix' row", self.columns)):
            if count * self.element_bytes % PIECE:
                raise ValueError(
                    f"layout: tma: {what} must be a multiple of {PIECE} bytes, got"
                    f" {count * self.element_bytes}"
                )
        if self.swizzle != "none" and self.row_bytes > int(self.swizzle):
            raise ValueError(
                f"layout: tma: with the {self.swizzle}-byte swizzle a box's row has at most"
                f" {self.swizzle} bytes, got {self.row_bytes}"
            )
        if self.column * self.element_bytes % PIECE:
            raise ValueError(
                f"layout: tma: the column must be a multiple of {PIECE} bytes, got"
                f" {self.column * self.element_bytes}"
            )

    @property
    def row_bytes(self) -> int:
        return self.width * self.element_bytes

    @property
    def bytes(self) -> int:
        """What the barrier counts: the whole box, zeros too."""
        return self.height * self.row_bytes

    def pieces(self) -> dict[int, tuple[int, int] | None]:
        """By offset in shared memory: (row, column) of the matrix; None: zeros."""
        found: dict[int, tuple[int, int] | None] = {}
        for row in range(self.height):
            for byte in range(0, self.row_bytes, PIECE):
                at = (self.row + row, self.column + byte // self.element_bytes)
                inside = 0 <= at[0] < self.rows and 0 <= at[1] < self.columns
                place = swizzled(row * self.row_bytes + byte, self.swizzle)
                found[place] = at if inside else None
        return found
