"""The Makefile's parts that have a mind of their own, and tools/step.py, which shows its steps."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
STEP = ROOT / "tools" / "step.py"


def step(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, STEP, *arguments], capture_output=True, text=True, check=False
    )


def test_steps_run_beside_one_another():
    started = time.monotonic()
    done = step("first", "sleep 1", "second", "sleep 1")
    assert done.returncode == 0
    assert time.monotonic() - started < 1.9
    assert done.stderr.splitlines()[:2] == ["first ...", "second ..."]
    assert sorted(done.stderr.splitlines()[2:]) == ["first: 1 s", "second: 1 s"]


def test_a_step_that_fails_shows_its_output_and_stops_the_others():
    started = time.monotonic()
    done = step("good", "sleep 60", "bad", "echo to stdout; echo to stderr >&2; exit 7")
    assert done.returncode == 7
    assert time.monotonic() - started < 10
    assert "to stdout\nto stderr\nbad: FAILED" in done.stderr


def test_a_line_is_rewritten_on_a_terminal(tmp_path):
    pty = pytest.importorskip("pty")
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, STEP, "title", "echo what it says; sleep 1"], stderr=slave
    )
    assert process.wait() == 0
    text = os.read(master, 65536).decode()
    assert "\r\x1b[Ktitle, 0 s: what it says" in text
    assert "title: 1 s" in text


def variable(name: str, folder: Path, **environment: str) -> str:
    """The value of a variable of the Makefile, in a folder that holds nothing else."""
    shutil.copy(ROOT / "Makefile", folder)
    return subprocess.run(
        ["make", "--no-print-directory", "--eval", f"show: ; @echo '$({name})'", "show"],
        cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU")
def test_the_demo_builds_the_cuda_half_only_for_a_gpu(tmp_path):
    tools = tmp_path / "bin"
    tools.mkdir()
    shown = tools / "nvidia-smi"
    shown.write_text("#!/bin/sh\nexit 9\n")  # a driver without a GPU
    shown.chmod(0o755)
    path = {"PATH": f"{tools}:{os.environ['PATH']}"}
    assert variable("DEMO_XGEMM_CUDA", tmp_path, **path) == "0"
    shown.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H200'\n")
    assert variable("DEMO_XGEMM_CUDA", tmp_path, **path) == "1"
    shown.write_text("#!/bin/sh\nexit 9\n")
    info = tmp_path / "python" / "xgemm" / "_build_info.json"
    info.parent.mkdir(parents=True)
    info.write_text('{\n  "cuda": null\n}\n')
    assert variable("DEMO_XGEMM_CUDA", tmp_path, **path) == "0"
    info.write_text('{\n  "cuda": "13.0"\n}\n')  # built already: the demo keeps it
    assert variable("DEMO_XGEMM_CUDA", tmp_path, **path) == "1"


def test_the_demo_installs_the_packages_of_its_extra(tmp_path):
    tomllib = pytest.importorskip("tomllib")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]

    def packages(extra: str) -> set[str]:
        found = set()
        for requirement in extras[extra]:
            nested = re.match(r"xgemm\[(.*)\]", requirement)
            if nested:
                found |= set().union(*(packages(name) for name in nested[1].split(",")))
            else:
                found.add(re.match(r"[\w.-]+", requirement)[0])
        return found

    assert set(variable("DEMO_PACKAGES", tmp_path).split()) == packages("demo")
