"""`xgemm quantize`: the class that SRC names, whole, or a refusal before anything is written."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import torch

import xgemm

pytest.importorskip("typer")
pytest.importorskip("rich")
transformers = pytest.importorskip("transformers")

from language_models import save_llama  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = {
    "BertForSequenceClassification": transformers.BertConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        vocab_size=40, max_position_embeddings=32, num_labels=3,
    ),
    "BertForMaskedLM": transformers.BertConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        vocab_size=40, max_position_embeddings=32,
    ),
    "ViTForImageClassification": transformers.ViTConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        image_size=8, patch_size=4, num_labels=5,
    ),
    "T5ForConditionalGeneration": transformers.T5Config(
        d_model=64, d_kv=32, d_ff=64, num_layers=1, num_heads=2, vocab_size=40,
    ),
    "WhisperForConditionalGeneration": transformers.WhisperConfig(
        d_model=64, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=60,
        num_mel_bins=8, max_source_positions=16, max_target_positions=16, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    ),
    "GPT2ForSequenceClassification": transformers.GPT2Config(
        n_embd=64, n_layer=1, n_head=2, vocab_size=40, n_positions=32, num_labels=2,
        pad_token_id=0,
    ),
}  # fmt: skip


def tiny(name: str, directory: Path, **changes: object) -> Path:
    """A small random model of the class `name`, saved."""
    torch.manual_seed(0)
    config = type(TINY[name]).from_dict({**TINY[name].to_dict(), **changes})
    getattr(transformers, name)(config).save_pretrained(directory)
    return directory


@pytest.mark.parametrize("name", list(TINY))
def test_heads_are_kept(run, tmp_path, name):
    """Every weight that was not quantized is bit for bit the source's, the heads among them."""
    source, target = tiny(name, tmp_path / "source"), tmp_path / "target"
    code, out, err = run("quantize", source, target, "--group-size", 32, "--json")
    assert code == 0, err
    report = json.loads(out)
    assert report["quantized"]
    before = getattr(transformers, name).from_pretrained(source)
    after = xgemm.load(target)
    assert type(after).__name__ == name
    kept = {key: value for key, value in after.state_dict().items() if torch.is_tensor(value)}
    expected = before.state_dict()
    gone = {f"{layer}.weight" for layer in report["quantized"]}
    assert expected.keys() - gone <= kept.keys()
    for key in expected.keys() - gone:
        assert torch.equal(kept[key], expected[key]), key


def drop_weights(directory: Path, pattern: str) -> list[str]:
    from safetensors.torch import load_file, save_file

    file = directory / "model.safetensors"
    tensors = load_file(file)
    gone = [name for name in tensors if pattern in name]
    save_file({n: t for n, t in tensors.items() if n not in gone}, file, {"format": "pt"})
    assert gone
    return gone


@pytest.mark.parametrize("pattern", ["pooler.dense.weight", "intermediate.dense.weight"])
def test_missing_weights_are_refused(run, tmp_path, pattern):
    source = tiny("BertForSequenceClassification", tmp_path / "source")
    gone = drop_weights(source, pattern)
    code, out, err = run("quantize", source, tmp_path / "target")
    assert (code, out) == (1, "")
    assert f"{gone[0]} " in err
    assert "that the files lack and that would be random" in err
    assert not (tmp_path / "target").exists()


def change_config(directory: Path, **changes: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_weights_without_a_place_are_refused_or_dropped(run, tmp_path):
    source = tiny("BertForSequenceClassification", tmp_path / "source")
    change_config(source, architectures=["BertModel"])
    code, _, err = run("quantize", source, tmp_path / "target")
    assert code == 1
    assert "for which BertModel has no place and which would be lost: classifier.bias" in err
    assert not (tmp_path / "target").exists()
    code, _, err = run("quantize", source, tmp_path / "target", "--drop", "classifier.*")
    assert code == 0, err


def test_other_shapes_are_refused(run, tmp_path):
    source = tiny("BertForSequenceClassification", tmp_path / "source")
    change_config(source, intermediate_size=96)
    code, _, err = run("quantize", source, tmp_path / "target")
    assert code == 1
    assert "of another shape than BertForSequenceClassification has" in err
    assert "intermediate.dense.weight" in err


@pytest.mark.parametrize(
    ("section", "method"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"load_in_8bit": True}, "bitsandbytes"),
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
        ({"quant_method": "awq"}, "awq"),
    ],
)
def test_what_is_quantized_already_is_refused(run, tmp_path, section, method):
    source = tiny("BertForMaskedLM", tmp_path / "source")
    for changes in ({"quantization_config": section}, {"text": {"quantization_config": section}}):
        change_config(source, **changes)
        code, out, err = run("quantize", source, tmp_path / "target")
        assert (code, out) == (1, "")
        assert f"is already quantized, by {method}" in err
        change_config(source, quantization_config=None)
    change_config(source, text=None)
    (source / "quantize_config.json").write_text("{}")
    assert "already quantized, by gptq" in run("quantize", source, tmp_path / "target")[2]
    assert not (tmp_path / "target").exists()


def test_an_xgemm_directory_is_refused(run, tmp_path):
    source = tiny("BertForMaskedLM", tmp_path / "source")
    assert run("quantize", source, tmp_path / "once", "--group-size", 32)[0] == 0
    code, _, err = run("quantize", tmp_path / "once", tmp_path / "twice")
    assert code == 1
    assert "is already quantized, by xgemm" in err
    assert not (tmp_path / "twice").exists()


def test_no_layer_quantized_is_a_failure(run, tmp_path):
    source = tiny("BertForMaskedLM", tmp_path / "source")
    code, _, err = run("quantize", source, tmp_path / "target", "--skip", "*")
    assert code == 1
    assert re.search(r"no layer of BertForMaskedLM \(.* parameters\) was quantized: bert\.", err)
    assert not (tmp_path / "target").exists()


def test_code_of_the_directory_runs_only_when_told(run, tmp_path):
    source = tiny("BertForMaskedLM", tmp_path / "source")
    (source / "own.py").write_text(
        "from pathlib import Path\n"
        "from transformers import BertForMaskedLM\n"
        "Path(__file__).touch()\n"
        "class OwnBert(BertForMaskedLM):\n    pass\n"
    )
    change_config(
        source, architectures=["OwnBert"], auto_map={"AutoModelForMaskedLM": "own.OwnBert"}
    )
    code, _, err = run("quantize", source, tmp_path / "target", "--group-size", 32)
    assert code == 1
    assert "OwnBert is code of the directory's own" in err
    assert "--trust-remote-code" in err
    change_config(source, architectures=["NoSuchModel"], auto_map=None)
    assert "has no class 'NoSuchModel'" in run("quantize", source, tmp_path / "target")[2]
    change_config(source, architectures=None)
    assert "must name the model's class" in run("quantize", source, tmp_path / "target")[2]


def test_options_reach_the_quantizer(run, tmp_path):
    source, target = tiny("BertForMaskedLM", tmp_path / "source"), tmp_path / "target"
    arguments = ("--asymmetric", "--clip", "mse", "--scale-dtype", "bfloat16", "--group-size", 64)
    code, out, err = run("quantize", source, target, *arguments, "--skip", "*.query", "--json")
    assert code == 0, err
    layer = xgemm.load(target).bert.encoder.layer[0]
    weight = transformers.BertForMaskedLM.from_pretrained(source).bert.encoder.layer[0]
    expected = xgemm.quantize_weight(
        weight.output.dense.weight, "rtn", 64, False, "mse", torch.bfloat16
    )
    found = xgemm.unpack(layer.output.dense.to_packed())
    assert torch.equal(found.codes, expected.codes)
    assert torch.equal(found.scales, expected.scales)
    assert type(layer.attention.self.query) is torch.nn.Linear
    report = json.loads(out)
    assert any(name.endswith(".query") for name in report["left"])
    assert f"warning: quantize: 4 bits hold {report['share_quantized']:.1%}" in err


def test_hqq(run, tmp_path):
    source, target = tiny("BertForMaskedLM", tmp_path / "source"), tmp_path / "target"
    arguments = ("--method", "hqq", "--asymmetric", "--group-size", 32)
    code, _, err = run("quantize", source, target, *arguments, "--clip", "mse")
    assert code == 1
    assert "clip must be 'none' for method 'hqq', got 'mse'" in err
    assert not target.exists()
    code, _, err = run("quantize", source, target, *arguments)
    assert code == 0, err
    name = "bert.encoder.layer.0.output.dense"
    weight = transformers.BertForMaskedLM.from_pretrained(source).get_submodule(name).weight
    expected = xgemm.quantize_weight(weight, "hqq", 32, False)
    found = xgemm.unpack(xgemm.load(target).get_submodule(name).to_packed())
    assert torch.equal(found.codes, expected.codes)
    assert torch.equal(found.zeros, expected.zeros)


def test_include_quantizes_a_head(run, tmp_path):
    source = tiny("BertForSequenceClassification", tmp_path / "source")
    arguments = ("--group-size", 32, "--json")
    without = json.loads(run("quantize", source, tmp_path / "without", *arguments)[1])
    assert "classifier" in without["left"]
    arguments += ("--include", "classifier")
    code, out, err = run("quantize", source, tmp_path / "target", *arguments)
    assert code == 0, err
    assert "classifier" in json.loads(out)["quantized"]


def test_bad_options_are_refused_before_anything_is_read(run, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for arguments, text in (
        (("--scale-dtype", "float8"), "--scale-dtype must be one of auto, float16, bfloat16"),
        (("--device", "tpu"), "--device must be auto, cpu, cuda or cuda:N, got 'tpu'"),
        (("--device", "cuda:77"), "torch sees no such GPU here"),
        (("--method", "magic"), "method must be one of"),
        ((), "holds no config.json: not a model's directory"),
    ):
        code, out, err = run("quantize", source, tmp_path / "target", *arguments)
        assert (code, out) == (1, "")
        assert text in err
    (tmp_path / "x.bin").write_bytes(b"")
    assert "a .gguf file" in run("quantize", tmp_path / "x.bin", tmp_path / "target")[2]


def test_companions_are_copied(run, tmp_path):
    source, target = tiny("BertForMaskedLM", tmp_path / "source"), tmp_path / "target"
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text("{}")
    modules = [{"path": "", "type": "T"}, {"path": "1_Pooling"}, {"path": "../outside"}]
    (source / "modules.json").write_text(json.dumps(modules))
    kept = ["tokenizer.json", "vocab.txt", "preprocessor_config.json", "chat_template.jinja"]
    for name in [*kept, "pytorch_model.bin.index.json", "own.py"]:
        (source / name).write_text("{}")
    code, _, err = run("quantize", source, target, "--group-size", 32)
    assert code == 0, err
    assert all((target / name).is_file() for name in [*kept, "1_Pooling/config.json"])
    assert not (target / "own.py").exists()
    assert not (tmp_path / "outside").exists()


def test_report_and_plot(run, tmp_path):
    pytest.importorskip("matplotlib")
    source = tiny("BertForMaskedLM", tmp_path / "source")
    files = ("--report", tmp_path / "report.json", "--plot", tmp_path / "errors.png")
    code, out, err = run("quantize", source, tmp_path / "target", "--group-size", 32, *files)
    assert code == 0, err
    assert "relative error by kind of layer" in out
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["errors"].keys() == set(report["quantized"])
    assert all(0.01 < error["weights"] < 0.2 for error in report["errors"].values())
    assert report["error"]["bits_per_weight"] == 4.5
    assert (tmp_path / "errors.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("option", ["--report", "--plot"])
def test_a_report_without_a_place_is_refused_first(run, tmp_path, option):
    source = tiny("BertForMaskedLM", tmp_path / "source")
    code, _, err = run("quantize", source, tmp_path / "target", option, tmp_path / "no" / "file")
    assert code == 1
    assert f"quantize: {option}: " in err
    assert "its directory does not exist" in err
    assert not (tmp_path / "target").exists()


def test_a_target_that_cannot_be_written_is_refused_first(run, tmp_path, monkeypatch):
    source, target = tiny("BertForMaskedLM", tmp_path / "source"), tmp_path / "target"
    target.mkdir()
    refused = {(target, os.W_OK)}
    monkeypatch.setattr(os, "access", lambda path, mode: (Path(path), mode) not in refused)
    code, _, err = run("quantize", source, target)
    assert code == 1, err
    assert f"quantize: DST: {target} may not be written" in err.replace("\n", " ")


def test_gptq_by_the_command_line(run, tmp_path):
    """A text calibrates; the directory loads, and the report has errors of outputs."""
    source, text = save_llama(tmp_path / "source", layers=2), tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    arguments = ("--method", "gptq", "--group-size", 32, "--calibration", text, "--samples", 8)
    arguments += ("--sequence-length", 16, "--act-order", "desc_act")
    arguments += ("--resume", tmp_path / "run", "--json")
    code, out, err = run("quantize", source, tmp_path / "target", *arguments)
    assert code == 0, err
    facts = json.loads(out)
    assert facts["method"] == "gptq"
    assert facts["options"]["act_order"] == "desc_act"
    assert facts["error"]["outputs"] < facts["error"]["weights"]
    assert len(list((tmp_path / "run").glob("stage-*.safetensors"))) == 2
    model = xgemm.load(tmp_path / "target")
    assert model.config.quantization_config.method == "gptq"


def test_awq_by_the_command_line(run, tmp_path):
    """Scaled and then rounded by GPTQ; the folded norms are in the directory."""
    source, text = save_llama(tmp_path / "source", layers=1), tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    arguments = ("--method", "awq", "--group-size", 32, "--calibration", text, "--samples", 8)
    arguments += ("--sequence-length", 16, "--rounding", "gptq", "--json")
    code, out, err = run("quantize", source, tmp_path / "target", *arguments)
    assert code == 0, err
    facts = json.loads(out)
    assert (facts["method"], facts["options"]["rounding"]) == ("awq", "gptq")
    norm = "model.layers.0.input_layernorm.weight"
    before, after = (
        xgemm.load(tmp_path / "target").get_parameter(norm),
        transformers.AutoModelForCausalLM.from_pretrained(source).get_parameter(norm),
    )
    assert not torch.equal(before, after)


def test_calibration_that_cannot_be_is_refused(run, tmp_path):
    source, target = save_llama(tmp_path / "source"), tmp_path / "target"
    (tmp_path / "short.txt").write_text("short")
    gptq = ("--method", "gptq", "--group-size", 32)
    for arguments, text in (
        (("--act-order", "none"), "are for --method gptq or awq"),
        ((*gptq, "--samples", 0), "--samples must be at least 1, got 0"),
        ((*gptq, "--calibration", tmp_path / "none.txt"), "must be a text file or 'builtin'"),
        ((*gptq, "--calibration", tmp_path / "short.txt"), "fewer than --sequence-length"),
        ((*gptq, "--act-order", "up"), "act_order must be one of"),
    ):
        code, out, err = run("quantize", source, target, *arguments)
        assert (code, out) == (1, "")
        assert text in err.replace("\n", " ")
    assert not target.exists()
