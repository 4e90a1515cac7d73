"""What benchmarks/sweep_w4a16.py does without a GPU: tiles, candidates and regret."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

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


def test_candidates_leave_no_part_of_k_empty_and_hold_the_choice(
    sweep: ModuleType, cpp: ModuleType
) -> None:
    from sweep.w4a16 import tiles

    rng = random.Random(0)
    device = sweep.Device("NVIDIA H200", 132, 90)
    known = {(tile.block_m, tile.block_n): tile for tile in tiles()}
    assert len(known) == len(tiles()) > 4
    swept = 0
    for _ in range(200):
        n, k = sweep.random_layer(rng)
        m = rng.choice(sweep.ROWS)
        problem = cpp.W4A16Problem(m=m, n=n, k=k)
        config = cpp.select_w4a16(problem, capability=80, sm_count=132)
        first = sweep.Config(64, 128, 9, 1)  # no ring of any tile
        found = sweep.candidates(sweep.Product(m, n, k), device, first)
        assert found[0] == first
        assert len({each.key for each in found}) == len(found) > 6
        for each in found[1:]:
            tile = known[each.block_m, each.block_n]
            units = -(-k // 128)
            part = -(-units // each.splits // tile.warps_k) * tile.warps_k
            assert each.splits == 1 or part * (each.splits - 1) < units
            assert (each.workspace_bytes > 0) == (each.splits > 1)
        key = sweep.Config(config.block_m, config.block_n, config.stages, config.splits).key
        swept += key in {each.key for each in found}
    assert swept > 150  # a choice's parts of K, with none empty, may be fewer than it asked for


def test_regret(sweep: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    slow, fast = sweep.Config(8, 64, 3, 1), sweep.Config(8, 64, 3, 2)
    configs = {config.key: config for config in (slow, fast)}
    record = sweep.Record(
        sweep.Product(4, 4096, 4096), {slow.key: 3e-5, fast.key: 2e-5}, configs, slow.key
    )
    assert record.best() == fast.key
    sweep.show(sweep.Device("NVIDIA H200", 132, 90), [record], None, worst=3)
    assert "M = 4: the choice takes 1.500x the best" in capsys.readouterr().out
