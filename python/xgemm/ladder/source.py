"""The rungs' source files: what their headers say, and how neighbours differ."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

_INSTALLED = Path(__file__).parent / "sources"  # setup.py copies the files there for a wheel
_CHECKOUT = Path(__file__).parents[3] / "csrc"


@dataclass(frozen=True)
class RungSource:
    """A rung's file. Its header is the one place that says where the rung comes from."""

    path: Path
    text: str
    title: str
    source: str
    changed: str
    published: str


def rung_files(ladder: str) -> list[Path]:
    """NN_name.* in the order of NN; an installed package has copies of its own."""
    if _INSTALLED.is_dir():
        found = list((_INSTALLED / ladder).glob("[0-9][0-9]_*"))
    else:
        found = [
            path
            for side in ("cpu", "cuda")
            for path in (_CHECKOUT / side / "ladder" / ladder).rglob("[0-9][0-9]_*")
        ]
    if not found:
        raise FileNotFoundError(f"ladder: the sources of {ladder} are not installed with xgemm")
    return sorted(found, key=lambda path: path.name)


def read_rung(ladder: str, number: int) -> RungSource:
    files = rung_files(ladder)
    if not 0 <= number < len(files):
        raise ValueError(f"ladder: {ladder} has rungs 0..{len(files) - 1}, got {number}")
    text = files[number].read_text()
    head = text.partition("\n//\n")[0] + "\n"
    title = re.match(rf"// Ladder {ladder}, rung {number}: (.*?)\.\n", head.replace("\n// ", " "))
    if title is None:
        raise ValueError(f"ladder: {files[number].name} must begin with its ladder, rung and title")
    parts = {name: _field(text, name) for name in ("Source", "Changed", "Published")}
    return RungSource(
        files[number], text, title[1], parts["Source"], parts["Changed"], parts["Published"]
    )


def _field(text: str, name: str) -> str:
    """`// Name: ...` with the lines that go on below it, indented."""
    found = re.search(rf"^// {name}: +(.*(?:\n// {{5,}}.*)*)", text, re.MULTILINE)
    return "" if found is None else re.sub(r"\n// +", " ", found[1])


def diff_to_previous(ladder: str, number: int) -> str:
    """A unified diff of the code (not of the opening comments) from the rung before."""
    after = read_rung(ladder, number)
    if number == 0:
        return ""
    before = read_rung(ladder, number - 1)
    return "".join(
        difflib.unified_diff(
            _code(before.text, number - 1),
            _code(after.text, number),
            before.path.name,
            after.path.name,
        )
    )


def _code(text: str, number: int) -> list[str]:
    """The lines below the header; the rung's own number is no difference."""
    lines = text.splitlines(keepends=True)
    while lines and lines[0].startswith("//"):
        lines.pop(0)
    return [re.sub(rf"\brung ?{number}\b", "rung N", line) for line in lines]
