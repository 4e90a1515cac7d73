"""What benchmarks/sweep_reduce.py does without a GPU: problems, candidates and regret."""

from __future__ import annotations

import math
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
        import sweep_reduce

        yield sweep_reduce
    finally:
        sys.path.remove(str(BENCHMARKS))


def test_candidates_fill_the_gpu_and_leave_no_piece_empty(sweep: ModuleType) -> None:
    rng = random.Random(0)
    device = sweep.Device("NVIDIA H200", 132, 90)
    problems = sweep.named() + [sweep.random_reduction(rng) for _ in range(300)]
    for of in problems:
        assert of.outputs * of.extent == math.prod(of.shape)
        chosen = sweep.Config("strided", 256, 32, tiles=-(-of.outputs // 32))
        found = sweep.Candidates(of, device, chosen).all
        assert chosen in found
        assert len({config.key for config in found}) == len(found)
        assert len(found) > 1, of
        for config in found:
            where = f"{of}: {config}"
            assert config.tiles >= 1, where
            assert config.lanes <= max(config.threads, 32), where
            assert config.cluster in (1, config.pieces), where
            assert config.pieces <= of.extent, where
            assert config.pieces == 1 or config.pieces * config.tiles <= 1 << 14, where
            assert config.collectors == 0 or config.mail, where
            in_memory = config.pieces > config.cluster
            assert (config.workspace_bytes > 0) == in_memory, where
            if config.mail and config.kernel in ("columns", "shifted"):
                share = config.lanes * of.vector // max(config.collectors, 1)
                assert 1 <= share <= config.threads, where


def test_regret(sweep: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    of = sweep.Reduction((4096, 4096), 1, "float16")
    slow, fast = sweep.Config("rows", 512, tiles=4096), sweep.Config("rows", 64, tiles=4096)
    configs = {config.key: config for config in (slow, fast)}
    seconds = {slow.key: 3e-5, fast.key: 2e-5}
    record = sweep.Record(of, slow.key, 4e-5, seconds, configs)
    assert record.best() == fast.key
    sweep.show([record], sweep.Device("NVIDIA H200", 132, 90), None, worst=3)
    said = capsys.readouterr().out
    assert "geometric mean 1.500x" in said
    assert "against torch: geometric mean 1.333x" in said
