"""The choice of kernels beside recorded times of all candidates, without a GPU.

The files of tests/data hold the times of random products and sums on an H200, each in many
candidates, and where they are from (`run` and `compact` of the sweeps). A choice that was not swept
has no time. The constants were fitted to other problems, but those of dense_few were among them.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data"
H200 = (90, 132)
BASE = 1 << 20
# The least and the most rows or columns of the smaller side; regret's bounds: mean and 95 %. Times
# of 5 to 10 us, of which the mixed products have many, are 2 % uncertain, and the best of 36 is
# often the luckiest.
BOUNDS = {
    ("layers", 129, 255): (0.025, 0.1),
    ("layers", 256, 511): (0.02, 0.08),
    ("layers", 512, 1023): (0.015, 0.06),
    ("layers", 1024, 2047): (0.015, 0.08),
    ("few", 1, 16): (0.03, 0.12),
    ("few", 17, 128): (0.045, 0.25),
    ("mixed", 64, 255): (0.06, 0.18),
    ("mixed", 256, 5000): (0.05, 0.16),
    ("large", 1024, 12000): (0.025, 0.09),
    ("fp32_few", 1, 4): (0.03, 0.13),
    ("fp32_mixed", 8, 127): (0.03, 0.13),
    ("fp32_mixed", 128, 6000): (0.03, 0.13),
}


@pytest.fixture(
    scope="module", params=["layers", "few", "mixed", "large", "fp32_few", "fp32_mixed"]
)
def recorded(request: pytest.FixtureRequest) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    with reading() as read:
        yield read(request.param)


@contextmanager
def reading() -> Iterator[Callable[[str], tuple[dict[str, Any], list[Any]]]]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        from sweep import recorded

        yield lambda kind: recorded.read(DATA / f"dense_{kind}_h200.json.xz")
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
        m=shape.m, n=shape.n, k=shape.k,
        dtype="float32" if shape.precision else "bfloat16" if shape.bf16 else "float16",
        precision=shape.precision or "ieee",
        a=BASE, a_strides=(a_row, a_col), b=BASE, b_strides=(b_row, b_col),
        d=BASE, d_strides=(shape.n, 1),
    )  # fmt: skip
    choice = cpp.select_gemm(problem, *H200)
    names = ("block_m", "block_n", "stages", "cluster", "splits", "ctas", "swapped")
    fields = {name: getattr(choice, name) for name in (*names, "shifted", "copy_a", "copy_b")}
    return Config(choice.kernel, **fields).key


def test_the_data_say_where_they_are_from(recorded):
    provenance, problems = recorded
    assert {"command", "gpu", "torch", "cuda", "seed", "measured"} <= set(provenance)
    assert len(problems) >= 75
    assert all(len(each.us) >= 10 and min(each.us.values()) > 0 for each in problems)


def judge(problems: list[Any], keys: list[str], bounds: tuple[float, float]) -> None:
    measured = regrets(problems, keys)
    assert len(measured) >= 0.85 * len(problems) > 20
    assert mean(measured) <= bounds[0], f"{mean(measured):.1%} over {len(measured)}"
    assert measured[int(0.95 * len(measured))] <= bounds[1], measured[-5:]
    middle = [sorted(each.us, key=each.us.__getitem__)[len(each.us) // 2] for each in problems]
    assert mean(regrets(problems, middle)) > 2 * bounds[0]  # the bound tells choices apart


@pytest.mark.parametrize(("kind", "least", "most"), BOUNDS)
def test_the_choice_is_near_the_best_candidate(
    cpp: ModuleType, kind: str, least: int, most: int
) -> None:
    with reading() as read:
        problems = [
            each for each in read(kind)[1] if least <= min(each.shape.m, each.shape.n) <= most
        ]
        keys = [chosen_key(cpp, each.shape) for each in problems]
    assert problems[0].regret("no such kernel") is None
    judge(problems, keys, BOUNDS[kind, least, most])


# Rows of W4A16's products: the least, the most; regret's bounds: mean and 95 %.
W4A16_BOUNDS = {
    (1, 8): (0.03, 0.1),
    (9, 128): (0.025, 0.09),
    (129, 4096): (0.015, 0.07),
}
REDUCE_BOUNDS = {"random": (0.04, 0.15), "named": (0.03, 0.09)}


@contextmanager
def sweeps() -> Iterator[Any]:
    with reading():
        from sweep import listing, recorded, reductions, w4a16

        yield recorded, listing.key_of, w4a16.Product, reductions.Reduction


@pytest.mark.parametrize(("least", "most"), W4A16_BOUNDS)
def test_the_choice_of_w4a16(cpp: ModuleType, least: int, most: int) -> None:
    with sweeps() as (recorded, key_of, product, _):
        provenance, found = recorded.read(DATA / "w4a16_layers_h200.json.xz", product)
        assert provenance["seed"] == 29110802  # none of those that constants were fitted to
        problems = [each for each in found if least <= each.shape.m <= most]
        keys = []
        for of in (each.shape for each in problems):
            problem = cpp.W4A16Problem(m=of.m, n=of.n, k=of.k, group_size=of.group_size)
            said = json.loads(cpp.explain_w4a16_json(problem, *H200, candidates=False))
            keys.append(key_of(said["choice"]))
    judge(problems, keys, W4A16_BOUNDS[least, most])


@pytest.mark.parametrize("kind", REDUCE_BOUNDS)
def test_the_choice_of_reductions(cpp: ModuleType, kind: str) -> None:
    with sweeps() as (recorded, key_of, _, reduction):
        _, problems = recorded.read(DATA / f"reduce_{kind}_h200.json.xz", reduction)
        keys = []
        for of in (each.shape for each in problems):
            dtype = {"float16": 0, "float32": 2}[of.dtype]
            choice = cpp.select_reduce(
                op=0, dtype=dtype, address=BASE, kept=of.kept, reduced=[of.reduced]
            )
            keys.append(key_of(json.loads(choice.json())["choice"]))
    judge(problems, keys, REDUCE_BOUNDS[kind])
