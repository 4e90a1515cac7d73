"""from_pretrained(..., quantization_config=XgemmConfig(...)): weights quantized as they load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

from hf_models import (  # noqa: E402
    assert_same,
    float_directory,
    gpt2,
    gpt_oss,
    llama,
    mixtral,
    quantized_names,
)
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402
from transformers import AutoModel, AutoModelForCausalLM  # noqa: E402

import xgemm  # noqa: E402
import xgemm.hf  # noqa: E402
from xgemm.hf import XgemmConfig  # noqa: E402


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return float_directory(tmp_path_factory.mktemp("float"), llama())


def load(directory: Path, *args: Any, model: dict | None = None, **options: Any) -> Any:
    """Quantized while it loads: XgemmConfig(*args, **options)."""
    return AutoModelForCausalLM.from_pretrained(
        directory, quantization_config=XgemmConfig(*args, **options), **(model or {})
    )


def assert_same_state(one: torch.nn.Module, other: torch.nn.Module) -> None:
    before, after = one.state_dict(), other.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    "recipe",
    [
        {"group_size": 32},
        {"group_size": 64, "symmetric": False},
        {"group_size": -1, "clip": "mse"},
        {"group_size": 32, "scale_dtype": torch.bfloat16, "skip": ["*.down_proj", "*q_proj"]},
        {"group_size": 32, "lm_head": True},
    ],
    ids=lambda recipe: "-".join(map(str, recipe)),
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_as_quantize_does_it(directory: Path, recipe: dict, dtype: torch.dtype) -> None:
    loaded = load(directory, **recipe, model={"dtype": dtype})
    expected = xgemm.quantize(
        AutoModelForCausalLM.from_pretrained(directory, dtype=dtype), **recipe
    )
    assert quantized_names(loaded) == quantized_names(expected)
    assert_same_state(loaded, expected)
    assert_same(loaded, expected)
    assert sorted(loaded.xgemm_report.quantized) == sorted(expected.xgemm_report.quantized)
    assert loaded.xgemm_report.left == expected.xgemm_report.left
    assert loaded.xgemm_report.bytes_after == expected.xgemm_report.bytes_after
    assert loaded.is_quantized


@pytest.mark.parametrize("make", [gpt2, mixtral, gpt_oss])
def test_conv1d_and_experts(make, tmp_path: Path) -> None:
    model = make()
    path = float_directory(tmp_path / "float", model)
    loaded = load(path, group_size=32, symmetric=False)
    expected = xgemm.quantize(model, group_size=32, symmetric=False)
    assert_same_state(loaded, expected)
    assert_same(loaded, expected)
    assert sorted(loaded.xgemm_report.quantized) == sorted(expected.xgemm_report.quantized)
    assert loaded.xgemm_report.experts == expected.xgemm_report.experts
    assert loaded.xgemm_report.share_quantized == expected.xgemm_report.share_quantized
    assert loaded.xgemm_report.bytes_after == expected.xgemm_report.bytes_after


@pytest.mark.parametrize("make", [gpt2, mixtral, gpt_oss])
def test_conv1d_and_experts_come_back(make, tmp_path: Path) -> None:
    """Of a model that was quantized as it loaded, and of one quantized in place."""
    path = float_directory(tmp_path / "float", make())
    made = [load(path, group_size=32), xgemm.quantize(make(), group_size=32)]
    for number, model in enumerate(made):
        saved = tmp_path / str(number)
        model.save_pretrained(saved, max_shard_size="40KB")
        loaded, info = AutoModelForCausalLM.from_pretrained(saved, output_loading_info=True)
        assert not any(info.values()), info
        assert_same_state(loaded, model)
        assert_same(loaded, model)
        assert_same(xgemm.load(saved), model)
        loaded.dequantize()
        assert quantized_names(loaded) == []
        again = float_directory(tmp_path / f"{number}-float", loaded)
        assert_same(AutoModelForCausalLM.from_pretrained(again), loaded)


def test_some_experts_in_float(tmp_path: Path) -> None:
    """The checkpoint's own names for experts, one tensor each, beside packed ones."""
    path = float_directory(tmp_path / "float", mixtral())
    model = load(path, group_size=32, skip=["model.layers.0.mlp.experts", "*_proj"])
    assert quantized_names(model) == ["model.layers.1.mlp.experts"]
    model.save_pretrained(tmp_path / "saved")
    assert_same_state(AutoModelForCausalLM.from_pretrained(tmp_path / "saved"), model)


def test_tied_head_is_left(tmp_path: Path) -> None:
    loaded = load(float_directory(tmp_path, llama(tie=True)), group_size=32, lm_head=True)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert "tied to model.embed_tokens.weight" in loaded.xgemm_report.left["lm_head"]
    assert len(quantized_names(loaded)) == 14


def test_biases_and_shards(tmp_path: Path) -> None:
    model = llama(attention_bias=True, mlp_bias=True)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    path = float_directory(tmp_path, model, max_shard_size="30KB")
    loaded = load(path, group_size=32)
    assert_same_state(loaded, xgemm.quantize(model, group_size=32))


def test_the_bare_model(directory: Path) -> None:
    loaded = AutoModel.from_pretrained(directory, quantization_config=XgemmConfig(group_size=32))
    expected = xgemm.quantize(AutoModel.from_pretrained(directory), group_size=32)
    assert_same_state(loaded, expected)


def test_save_and_load_again(directory: Path, tmp_path: Path) -> None:
    loaded = load(directory, group_size=32, symmetric=False, skip=["*.o_proj"])
    loaded.save_pretrained(tmp_path / "a")
    section = json.loads((tmp_path / "a" / "config.json").read_text())["quantization_config"]
    assert section["quant_method"] == "xgemm"
    assert (section["method"], section["group_size"], section["symmetric"]) == ("rtn", 32, False)
    assert section["skip"] == ["*.o_proj"]
    assert set(section["modules"]) == set(quantized_names(loaded))
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "a")
    assert_same_state(again, loaded)
    assert again.config.quantization_config.skip == ["*.o_proj"]
    again.save_pretrained(tmp_path / "b")
    assert (tmp_path / "a" / "config.json").read_text() == (
        tmp_path / "b" / "config.json"
    ).read_text()
    assert_same(xgemm.load(tmp_path / "b"), loaded)


def test_disk_offload(directory: Path, tmp_path: Path) -> None:
    parts = dict.fromkeys(("embed_tokens", "layers.0", "norm", "rotary_emb"), "cpu")
    parts = {**{f"model.{name}": place for name, place in parts.items()}, "lm_head": "cpu"}
    parts["model.layers.1"] = "disk"
    options = {"device_map": parts, "offload_folder": tmp_path}
    loaded = load(directory, group_size=32, model=options)
    assert loaded.model.layers[1].mlp.up_proj.qweight.is_meta
    assert_same(loaded, load(directory, group_size=32))


def test_auto_device_map_counts_half_a_byte_a_weight(directory: Path) -> None:
    from transformers.integrations.accelerate import compute_module_sizes

    from xgemm.hf.quantizer import XgemmHfQuantizer

    with torch.device("meta"):
        model = llama()
    quantizer = XgemmHfQuantizer(XgemmConfig(group_size=32), pre_quantized=False)
    quantizer.preprocess_model(model)
    sizes, _ = compute_module_sizes(model, quantizer)
    assert sizes["model.layers.0.mlp.up_proj"] == 160 * 64 * (0.5 + 2 / 32)
    assert sizes["lm_head"] == 128 * 64 * 4
    assert_same(
        load(directory, group_size=32, model={"device_map": "auto"}), load(directory, group_size=32)
    )


# ---- memory ----


class LiveFloats(TorchDispatchMode):
    """The most bytes of floating-point storages that were alive at once, of those seen by an op."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def see(self, values: Any) -> None:
        for value in tree_leaves(values):
            if isinstance(value, torch.Tensor) and not value.is_meta and value.is_floating_point():
                storage = value.untyped_storage()
                ref = StorageWeakRef(storage)
                self.live[ref.cdata] = (ref, storage.nbytes())

    def now(self) -> int:
        self.live = {key: known for key, known in self.live.items() if not known[0].expired()}
        return sum(size for _, size in self.live.values())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.see((args, kwargs))
        out = func(*args, **(kwargs or {}))
        self.see(out)
        self.peak = max(self.peak, self.now())
        return out


def test_one_float_weight_in_memory_at_a_time(tmp_path: Path) -> None:
    model = llama()
    model.config.num_hidden_layers = 12
    model = type(model)(model.config)
    path = float_directory(tmp_path, model, max_shard_size="200KB")
    weights = [4 * m.weight.numel() for m in model.model.modules() if type(m).__name__ == "Linear"]
    rest = sum(4 * p.numel() for p in model.parameters()) - sum(weights)
    del model

    with LiveFloats() as watch:
        loaded = load(path, group_size=32)
    kept = sum(4 * p.numel() for p in loaded.parameters() if p.is_floating_point())
    assert kept == rest
    assert watch.peak < rest + 6 * max(weights)  # the weight, and what its quantization holds
    assert 6 * max(weights) < sum(weights) / 6  # far from the whole

    with LiveFloats() as whole:  # what is watched would be seen
        xgemm.quantize(AutoModelForCausalLM.from_pretrained(path), group_size=32)
    assert whole.peak > rest + sum(weights)


# ---- what is wrong ----


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"method": "magic"}, ValueError, "method must be one of: .*got 'magic'"),
        ({"group_size": 48}, ValueError, "XgemmConfig: group_size .*48"),
        ({"symmetric": 1}, TypeError, "XgemmConfig: symmetric"),
        ({"clip": "hard"}, ValueError, "XgemmConfig: clip must be one of"),
        ({"scale_dtype": torch.float32}, ValueError, "scale_dtype must be .*got float32"),
        ({"bits": 4, "zero": 1}, TypeError, "there is no argument bits, zero"),
    ],
)
def test_a_recipe_that_is_not_right(options: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        XgemmConfig(**options)


def test_a_recipe_as_a_dict(directory: Path) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(
        directory, quantization_config={"quant_method": "xgemm", "group_size": 32}
    )
    assert_same(loaded, load(directory, group_size=32))


def test_a_skip_that_names_nothing(directory: Path) -> None:
    with pytest.raises(ValueError, match=r"skip: '\*\.w1' matches no"):
        load(directory, group_size=32, skip=["*.w1"])


def test_nothing_to_quantize(directory: Path) -> None:
    with pytest.raises(ValueError, match=r"no layer of LlamaForCausalLM .* was quantized"):
        load(directory, group_size=32, skip=["*"])


def test_a_weight_of_another_shape(directory: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(directory / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = tensors[name][:, :-1].contiguous()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_bytes((directory / "config.json").read_bytes())
    with pytest.raises(RuntimeError, match="automatic conversion"):
        load(tmp_path, group_size=32)


def test_a_weight_that_is_missing_is_reported(directory: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(directory / "model.safetensors")
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_bytes((directory / "config.json").read_bytes())
    loaded = load(tmp_path, group_size=32)  # transformers warns of it
    assert type(loaded.model.layers[0].mlp.up_proj) is torch.nn.Linear
    left = loaded.xgemm_report.left["model.layers.0.mlp.up_proj"]
    assert left == "the checkpoint has no weight of it"


def test_a_config_on_top_of_a_quantized_directory(directory: Path, tmp_path: Path) -> None:
    first = load(directory, group_size=32)
    first.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="already has a `quantization_config`"):
        loaded = load(tmp_path, group_size=64)
    assert loaded.config.quantization_config.group_size == 32
    assert_same(loaded, first)
