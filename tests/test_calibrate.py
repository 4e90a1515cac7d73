"""The constants of a GPU: benchmarks/calibrate.py writes the header that kernels' models read."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def calibrate(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import calibrate

    return calibrate


def test_the_header_is_the_one_of_the_recorded_constants(calibrate: ModuleType) -> None:
    found = json.loads((ROOT / "tests" / "data" / "h200.json").read_text())
    generated = calibrate.header(found, "H200")
    assert generated == (ROOT / "csrc" / "cuda" / "choose" / "h200.h").read_text()
    assert max(map(len, generated.splitlines())) <= 100
    found["mma_cycles_per_us"] += 1
    assert calibrate.header(found, "H200") != generated


def test_reads_take_what_was_measured(cpp: ModuleType) -> None:
    found = json.loads((ROOT / "tests" / "data" / "h200.json").read_text())
    for megabytes, us in found["reads"]:
        assert cpp.cold_read_us(megabytes) == pytest.approx(us)
    (low, low_us), (high, high_us) = found["reads"][3:5]
    between = (low * high) ** 0.5
    assert cpp.cold_read_us(between) == pytest.approx((low_us * high_us) ** 0.5)
    assert cpp.cold_read_us(0) == found["reads"][0][1]
