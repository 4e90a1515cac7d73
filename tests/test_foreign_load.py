"""Checkpoints of other tools into models: the same codes, scales and zero points, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

from foreign import (  # noqa: E402
    awq_config,
    awq_tensors,
    compressed_config,
    compressed_tensors,
    gptq_config,
    gptq_tensors,
    hqq_config,
    hqq_tensors,
    same_weight,
    torchao_config,
    torchao_tensors,
    unpacked,
    write_directory,
)
from hf_models import TOKENS, llama, mixtral, output, quantized_names  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

import xgemm  # noqa: E402
import xgemm.hf  # noqa: E402
from xgemm.nn import QuantExperts, QuantLinear  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def v2(q: Any) -> Any:
    return gptq_tensors(q, version=2)


ACT_ORDER = {"act_order": True, "same_order": True}
CASES: dict[str, tuple[dict, Any, dict]] = {
    "gptq": (gptq_config(), gptq_tensors, {"symmetric": True}),
    "gptq-asymmetric": (gptq_config(sym=False), gptq_tensors, {}),
    "gptq-v2": (gptq_config(2, sym=False), v2, {}),
    "gptq-act-order": (gptq_config(desc_act=True), gptq_tensors, {"symmetric": True, **ACT_ORDER}),
    "gptq-channel": (gptq_config(2, group_size=-1, sym=False), v2, {"group_size": -1}),
    "awq": (awq_config(), awq_tensors, {}),
    "hqq": (hqq_config(), hqq_tensors, {}),
    "compressed": (compressed_config(), compressed_tensors, {"symmetric": True}),
    "compressed-asymmetric": (compressed_config(symmetric=False), compressed_tensors, {}),
    "compressed-bf16": (
        compressed_config(),
        compressed_tensors,
        {"symmetric": True, "dtype": torch.bfloat16},
    ),
    "compressed-g-idx": (
        compressed_config(actorder="group"),
        compressed_tensors,
        {"symmetric": True, **ACT_ORDER},
    ),
    "compressed-channel": (
        compressed_config(strategy="channel", group_size=None),
        compressed_tensors,
        {"symmetric": True, "group_size": -1},
    ),
}


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert float((found - expected).abs().max()) < 1e-4 * float(expected.abs().max())


@pytest.mark.parametrize("case", CASES)
def test_a_llama_computes_what_its_dequantized_weights_do(case: str, tmp_path: Path) -> None:
    config, tensors_of, options = CASES[case]
    layers, reference = write_directory(tmp_path / "its", llama(), config, tensors_of, **options)
    model: Any = xgemm.load(tmp_path / "its")
    assert sorted(quantized_names(model)) == sorted(layers)
    assert len(layers) == 14
    for name, weight in layers.items():
        layer = model.get_submodule(name)
        assert type(layer) is QuantLinear
        assert same_weight(unpacked(layer), weight), name
        assert (layer.perm is not None) == (weight.g_idx is not None)
    assert type(model.lm_head) is torch.nn.Linear
    expected = transformers.AutoModelForCausalLM.from_pretrained(reference)
    close(output(model), output(expected))
    assert not model.training


SPELLINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPTQ": ("gptq", {"quant_method": "GPTQ"}),
    "wbits": ("gptq", {"bits": None, "wbits": 4}),
    "GPTQ_V2": ("gptq-v2", {"checkpoint_format": "GPTQ_V2"}),
    "AWQ": ("awq", {"quant_method": "AWQ", "version": "GEMM"}),
    "w_bit": ("awq", {"bits": None, "w_bit": 4, "group_size": None, "q_group_size": 32}),
    "no format": ("compressed", {"format": None}),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_other_spellings_of_a_config(spelling: str, tmp_path: Path) -> None:
    case, values = SPELLINGS[spelling]
    config, tensors_of, options = CASES[case]
    layers, _ = write_directory(
        tmp_path / "its", llama(), {**config, **values}, tensors_of, **options
    )
    model: Any = xgemm.load(tmp_path / "its")
    for name, weight in layers.items():
        assert same_weight(unpacked(model.get_submodule(name)), weight), name
    xgemm.hf.convert(tmp_path / "its", tmp_path / "ours", to="xgemm")
    assert torch.equal(output(xgemm.load(tmp_path / "ours")), output(model))


def test_groups_of_16_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    config = gptq_config(group_size=16)
    write_directory(tmp_path / "its", llama(), config, gptq_tensors, symmetric=True, group_size=16)
    message = r"load: .*its: model\..*_proj: group_size must be -1 or a multiple of 32, got 16"
    with pytest.raises(ValueError, match=message):
        xgemm.load(tmp_path / "its")
    with pytest.raises(ValueError, match=message):
        xgemm.hf.convert(tmp_path / "its", tmp_path / "other", to="compressed-tensors")


def test_a_llama_of_torchaos(tmp_path: Path) -> None:
    """Zero points are rounded, so that the weights are not the very same."""
    layers, reference = write_directory(
        tmp_path / "its", llama(), torchao_config(), torchao_tensors, symmetric=True
    )
    model: Any = xgemm.load(tmp_path / "its")
    for name, weight in layers.items():
        assert same_weight(unpacked(model.get_submodule(name)), weight), name  # zero points of 8
    close(output(model), output(transformers.AutoModelForCausalLM.from_pretrained(reference)))


@pytest.mark.parametrize("case", ["gptq", "gptq-act-order", "awq", "compressed-asymmetric"])
def test_experts_of_one_module_each_become_quant_experts(case: str, tmp_path: Path) -> None:
    config, tensors_of, options = CASES[case]
    layers, reference = write_directory(
        tmp_path / "its", mixtral(), config, tensors_of, shards=3, **options
    )
    model: Any = xgemm.load(tmp_path / "its")
    experts = model.model.layers[1].mlp.experts
    assert type(experts) is QuantExperts
    assert len(quantized_names(model)) == 2 * 5
    gate, up, down = (
        [layers[f"model.layers.1.block_sparse_moe.experts.{e}.{w}"] for e in range(4)]
        for w in ("w1", "w3", "w2")
    )
    for e, packed in enumerate(experts.to_packed("gate_up_proj")):
        found = xgemm.unpack(packed)
        assert torch.equal(found.codes, torch.cat([gate[e].codes, up[e].codes]))
        assert torch.equal(found.scales, torch.cat([gate[e].scales, up[e].scales], dim=1))
    for e, packed in enumerate(experts.to_packed("down_proj")):
        assert same_weight(xgemm.unpack(packed), down[e])
    close(output(model), output(transformers.AutoModelForCausalLM.from_pretrained(reference)))


def test_the_model_generates_is_saved_and_comes_back(tmp_path: Path) -> None:
    config, tensors_of, options = CASES["gptq-act-order"]
    write_directory(tmp_path / "its", mixtral(), config, tensors_of, **options)
    model: Any = xgemm.load(tmp_path / "its")
    assert model.generate(TOKENS, max_new_tokens=4, do_sample=False).shape == (1, 24)
    xgemm.save(model, tmp_path / "saved")
    model.save_pretrained(tmp_path / "saved-by-transformers")
    for name in ("saved", "saved-by-transformers"):
        again = xgemm.load(tmp_path / name)
        state, other = model.state_dict(), again.state_dict()
        assert state.keys() == other.keys()
        assert all(torch.equal(state[key], other[key]) for key in state)


# ---- parts under other names ----


def renamed(tensors: Any, names: dict[str, str]) -> dict[str, torch.Tensor]:
    found = {}
    for name, tensor in tensors.items():
        for old, new in names.items():
            name = name.replace(old, new)
        found[name] = tensor
    return found


@pytest.mark.parametrize("way", ["load", "take_over"])
def test_experts_under_the_names_that_llm_compressor_writes(way: str, tmp_path: Path) -> None:
    """Mixtral's w1, w3 and w2 as gate_proj, up_proj and down_proj."""
    path = tmp_path / "its"
    _, reference = write_directory(
        path, mixtral(), compressed_config(), compressed_tensors, symmetric=True
    )
    names = {".w1.": ".gate_proj.", ".w3.": ".up_proj.", ".w2.": ".down_proj."}
    file = path / "model.safetensors"
    save_file(renamed(load_file(file), names), file, metadata={"format": "pt"})
    model = loaded(way, path, "compressed-tensors")
    assert sum(type(module) is QuantExperts for module in model.modules()) == 2
    close(output(model), output(transformers.AutoModelForCausalLM.from_pretrained(reference)))


@pytest.mark.parametrize("way", ["load", "take_over"])
def test_a_joined_linear_whose_parts_gptqmodel_writes(way: str, tmp_path: Path) -> None:
    """Phi-3's gate_up_proj as gate_proj and up_proj; and converted, joined, to xgemm and back."""
    config = transformers.Phi3Config(
        hidden_size=64, intermediate_size=96, num_hidden_layers=1, vocab_size=128,
        num_attention_heads=2, num_key_value_heads=1, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    path = tmp_path / "its"
    layers, reference = write_directory(
        path,
        transformers.Phi3ForCausalLM(config).eval(),
        gptq_config(),
        gptq_tensors,
        chosen=lambda name: name.endswith(("qkv_proj", "o_proj", "gate_up_proj", "down_proj")),
        symmetric=True,
    )
    file = path / "model.safetensors"
    tensors = load_file(file)
    whole = "model.layers.0.mlp.gate_up_proj"
    for part in ("qweight", "scales", "qzeros", "g_idx"):
        tensor = tensors.pop(f"{whole}.{part}")
        halves = (tensor, tensor) if part == "g_idx" else tensor.chunk(2, dim=1)
        for name, half in zip(("gate_proj", "up_proj"), halves, strict=True):
            tensors[f"model.layers.0.mlp.{name}.{part}"] = half.clone()
    save_file(tensors, file, metadata={"format": "pt"})
    model = loaded(way, path, "gptq")
    assert same_weight(unpacked(model.get_submodule(whole)), layers[whole])
    close(output(model), output(transformers.AutoModelForCausalLM.from_pretrained(reference)))
    if way == "load":
        xgemm.hf.convert(path, tmp_path / "ours", to="xgemm")
        assert torch.equal(output(xgemm.load(tmp_path / "ours")), output(model))


def loaded(way: str, path: Path, method: str) -> Any:
    if way == "load":
        return xgemm.load(path)
    xgemm.hf.take_over(method)
    try:
        return transformers.AutoModelForCausalLM.from_pretrained(path)
    finally:
        xgemm.hf.give_back()
