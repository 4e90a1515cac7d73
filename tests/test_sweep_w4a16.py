"""What benchmarks/sweep_w4a16.py does without a GPU: candidates and regret."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def sweep() -> Iterator[ModuleType]:
    """The script as a module; its parts are imported beside it, as when it is run."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import sweep_w4a16

        yield sweep_w4a16
    finally:
        sys.path.remove(str(BENCHMARKS))


def test_the_choice_is_one_of_the_candidates(sweep: ModuleType, cpp: ModuleType) -> None:
    from sweep.listing import key_of

    rng = random.Random(0)
    for _ in range(100):
        n, k = sweep.random_layer(rng)
        problem = cpp.W4A16Problem(m=rng.choice(sweep.ROWS), n=n, k=k)
        for device in ((90, 132), (80, 108)):
            said = json.loads(cpp.explain_w4a16_json(problem, *device))
            keys = [key_of(each) for each in said["candidates"]]
            assert len(set(keys)) >= 4
            assert key_of(said["choice"]) in keys


def test_candidates_are_launched_by_number(sweep: ModuleType) -> None:
    """Of the library: a stand-in that records what it is asked for."""
    from sweep.listing import Listed, key_of

    fields = [
        {"kernel": "sm80", "stages": 3, "stream_k": False, "workspace_bytes": 8, "parts_us": {}},
        {"kernel": "sm80", "stages": 2, "stream_k": True, "workspace_bytes": 0, "parts_us": {}},
    ]
    library = Mock()
    library.sweep_text.return_value = json.dumps(fields).encode()
    listed = Listed(library, 7, None)
    assert listed.chosen == "sm80 stages=3"
    assert key_of(fields[1]) == "sm80 stages=2 stream_k=True"
    assert listed.numbers == {"sm80 stages=3": 0, "sm80 stages=2 stream_k=True": 1}
    assert listed.workspace_bytes == 8


def test_regret(sweep: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    record = sweep.Record(sweep.Product(4, 4096, 4096), {"slow": 3e-5, "fast": 2e-5}, "slow")
    assert record.best() == "fast"
    sweep.show(sweep.Device("NVIDIA H200", 132, 90), [record], None, worst=3)
    assert "2 to 8 rows: the choice takes 1.500x the best" in capsys.readouterr().out
