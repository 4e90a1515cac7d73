"""The fuzzers: each runs, and a case that failed can be repeated."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from fuzzing import fuzz
from prepared import run_script

TESTS = Path(__file__).parent


@pytest.mark.parametrize("script", sorted(TESTS.glob("fuzz_*.py")), ids=lambda path: path.stem)
def test_a_case_of_each(script: Path) -> None:
    run = (
        "import runpy, sys, torch\n"
        "torch.set_num_threads(1)\n"
        "runpy.run_path(sys.argv[1], run_name='__main__')\n"
    )
    variables = {"XGEMM_FUZZ_SECONDS": "0", "PYTHONPATH": str(TESTS)}
    done = run_script(run, script, env={**os.environ, **variables})
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{script.stem}: 1 cases in " in done.stdout


def test_cases_depend_on_the_seed_and_can_be_repeated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[float] = []

    def case(rng: random.Random) -> None:
        seen.append(rng.random())
        if len(seen) == 4:
            raise ValueError("wrong")

    monkeypatch.setenv("XGEMM_FUZZ_SECONDS", "60")
    monkeypatch.setenv("XGEMM_FUZZ_SEED", "5")
    with pytest.raises(ValueError, match="wrong"):
        fuzz("a", case)
    assert "a: case 3 failed; XGEMM_FUZZ_SEED=5 XGEMM_FUZZ_CASE=3 " in capsys.readouterr().out
    monkeypatch.setenv("XGEMM_FUZZ_CASE", "3")
    fuzz("a", case)
    assert seen[4] == seen[3]
    assert "a: 1 cases in 0 s, seed 5" in capsys.readouterr().out
    monkeypatch.setenv("XGEMM_FUZZ_SEED", "6")
    fuzz("a", case)
    assert seen[5] != seen[4]
    assert len(set(seen)) == 5
