"""`xgemm ladder probes` and `xgemm layout smem --measure`: what is counted, and bad input."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from xgemm.cli.app import app
from xgemm.ladder import pattern, probes
from xgemm.layouts.banks import access, addresses_of

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
CSV = """\
==PROF== Connected to process 1
==PROF== Profiling "pattern_kernel": 0%....50%....100% - 1 pass
"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","1","pattern_kernel","other","","7"
"0","1","pattern_kernel","l1tex__data_pipe_lsu_wavefronts_mem_shared.sum","","65,568"
"""


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code != 0
    return f"{result.output}{result.exception}"


@without_gpu
def test_without_a_gpu_probes_are_skipped_with_the_reason():
    result = CliRunner().invoke(app, ["ladder", "probes"], catch_exceptions=False)
    assert result.exit_code == 0
    assert result.stdout.startswith("probes: skipped: ")
    report = json.loads(CliRunner().invoke(app, ["ladder", "probes", "--json"]).stdout)
    assert report["records"] == []


@without_gpu
def test_measuring_a_pattern_needs_a_gpu():
    assert "--measure needs a GPU" in refused("layout", "smem", "lane * 8", "--measure")


def test_what_probes_and_measuring_do_not_take(tmp_path: Path):
    assert "probes have no sizes and no rungs" in refused("ladder", "probes", "--rungs", "1")
    assert "probes have no plot" in refused("ladder", "probes", "--plot", str(tmp_path / "x.png"))
    assert "does not exist" in refused("ladder", "probes", "--output", "/nowhere/x.json")
    assert "--measure is for smem" in refused("layout", "swizzle", "128", "--measure")


def fake_gpu(monkeypatch: pytest.MonkeyPatch, cycles: int) -> None:
    loads = SimpleNamespace(probe_pattern_loads=lambda steps: steps * 512)
    monkeypatch.setattr(pattern, "ops", lambda: loads)
    monkeypatch.setattr(pattern, "require_gpu", lambda: None)
    monkeypatch.setattr(pattern, "run_pattern", lambda addresses, width: (1000, cycles))


def fake_ncu(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (folder / "text").write_text(text)
    (folder / "ncu").write_text(f"#!/bin/sh\ncat {folder / 'text'}\n")
    (folder / "ncu").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_ncu_counts_where_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """65,568 wavefronts, of which 2 are the stores of 256 bytes, of 32,768 loads."""
    fake_gpu(monkeypatch, 3000)
    fake_ncu(tmp_path, monkeypatch, CSV)
    found = pattern.measure(addresses_of("lane * 8"), 4)
    assert found.by == "ncu"
    assert found.wavefronts == pytest.approx((65568 - 2) / 32768)


def test_the_clock_tells_where_counters_are_refused(tmp_path, monkeypatch):
    fake_gpu(monkeypatch, 3000)
    fake_ncu(tmp_path, monkeypatch, "==ERROR== ERR_NVGPUCTRPERM - no permission\n")
    found = pattern.measure(addresses_of("lane * 8"), 4)
    assert found == pattern.Measured(3.0, "clock64", "ERR_NVGPUCTRPERM - no permission")
    monkeypatch.setenv("PATH", "/nowhere")
    assert pattern.measure([0] * 32, 4).reason == "ncu is not on PATH"


def test_a_pattern_beyond_a_blocks_memory_is_refused(monkeypatch: pytest.MonkeyPatch):
    fake_gpu(monkeypatch, 3000)
    with pytest.raises(ValueError, match="within 49152 bytes of shared memory, got 49168"):
        pattern.measure([49152] * 32, 4)


PATTERNS = (
    ("lane * 4", 4),
    ("lane * 8", 4),
    ("lane * 128", 4),
    ("0", 4),
    ("lane * 8", 8),
    ("lane * 16", 16),
    ("lane % 16 * 32", 16),
)


@pytest.mark.gpu
@pytest.mark.parametrize(("text", "width"), PATTERNS)
def test_the_clock_agrees_with_the_turns_counted(text: str, width: int):
    addresses = addresses_of(text)
    loads, cycles = pattern.run_pattern(addresses, width)
    assert cycles / loads == pytest.approx(access(addresses, width).wavefronts, rel=0.15)


@pytest.mark.gpu
def test_probes_on_a_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probes, "POWER_SIZE", 1024)
    report = probes.measure()
    found = {(r["probe"], r["setting"]): r for r in report["records"]}
    assert all(record["value"] > 0 for record in report["records"])
    assert found["shared loads", "32-way"]["relative"] == pytest.approx(32, rel=0.15)
    assert found["global loads", "stride 32"]["relative"] < 0.5
    dependent = found["FMAs of a warp", "dependent"]
    assert dependent["value"] > found["FMAs of a warp", "independent"]["value"]
    assert dependent["published"] == 12
