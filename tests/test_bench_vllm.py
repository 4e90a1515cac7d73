"""The scripts that need vLLM: the models that they make, how they judge and what they predict."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import xgemm

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import bench_vllm  # noqa: E402
import check_vllm  # noqa: E402
import scaling_model  # noqa: E402
import vllm_models  # noqa: E402
from vllm_models import Variant  # noqa: E402

SMALL = vllm_models.Shape(256, 384, 4, 2, 1, head_dim=64, vocabulary=512)
SMALL_EXPERTS = dataclasses.replace(SMALL, experts=4, active=2)
Kind = tuple[Variant, bool]  # and whether it has experts


@pytest.fixture(scope="module")
def logits(tmp_path_factory: pytest.TempPathFactory) -> dict[Kind, torch.Tensor]:
    """Of each model that the engines are checked on, computed by what reads its format here."""
    transformers = pytest.importorskip("transformers")
    found = {}
    for case in check_vllm.CASES.values():
        variant = case.variant
        if (variant, case.experts) in found:
            continue
        folder = check_vllm._directory(tmp_path_factory.mktemp("models"), case)
        vllm_models.make_model(folder, SMALL_EXPERTS if case.experts else SMALL, variant)
        if variant.format == "dense":
            model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        else:
            model = xgemm.load(folder)
        with torch.no_grad():
            found[variant, case.experts] = model.float()(torch.arange(40)[None] * 7 % 512).logits
    return found


@pytest.mark.parametrize("name", [name for name, case in check_vllm.CASES.items() if case.like])
def test_formats_hold_the_same_model(name: str, logits: dict[Kind, torch.Tensor]) -> None:
    case = check_vllm.CASES[name]
    expected = logits[check_vllm.CASES[case.like].variant, case.experts]
    # Weights are equal, but embeddings of another dtype and dequantized weights are rounded.
    torch.testing.assert_close(logits[case.variant, case.experts], expected, rtol=0, atol=0.05)
    plain = case.variant.zeros or case.variant.act_order
    other = logits[Variant() if plain else Variant("awq", True, dtype="float16"), case.experts]
    assert (logits[case.variant, case.experts] - other).abs().max() > 1


def test_a_format_that_cannot_hold_the_weights_is_refused(tmp_path: Path) -> None:
    for variant, text in [
        (Variant("gptq", zeros=True), "gptq is written without zero points only"),
        (Variant("awq"), "awq is written with zero points only"),
        (Variant(act_order=True), "compressed-tensors is written without act-order only"),
        (Variant("gguf"), "format must be one of"),
    ]:
        with pytest.raises(ValueError, match=text):
            vllm_models.make_model(tmp_path / "model", SMALL, variant)


RIGHT = {"logprobs": [{"5": -1.0, "6": -2.0}], "alone": [{"5": -1.0, "6": -2.0}], "kernels": ["K"]}
WRONG = {"logprobs": [{"5": -1.6, "7": -2.0}], "alone": [{"5": -1.6, "7": -2.1}], "kernels": ["K"]}


def test_engines_are_judged(capsys: pytest.CaptureFixture[str]) -> None:
    """A planted error must be seen, and nothing else; a batch may round unless told not to."""
    found: dict[str, Any] = dict.fromkeys(check_vllm.CASES, RIGHT)
    assert check_vllm.judge("planted error", found) == ["planted error"]
    assert check_vllm.judge("directory, invariant", found) == []
    found |= {"planted error": WRONG, "awq": WRONG, "gptq": {**RIGHT, "alone": WRONG["alone"]}}
    assert check_vllm.judge("planted error", found) == []
    assert check_vllm.judge("awq", found) == ["awq"]
    assert check_vllm.judge("gptq", found) == []
    assert "50% shared, gap 0.600 -> different; alone rounded" in capsys.readouterr().out
    found["directory, invariant"] = found["gptq"]
    assert check_vllm.judge("directory, invariant", found) == ["directory, invariant"]
    del found["own"]
    assert check_vllm.judge("gptq", found) == ["gptq"]


def test_a_case_that_ends_its_process_is_left_out(tmp_path: Path, monkeypatch: Any) -> None:
    """Another process goes on behind it, and what needs an environment of its own has one."""
    asked: list[list[str]] = []

    def answers(folder: Path, names: list[str], until: float) -> Any:
        asked.append(names)
        for name in names:
            if name in ("awq", "gptq"):
                return
            yield {"name": name, **(WRONG if "planted" in name else RIGHT)}

    monkeypatch.setattr(check_vllm, "_answers", answers)
    monkeypatch.setattr(sys, "argv", ["check_vllm.py", "--folder", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"^check_vllm: failed: gptq, awq$"):
        check_vllm.main()
    names = list(check_vllm.CASES)
    assert [one[0] for one in asked] == ["own", "own, zeros", "directory", "directory, invariant"]
    assert asked[0] == names[:-2]
    assert asked[-1] == names[-2:]


def test_engines_stand_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    """Speeds over the first engine's: more tokens, and less time or memory, are better."""
    one = {
        "kernel": "A", "experts": "E", "tokens_per_s": {"1": 100.0}, "first_token_s": {"512": 0.02},
        "start_s": 30.0,
        "loading": {"weights": 2**30, "peak": 2**31}, "logprobs": [{"5": -1.0, "6": -2.0}],
    }  # fmt: skip
    other = {**one, "tokens_per_s": {"1": 150.0}, "start_s": 40.0, "logprobs": [{"5": -1.5}]}
    options = SimpleNamespace(rows="1", prompts="512", together=False, dummy=False)
    bench_vllm._table(options, [{**one, "name": "machete"}, {**other, "name": "xgemm"}])
    shown = capsys.readouterr().out
    for words in (
        "tokens/s at 1 100 (1.000x) 150 (1.500x)",
        "start-up, s 30 (1.000x) 40 (0.750x)",
        "loading: peak, GiB 2 (1.000x) 2 (1.000x)",
        "xgemm: 50% of the log-probabilities shared, gap 0.500",
    ):
        assert words in " ".join(shown.split())


def test_the_model_of_a_step_adds_up(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """An all-reduce is its latency and its bytes; what was measured stands beside the model."""
    sizes = scaling_model.linears(scaling_model.MODELS["70B"], 8)
    us = {f"70B 8 8 {name}": 2.0 for name in sizes} | {"70B 8 8 layer": 7.5}
    file = tmp_path / "measured.json"
    file.write_text(json.dumps({"gpu": "NVIDIA H200", "us": us}))
    monkeypatch.setattr(sys, "argv", ["scaling_model.py", "predict", str(file)])
    scaling_model.main()
    line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("| 70B, 8 |"))
    whole, share, floor, reduces, _, alone, chain = line.split("|")[2:-1]
    assert (float(alone), float(chain)) == (8, 7.5)
    expected = sum(scaling_model.by_curve(n, k, 8) for n, k in sizes.values())
    assert float(share) == pytest.approx(expected, abs=0.06)
    assert float(floor) < float(share) < float(whole) / 3
    once = scaling_model.NVLINK4.all_reduce(8 * 8192 * 2, 8)
    assert float(reduces) == pytest.approx(2e6 * once, abs=0.06)
    link = scaling_model.Link(bandwidth=1e9, latency=1e-6)
    assert link.all_reduce(100, 8) == pytest.approx(1e-6 + 0.7e-6)
    assert link.all_reduce(1e6, 8) == pytest.approx(2e-6 + 1.75e-3)
