"""The scripts in benchmarks/ load, and those that also run on the CPU do, on tiny problems."""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from xgemm.bench import timing

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(path.stem for path in BENCHMARKS.glob("*.py"))
TINY = {"tiny": {"tiny.o": (96, 256)}}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setattr(timing, "SAMPLE_SECONDS", 1e-6)
    monkeypatch.setattr(timing, "HOST_CALLS", 2)


def load(script: str) -> dict[str, Any]:
    """What the script's functions see; it does not begin."""
    path = BENCHMARKS / f"{script}.py"
    found: dict[str, Any] = runpy.run_path(str(path), run_name=script)["main"].__globals__
    return found


def run(script: str, monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    names = load(script)
    if "LAYERS" in names:
        names["LAYERS"] = TINY
        options = ("--layers", "tiny", *options)
    names.update({name: ((1, 64, 64),) for name in ("SIZES", "LINEARS", "DIFFERENTIATED")})
    monkeypatch.setattr(sys, "argv", [script, "--device", "cpu", *options])
    names["main"]()


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_load(script: str) -> None:
    assert callable(load(script)["main"])


def test_formats(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with torch.inference_mode():
        run("bench_formats", monkeypatch, "--rows", "1,5")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == [
        *("tiny.o", "tiny.o"), *("geometric mean", "geometric mean"), *("most", "most"),
    ]  # fmt: skip
    assert all(line.count("|") == lines[0].count("|") for line in lines)


def test_checkpoints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers")
    sizes = ("--layers", "1", "--hidden", "256", "--prompt", "5", "--new", "3")
    output = tmp_path / "times.json"
    run("bench_checkpoints", monkeypatch, "--device", "cpu", *sizes, "--output", str(output))
    shown = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.endswith("x")]
    assert shown == ["xgemm", "gptq", "awq", "compressed-tensors"]
    records = json.loads(output.read_text())["records"]
    assert all(record["load_s"] > 0 and record["tokens_per_s"] > 0 for record in records.values())


def test_generate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    sizes = ("--layers", "1", "--hidden", "128", "--prompt", "5", "--new", "3")
    output = tmp_path / "times.json"
    run("bench_generate", monkeypatch, "--rows", "2", *sizes, "--output", str(output))
    lines = [
        line for line in capsys.readouterr().out.splitlines() if "W4" in line or "bf16" in line
    ]
    assert [line[:30].strip() for line in lines] == [
        f"{linears}, {way}"
        for linears in ("torch bf16", "xgemm W4", "xgemm W4 fused")
        for way in ("plain", "accelerated")
    ]
    records = json.loads(output.read_text())["records"]
    assert all(record["tokens_per_s"] > 0 for record in records)
    assert [record["rows"] for record in records] == [2] * 6


def test_generate_in_one_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    sizes = ("--rows", "1", "--layers", "1", "--hidden", "128", "--prompt", "5", "--new", "2")
    run("bench_generate", monkeypatch, *sizes, "--ways", "plain")
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line[:30].strip() for line in lines if line.endswith(tuple("0123456789"))] == [
        *("torch bf16, plain", "xgemm W4, plain", "xgemm W4 fused, plain")
    ]
    with pytest.raises(SystemExit):
        run("bench_generate", monkeypatch, *sizes, "--ways", "plain,fast")
    assert "got 'fast'" in capsys.readouterr().err


def test_decode_as_generate_does_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The columns of accelerate_generation; without a GPU the step is computed, not replayed."""
    pytest.importorskip("transformers")
    names = load("bench_decode")
    monkeypatch.setitem(names, "TURNS", 1)
    monkeypatch.setitem(names["Replayed"].run.__globals__, "REPLAYS", 2)
    models = names["accelerated_models"](
        names["Shape"](layers=1, hidden=128), torch.bfloat16, "cpu"
    )
    with torch.inference_mode():
        names["compare_accelerated"](models, 3, 16, "cpu")
    ours, theirs, ratio = capsys.readouterr().out.splitlines()
    assert ours.startswith("M = 3: xgemm, accelerated ")
    assert theirs.startswith("M = 3: torch, accelerated ")
    assert "x torch, both accelerated" in ratio
    dense = models["torch, accelerated"]
    with torch.no_grad():
        read = [
            names["bytes_replayed"](names["Replayed"](dense, rows, 16, "cpu"), rows)
            for rows in (3, 4)
        ]
    assert read[1] - read[0] == 2 * 16 * 128 * 2 + 128 * 2  # keys, values and an embedding, bf16
    assert 128256 * 128 * 2 < read[0] < 2 * 128256 * 128 * 2  # the head, not the embedding


def test_kernels_of_a_replay_have_their_kinds() -> None:
    kind = load("profile_decode")["kind_of"]
    names = {
        "void xgemm::cuda::w4a16::sm90::register_resident::gemm<Config>(Params)": "4-bit linears",
        "nvjet_hsh_64x8_64x16_4x1_v_bz_TNN": "16-bit linears",
        "_attend": "attention",
        "_rms_norm": "norms",
        "void at::native::vectorized_elementwise_kernel<8, CUDAFunctor_add<c10::BFloat16>>": (
            "residual additions"
        ),
        "_silu_mul": "rotary, cache, SiLU",
        "Memcpy DtoD (Device -> Device)": "the rest",
    }
    assert {name: kind(name) for name in names} == names


@pytest.mark.parametrize("script", ["bench_decode", "profile_decode"])
@pytest.mark.skipif(torch.cuda.is_available(), reason="says what a GPU is missing for")
def test_without_a_gpu(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(sys, "argv", [script])
    with pytest.raises(SystemExit, match=f"^{script}: .*GPU"):
        load(script)["main"]()


def test_profile_of_a_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    run("profile_decode", monkeypatch, "--layers", "1", "--hidden", "128")
    lines = [line.split("%") for line in capsys.readouterr().out.splitlines()[1:]]
    assert len(lines) == 4
    assert all(len(line) == 5 for line in lines)  # a share of each package and of the others


def test_packed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run("bench_packed", monkeypatch, "--rows", "5")
    out = capsys.readouterr().out
    for said in ("of the product's rate", "of a copy's rate", "unpack"):
        assert said in out


def test_host(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # the other tests' setting
    modes = ("grad", "no_grad", "inference")
    run("bench_host", monkeypatch, "--mode", ",".join(modes))
    lines = capsys.readouterr().out.splitlines()
    rows = (
        *("mul", "linear", "QuantLinear", "linear, zeros", "QuantLinear, zeros"),
        *("gradient: forward", "gradient: forward, backward", "autocast"),
    )
    expected = [name for mode in modes for name in (f"op, {mode} mode", "---", *rows)]
    assert [line.split("|")[1].strip() for line in lines] == expected
    with pytest.raises(SystemExit):
        run("bench_host", monkeypatch, "--mode", "grad,none")
    assert "got 'none'" in capsys.readouterr().err


def test_vllm_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Ratios of speeds, and how far the engines' log-probabilities are apart."""
    found = [
        {
            "name": "machete",
            "kernel": "Machete",
            "experts": "",
            "tokens_per_s": {"1": 100.0},
            "first_token_s": {"512": 0.03},
            "start_s": 60.0,
            "loading": {"weights": 2.0 * 2**30, "peak": 2.5 * 2**30},
            "logprobs": [{"5": -1.0, "6": -2.0}],
        },
        {
            "name": "xgemm",
            "kernel": "Xgemm",
            "experts": "",
            "tokens_per_s": {"1": 170.0},
            "first_token_s": {"512": 0.02},
            "start_s": 75.0,
            "loading": {"weights": 2.0 * 2**30, "peak": 2.0 * 2**30},
            "logprobs": [{"5": -1.25, "7": -2.0}],
        },
    ]
    options = argparse.Namespace(rows="1", prompts="512", together=False, dummy=False)
    load("bench_vllm")["_table"](options, found)
    out = capsys.readouterr().out
    table = ("170 (1.700x)", "20 (1.500x)", "75 (0.800x)", "2 (1.250x)")
    for said in (*table, "50% of the log", "gap 0.250"):
        assert said in out


def test_qlora(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    options = ("--shape", "tiny", "--seq", "8", "--rounds", "2", "--methods", "xgemm,bf16")
    run("bench_qlora", monkeypatch, *options)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in lines[3:5]] == ["xgemm", "bf16"]
    ours, theirs = json.loads(lines[5])["results"]
    assert ours["trainable"] == theirs["trainable"] > 0
    assert ours["first_loss"] == pytest.approx(theirs["first_loss"], abs=0.01)
    assert ours["weights_gib"] < theirs["weights_gib"]
    assert ours["milliseconds"] > 0


def test_merge_loss(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    names = load("merge_loss")
    names["CASES"] = names["CASES"][1:2]
    monkeypatch.setattr(sys, "argv", ["merge_loss", "--hidden", "64", "--steps-scale", "0.3"])
    names["main"]()
    header, _, row = capsys.readouterr().out.splitlines()
    cells = dict(zip(header.split("|")[1:-1], map(float, row.split("|")[1:-1]), strict=True))
    loss = {name.strip(): value for name, value in cells.items()}
    assert loss["adapter"] == loss["merged, float"] < loss["base"]
    assert loss["merged, 4 bits"] < loss["rounded to nearest"]


def test_bank_conflicts_are_added_up_by_kernel() -> None:
    names = load("bank_conflicts")
    launch = '"{}","void xgemm::cuda::gemm::run<(int)8>(xgemm::Params)","{}","","{}"'
    lines = [
        "dense: 20 of 96, 5 s",
        '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"',
    ]
    for number, values in enumerate((("1,000", 4, 0, 0), (3000, 36, 0, 20))):
        lines += [
            launch.format(number, metric, value)
            for metric, value in zip(names["METRICS"], values, strict=True)
        ]
    kernels = names["by_kernel"]("\n".join(lines))
    (row,) = list(names["table"](kernels))[2:]
    assert row == "| 4000 | 1.00 % | 0.00 % | 0.50 % | gemm::run<8> |"


def test_quality_measures_each_method_on_a_copy(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    names = load("bench_quality")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(128, 128))
    before = model[0].weight.detach().clone()

    class Subject:
        batches = ()
        quantities = (("error", "{error:.3f}"),)

        def measure(self, changed: Any) -> dict[str, float]:
            return {"error": float((changed[0].dequantize() - before).norm() / before.norm())}

    subject = Subject()
    subject.model = model  # type: ignore[attr-defined]
    rows = []
    for name, quantize in names["own_methods"]():
        if "gptq" in name or "awq" in name:  # they need batches
            continue
        row = names["measure"](subject, quantize, 32, False)
        rows.append({"method": name, "group_size": 32, "form": "asymmetric", **row})
    found = {row["method"]: row["error"] for row in rows}
    assert found["hqq"] < found["rtn"] < found["rtn, clip none"] < 0.1
    assert torch.equal(model[0].weight, before)

    def refuses(*arguments: Any) -> None:
        raise NotImplementedError("not this one")

    row = names["measure"](subject, refuses, 32, True)
    assert row["refused"] == "not this one"
    rows.append({"method": "other", "group_size": 32, "form": "symmetric", **row})
    names["print_tables"](subject, rows)
    lines = capsys.readouterr().out.splitlines()
    assert "| error | symmetric 32 | asymmetric 32 |" in lines
    assert f"| hqq | - | {found['hqq']:.3f} |" in lines
    assert "| other | - | - |" in lines


def test_cpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    names = load("bench_cpu")
    names.update(LINEARS=((40, 64),), W4_LAYERS=((48, 64),), REDUCTIONS=((5, 7),))
    names["peak_gflops"] = lambda: 100.0
    threads = torch.get_num_threads()
    output = tmp_path / "cpu.json"
    options = ("--sizes", "3,8", "--threads", "1", "--repeats", "3", "--output", str(output))
    monkeypatch.setattr(sys, "argv", ["bench_cpu", *options])
    try:
        names["main"]()
    finally:
        torch.set_num_threads(threads)
    lines = capsys.readouterr().out.splitlines()
    assert sum("of the best peer, least" in line for line in lines) == len(names["CASES"])
    records = json.loads(output.read_text())["records"]
    assert {record["case"] for record in records} == set(names["CASES"])
    assert all("torch" in " ".join(record["seconds"]) for record in records)


def test_cpu_samples_at_real_time_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    names = load("bench_cpu")
    events: list[str] = []

    def schedule(thread: int, policy: int, parameters: os.sched_param) -> None:
        events.append(f"{'fifo' if policy == os.SCHED_FIFO else 'other'} {thread}")

    monkeypatch.setattr(os, "sched_setscheduler", schedule)
    monkeypatch.setattr(os, "listdir", lambda path: ["7"])
    monkeypatch.setattr(time, "sleep", lambda seconds: events.append("sleep"))
    realtime = names["RealTime"](2)
    realtime.WARM_SECONDS = 0.0
    for name in ("xgemm", "torch", "OpenBLAS"):
        with realtime.turn(name, partial(events.append, "call")):
            events.append("sample")
    sampled = ["fifo 7", "call", "sample", "other 7"]
    # Torch's threads are xgemm's: no pause between the two.
    assert events == ["sleep", *sampled, *sampled, "sleep", *sampled]
