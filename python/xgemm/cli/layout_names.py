"""`xgemm layout NAME ...`: where things lie, as text or JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xgemm.cli.output import out, print_json, table
from xgemm.layouts import algebra, banks, order

Facts = dict[str, Any]


def run(name: str, arguments: list[str], as_json: bool) -> None:
    if name not in NAMES:
        raise ValueError(f"layout: name must be one of {', '.join(NAMES)}, or N K; got {name!r}")
    make, usage, least, most = NAMES[name]
    if not least <= len(arguments) <= most:
        raise ValueError(f"layout: usage: {name} {usage}; got {' '.join(arguments) or 'nothing'}")
    facts, picture = make(*arguments)
    if as_json:
        print_json(facts)
        return
    rows = [[key, f"{value}"] for key, value in facts.items()]
    out.print(table(f"{name} {' '.join(arguments)}", ["", "value"], rows))
    for line in picture:
        out.print(line, markup=False, soft_wrap=True)


def _number(what: str, text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"layout: {what} must be a number, got {text!r}")
    return int(text)


def _pair(what: str, text: str) -> tuple[int, int]:
    first, x, second = text.partition("x")
    if not x:
        raise ValueError(f"layout: {what} must be two numbers such as 8x8, got {text!r}")
    return _number(what, first), _number(what, second)


def _access(addresses: list[int], width: int) -> tuple[Facts, list[str]]:
    """Counts, and which lanes want which bank: a line a phase."""
    found = banks.access(addresses, width)
    lanes = banks.PHASE_LANES[width]
    lines = [f"words that each of the {banks.BANKS} banks is asked for, a line for each phase:"]
    for phase, words in enumerate(found.words_by_bank):
        first = phase * lanes
        shown = " ".join(f"{count:2d}" for count in words)
        lines.append(f"lanes {first:2d}..{first + lanes - 1:2d}: {shown}")
    facts = {"phases": found.phases, "wavefronts": found.wavefronts, "extra": found.extra}
    return {**facts, "addresses": addresses}, lines


def _smem(pattern: str, width: str = "4") -> tuple[Facts, list[str]]:
    return _access(banks.addresses_of(pattern), _number("width", width))


def _ldmatrix(
    matrices: str, row_bytes: str, padding: str = "0", swizzle: str = "none"
) -> tuple[Facts, list[str]]:
    count, row = _number("matrices", matrices), _number("row_bytes", row_bytes)
    addresses = banks.ldmatrix_addresses(count, row, _number("padding", padding), swizzle)
    facts, lines = _access(addresses, 16)
    lines.append("lane 4 g + t gets elements 2 t and 2 t + 1 of row g of each matrix; with .trans,")
    lines.append("rows 2 t and 2 t + 1 of column g")
    return facts, lines


def _swizzle(name: str, size: str = "1024") -> tuple[Facts, list[str]]:
    """16-byte pieces: where piece i of each 128 bytes lies."""
    lines = ["piece (of 16 bytes) that stands in each place, a line for each 128 bytes:"]
    for row in range(0, _number("size", size), 128):
        pieces = [banks.swizzled(row + 16 * place, name) % 128 // 16 for place in range(8)]
        lines.append(f"{row:6d}: {' '.join(map(str, pieces))}")
    formula = f"a ^ ((a >> 7 & {(1 << banks.SWIZZLES[name]) - 1}) << 4)"
    return {"swizzle": name, "formula": formula, "repeats_after_bytes": 1024}, lines


def _order(name: str, shape: str, wave: str, group: str = "4") -> tuple[Facts, list[str]]:
    rows, columns = _pair("the tiles", shape)
    count = _number("wave", wave)
    tiles = order.tiles_in_order(name, rows, columns, _number("group", group))
    by_wave = order.panels_by_wave(tiles, count)
    numbers = {place: index for index, place in enumerate(tiles)}
    width = len(str(len(tiles)))
    lines = [
        " ".join(f"{numbers[row, column]:{width}d}" for column in range(columns))
        for row in range(rows)
    ]
    return {"waves": len(by_wave), "panels": sum(by_wave), "panels_by_wave": by_wave}, lines


def _stripes(shape: str, ctas: str) -> tuple[Facts, list[str]]:
    n, k = _pair("NxK", shape)
    begin = order.stripes(n, k, _number("ctas", ctas))
    lines = [f"CTA {i} begins at k tile {t}, column {c}" for i, (t, c) in enumerate(begin)]
    return {"tile": "64x128 (k x n)", "begin": [list(place) for place in begin]}, lines


def _algebra(text: str) -> tuple[Facts, list[str]]:
    found = algebra.evaluate(text)
    offsets = [found(index) for index in range(min(found.size, 64))]
    facts = {"result": str(found), "size": found.size, "cosize": found.cosize}
    return {**facts, "offsets": offsets}, []


Maker = Callable[..., tuple[Facts, list[str]]]
NAMES: dict[str, tuple[Maker, str, int, int]] = {
    "smem": (_smem, "PATTERN [WIDTH]", 1, 2),
    "ldmatrix": (_ldmatrix, "MATRICES ROW_BYTES [PADDING [SWIZZLE]]", 2, 4),
    "swizzle": (_swizzle, "none|32|64|128 [BYTES]", 1, 2),
    "order": (_order, "row-major|grouped|hilbert ROWSxCOLUMNS WAVE [GROUP]", 3, 4),
    "stripes": (_stripes, "NxK CTAS", 2, 2),
    "algebra": (_algebra, "TEXT", 1, 1),
}
