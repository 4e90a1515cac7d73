""".ci/requirements.txt, from which CI installs: pinned versions, and a hash for every file."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"([a-z0-9-]+)==(\S+) \\((?:\n    --hash=sha256:[0-9a-f]{64}(?: \\)?)+)")


@pytest.fixture(scope="module")
def locked() -> dict[str, str]:
    """The version of each package."""
    text = (ROOT / ".ci" / "requirements.txt").read_text()
    comment, _, blocks = text.partition("\n")
    assert comment.startswith("#")
    assert BLOCK.sub("", blocks).strip() == ""  # nothing without a hash: no option, link or index
    return {match[1]: match[2] for match in BLOCK.finditer(blocks)}


def test_versions_are_those_of_the_constraints(locked: dict[str, str]) -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.partition(";")[0].strip().split("==") for line in lines if "==" in line)
    assert len(pins) > 20
    assert {name: locked[name].partition("+")[0] for name in pins} == pins


def test_every_package_that_is_asked_for_is_there(locked: dict[str, str]) -> None:
    """With the Makefile's extras and weights; CI's torch is the one for the CPU."""
    pytest.importorskip("tomllib", reason="tomllib came with Python 3.11")
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import lock
    finally:
        sys.path.pop(0)
    for extra in ("dev", "test", "demo"):
        asked = {lock.name_of(requirement) for requirement in lock.requirements(extra)}
        assert {*asked, *lock.BUILD, *lock.WEIGHTS} - locked.keys() == set()
    assert locked["torch"].endswith("+cpu")


def test_ci_fetches_nothing_else() -> None:
    steps = (ROOT / ".ci" / "run").read_text()
    assert re.search(r"make locked\n +export PIP_NO_INDEX=1\n.*make build", steps, re.DOTALL)
    makefile = (ROOT / "Makefile").read_text()
    rule = re.search(r"^locked:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert rule is not None
    assert "--no-deps --require-hashes -r .ci/requirements.txt" in rule[1]
