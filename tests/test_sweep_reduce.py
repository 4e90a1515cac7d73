"""What benchmarks/sweep_reduce.py does without a GPU: problems, candidates and regret."""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def sweep() -> Iterator[ModuleType]:
    """The script as a module; its parts are imported beside it, as when it is run."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import sweep_reduce

        yield sweep_reduce
    finally:
        sys.path.remove(str(BENCHMARKS))


def candidates(cpp: ModuleType, of: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    dtype = {"float16": 0, "float32": 2}[of.dtype]
    choice = cpp.select_reduce(
        op=0, dtype=dtype, address=1 << 20, kept=of.kept, reduced=[of.reduced]
    )
    said = json.loads(choice.json())
    return said["choice"], said["candidates"]


def test_candidates_leave_no_piece_empty(sweep: ModuleType, cpp: ModuleType) -> None:
    from sweep.listing import key_of

    rng = random.Random(0)
    kernels: dict[str, int] = {}
    for of in sweep.named() + [sweep.random_reduction(rng) for _ in range(200)]:
        assert of.outputs * of.extent == math.prod(of.shape)
        chosen, found = candidates(cpp, of)
        keys = {key_of(each) for each in found}
        assert len(keys) == len(found) > 1, of
        assert key_of(chosen) in keys
        for each in found:
            where = f"{of}: {each}"
            kernels[each["kernel"]] = kernels.get(each["kernel"], 0) + 1
            assert each["tiles"] >= 1, where
            assert each["lanes"] <= max(each["threads"], 32), where
            assert each["cluster"] in (1, each["pieces"]), where
            assert each["pieces"] <= of.extent, where
            assert each["pieces"] == 1 or each["pieces"] * each["tiles"] <= 8 * 132, where
            assert each["collectors"] == 0 or each["mail"], where
            if each["mail"] and each["kernel"] in ("columns", "shifted columns"):
                share = each["lanes"] * (8 if of.dtype == "float16" else 4)
                share //= max(each["collectors"], 1)
                assert 1 <= share <= each["threads"], where
                assert share * each["pieces"] <= 1 << 14, where
    assert len(kernels) >= 12, kernels


def test_regret(sweep: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    of = sweep.Reduction((4096, 4096), 1, "float16")
    # The fastest of another series is not the luckiest of this one.
    seconds = {"slow": 3e-5, "fast": 2e-5, "lucky": 1.9e-5}
    record = sweep.Record(of, "slow", 4e-5, seconds, "fast")
    sweep.show([record], sweep.Device("NVIDIA H200", 132, 90), None, worst=3)
    said = capsys.readouterr().out
    assert "geometric mean 1.500x" in said
    assert "99 % 1.500x" in said
    assert "against torch: geometric mean 1.333x" in said
