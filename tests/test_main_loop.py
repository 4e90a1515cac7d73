"""benchmarks/main_loop.py: what it counts, and what docs/ladders/sgemm.md says of it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from xgemm._library import build_info

ROOT = Path(__file__).parents[1]


@pytest.fixture
def main_loop(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import main_loop

    yield main_loop
    for name in ("main_loop", "kernel_resources"):
        sys.modules.pop(name, None)


def test_three_registers_of_a_bank_conflict_unless_one_is_kept(main_loop):
    odd = "FFMA R0, R1, R3, R5"
    assert main_loop.bank_conflicts([odd, "FFMA R0, R1, R2, R3", "FFMA R0, R2, R4, R6"]) == 2
    kept = ["FFMA R0, R2, R3.reuse, R5", odd]
    assert main_loop.bank_conflicts(kept) == 0
    assert main_loop.bank_conflicts([kept[0], "MOV R9, R8", odd]) == 1  # kept for the next one only
    assert main_loop.bank_conflicts([kept[0], "FFMA R0, R3, R1, R5"]) == 1  # in the same place only
    assert main_loop.bank_conflicts(["FFMA R0, R1, c[0x0][0x10], R5", "FFMA R0, R1, RZ, R5"]) == 0


def test_loads_are_counted_by_width(main_loop):
    found = main_loop.describe(
        "kernel",
        [
            "LDS.128 R4, [R1]",
            "LDS R8, [R1]",
            "LDG.E.128 R4, [R2.64]",
            "LDGSTS.E.BYPASS.128 [R3], [R2.64]",
            "LDGSTS.E [R3], [R2.64]",
            "FFMA R0, R1.reuse, R2, R0",
            "@P0 BRA 0x10",
        ],
    )
    assert (found.instructions, found.ffma, found.reuse) == (7, 1, 1)
    assert (found.shared_loads, found.shared_128) == (2, 1)
    assert (found.global_loads, found.global_128) == (3, 2)


@pytest.mark.skipif(not build_info().get("cuda"), reason="needs a library with CUDA kernels")
def test_the_page_of_sgemm_has_the_numbers(main_loop):
    """Up to a fiftieth: another compiler orders instructions otherwise."""
    if missing := main_loop.missing_tools():
        pytest.skip(f"needs {', '.join(missing)}")
    library = main_loop.LIBRARY.with_name("_ladder.abi3.so")
    found = main_loop.read(library, r"sgemm::rung[3-8]", "sm_90")
    page = (ROOT / "docs" / "ladders" / "sgemm.md").read_text()
    table = page[page.index("python benchmarks/main_loop.py") :]
    assert len(found) == 6
    for number, loop in enumerate(found, 3):
        row = re.search(rf"^\| {number} \|(.*)\|$", table, re.MULTILINE)
        assert row is not None
        shown = [int(text) for text in re.findall(r"\d+", re.sub(r"\d+ %", "", row[1]))]
        counted = [
            *(loop.instructions, loop.ffma, loop.reuse, loop.one_bank),
            *(loop.shared_loads, loop.shared_128, loop.global_loads, loop.global_128),
        ]
        assert shown == pytest.approx(counted, rel=0.02, abs=4)
