"""What a checkpoint's manifest covers: tensors, both configs, and scales that are numbers."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import SECTION, Net, edit, load_into_new, quantized, weights
from safetensors.torch import load_file, save_file
from torch import nn

import xgemm
from xgemm.formats.manifest import CONFIG_FILE, MANIFEST_FILE, hash_tensor
from xgemm.nn import QuantLinear

GENERATION_FILE = "generation_config.json"

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=257, tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    model.generation_config.max_new_tokens = 7
    path = tmp_path_factory.mktemp("llama") / "out"
    xgemm.save(xgemm.quantize(model, group_size=32), path)
    return path


@pytest.fixture
def copied(llama: Path, tmp_path: Path) -> Path:
    return shutil.copytree(llama, tmp_path / "out")


CHANGES: list[tuple[str, Callable[[dict[str, Any]], Any], str]] = [
    (CONFIG_FILE, lambda c: c.update(rms_norm_eps=0.5), "rms_norm_eps is 0.5, was 1e-06"),
    (CONFIG_FILE, lambda c: c.update(new={"a": 1}), 'new is {"a": 1}, was absent'),
    (CONFIG_FILE, lambda c: c.pop("hidden_act"), 'hidden_act is absent, was "silu"'),
    (
        CONFIG_FILE,
        lambda c: c["rope_parameters"].update(rope_theta=1.0),
        "rope_parameters.rope_theta is 1.0, was 10000.0",
    ),
    (CONFIG_FILE, lambda c: c.update(vocab_size=257.0), "vocab_size is 257.0, was 257"),
    (GENERATION_FILE, lambda c: c.update(max_new_tokens=8), "max_new_tokens is 8, was 7"),
]


@pytest.mark.parametrize(("file", "change", "message"), CHANGES)
def test_a_change_is_refused_by_file_and_key(
    copied: Path, file: str, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    edit(copied / file, change)
    with pytest.raises(ValueError, match=rf"load: .*{file} is not what was saved: ") as error:
        xgemm.load(copied)
    assert message in str(error.value)
    assert "verify=False" in str(error.value)


def test_a_change_that_is_meant(copied: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    """verify=False takes it, a save records it, and the command has an option for it."""
    from language_models import save_tokenizer

    save_tokenizer(copied, chat=False)
    edit(copied / CONFIG_FILE, lambda config: config.update(rms_norm_eps=0.5))
    model = xgemm.load(copied, verify=False)
    assert model.config.rms_norm_eps == 0.5
    command = ("generate", copied, "a", "--max-new-tokens", 1)
    code, _, message = run(*command)
    assert (code, "rms_norm_eps is 0.5" in message) == (1, True)
    assert run(*command, "--no-verify")[0] == 0
    xgemm.save(model, copied)
    assert xgemm.load(copied).config.rms_norm_eps == 0.5


def test_a_generation_config_that_appears_or_is_lost(copied: Path) -> None:
    (copied / GENERATION_FILE).rename(copied / "elsewhere")
    with pytest.raises(ValueError, match=r"generation_config\.json is not what .* file is absent"):
        xgemm.load(copied)
    (copied / "elsewhere").rename(copied / GENERATION_FILE)
    edit(copied / MANIFEST_FILE, lambda manifest: manifest["documents"].pop(GENERATION_FILE))
    with pytest.raises(ValueError, match=r"generation_config\.json is not what .* was absent"):
        xgemm.load(copied)


def test_the_order_of_keys_and_white_space_mean_nothing(copied: Path) -> None:
    for file in (CONFIG_FILE, GENERATION_FILE):
        value = json.loads((copied / file).read_text())
        (copied / file).write_text(json.dumps(dict(reversed(value.items()))))
    xgemm.load(copied)


def test_a_save_over_another_leaves_no_generation_config(copied: Path) -> None:
    xgemm.save(quantized(), copied)
    assert not (copied / GENERATION_FILE).exists()
    load_into_new(copied)


def test_infinity_in_a_config_is_a_value(copied: Path) -> None:
    """Mamba 2 has one."""
    model = xgemm.load(copied)
    model.config.time_step_limit = [0.0, float("inf")]
    xgemm.save(model, copied)
    xgemm.load(copied)
    edit(copied / CONFIG_FILE, lambda config: config.update(time_step_limit=[0.0, float("nan")]))
    with pytest.raises(ValueError, match=r"time_step_limit is \[0\.0, NaN\]"):
        xgemm.load(copied)


def test_an_older_manifest_keeps_no_copies(copied: Path) -> None:
    edit(copied / MANIFEST_FILE, lambda manifest: manifest.pop("documents"))
    edit(copied / CONFIG_FILE, lambda config: config.update(rms_norm_eps=0.5))
    assert xgemm.load(copied).config.rms_norm_eps == 0.5
    edit(copied / CONFIG_FILE, lambda config: config[SECTION].update(method="other"))
    with pytest.raises(ValueError, match="quantization_config is not what was saved"):
        xgemm.load(copied)


@pytest.mark.parametrize("value", [3, {CONFIG_FILE: 3}])
def test_copies_of_another_type_are_refused(copied: Path, value: Any) -> None:
    edit(copied / MANIFEST_FILE, lambda manifest: manifest.update(documents=value))
    with pytest.raises(ValueError, match=rf"load: .*{MANIFEST_FILE}: .* must be of type dict"):
        xgemm.load(copied)


# ---- scales that are not finite ----


def spoil(path: Path, name: str, value: float, zeros: bool = False) -> None:
    """Write `value` as the last scale, or zero, of a weight, and its hash to the manifest."""
    file = weights(path)
    tensors = load_file(file)
    module = json.loads((path / CONFIG_FILE).read_text())[SECTION]["modules"][name]
    layout = xgemm.formats.packed.Layout(
        module["n"], module["k"], module["group_size"], module["zeros"]
    )
    place = layout.zero_offset if zeros else layout.scale_offset
    packed = tensors[f"{name}.qweight"].flatten().view(torch.float16)
    packed[place(module["n"] - 1, layout.groups - 1) // 2] = value
    manifest = json.loads((path / MANIFEST_FILE).read_text())
    save_file(tensors, file, metadata={"format": "pt", "xgemm_save_id": manifest["save_id"]})
    manifest["tensors"][f"{name}.qweight"]["sha256"] = hash_tensor(tensors[f"{name}.qweight"])
    manifest["files"][file.name] = file.stat().st_size
    (path / MANIFEST_FILE).write_text(json.dumps(manifest))


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("group_size", [32, -1])
def test_load_refuses_them_by_file_and_tensor(
    tmp_path: Path, value: float, zeros: bool, group_size: int
) -> None:
    path = tmp_path / "out"
    xgemm.save(quantized(group_size=group_size, symmetric=False), path)
    spoil(path, "down", value, zeros)
    part, group = "zeros" if zeros else "scales", 0 if group_size == -1 else 6
    where = f"group {group}, column 47"
    message = f"load: {weights(path)}: down.qweight: {part} must be finite, got {value} at {where}"
    for verify in (True, False):
        model = Net(seed=9).eval()
        with pytest.raises(ValueError, match=re.escape(message)):
            xgemm.load(path, model=model, verify=verify)
        assert type(model.down) is nn.Linear


def test_from_pretrained_refuses_them_by_file_and_tensor(copied: Path) -> None:
    from transformers import AutoModelForCausalLM

    import xgemm.hf  # noqa: F401

    name = "model.layers.0.mlp.up_proj"
    spoil(copied, name, float("inf"))
    message = rf"from_pretrained: .*model\.safetensors: {name}: .*qweight: scales must be finite"
    with pytest.raises(ValueError, match=message):
        AutoModelForCausalLM.from_pretrained(copied)


def test_load_state_dict_refuses_them() -> None:
    layer = quantized().up
    state = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    state["qweight"].view(torch.float16)[0, 1024 // 2 + 3] = float("nan")
    before = layer.qweight.clone()
    with pytest.raises(ValueError, match=r"QuantLinear: qweight: scales must be finite, got nan"):
        layer.load_state_dict(state)
    assert torch.equal(layer.qweight, before)


def test_experts_refuse_them_by_expert(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from hf_models import mixtral

    model = xgemm.quantize(mixtral(), group_size=32)
    experts = model.model.layers[0].mlp.experts
    state = {name: tensor.clone() for name, tensor in experts.state_dict().items()}
    state["down_proj_qweight"][2].view(torch.float16)[0, 1024 // 2] = float("inf")
    message = r"down_proj_qweight: scales must be finite, got inf at expert 2, group 0, column 0"
    with pytest.raises(ValueError, match=message):
        experts.load_state_dict(state)


def test_bf16_scales_are_read_as_such() -> None:
    """0x7c00 is inf in fp16 and 2.6e36 in bf16, where 0x7f80 is inf."""
    q = xgemm.quantize_weight(torch.randn(64, 128), group_size=32, scale_dtype=torch.bfloat16)
    layer = QuantLinear.from_packed(xgemm.pack(q))
    state = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    bits = state["qweight"].view(torch.int16)
    bits[0, 1024 // 2] = 0x7C00
    layer.load_state_dict(state)
    bits[0, 1024 // 2] = 0x7F80
    with pytest.raises(ValueError, match="scales must be finite, got inf"):
        layer.load_state_dict(state)


def test_what_has_no_values_is_not_looked_at() -> None:
    with torch.device("meta"):
        layer = QuantLinear(128, 64)
    layer.load_state_dict(layer.state_dict(), assign=True)
