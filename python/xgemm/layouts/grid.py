"""A picture of cells with labels, as SVG or PNG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from xgemm.bench.plot import load_pyplot

CELL_WIDTH, CELL_HEIGHT, MARGIN, HEAD = 46, 20, 52, 40


@dataclass(frozen=True)
class Cell:
    label: str
    group: int  # cells of a group have one colour: a lane, a row, a bank
    note: str = ""  # what it says under the mouse


@dataclass(frozen=True)
class Grid:
    title: str
    rows: Sequence[Sequence[Cell]]
    row_names: Sequence[str] = field(default_factory=tuple)
    column_names: Sequence[str] = field(default_factory=tuple)

    @property
    def columns(self) -> int:
        return max(len(row) for row in self.rows)


def hue(group: int) -> int:
    """Degrees; neighbouring groups are far apart."""
    return group * 137 % 360


def to_svg(grid: Grid) -> str:
    width = MARGIN + grid.columns * CELL_WIDTH + 8
    height = HEAD + len(grid.rows) * CELL_HEIGHT + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" font-family="monospace" font-size="10">',
        f'<text x="4" y="14" font-size="12">{escape(grid.title)}</text>',
    ]
    for i, name in enumerate(grid.column_names):
        x = MARGIN + i * CELL_WIDTH + CELL_WIDTH // 2
        parts.append(f'<text x="{x}" y="{HEAD - 6}" text-anchor="middle">{escape(name)}</text>')
    for r, row in enumerate(grid.rows):
        y = HEAD + r * CELL_HEIGHT
        if r < len(grid.row_names):
            parts.append(f'<text x="4" y="{y + 14}">{escape(grid.row_names[r])}</text>')
        for c, cell in enumerate(row):
            x = MARGIN + c * CELL_WIDTH
            fill = f"hsl({hue(cell.group)},70%,82%)" if cell.group >= 0 else "#eee"
            parts.append(
                f'<g class="cell" data-group="{cell.group}"><title>{escape(cell.note)}</title>'
                f'<rect x="{x}" y="{y}" width="{CELL_WIDTH}" height="{CELL_HEIGHT}"'
                f' fill="{fill}" stroke="#888" stroke-width="0.5"/>'
                f'<text x="{x + CELL_WIDTH // 2}" y="{y + 14}" text-anchor="middle">'
                f"{escape(cell.label)}</text></g>"
            )
    return "\n".join([*parts, "</svg>\n"])


def save_png(grid: Grid, path: Path) -> None:
    pyplot: Any = load_pyplot()
    from matplotlib.colors import hsv_to_rgb

    size = (grid.columns * 0.46 + 0.8, len(grid.rows) * 0.22 + 0.7)
    figure, axis = pyplot.subplots(figsize=size)
    for r, row in enumerate(grid.rows):
        for c, cell in enumerate(row):
            colour = hsv_to_rgb((hue(cell.group) / 360, 0.3, 1)) if cell.group >= 0 else "#eeeeee"
            axis.add_patch(
                pyplot.Rectangle((c, r), 1, 1, facecolor=colour, edgecolor="grey", linewidth=0.4)
            )
            axis.text(c + 0.5, r + 0.55, cell.label, ha="center", va="center", fontsize=6)
    axis.set_xlim(0, grid.columns)
    axis.set_ylim(len(grid.rows), 0)
    axis.set_xticks([i + 0.5 for i in range(len(grid.column_names))], grid.column_names)
    axis.set_yticks([i + 0.5 for i in range(len(grid.row_names))], grid.row_names)
    axis.tick_params(length=0, labelsize=6)
    axis.xaxis.tick_top()
    axis.set_title(grid.title, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
