"""Layouts as CuTe defines them: functions from a coordinate to an offset, by shapes and strides.

A layout (6,2):(8,2) takes index i, splits it into coordinates (i % 6, i / 6), and gives the offset
8 (i % 6) + 2 (i / 6). Shapes nest; the first mode varies fastest.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from math import prod

Nested = int | tuple["Nested", ...]


def flatten(x: Nested) -> tuple[int, ...]:
    return (x,) if isinstance(x, int) else tuple(v for part in x for v in flatten(part))


def _congruent(a: Nested, b: Nested) -> bool:
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int)
    return len(a) == len(b) and all(map(_congruent, a, b))


@dataclass(frozen=True)
class Layout:
    shape: Nested
    stride: Nested

    def __post_init__(self) -> None:
        if not _congruent(self.shape, self.stride):
            raise ValueError(f"layout: {self}: shape and stride must nest alike")
        if any(extent < 1 for extent in flatten(self.shape)):
            raise ValueError(f"layout: {self}: sizes must be positive")

    def __str__(self) -> str:
        return f"{_text(self.shape)}:{_text(self.stride)}"

    @property
    def size(self) -> int:
        return prod(flatten(self.shape))

    @property
    def cosize(self) -> int:
        """One more than the largest offset."""
        return 1 + sum((n - 1) * d for n, d in self.leaves())

    def leaves(self) -> list[tuple[int, int]]:
        return list(zip(flatten(self.shape), flatten(self.stride), strict=True))

    def modes(self) -> list[Layout]:
        if isinstance(self.shape, int) or isinstance(self.stride, int):
            return [self]
        return [Layout(n, d) for n, d in zip(self.shape, self.stride, strict=True)]

    def __call__(self, index: int) -> int:
        offset = 0
        for n, d in self.leaves():
            offset += index % n * d
            index //= n
        return offset


def _text(x: Nested) -> str:
    return str(x) if isinstance(x, int) else f"({','.join(map(_text, x))})"


def _of_leaves(leaves: list[tuple[int, int]]) -> Layout:
    if len(leaves) == 1:
        return Layout(*leaves[0])
    return Layout(tuple(n for n, _ in leaves), tuple(d for _, d in leaves))


def _of_modes(modes: list[Layout]) -> Layout:
    return Layout(tuple(mode.shape for mode in modes), tuple(mode.stride for mode in modes))


def coalesce(a: Layout) -> Layout:
    """The same function with as few modes as possible."""
    kept: list[tuple[int, int]] = []
    for n, d in a.leaves():
        if n == 1:
            continue
        if kept and kept[-1][0] * kept[-1][1] == d:
            kept[-1] = (kept[-1][0] * n, kept[-1][1])
        else:
            kept.append((n, d))
    return _of_leaves(kept or [(1, 0)])


def composition(a: Layout, b: Layout) -> Layout:
    """i -> a(b(i)), in b's shape: each of b's modes picks its steps out of a's modes."""
    if not isinstance(b.shape, int):
        return _of_modes([_within(a, b, mode) for mode in b.modes()])
    return _within(a, b, b)


def _within(a: Layout, b: Layout, mode: Layout) -> Layout:
    if not isinstance(mode.shape, int):
        return _of_modes([_within(a, b, part) for part in mode.modes()])
    (count, step), found = mode.leaves()[0], []
    if step == 0:
        return Layout(count, 0)
    *inner, (_, last_stride) = coalesce(a).leaves()
    for n, d in inner:
        if count == 1:
            break
        if n % step and step % n:
            raise ValueError(f"layout: {a} and {b} do not compose: {step} and {n} do not divide")
        # `step` elements are one step: of this mode, n / step steps are left.
        here = min(max(1, n // step), count)
        if count % here:
            raise ValueError(f"layout: {a} and {b} do not compose: {here} does not divide {count}")
        if here > 1:
            found.append((here, step * d))
        count //= here
        step = -(-step // n)
    if count > 1 or not found:
        found.append((count, step * last_stride))
    return _of_leaves(found)


def complement(a: Layout, size: int) -> Layout:
    """What a leaves out of `size` offsets: a layout whose sums with a's offsets reach them all."""
    reached, kept = 1, []
    for n, d in sorted((leaf for leaf in a.leaves() if leaf[0] > 1), key=lambda leaf: leaf[1]):
        if d % reached or d == 0:
            raise ValueError(f"layout: {a} has no complement: {d} is no multiple of {reached}")
        kept.append((d // reached, reached))
        reached = n * d
    kept.append((-(-size // reached), reached))
    return coalesce(_of_leaves(kept))


def product(a: Layout, b: Layout) -> Layout:
    """a, repeated as b says: (a, the places of a's copies)."""
    return _of_modes([a, composition(complement(a, a.size * b.cosize), b)])


def divide(a: Layout, b: Layout) -> Layout:
    """a, cut into tiles of b: (within a tile, from tile to tile)."""
    return composition(a, _of_modes([b, complement(b, a.size)]))


def inverse(a: Layout) -> Layout:
    """r with a(r(i)) = i, as far as a's offsets go without a gap (the right inverse)."""
    reached, found, index = 1, [], 1
    places = []
    for n, d in coalesce(a).leaves():
        places.append((d, n, index))
        index *= n
    for d, n, place in sorted(places):
        if d == reached and n > 1:
            found.append((n, place))
            reached *= n
    return coalesce(_of_leaves(found or [(1, 0)]))


def parse(text: str) -> Layout:
    shape, colon, stride = text.strip().partition(":")
    if not colon:
        raise ValueError(f"layout: a layout is SHAPE:STRIDE, such as (6,2):(8,2); got {text!r}")
    return Layout(_parse(shape, text), _parse(stride, text))


def _parse(text: str, whole: str) -> Nested:
    tokens = re.findall(r"\d+|[(),]|\S", text)

    def value() -> Nested:
        token = tokens.pop(0) if tokens else ""
        if token.isdecimal():
            return int(token)
        if token != "(":
            raise ValueError(f"layout: {whole.strip()!r}: expected a number or '(', got {token!r}")
        parts = [value()]
        while tokens and tokens[0] == ",":
            tokens.pop(0)
            parts.append(value())
        if not tokens or tokens.pop(0) != ")":
            raise ValueError(f"layout: {whole.strip()!r}: a ')' is missing")
        return tuple(parts)

    found = value()
    if tokens:
        raise ValueError(f"layout: {whole.strip()!r}: {tokens[0]!r} stands behind the layout")
    return found


BINARY: dict[str, Callable[[Layout, Layout], Layout]] = {
    "o": composition,
    "x": product,
    "/": divide,
}


def evaluate(text: str) -> Layout:
    """ "A", "A o B" (composition), "A x B" (product), "A / B" (divide), "coalesce A", "inverse A",
    "complement A SIZE"; binary ones from left to right."""
    word, _, rest = text.strip().partition(" ")
    if word == "coalesce":
        return coalesce(evaluate(rest))
    if word == "inverse":
        return inverse(evaluate(rest))
    if word == "complement":
        inside, _, size = rest.strip().rpartition(" ")
        if not size.isdecimal():
            raise ValueError(f"layout: complement LAYOUT SIZE: the size is missing in {text!r}")
        return complement(evaluate(inside), int(size))
    first, *others = re.split(r"\s+([ox/])\s+", text.strip())
    pairs = zip(others[::2], others[1::2], strict=True)
    return reduce(lambda a, pair: BINARY[pair[0]](a, parse(pair[1])), pairs, parse(first))
