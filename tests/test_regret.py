"""The choice of dense kernels beside recorded times of all candidates, without a GPU.

The files of tests/data hold the times of random layers of 129 to 2047 rows on an H200, each in all
candidates of its sweep, and where they are from (`sweep_mul.py compact`). A choice that was not
swept has no time. The constants were fitted to half of the layers of which dense_h200.json.xz
holds a part, and to none of dense_h200_held_out.json.xz.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data"
H200 = (90, 132)
BASE = 1 << 20
MAX_MEAN = 0.03  # of regret


@pytest.fixture(scope="module", params=["dense_h200", "dense_h200_held_out"])
def recorded(request: pytest.FixtureRequest) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        from sweep import recorded

        yield recorded.read(DATA / f"{request.param}.json.xz")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


def regrets(problems: list[Any], keys: list[str]) -> list[float]:
    """Of the choices that were swept, in rising order."""
    found = (each.regret(key) for each, key in zip(problems, keys, strict=True))
    return sorted(regret for regret in found if regret is not None)


def mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log1p, values)) / len(values)) - 1


def chosen_key(cpp: ModuleType, shape: Any) -> str:
    """Config.key of benchmarks/sweep/library.py, of select_config's choice."""
    from sweep.library import Config

    a_row, a_col, b_row, b_col = shape.strides()
    problem = cpp.GemmProblem(
        m=shape.m, n=shape.n, k=shape.k, dtype="bfloat16" if shape.bf16 else "float16",
        a=BASE, a_strides=(a_row, a_col), b=BASE, b_strides=(b_row, b_col),
        d=BASE, d_strides=(shape.n, 1),
    )  # fmt: skip
    choice = cpp.select_gemm(problem, *H200)
    names = ("block_m", "block_n", "stages", "cluster", "splits", "ctas", "stream_k", "swapped")
    fields = {name: getattr(choice, name) for name in (*names, "shifted", "copy_a", "copy_b")}
    return Config(choice.kernel, **fields).key


def test_the_data_say_where_they_are_from(recorded):
    provenance, problems = recorded
    assert {"command", "gpu", "torch", "cuda", "seed", "measured"} <= set(provenance)
    assert len(problems) >= 200
    assert all(len(each.us) >= 20 and min(each.us.values()) > 0 for each in problems)


@pytest.mark.parametrize(("least", "most"), [(129, 255), (256, 511), (512, 1023), (1024, 2047)])
def test_the_choice_is_near_the_best_candidate(
    recorded: tuple[dict[str, Any], list[Any]], cpp: ModuleType, least: int, most: int
) -> None:
    problems = [each for each in recorded[1] if least <= each.shape.m <= most]
    measured = regrets(problems, [chosen_key(cpp, each.shape) for each in problems])
    assert len(measured) >= 0.95 * len(problems)
    assert mean(measured) <= MAX_MEAN, f"{mean(measured):.1%} over {len(measured)}"
    assert measured[int(0.95 * len(measured))] <= 0.12, measured[-5:]


def test_the_middle_candidate_is_too_slow(recorded: tuple[dict[str, Any], list[Any]]) -> None:
    """The bound tells choices apart: the candidate of median time fails it."""
    problems = recorded[1]
    assert problems[0].regret("no such kernel") is None
    middle = [sorted(each.us, key=each.us.__getitem__)[len(each.us) // 2] for each in problems]
    assert mean(regrets(problems, middle)) > 3 * MAX_MEAN
