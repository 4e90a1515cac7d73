"""The engine that chooses kernels: it enumerates a model's candidates, scores them, picks."""

from __future__ import annotations

import math
from types import ModuleType

from hypothesis import given
from hypothesis import strategies as st

INFINITE = math.inf
estimates = st.lists(st.sampled_from([1.0, 2.0, 3.0, 5.0, INFINITE]), max_size=8)


@given(estimates)
def test_the_first_of_the_fastest_is_picked(cpp: ModuleType, us: list[float]) -> None:
    choice, listed, _ = cpp.pick(us, lists=False)
    fastest = min(us, default=INFINITE)
    expected = f"candidate {us.index(fastest)}" if fastest < INFINITE else None
    assert choice == expected
    assert listed == []


@given(estimates)
def test_a_listing_has_every_candidate_that_can_run(cpp: ModuleType, us: list[float]) -> None:
    choice, listed, _ = cpp.pick(us, lists=True)
    assert choice == cpp.pick(us, lists=False)[0], "a listing does not change the choice"
    finite = [(f"candidate {i}", each) for i, each in enumerate(us) if each < INFINITE]
    assert listed == sorted(finite, key=lambda pair: pair[1])
    assert choice == (listed[0][0] if listed else None)


@given(estimates)
def test_an_estimate_may_stop_at_the_best_so_far(cpp: ModuleType, us: list[float]) -> None:
    """Unless all are wanted."""
    for number, limit in cpp.pick(us, lists=False)[2]:
        assert limit == min(us[:number], default=INFINITE)
    assert all(limit == INFINITE for _, limit in cpp.pick(us, lists=True)[2])
