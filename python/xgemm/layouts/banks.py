"""Shared memory: which addresses of a warp are read in one turn, and which wait for a bank.

There are 32 banks of 4 bytes; word i lies in bank i % 32. A load of 4 bytes a lane goes all 32
lanes at once, of 8 bytes 16 lanes, of 16 bytes 8 lanes; each such phase takes as many turns
("wavefronts") as the busiest bank has different words. Lanes that want the same word share it.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

BANKS, WORD, LANES = 32, 4, 32
PHASE_LANES = {4: 32, 8: 16, 16: 8}
SWIZZLES = {"none": 0, "32": 1, "64": 2, "128": 3}  # bytes of a row: bits that are XORed


@dataclass(frozen=True)
class Access:
    """One load or store of a warp."""

    phases: int  # the least number of turns
    wavefronts: int
    words_by_bank: tuple[tuple[int, ...], ...]  # for each phase, different words of each bank

    @property
    def extra(self) -> int:
        return self.wavefronts - self.phases


def access(addresses: Sequence[int], width: int) -> Access:
    """`width` bytes at each lane's address."""
    if width not in PHASE_LANES:
        raise ValueError(f"layout: width must be 4, 8 or 16 bytes, got {width}")
    for lane, address in enumerate(addresses):
        if address < 0 or address % width:
            raise ValueError(
                f"layout: lane {lane}: the address must be a multiple of {width}, got {address}"
            )
    lanes = PHASE_LANES[width]
    counts = []
    for first in range(0, len(addresses), lanes):
        words = {
            (address + byte) // WORD
            for address in addresses[first : first + lanes]
            for byte in range(0, width, WORD)
        }
        banks = [0] * BANKS
        for word in words:
            banks[word % BANKS] += 1
        counts.append(tuple(banks))
    return Access(len(counts), sum(map(max, counts)), tuple(counts))


def swizzled(address: int, swizzle: str) -> int:
    """The 16-byte piece of an address, XORed by the number of its 128 bytes: TMA's and wgmma's."""
    if swizzle not in SWIZZLES:
        raise ValueError(f"layout: swizzle must be one of {', '.join(SWIZZLES)}, got {swizzle!r}")
    return address ^ ((address >> 7 & (1 << SWIZZLES[swizzle]) - 1) << 4)


def ldmatrix_addresses(
    matrices: int, row_bytes: int, padding: int = 0, swizzle: str = "none"
) -> list[int]:
    """Lane 8 i + r gives row r of matrix i. x4: 16 rows, then their next 16 bytes."""
    if matrices not in (1, 2, 4):
        raise ValueError(f"layout: ldmatrix loads 1, 2 or 4 matrices, got {matrices}")
    if row_bytes % 16 or row_bytes < (32 if matrices == 4 else 16) or padding % 16:
        raise ValueError(
            "layout: ldmatrix: rows must be a multiple of 16 bytes, 32 at the least for x4,"
            f" got {row_bytes} and {padding} of padding"
        )
    pitch = row_bytes + padding
    return [swizzled(lane % 16 * pitch + lane // 16 * 16, swizzle) for lane in range(8 * matrices)]


_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitXor: operator.xor,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}


def addresses_of(pattern: str) -> list[int]:
    """A pattern such as "lane * 8" or "lane / 4 * 128 + (lane % 4 ^ lane / 8) * 16", in bytes."""

    def value(node: Any, lane: int) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name) and node.id == "lane":
            return lane
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            left, right = value(node.left, lane), value(node.right, lane)
            if isinstance(node.op, ast.LShift | ast.Mult) and abs(left) + abs(right) > 2**20:
                raise ValueError("a number is too large")
            return _OPERATORS[type(node.op)](left, right)
        raise ValueError("only `lane`, integers and + - * / % ^ & | << >> are known")

    try:
        tree = ast.parse(pattern.strip(), mode="eval").body
        return [value(tree, lane) for lane in range(LANES)]
    except (SyntaxError, ValueError, ZeroDivisionError) as error:
        raise ValueError(f"layout: smem: pattern {pattern!r}: {error}") from error
