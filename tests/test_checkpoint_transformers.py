"""load: a directory of a transformers model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from checkpoints import SECTION, edit
from torch import nn

import xgemm
from xgemm.formats.manifest import CONFIG_FILE

safetensors_torch = pytest.importorskip("safetensors.torch")


@pytest.fixture
def llama() -> nn.Module:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from hf_models import llama

    return llama(tie=True)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_transformers_directory(
    llama: nn.Module, tmp_path: Path, dtype: torch.dtype | None
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "tokenizer.json").write_text("{}")
    llama.config._name_or_path = str(source)
    llama.generation_config.max_new_tokens = 7
    xgemm.quantize(llama, group_size=32)
    assert len(llama.xgemm_report.quantized) == 14
    xgemm.save(llama, tmp_path / "out")
    config = json.loads((tmp_path / "out" / CONFIG_FILE).read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config[SECTION]["quant_method"] == "xgemm"
    assert config[SECTION]["layout_version"] == 1
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"

    other = xgemm.load(tmp_path / "out", dtype=dtype)
    assert type(other) is type(llama)
    assert not other.training
    assert not any(p.is_meta for p in (*other.parameters(), *other.buffers()))
    assert other.lm_head.weight is other.model.embed_tokens.weight
    assert other.generation_config.max_new_tokens == 7
    tokens = torch.arange(20)[None]
    with torch.inference_mode():
        expected = (llama if dtype is None else llama.to(dtype))(tokens).logits
        got = other(tokens).logits
    assert got.dtype == (dtype or torch.float32)
    if dtype is None:
        assert torch.equal(got, expected)
    else:
        assert float((got - expected).float().norm() / expected.float().norm()) < 0.02
    xgemm.save(other, tmp_path / "again")  # and what was loaded is saved again
    assert type(xgemm.load(tmp_path / "again")) is type(llama)


def test_code_in_a_directory_is_never_run(llama: nn.Module, tmp_path: Path) -> None:
    xgemm.quantize(llama, group_size=32)
    path = tmp_path / "out"
    xgemm.save(llama, path)
    marker = tmp_path / "ran"
    (path / "evil.py").write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n")
    for change in (
        {"architectures": ["Evil"], "model_type": "evil"},
        {"architectures": ["Evil"]},
        {"architectures": ["AutoModel"]},
        {"architectures": [3]},
        {"architectures": []},
    ):
        edit(
            path / CONFIG_FILE,
            lambda value, change=change: value.update(
                change, auto_map={"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}
            ),
        )
        with pytest.raises(ValueError, match=r"transformers has no architecture"):
            xgemm.load(path, verify=False)
    assert not marker.exists()
