"""Text from outside, as a message or a terminal shows it: it steers neither, and stays short."""

from __future__ import annotations

import unicodedata
from typing import Any

MOST = 200  # characters that a message quotes


def printable(text: str) -> str:
    """`text` with control characters as escapes: what a file says must not steer the terminal."""
    return "".join(
        character if character in "\n\t" or not _is_control(character) else _escaped(character)
        for character in text
    )


def shown(value: Any) -> str:
    """repr(value) in one line without control characters, cut after MOST characters."""
    try:
        # Of a long text no more than is shown is looked at.
        text = repr(value[: MOST + 1] if isinstance(value, str) else value)
    except Exception:  # an integer of many digits has none, and an object's may do anything
        return f"a {type(value).__name__}"
    cut = text[:MOST] + "..." if len(text) > MOST else text
    return printable(cut).replace("\n", "\\n").replace("\t", "\\t")


def _is_control(character: str) -> bool:
    # Cc: controls; Cf: what turns the direction of text; Cs, Co, Cn: nothing that can be shown.
    return unicodedata.category(character).startswith("C")


def _escaped(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
