"""The ladders on the CPU: rungs against float64, what the command prints, and bad input."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from xgemm.cli.app import app
from xgemm.ladder import plot, problems, run, rungs, source
from xgemm.ladder.library import has_cuda_rungs, ops
from xgemm.ladder.rungs import CPU, LADDERS

ALL_RUNGS = [(name, n) for name, ladder in LADDERS.items() for n in range(ladder.rungs)]


@pytest.mark.parametrize("rung", range(CPU.rungs))
@pytest.mark.parametrize("size", ["1x1x1", "16x6x256", "17x7x257", "65x13x300", "3x300x5"])
def test_cpu_rungs_compute_any_size(rung: int, size: str):
    problem = problems.make_problem(CPU, size, seed=3)
    assert problem.error_of_bound(problem.rung(rung)) <= 1


@pytest.mark.parametrize("transa", [False, True])
@pytest.mark.parametrize("transb", [False, True])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (-0.5, 2.0)])
def test_the_top_rung_takes_the_arguments_of_blas(transa, transb, alpha, beta):
    m, n, k = 37, 19, 270
    a, b = torch.randn(m, k), torch.randn(k, n)
    c = torch.randn(m, n) if beta else torch.full((m, n), float("nan"))
    by_columns = c.t().contiguous()
    # BLAS' matrices are column-major: a row of these tensors is a column of theirs.
    ops().cpu_blas(
        by_columns,
        a.contiguous() if transa else a.t().contiguous(),
        b.contiguous() if transb else b.t().contiguous(),
        transa,
        transb,
        alpha,
        beta,
    )
    expected = alpha * (a.double() @ b.double())
    if beta:
        expected += beta * c.double()
    bound = (k + 16) * 2.0**-24 * (a.abs().double() @ b.abs().double() + 2 * expected.abs() + 4)
    assert ((by_columns.t().double() - expected).abs() <= bound).all()


@pytest.mark.parametrize(("name", "number"), ALL_RUNGS)
def test_a_rungs_header_says_where_it_comes_from(name: str, number: int):
    rung = source.read_rung(name, number)
    assert rung.title
    assert rung.source
    assert rung.changed
    published = LADDERS[name].published[number]
    numbers = published if isinstance(published, tuple) else (published,)
    for value in numbers:
        if value is not None:
            assert value in map(float, re.findall(r"\d+(?:\.\d+)?", rung.published))
    if number > 0:
        assert source.diff_to_previous(name, number)


@pytest.mark.parametrize(("name", "number"), ALL_RUNGS)
def test_a_rungs_file_is_short(name: str, number: int):
    assert len(source.read_rung(name, number).text.splitlines()) <= 200


@pytest.mark.parametrize("name", LADDERS)
def test_each_ladder_has_as_many_files_as_rungs(name: str):
    numbers = [int(path.name[:2]) for path in source.rung_files(name)]
    assert numbers == list(range(LADDERS[name].rungs))


def test_rungs_include_no_kernel_of_the_product():
    root = Path(__file__).resolve().parents[1] / "csrc"
    families = re.compile(r'#include "(?:cuda|cpu)/(gemm|w4a16|reduce|sgemm)/')
    for side in ("cuda", "cpu"):
        for path in (root / side / "ladder").rglob("*.*"):
            assert not families.search(path.read_text()), path


def command(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["ladder", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_climb_has_every_column_and_writes_json_and_a_plot(tmp_path: Path):
    out, picture = tmp_path / "cpu.json", tmp_path / "cpu.png"
    text = command("cpu", "--size", "64", "--output", str(out), "--plot", str(picture))
    assert "what changed" in text
    assert picture.stat().st_size > 1000
    report = json.loads(out.read_text())
    records = {record["name"]: record for record in report["records"]}
    assert list(records) == [*(f"rung {n}" for n in range(5)), "torch", "xgemm"]
    assert all(record["error_of_bound"] <= 1 for record in records.values())
    assert report["peak"]["bandwidth"] > 0
    # Two FMAs of 8 floats a cycle, or one: clocks are between 1 and 7 GHz.
    assert 12 < report["peak"]["rate"] / report["peak"]["clock_mhz"] * 1e3 < 40
    assert 1000 < report["peak"]["clock_mhz"] < 7000
    assert records["torch"]["intensity"] == pytest.approx(2 * 64**3 / (3 * 4 * 64**2))
    one, four = records["rung 1"], records["rung 4"]
    assert one["gain"] == pytest.approx(records["rung 0"]["seconds"] / one["seconds"])
    assert one["published_gain"] == pytest.approx(11.2 / 1.97)
    assert four["published"] == 35.4
    assert four["published_gain"] is None  # rung 3 has no published number
    assert 0 < four["of_peak"] < 1


def test_what_was_measured_elsewhere_is_shown_and_drawn(tmp_path: Path):
    out, picture = tmp_path / "cpu.json", tmp_path / "cpu.png"
    text = command("cpu", "--size", "16", "--rungs", "3", "--output", str(out))
    assert command("cpu", "--from", str(out), "--plot", str(picture)) == text
    assert picture.stat().st_size > 1000
    for name, other, message in [
        ("sgemm", out, "is of cpu, not of sgemm"),
        ("cpu", tmp_path / "none.json", "is no JSON that --output wrote"),
        ("cpu", picture, "is no JSON that --output wrote"),
    ]:
        result = CliRunner().invoke(app, ["ladder", name, "--from", str(other)])
        assert result.exit_code != 0
        assert message in f"{result.output}{result.exception}"


def test_a_roofline_is_the_bandwidth_and_then_the_peak():
    peak = {"rate": 60.0, "bandwidth": 3000.0}
    assert plot.roofline(peak, "TFLOP/s", 10) == pytest.approx(30)
    assert plot.roofline(peak, "TFLOP/s", 20) == plot.roofline(peak, "TFLOP/s", 1000) == 60
    assert plot.roofline({"rate": 80.0, "bandwidth": 10.0}, "GFLOP/s", 4) == 40


def test_a_ladder_of_bytes_is_drawn_too(tmp_path: Path):
    """Its plain read is the roof, and it has no other."""
    ladder = LADDERS["w4a16"]
    records = [
        {"size": size, "rung": rung, "name": name, "rate": 1e3 + i, "published": published}
        for size in ladder.sizes
        for i, (rung, name, published) in enumerate(
            [(4, "rung 4", None), (5, "rung 5", 646.8), (None, "torch", None)]
        )
    ]
    report = {
        **{"ladder": "w4a16", "unit": "GB/s", "published_on": ladder.published_on},
        **{"device": "a GPU", "torch": "2.13", "records": records},
        "peak": {"rate": 3129.0, "of": "a plain read", "clock_mhz": 1980.0, "bandwidth": None},
    }
    plot.plot_ladder(report, tmp_path / "w4a16.png")
    assert (tmp_path / "w4a16.png").stat().st_size > 1000


def test_the_list_names_every_rung():
    listed = json.loads(command("--list", "--json"))
    assert [ladder["ladder"] for ladder in listed] == list(LADDERS)
    for ladder in listed:
        assert len(ladder["rungs"]) == LADDERS[ladder["ladder"]].rungs


def test_show_prints_the_source_and_the_diff():
    text = command("cpu", "--show", "1")
    assert text.startswith("// Ladder cpu, rung 1: ")
    assert "\n+++ 01_loops_mkn.cpp" in text
    assert "+++" not in command("cpu", "--show", "0")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_its_rungs_are_skipped_with_the_reason():
    for name, ladder in LADDERS.items():
        if ladder.device == "cuda":
            text = command(name)
            assert f"{name} rung 0: skipped: " in text
            assert len(text.splitlines()) >= ladder.rungs
            report = json.loads(command(name, "--json"))
            assert report["records"] == []
            assert report["skipped"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["other"], "name must be one of cpu, reduce, sgemm, hgemm"),
        (["cpu", "--rungs", "5"], "rungs of cpu are 0..4"),
        (["cpu", "--rungs", "1-"], "rungs of cpu are 0..4"),
        (["cpu", "--size", "64x64"], "--size of cpu must be N or MxNxK, got '64x64'"),
        (["reduce", "--size", "0"], "--size of reduce must be a count, got '0'"),
        (["cpu", "--show", "7"], "cpu has rungs 0..4, got 7"),
        (["cpu", "--output", "/nowhere/x.json"], "its directory does not exist"),
        ([], "name a ladder"),
    ],
)
def test_bad_input_is_refused_before_anything_is_measured(arguments, message, monkeypatch):
    monkeypatch.setattr("xgemm.cli.ladder.climb", lambda *_: pytest.fail("it was measured"))
    result = CliRunner().invoke(app, ["ladder", *arguments])
    assert result.exit_code != 0
    assert message in f"{result.output}{result.exception}"


@pytest.mark.skipif(not has_cuda_rungs(), reason="this build holds no CUDA kernels")
@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("reduce", "1000", "reduce rung 0: the number of elements must be a multiple of the tile"),
        ("sgemm", "128x64x64", "sgemm rung 3: n must be a multiple of the tile's 128, got 64"),
        ("hgemm", "128x128x64", "hgemm rung 7: n must be a multiple of the tile's 256, got 128"),
        ("hopper", "128x128x96", "hopper rung 1: k must be a multiple of the tile's 64, got 96"),
        ("w4a16", "1x128x64", "w4a16: k must be a multiple of the group's 128: 1x128x64"),
        ("w4a16", "1x64x128", "w4a16 rung 5: n must be a multiple of the tile's 256, got 64"),
    ],
)
def test_a_size_that_does_not_divide_names_rung_and_tile(name: str, size: str, message: str):
    ladder = LADDERS[name]
    run.check_sizes(run.Climb(ladder, list(ladder.sizes), list(range(ladder.rungs))))
    with pytest.raises(ValueError, match=re.escape(message)):
        run.check_sizes(run.Climb(ladder, [ladder.sizes[0], size], list(range(ladder.rungs))))


@pytest.mark.parametrize(
    ("built", "capability", "reason"),
    [
        (False, (9, 0), "this build of xgemm holds no CUDA kernels"),
        (True, (8, 6), "needs a GPU of compute capability 9.0; this one has 8.6"),
        (True, (10, 0), "needs a GPU of compute capability 9.0; this one has 10.0"),
        (True, (9, 0), None),
    ],
)
def test_why_a_ladder_cannot_be_climbed(built, capability, reason, monkeypatch):
    monkeypatch.setattr(run, "has_cuda_rungs", lambda: built)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert run.skip_reason(LADDERS["hopper"]) == reason
    older = "needs a GPU of compute capability 8.0 or more; this one has 7.5"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert run.skip_reason(LADDERS["sgemm"]) == (older if built else reason)


def test_a_wrong_result_has_an_error_and_no_time(monkeypatch: pytest.MonkeyPatch):
    make = problems.make_problem

    def broken(ladder: rungs.Ladder, size: str, seed: int) -> problems.Problem:
        made = make(ladder, size, seed)
        call = made.rung

        def rung(number: int) -> torch.Tensor:
            result = call(number)
            if number == 3:
                result[5, 7] += 0.01
            return result

        return problems.Problem(rung, made.peers, made.expected, made.bound, made.work)

    monkeypatch.setattr(run, "make_problem", broken)
    monkeypatch.setattr(run, "time_calls", lambda *_: pytest.fail("it was timed"))
    with pytest.raises(ArithmeticError, match=r"cpu rung 3 at 64x64x64 differs from float64 by"):
        run.climb(run.Climb(CPU, ["64x64x64"], [2, 3]))


def test_a_quantized_problem_is_what_the_product_computes(monkeypatch: pytest.MonkeyPatch):
    packing = SimpleNamespace(w4a16_pack=lambda codes, scales: (codes, scales))
    monkeypatch.setattr(problems, "ops", lambda: packing)
    ladder = replace(LADDERS["w4a16"], device="cpu")
    problem = problems.make_problem(ladder, "5x192x256", seed=3)
    for call in problem.peers.values():
        assert problem.error_of_bound(call()) <= 1
    assert problem.work == 192 * 256 / 2 + 2 * (2 * 192 + 5 * 256 + 5 * 192)
    assert ladder.published_at(5, "1x28672x4096") == pytest.approx(60620800 / 35.8e-6 * 1e-9, 1e-3)
    assert ladder.published_at(5, "16x28672x4096") is None


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "rung"), [c for c in ALL_RUNGS if LADDERS[c[0]].device != "cpu"])
def test_rungs_on_a_gpu(name: str, rung: int):
    ladder = LADDERS[name]
    reason = run.skip_reason(ladder)
    if reason is not None:
        pytest.skip(reason)
    sizes = {"reduce": [str(2**20)], "w4a16": ["1x512x1024", "11x512x1024", "130x512x1024"]}
    for size in sizes.get(name, ["512x1024x640"]):
        problem = problems.make_problem(ladder, size, seed=rung)
        for _ in range(2):  # locks are as they were
            assert problem.error_of_bound(problem.rung(rung)) <= 1


def test_ops_name_the_rule_and_the_value():
    a = torch.randn(4, 5)
    with pytest.raises(ValueError, match=r"cpu: rung must be in 0\.\.4, got 5"):
        ops().cpu(a, a.t().contiguous(), 5)
    with pytest.raises(ValueError, match="cpu: b must be contiguous"):
        ops().cpu(a, a.t(), 0)
    with pytest.raises(ValueError, match=r"cpu: a must be .*float32.*got"):
        ops().cpu(a.double(), a.t().double().contiguous(), 0)
