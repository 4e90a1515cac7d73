"""Which cases of a test run: all of them, or so few that each value of each parameter is in one."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import pytest

Case = TypeVar("Case")
ALL = "XGEMM_TEST_ALL" in os.environ
PARTS = 6  # of a test over a list that pytest does not see


def fewest(
    name: str, cases: Sequence[Case], values_of: Callable[[Case], Iterable[object]]
) -> list[Case]:
    """In which each value is once. They are drawn by the test's name: the same from run to run."""
    shuffled = random.Random(name).sample(cases, len(cases))
    seen: set[object] = set()
    chosen = []
    for case in shuffled:
        values = set(values_of(case))
        if not values or not values <= seen:
            chosen.append(case)
        seen |= values
    return chosen


def over(
    cases: Callable[[], Sequence[tuple[Any, ...]]],
) -> Callable[[Callable[..., None]], Callable[[int], None]]:
    """The test for each of the cases, which are only asked for when it runs."""

    def decorate(test: Callable[..., None]) -> Callable[[int], None]:
        @pytest.mark.parametrize("part", range(PARTS))
        def run_part(part: int) -> None:
            found = cases()
            assert found
            for case in (found if ALL else fewest(test.__name__, found, enumerate))[part::PARTS]:
                try:
                    test(*case)
                except (AssertionError, RuntimeError) as error:
                    raise AssertionError(f"{case}: {error}") from error

        run_part.__name__, run_part.__doc__ = test.__name__, test.__doc__
        return run_part

    return decorate
