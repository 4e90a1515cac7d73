"""docs/design/reliability.md: each test that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "design" / "reliability.md"


def test_every_promise_names_tests_that_exist() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    promises = [row for row in rows if not row.startswith("| promise ")]
    assert len(promises) > 15
    for row in promises:
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row)
        assert named, f"no test: {row}"
        for file, function in named:
            text = (ROOT / file).read_text()
            assert not function or f"def {function}(" in text, f"{file}::{function}"
