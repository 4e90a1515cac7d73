"""`xgemm layout NAME ...`: where things lie, as text, JSON, pictures or a page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xgemm.bench.plot import load_pyplot
from xgemm.cli.output import check_writable, out, print_json, table
from xgemm.formats.packed import STRIP_COLUMNS, UNIT_K, Layout
from xgemm.layouts import algebra, banks, fragments, order
from xgemm.layouts.grid import Cell, Grid, save_png, to_svg
from xgemm.layouts.page import banks_page, grid_page
from xgemm.layouts.tma import PIECE, Box

Facts = dict[str, Any]


@dataclass(frozen=True)
class Drawn:
    """What a name shows."""

    facts: Facts
    lines: list[str] = field(default_factory=list)
    grid: Grid | None = None
    page: str | None = None  # where it is another than the grid's


@dataclass(frozen=True)
class Files:
    """What is written beside the text."""

    svg: Path | None = None
    png: Path | None = None
    html: Path | None = None

    def check(self) -> None:
        for option, path in (("--svg", self.svg), ("--png", self.png), ("--html", self.html)):
            if path is not None:
                check_writable(f"layout: {option}", path)
        if self.png is not None:
            load_pyplot()

    def write(self, name: str, drawn: Drawn) -> None:
        if self == Files():
            return
        if drawn.grid is None:
            raise ValueError(f"layout: {name} has no picture")
        if self.svg is not None:
            self.svg.write_text(to_svg(drawn.grid))
        if self.png is not None:
            save_png(drawn.grid, self.png)
        if self.html is not None:
            self.html.write_text(drawn.page or grid_page(drawn.grid))


def run(
    name: str, arguments: list[str], as_json: bool, files: Files, measure: bool = False
) -> None:
    if name not in NAMES:
        raise ValueError(f"layout: name must be one of {', '.join(NAMES)}, or N K; got {name!r}")
    make, usage, least, most = NAMES[name]
    if not least <= len(arguments) <= most:
        raise ValueError(f"layout: usage: {name} {usage}; got {' '.join(arguments) or 'nothing'}")
    if measure:
        if name != "smem":
            raise ValueError(f"layout: --measure is for smem, got {name}")
        from xgemm.ladder.pattern import require_gpu  # torch takes seconds

        require_gpu()
    files.check()
    drawn = make(*arguments)
    if measure:
        drawn.facts.update(_measured(*arguments))
    files.write(name, drawn)
    if as_json:
        print_json(drawn.facts)
        return
    rows = [[key, f"{value}"] for key, value in drawn.facts.items() if not isinstance(value, dict)]
    out.print(table(f"{name} {' '.join(arguments)}", ["", "value"], rows))
    for line in drawn.lines:
        out.print(line, markup=False, soft_wrap=True)


def _number(what: str, text: str) -> int:
    if not text.removeprefix("-").isdecimal():
        raise ValueError(f"layout: {what} must be a number, got {text!r}")
    return int(text)


def _pair(what: str, text: str, separator: str = "x") -> tuple[int, int]:
    first, found, second = text.partition(separator)
    if not found:
        raise ValueError(f"layout: {what} must be two numbers such as 8{separator}8, got {text!r}")
    return _number(what, first), _number(what, second)


def _text_of(grid: Grid) -> list[str]:
    """The grid's labels as lines of text."""
    names = list(grid.row_names) or [""] * len(grid.rows)
    labels = [cell.label for row in grid.rows for cell in row] + list(grid.column_names)
    wide, head = max(map(len, labels)), max(map(len, names))
    lines = []
    if grid.column_names:
        lines.append(" ".join([" " * head, *(f"{name:>{wide}}" for name in grid.column_names)]))
    for name, row in zip(names, grid.rows, strict=True):
        lines.append(" ".join([f"{name:>{head}}", *(f"{cell.label:>{wide}}" for cell in row)]))
    return lines


def _bank_grid(title: str, addresses: list[int], width: int) -> Grid:
    """A row for each phase, a cell for each bank: how many different words it is asked for."""
    found = banks.access(addresses, width)
    lanes = banks.PHASE_LANES[width]
    rows = [
        [Cell(str(count), count - 1, f"bank {bank}") for bank, count in enumerate(words)]
        for words in found.words_by_bank
    ]
    names = [f"{first}..{first + lanes - 1}" for first in range(0, len(addresses), lanes)]
    return Grid(title, rows, names, [str(bank) for bank in range(banks.BANKS)])


def _access(title: str, plain: list[int], width: int, swizzle: str = "none") -> Drawn:
    """Counts, and how many words each bank is asked for: a line a phase."""
    addresses = [banks.swizzled(address, swizzle) for address in plain]
    found = banks.access(addresses, width)
    grid = _bank_grid(title, addresses, width)
    lines = [f"words that each of the {banks.BANKS} banks is asked for, by phases of lanes:"]
    facts = {"phases": found.phases, "wavefronts": found.wavefronts, "extra": found.extra}
    return Drawn(
        {**facts, "addresses": addresses},
        [*lines, *_text_of(grid)],
        grid,
        banks_page(title, plain, width, swizzle),
    )


def _smem(text: str, width: str = "4") -> Drawn:
    addresses = banks.addresses_of(text)
    return _access(f"smem {text}, {width} bytes", addresses, _number("width", width))


def _measured(text: str, width: str = "4") -> Facts:
    from xgemm.ladder.pattern import measure

    found = measure(banks.addresses_of(text), _number("width", width))
    by = found.by if found.reason is None else f"{found.by} ({found.reason})"
    return {"measured_wavefronts": round(found.wavefronts, 2), "measured_by": by}


def _ldmatrix(matrices: str, row_bytes: str, padding: str = "0", swizzle: str = "none") -> Drawn:
    count, row = _number("matrices", matrices), _number("row_bytes", row_bytes)
    plain = banks.ldmatrix_addresses(count, row, _number("padding", padding))
    drawn = _access(f"ldmatrix x{count}, rows of {row} bytes", plain, 16, swizzle)
    drawn.lines.append("lane 4 g + t gets elements 2 t and 2 t + 1 of row g of each matrix; with")
    drawn.lines.append(".trans, rows 2 t and 2 t + 1 of column g")
    return drawn


def _swizzle(name: str, size: str = "1024") -> Drawn:
    """16-byte pieces: where piece i of each 128 bytes lies."""
    rows = []
    for row in range(0, _number("size", size), 128):
        pieces = [banks.swizzled(row + 16 * place, name) % 128 // 16 for place in range(8)]
        rows.append([Cell(str(piece), piece, f"bytes {row + 16 * piece}") for piece in pieces])
    grid = Grid(
        f"swizzle {name}: the piece of 16 bytes that stands in each place",
        rows,
        [str(128 * row) for row in range(len(rows))],
        [str(place) for place in range(8)],
    )
    facts: Facts = {
        "swizzle": name,
        "formula": f"a ^ ((a >> 7 & {(1 << banks.SWIZZLES[name]) - 1}) << 4)",
        "repeats_after_bytes": 1024,
    }
    if name != "none":
        # Of wgmma's descriptors, in bytes; the next 16 k of 2-byte elements.
        width = int(name)
        facts["k_major_stride"] = 8 * width  # from 8 rows to the next 8
        facts["k_major_step_of_16_k"] = 32
        facts["mn_major_stride"] = 8 * width  # from 8 k to the next 8
        facts["mn_major_step_of_16_k"] = 16 * width
    return Drawn(facts, [f"{grid.title}, a line for each 128 bytes:", *_text_of(grid)], grid)


def _loaded(variant: str) -> Drawn:
    owners = fragments.ldmatrix_owners(variant)
    rows = [
        [
            Cell(
                f"{o.thread}:{o.index}", o.thread, f"matrix {line // 8}, row {line % 8}, column {c}"
            )
            for c, o in enumerate(found)
        ]
        for line, found in enumerate(owners)
    ]
    title = f"ldmatrix {variant}: lane:element of each place; a row's address is the named lane's"
    grid = Grid(title, rows, [f"lane {line}" for line in range(len(rows))], list("01234567"))
    by_element = {
        f"{line},{c}": [o.thread, o.index]
        for line, found in enumerate(owners)
        for c, o in enumerate(found)
    }
    facts: Facts = {"matrices": len(rows) // 8, "addresses_of_lanes": f"0..{len(rows) - 1}"}
    lines = ["matrices of 8 x 8, one below the other;", f"{title}:", *_text_of(grid)]
    return Drawn({**facts, "owners": by_element}, lines, grid)


def _mma(instruction: str, operand: str) -> Drawn:
    if instruction == "ldmatrix":
        return _loaded(operand)
    fragment = fragments.find_fragment(instruction, operand)
    owners = fragment.owners()
    rows = [
        [
            Cell(f"{owner.thread}:{owner.index}", owner.thread, f"row {r}, column {c}")
            for c, owner in enumerate(row)
        ]
        for r, row in enumerate(owners)
    ]
    grid = Grid(
        f"{instruction} {operand}: thread:element",
        rows,
        [str(r) for r in range(fragment.rows)],
        [str(c) for c in range(fragment.columns)],
    )
    facts: Facts = {
        "rows": fragment.rows,
        "columns": fragment.columns,
        "element_bits": fragment.element_bits,
        "threads": 1 + max(owner.thread for row in owners for owner in row),
        "elements_a_thread": 1 + max(owner.index for row in owners for owner in row),
    }
    by_element = {
        f"{r},{c}": [o.thread, o.index] for r, row in enumerate(owners) for c, o in enumerate(row)
    }
    what = "rows are n" if operand == "b" else "rows are m"
    lines = [f"thread:element of each place ({what}):", *_text_of(grid)]
    return Drawn({**facts, "owners": by_element}, lines, grid)


def _tma(matrix: str, box: str, at: str, element_bytes: str = "2", swizzle: str = "128") -> Drawn:
    rows, columns = _pair("the matrix", matrix)
    height, width = _pair("the box", box)
    row, column = _pair("where the box begins", at, ",")
    asked = Box(
        rows, columns, height, width, row, column, _number("element bytes", element_bytes), swizzle
    )
    pieces = asked.pieces()
    places = sorted(pieces)
    across = max(asked.row_bytes, PIECE) // PIECE

    def cell(place: int) -> Cell:
        found = pieces[place]
        if found is None:
            return Cell("0", -1, "outside: zeros")
        return Cell(f"{found[0]},{found[1]}", found[0] - row, f"byte {place}")

    grid = Grid(
        "row,column of the matrix in each 16 bytes of shared memory",
        [[cell(place) for place in places[i : i + across]] for i in range(0, len(places), across)],
        [str(i * asked.row_bytes) for i in range(height)],
        [str(16 * i) for i in range(across)],
    )
    facts: Facts = {
        "bytes_counted": asked.bytes,
        "pieces": len(pieces),
        "pieces_of_zeros": sum(found is None for found in pieces.values()),
    }
    return Drawn(facts, [f"{grid.title} (0: outside):", *_text_of(grid)], grid)


def _w4(n: str, k: str, group_size: str = "128", column: str = "0", channel: str = "0") -> Drawn:
    """The strip that holds (column, channel): byte and nibble of its first 32 channels."""
    layout = Layout(_number("N", n), _number("K", k), _number("group size", group_size), False)
    first_column, first_channel = _number("column", column), _number("channel", channel)
    if not (0 <= first_column < layout.n and 0 <= first_channel < layout.k):
        raise ValueError(
            f"layout: w4: column and channel must be below {n} and {k}, got {column} and {channel}"
        )
    first_column -= first_column % STRIP_COLUMNS
    first_channel -= first_channel % 32
    strip = layout.strip_offset(first_column, first_channel // UNIT_K)
    rows = []
    for down in range(STRIP_COLUMNS):
        cells = []
        for across in range(32):
            byte, nibble = divmod(
                layout.nibble_index(first_column + down, first_channel + across), 2
            )
            lane = (byte - strip) % 512 // 16
            note = f"column {first_column + down}, channel {first_channel + across}, lane {lane}"
            cells.append(Cell(f"{byte - strip}{'lh'[nibble]}", lane, note))
        rows.append(cells)
    grid = Grid(
        "byte of the strip, low or high nibble; colours are lanes",
        rows,
        [str(first_column + i) for i in range(STRIP_COLUMNS)],
        [str(first_channel + i) for i in range(32)],
    )
    facts: Facts = {
        "strip_begins_at": strip,
        "nibble": layout.nibble_index(_number("column", column), _number("channel", channel)),
        "scale_byte": layout.scale_offset(
            _number("column", column),
            0 if layout.per_channel else _number("channel", channel) // layout.group_size,
        ),
    }
    return Drawn(facts, ["byte and nibble of columns by channels:", *_text_of(grid)], grid)


def _order(name: str, shape: str, wave: str, group: str = "4") -> Drawn:
    rows, columns = _pair("the tiles", shape)
    count = _number("wave", wave)
    tiles = order.tiles_in_order(name, rows, columns, _number("group", group))
    by_wave = order.panels_by_wave(tiles, count)
    numbers = {place: index for index, place in enumerate(tiles)}
    cells = [
        [
            Cell(str(numbers[row, column]), numbers[row, column] // count, f"{row}, {column}")
            for column in range(columns)
        ]
        for row in range(rows)
    ]
    grid = Grid(f"{name}: the order of tiles; colours are waves of {count}", cells)
    facts = {"waves": len(by_wave), "panels": sum(by_wave), "panels_by_wave": by_wave}
    return Drawn(facts, _text_of(grid), grid)


def _stripes(shape: str, ctas: str) -> Drawn:
    n, k = _pair("NxK", shape)
    begin = order.stripes(n, k, _number("ctas", ctas))
    lines = [f"CTA {i} begins at k tile {t}, column {c}" for i, (t, c) in enumerate(begin)]
    depth, columns = k // 64, n // 128
    share = -(-depth * columns // len(begin))
    cells = [
        [Cell(str((c * depth + t) // share), (c * depth + t) // share) for c in range(columns)]
        for t in range(depth)
    ]
    grid = Grid("the CTA of each tile, k down", cells)
    facts = {"tile": "64x128 (k x n)", "begin": [list(place) for place in begin]}
    return Drawn(facts, [*lines, *_text_of(grid)], grid)


def _algebra(text: str) -> Drawn:
    found = algebra.evaluate(text)
    offsets = [found(index) for index in range(min(found.size, 64))]
    facts = {"result": str(found), "size": found.size, "cosize": found.cosize}
    cells = [
        [Cell(str(x), x) for x in offsets[first : first + 16]]
        for first in range(0, len(offsets), 16)
    ]
    return Drawn({**facts, "offsets": offsets}, [], Grid(f"offsets of {found}", cells))


Maker = Callable[..., Drawn]
MMA_USAGE = "m16n8k8|m16n8k16|m8n8k32 a|b|c, wgmma a|d, or ldmatrix x1|x2|x4[.trans]"
NAMES: dict[str, tuple[Maker, str, int, int]] = {
    "smem": (_smem, "PATTERN [WIDTH]", 1, 2),
    "ldmatrix": (_ldmatrix, "MATRICES ROW_BYTES [PADDING [SWIZZLE]]", 2, 4),
    "swizzle": (_swizzle, "none|32|64|128 [BYTES]", 1, 2),
    "mma": (_mma, MMA_USAGE, 2, 2),
    "tma": (_tma, "ROWSxCOLUMNS BOX_ROWSxBOX_COLUMNS ROW,COLUMN [ELEMENT_BYTES [SWIZZLE]]", 3, 5),
    "w4": (_w4, "N K [GROUP_SIZE [COLUMN [CHANNEL]]]", 2, 5),
    "order": (_order, "row-major|grouped|hilbert ROWSxCOLUMNS WAVE [GROUP]", 3, 4),
    "stripes": (_stripes, "NxK CTAS", 2, 2),
    "algebra": (_algebra, "TEXT", 1, 1),
}
