"""What benchmarks/fit_dense.py judges a table of recorded winners by."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_the_nearest_problems_winner_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import fit_dense
    from sweep.library import Shape

    def record(m: int, **us: float) -> fit_dense.Record:
        return fit_dense.Record(Shape(m, 4096, 4096), us, {}, 1.0)

    fitted = [record(128, small=1.0, large=2.0), record(2048, small=4.0, large=2.0)]
    held_out = [
        record(160, small=1.5, large=1.0),  # near 128, whose winner takes 1.5x
        record(1600, small=4.0, large=3.0),  # near 2048, whose winner is the best
        record(2000, small=4.0),  # in which that was not swept
    ]
    regret, missed = fit_dense.nearest(fitted, held_out)
    assert regret == pytest.approx(1.5**0.5 - 1)
    assert missed == 1
