"""from_pretrained of directories that xgemm.save and save_pretrained have written."""

from __future__ import annotations

import copy
import importlib
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from prepared import run_script

accelerate = pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

from hf_models import TOKENS, assert_same, clip, llama, mixtral, output, quantized_names  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import (  # noqa: E402
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
)

import xgemm  # noqa: E402
import xgemm.hf  # noqa: E402
from xgemm.formats.guard import HINT  # noqa: E402
from xgemm.nn import QuantExperts, QuantLinear  # noqa: E402

WRITERS = ["xgemm.save", "save_pretrained"]


@pytest.fixture(scope="module")
def model() -> transformers.PreTrainedModel:
    """Not tied, with asymmetric weights."""
    return xgemm.hf.attach(xgemm.quantize(llama(), group_size=32, symmetric=False))


@pytest.fixture(scope="module")
def directories(model, tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("saved")
    xgemm.save(model, root / "xgemm.save")
    model.save_pretrained(root / "save_pretrained")
    return {writer: root / writer for writer in WRITERS}


def edited(directory: Path, to: Path, change: Callable[[dict], None]) -> Path:
    """A copy of a directory with other tensors."""
    to.mkdir()
    for path in directory.glob("*.json"):
        (to / path.name).write_bytes(path.read_bytes())
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    return to


@pytest.mark.parametrize("writer", WRITERS)
def test_the_same_bits_come_back(model, directories, writer: str) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(directories[writer])
    assert type(loaded) is type(model)
    assert quantized_names(loaded) == quantized_names(model)
    before, after = model.state_dict(), loaded.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert_same(loaded, model)
    assert loaded.is_quantized
    assert loaded.quantization_method == "xgemm"
    assert loaded.config.quantization_config.symmetric in (False, None)
    layer = loaded.model.layers[0].mlp.up_proj
    assert type(layer.qweight) is type(model.model.layers[0].mlp.up_proj.qweight)
    assert not layer.training


@pytest.mark.parametrize("writer", WRITERS)
def test_the_bare_model_and_another_head(model, directories, writer: str) -> None:
    bare = AutoModel.from_pretrained(directories[writer])
    assert quantized_names(bare) == [name.removeprefix("model.") for name in quantized_names(model)]
    assert_same(bare, model.model)
    classifier = AutoModelForSequenceClassification.from_pretrained(directories[writer])
    assert quantized_names(classifier) == quantized_names(model)
    assert_same(classifier.model, model.model)


def test_a_head_on_a_bare_model(model, tmp_path: Path) -> None:
    bare = copy.deepcopy(model.model)
    bare.save_pretrained(tmp_path)
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert quantized_names(loaded) == quantized_names(model)
    assert set(info["missing_keys"]) == {"lm_head.weight"}
    assert not info["unexpected_keys"]
    assert_same(loaded.model, model.model)


def test_a_part_of_a_model(tmp_path: Path) -> None:
    """CLIP's text model: its config, a part of CLIP's, does not say that the files are packed."""
    whole = xgemm.quantize(clip(), group_size=32)
    whole.save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        transformers.CLIPTextModel.from_pretrained(tmp_path)
    part = transformers.CLIPTextModel.from_pretrained(
        tmp_path, quantization_config=xgemm.hf.XgemmConfig(group_size=128)
    )
    assert len(quantized_names(part)) == 12
    assert part.config.quantization_config.group_size == 32
    assert_same(part, whole.text_model)


def test_nothing_is_missing_or_unexpected(directories) -> None:
    for directory in directories.values():
        _, info = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
        assert not any(info.values()), info


def test_tied_weights_and_shards(tmp_path: Path) -> None:
    model = xgemm.hf.attach(xgemm.quantize(llama(tie=True), group_size=64))
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 3
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert_same(loaded, model)
    assert loaded.config.quantization_config.group_size == 64


@pytest.mark.parametrize("dtype", [torch.bfloat16, "float16"])
def test_dtype(model, directories, dtype) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(directories["save_pretrained"], dtype=dtype)
    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    layer = loaded.model.layers[1].self_attn.o_proj
    assert (loaded.dtype, layer.compute_dtype, layer.weight.dtype) == (dtype, dtype, dtype)
    assert torch.equal(layer.qweight, model.model.layers[1].self_attn.o_proj.qweight)
    got, expected = output(loaded), output(model)
    assert got.dtype == dtype
    assert float((got - expected).norm() / expected.norm()) < 0.02


@pytest.mark.parametrize(
    "device_map",
    ["cpu", "auto", {"": "cpu"}, {"model": "cpu", "lm_head": "cpu"}],
    ids=["cpu", "auto", "whole", "parts"],
)
def test_device_map(model, directories, device_map) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(
        directories["save_pretrained"], device_map=device_map
    )
    assert_same(loaded, model)


@pytest.mark.parametrize("writer", WRITERS)
def test_disk_offload(model, directories, writer: str, tmp_path: Path) -> None:
    device_map = {
        "model.embed_tokens": "cpu",
        "model.layers.0": "cpu",
        "model.layers.1": "disk",
        "model.norm": "cpu",
        "model.rotary_emb": "cpu",
        "lm_head": "disk",
    }
    loaded = AutoModelForCausalLM.from_pretrained(
        directories[writer], device_map=device_map, offload_folder=tmp_path / "offload"
    )
    assert loaded.model.layers[1].mlp.up_proj.qweight.is_meta
    assert not loaded.model.layers[1].mlp.up_proj.packed_format.is_meta
    assert_same(loaded, model)
    assert loaded.model.layers[1].mlp.up_proj.qweight.is_meta
    with pytest.raises(ValueError, match=r"dequantize: model\.layers\.1\..* is offloaded"):
        loaded.dequantize()
    with pytest.warns(UserWarning, match="offloaded modules"):
        loaded.save_pretrained(tmp_path / "again")
    assert_same(AutoModelForCausalLM.from_pretrained(tmp_path / "again"), model)


def test_no_float_copy_of_a_packed_weight(directories) -> None:
    """The largest tensors that are made are those of the model itself."""
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.is_floating_point() and not out.is_meta:
                largest = max(largest, out.numel())
            return out

    with Watch():
        loaded = AutoModelForCausalLM.from_pretrained(directories["save_pretrained"])
    floats = [p.numel() for p in loaded.parameters() if p.is_floating_point()]
    assert largest <= max(floats)
    assert max(floats) < 160 * 64  # an MLP weight, had it been made


# ---- directories that are not right ----


@pytest.mark.parametrize("leaf", ["qweight", "bias"])
def test_a_missing_tensor_is_named(tmp_path: Path, leaf: str) -> None:
    biased = xgemm.hf.attach(xgemm.quantize(llama(attention_bias=True), group_size=32))
    biased.save_pretrained(tmp_path / "whole")
    name = f"model.layers.1.self_attn.q_proj.{leaf}"
    path = edited(tmp_path / "whole", tmp_path / "part", lambda tensors: tensors.pop(name))
    with pytest.raises(ValueError, match=rf"checkpoint lacks {name}$"):
        AutoModelForCausalLM.from_pretrained(path)
    with pytest.raises(ValueError, match=r"checkpoint lacks layers\.1\.self_attn\.q_proj"):
        AutoModel.from_pretrained(path)


def test_a_missing_format_is_what_an_older_file_lacks(model, directories, tmp_path: Path) -> None:
    def drop(tensors: dict) -> None:
        for name in [name for name in tensors if name.endswith("packed_format")]:
            del tensors[name]

    path = edited(directories["save_pretrained"], tmp_path / "old", drop)
    loaded = AutoModelForCausalLM.from_pretrained(path)
    assert_same(loaded, model)
    formats = [m.packed_format for m in loaded.modules() if isinstance(m, QuantLinear)]
    assert all(f[1:4].tolist()[2] == 32 for f in formats)


def test_an_unexpected_tensor_is_named(directories, tmp_path: Path) -> None:
    name = "model.layers.0.mlp.up_proj.perm"
    path = edited(
        directories["save_pretrained"],
        tmp_path / "more",
        lambda tensors: tensors.update({name: torch.arange(64, dtype=torch.int32)}),
    )
    with pytest.raises(ValueError, match=rf"the model has no {name}"):
        AutoModelForCausalLM.from_pretrained(path)


def test_other_bytes_are_refused(directories, tmp_path: Path) -> None:
    name = "model.layers.0.mlp.up_proj"

    def wrong_format(tensors: dict) -> None:
        tensors[f"{name}.packed_format"][3] = 64

    def wrong_shape(tensors: dict) -> None:
        tensors[f"{name}.qweight"] = tensors[f"{name}.qweight"][:, :-16].contiguous()

    def wrong_dtype(tensors: dict) -> None:
        tensors[f"{name}.qweight"] = tensors[f"{name}.qweight"].float()

    for number, (change, error, message) in enumerate(
        [
            (wrong_format, ValueError, rf"{name}: .*group_size is 32 here, got 64"),
            (wrong_shape, RuntimeError, "ignore_mismatched_sizes"),
            (wrong_dtype, ValueError, r"must be torch\.uint8 in the checkpoint, got floating"),
        ]
    ):
        path = edited(directories["save_pretrained"], tmp_path / str(number), change)
        with pytest.raises(error, match=message):
            AutoModelForCausalLM.from_pretrained(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.update(layout_version=9), "layout_version"),
        (
            lambda s: s.update(format="packed-w5"),
            "format must be 'packed-w4' or 'packed-w4-fp4', got 'packed-w5'",
        ),
        (
            lambda s: s["modules"].update(
                {"model.layers.7.x": s["modules"]["model.layers.0.mlp.up_proj"]}
            ),
            r"quantized modules that LlamaForCausalLM lacks: model\.layers\.7\.x",
        ),
        (lambda s: s["modules"]["model.layers.0.mlp.up_proj"].update(n=96), "model.layers.0.mlp"),
    ],
)
def test_a_config_that_is_not_right(directories, tmp_path: Path, change, message: str) -> None:
    path = edited(directories["save_pretrained"], tmp_path / "edited", lambda tensors: None)
    config = json.loads((path / "config.json").read_text())
    change(config["quantization_config"])
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        AutoModelForCausalLM.from_pretrained(path)


# ---- a process that has not imported xgemm.hf ----

PLAIN = """
import sys
from transformers import AutoModel, AutoModelForCausalLM
for cls in (AutoModelForCausalLM, AutoModel):
    for path in sys.argv[1:]:
        try:
            cls.from_pretrained(path)
        except RuntimeError as error:
            assert "ignore_mismatched_sizes" in str(error), error
            print("refused", file=sys.stdout)
        else:
            print("loaded", file=sys.stdout)
"""


def test_a_reader_without_xgemm_fails(directories, tmp_path: Path) -> None:
    """Of linears, by both writers; and of experts alone, some of them in float."""
    experts = xgemm.quantize(mixtral(), group_size=32, skip=["model.layers.0.*", "*_proj"])
    assert quantized_names(experts) == ["model.layers.1.mlp.experts"]
    experts.save_pretrained(tmp_path)
    done = _read_by_others([*directories.values(), tmp_path])
    assert done.stdout.split() == ["refused"] * 6
    assert done.stderr.count(HINT) == 6  # it tells what to do
    assert "MISMATCH" in done.stderr


def _read_by_others(directories: list[Path]) -> subprocess.CompletedProcess[str]:
    return run_script(PLAIN, *directories, check=True)


def test_layers_that_transformers_was_not_told_of(tmp_path: Path) -> None:
    """Put in by hand and saved without attach: the files say nothing, nobody gets random layers.

    The experts' weights are taken apart by transformers when it saves them.
    """
    linears, experts, offloaded = llama(), mixtral(), llama()
    for model in (linears, offloaded):
        mlp = model.model.layers[1].mlp
        mlp.up_proj = QuantLinear.from_linear(mlp.up_proj, group_size=32)
    block = experts.model.layers[1].mlp
    block.experts = QuantExperts.from_experts(block.experts, group_size=32)
    device_map = {"model.embed_tokens": "cpu", "model.layers": "disk", "model.norm": "cpu"}
    device_map |= {"model.rotary_emb": "cpu", "lm_head": "cpu"}
    accelerate.dispatch_model(
        offloaded, device_map, main_device="cpu", offload_dir=tmp_path, force_hooks=True
    )
    assert offloaded.model.layers[1].mlp.up_proj.qweight.is_meta
    directories = [tmp_path / name for name in ("linears", "experts", "offloaded", "by hand")]
    linears.save_pretrained(directories[0])
    experts.save_pretrained(directories[1])
    with pytest.warns(UserWarning, match="offloaded modules"):
        offloaded.save_pretrained(directories[2])
    linears.config.save_pretrained(directories[3])
    torch.save(linears.state_dict(), directories[3] / "pytorch_model.bin")
    done = _read_by_others(directories)
    assert done.stdout.split() == ["refused"] * 8
    for directory in directories:
        with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
            AutoModelForCausalLM.from_pretrained(directory)


# ---- registration, copies ----


def test_importing_again_is_harmless(model, directories) -> None:
    importlib.reload(sys.modules["xgemm.hf.registration"])
    importlib.reload(xgemm.hf)
    assert_same(AutoModelForCausalLM.from_pretrained(directories["save_pretrained"]), model)


@pytest.mark.parametrize("version", ["4.57.1", "5.9.0.dev0"])
def test_an_old_transformers_is_refused(monkeypatch, version: str) -> None:
    from xgemm.hf.registration import register

    monkeypatch.setattr("xgemm.hf.registration.transformers.__version__", version)
    with pytest.raises(ImportError, match=rf"needs transformers 5\.12 or later, found {version}"):
        register()


def test_copies_and_pickles(model) -> None:
    twin = copy.deepcopy(model)
    assert_same(twin, model)
    assert twin.hf_quantizer is not model.hf_quantizer
    assert twin.hf_quantizer._model() is twin
    other = pickle.loads(pickle.dumps(model))
    assert_same(other, model)
    assert other.hf_quantizer._model() is other


def test_generation_config_comes_back(tmp_path: Path) -> None:
    model = llama()
    model.generation_config.max_new_tokens = 7
    xgemm.hf.attach(xgemm.quantize(model, group_size=32)).save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.generation_config.max_new_tokens == 7
    assert loaded.generate(TOKENS, do_sample=False).shape == (1, 27)
