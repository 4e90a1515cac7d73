"""Experts of MXFP4 checkpoints: gpt-oss by transformers' own dequantized model, and Mixtral by
compressed-tensors'."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

from helpers import random_mxfp4  # noqa: E402
from hf_models import TOKENS, gpt_oss, mixtral, output  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

import xgemm  # noqa: E402
from xgemm.formats.manifest import CONFIG_FILE, FP4_FORMAT, SECTION  # noqa: E402
from xgemm.nn import QuantExperts, QuantLinear  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

PROJECTIONS = ("gate_up_proj", "down_proj")


def bytes_of(q: xgemm.QuantizedWeight) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, two in a byte, and E8M0 scales."""
    exponents = (q.scales.view(torch.int16) >> 7).to(torch.uint8)
    return q.codes[:, ::2] | q.codes[:, 1::2] << 4, exponents.t().contiguous()


def write_gpt_oss(path: Path) -> dict[str, list[xgemm.QuantizedWeight]]:
    """A directory as OpenAI's; each expert's weights by the name of the projection."""
    gpt_oss().save_pretrained(path)
    state = load_file(path / "model.safetensors")
    weights: dict[str, list[xgemm.QuantizedWeight]] = {}
    for name in [name for name in state if name.endswith(PROJECTIONS)]:
        experts, k, n = state.pop(name).shape
        seeds = (hash_free_seed(name, e) for e in range(experts))
        weights[name] = [random_mxfp4(n, k, (117, 123), seed=seed) for seed in seeds]
        blocks, scales = zip(*map(bytes_of, weights[name]), strict=True)
        state[f"{name}_blocks"] = torch.stack(blocks).view(experts, n, k // 32, 16)
        state[f"{name}_scales"] = torch.stack(scales)
    save_file(state, path / "model.safetensors", metadata={"format": "pt"})
    section = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    edit(path, {SECTION: section})
    return weights


def hash_free_seed(name: str, expert: int) -> int:
    return 10 * int(name.split(".")[2]) + 2 * expert + name.endswith("down_proj")


def edit(path: Path, values: dict[str, Any]) -> None:
    config = json.loads((path / CONFIG_FILE).read_text())
    (path / CONFIG_FILE).write_text(json.dumps({**config, **values}))


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert float((found - expected).abs().max()) < 1e-4 * float(expected.abs().max())


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    path = tmp_path_factory.mktemp("gpt-oss") / "its"
    return path, write_gpt_oss(path)


def test_gpt_oss_is_what_transformers_dequantizes(theirs: tuple[Path, Any]) -> None:
    path, weights = theirs
    model: Any = xgemm.load(path)
    for name, given in weights.items():
        experts = model.get_submodule(name.rpartition(".")[0])
        assert type(experts) is QuantExperts
        for packed, q in zip(experts.to_packed(name.rpartition(".")[2]), given, strict=True):
            assert packed.fp4
            assert torch.equal(xgemm.unpack(packed).codes, q.codes)
            assert torch.equal(xgemm.unpack(packed).scales, q.scales)
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        path, quantization_config=transformers.Mxfp4Config(dequantize=True), dtype=torch.float32
    )
    expected = output(reference)
    close(output(model), expected)
    weight = reference.model.layers[1].mlp.experts.gate_up_proj
    assert torch.equal(model.model.layers[1].mlp.experts.gate_up_proj + 0, weight)
    many = TOKENS.repeat(1, 20)  # so many rows that each expert is a product of its own
    close(output(model, many), output(reference, many))
    # With a gradient, too.
    close(model(TOKENS).logits.detach(), expected)
    embedded = model.get_input_embeddings()(TOKENS).detach().requires_grad_()
    other = embedded.detach().clone().requires_grad_()
    model(inputs_embeds=embedded).logits.square().sum().backward()
    reference(inputs_embeds=other).logits.square().sum().backward()
    close(embedded.grad, other.grad)


@pytest.mark.parametrize("way", ["save", "save_pretrained", "convert"])
def test_a_directory_of_its_own(way: str, theirs: tuple[Path, Any], tmp_path: Path) -> None:
    path, _ = theirs
    model: Any = xgemm.load(path)
    if way == "save":
        xgemm.save(model, tmp_path / "ours")
    elif way == "save_pretrained":
        model.save_pretrained(tmp_path / "ours")
    else:
        from xgemm.hf.conversion import convert

        convert(path, tmp_path / "ours", to="xgemm")
    section = json.loads((tmp_path / "ours" / CONFIG_FILE).read_text())[SECTION]
    assert section["format"] == FP4_FORMAT
    assert section["experts"]["model.layers.0.mlp.experts"]["projections"]["down_proj"]["fp4"]
    again = xgemm.load(tmp_path / "ours")
    state, other = model.state_dict(), again.state_dict()
    assert state.keys() == other.keys()
    assert all(torch.equal(state[key], other[key]) for key in state)
    assert torch.equal(output(again), output(model))
    from xgemm.hf.conversion import convert

    with pytest.raises(ValueError, match=r"experts in one tensor|is MXFP4"):
        convert(tmp_path / "ours", tmp_path / "gptq", to="gptq")


def test_what_is_wrong_in_the_files_is_named(theirs: tuple[Path, Any], tmp_path: Path) -> None:
    path, _ = theirs
    state = load_file(path / "model.safetensors")
    name = "model.layers.0.mlp.experts.down_proj_scales"

    def error(value: torch.Tensor | None) -> str:
        changed = {k: v for k, v in state.items() if k != name}
        if value is not None:
            changed[name] = value
        save_file(changed, tmp_path / "model.safetensors", metadata={"format": "pt"})
        (tmp_path / CONFIG_FILE).write_text((path / CONFIG_FILE).read_text())
        with pytest.raises(ValueError, match="down_proj_scales") as caught:
            xgemm.load(tmp_path)
        return str(caught.value)

    bad = state[name].clone()
    bad[1, 3, 0] = 255
    assert "scales must be finite, got 255, which is NaN, at [3, 0]" in error(bad)
    assert "must be uint8 [4, 64, 3], got uint8 [4, 64, 2]" in error(bad[:, :, :2].contiguous())
    assert "is missing" in error(None)


def compressed_experts(path: Path, group_size: int = 32) -> dict[str, xgemm.QuantizedWeight]:
    """Mixtral as llm-compressor writes it: experts in MXFP4, all else in float."""
    model = mixtral()
    model.save_pretrained(path)
    state = load_file(path / "model.safetensors")
    layers = {}
    for index, name in enumerate(sorted(name for name in state if ".experts." in name)):
        n, k = state[name].shape
        layers[name] = random_mxfp4(n, k, (117, 123), seed=index)
        packed, scales = bytes_of(layers[name])
        state[name] = layers[name].dequantize()
        state[f"{name}_packed"], state[f"{name}_scale"] = packed, scales
    floats = {k: v for k, v in state.items() if not k.endswith(("_packed", "_scale"))}
    path.with_name("float").mkdir()
    save_file(floats, path.with_name("float") / "model.safetensors", metadata={"format": "pt"})
    config = (path / CONFIG_FILE).read_text()
    (path.with_name("float") / CONFIG_FILE).write_text(config)
    written = {k: v for k, v in state.items() if k not in layers}
    save_file(written, path / "model.safetensors", metadata={"format": "pt"})
    weights = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": group_size,
               "symmetric": True, "scale_dtype": "torch.uint8"}  # fmt: skip
    group = {"targets": ["Linear"], "weights": weights, "format": "mxfp4-pack-quantized"}
    section = {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
               "config_groups": {"group_0": group}, "ignore": ["lm_head"]}  # fmt: skip
    edit(path, {SECTION: section})
    return layers


def test_experts_of_compressed_tensors(tmp_path: Path) -> None:
    layers = compressed_experts(tmp_path / "its")
    model: Any = xgemm.load(tmp_path / "its")
    experts = model.model.layers[1].mlp.experts
    assert type(experts) is QuantExperts
    assert not any(isinstance(module, QuantLinear) for module in model.modules())
    prefix = "model.layers.1.block_sparse_moe.experts.3"
    found = xgemm.unpack(experts.to_packed("gate_up_proj")[3])
    both = [layers[f"{prefix}.{part}.weight"] for part in ("w1", "w3")]
    assert torch.equal(found.codes, torch.cat([q.codes for q in both]))
    assert found.fp4
    expected = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "float")
    close(output(model), output(expected))


def test_take_over_leaves_it_to_transformers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import xgemm.hf

    compressed_experts(tmp_path / "its")
    section = json.loads((tmp_path / "its" / CONFIG_FILE).read_text())[SECTION]
    xgemm.hf.take_over("compressed-tensors")
    try:
        from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING as known

        from xgemm.hf.foreign import ForeignConfig

        with contextlib.suppress(Exception):  # where compressed-tensors is not installed
            taken = known["compressed-tensors"].from_dict(section)
            assert not isinstance(taken, ForeignConfig)
        assert "left to transformers: it is MXFP4" in caplog.text
    finally:
        xgemm.hf.give_back()


def test_what_compressed_tensors_may_not_say(tmp_path: Path) -> None:
    compressed_experts(tmp_path / "its", group_size=64)
    with pytest.raises(ValueError, match="group_size must be 32, got 64"):
        xgemm.load(tmp_path / "its")


def test_a_linear_layer_is_refused_by_name(tmp_path: Path) -> None:
    compressed_experts(tmp_path / "its")
    file = tmp_path / "its" / "model.safetensors"
    state = load_file(file)
    name = "model.layers.0.self_attn.o_proj.weight"
    packed, scales = bytes_of(random_mxfp4(*state.pop(name).shape))
    save_file({**state, f"{name}_packed": packed, f"{name}_scale": scales}, file)
    with pytest.raises(ValueError, match=r"o_proj is MXFP4, which is taken of experts"):
        xgemm.load(tmp_path / "its")
