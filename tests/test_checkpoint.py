"""save and load: everything comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import Net, edit, load_into_new, quantized, same
from torch import nn

import xgemm
from xgemm.formats.manifest import CONFIG_FILE, INDEX_FILE, MANIFEST_FILE, hash_json
from xgemm.nn import QuantLinear

safetensors_torch = pytest.importorskip("safetensors.torch")


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("max_shard_bytes", [1 << 30, 6000, 1])
def test_fills_a_module(tmp_path: Path, symmetric: bool, max_shard_bytes: int) -> None:
    model = quantized(symmetric=symmetric)
    xgemm.save(model, tmp_path / "out", max_shard_bytes=max_shard_bytes)
    other = load_into_new(tmp_path / "out")
    assert isinstance(other.up, QuantLinear)
    assert isinstance(other.down, QuantLinear)
    assert other.head.weight is other.embed.weight  # tied, and stored once
    assert other.embed.weight.requires_grad
    assert not other.up.training
    same(model, other)
    shards = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    if max_shard_bytes == 1 << 30:
        assert shards == ["model.safetensors"]
        return
    index = json.loads((tmp_path / "out" / INDEX_FILE).read_text())
    assert sorted(set(index["weight_map"].values())) == shards
    assert shards[0] == f"model-00001-of-{len(shards):05d}.safetensors"
    tensors = {}
    for shard in shards:
        part = safetensors_torch.load_file(tmp_path / "out" / shard)
        size = sum(t.numel() * t.element_size() for t in part.values())
        assert size <= max_shard_bytes or sum(t.numel() > 0 for t in part.values()) == 1
        assert all(index["weight_map"][name] == shard for name in part)
        tensors.update(part)
    assert index["metadata"]["total_size"] == sum(
        t.numel() * t.element_size() for t in tensors.values()
    )


def test_fills_a_module_on_the_meta_device(saved: Path) -> None:
    with torch.device("meta"):
        model = Net().eval()
    same(xgemm.load(saved, model=model), quantized())


def test_fills_a_quantized_module_of_other_options(saved: Path) -> None:
    model = quantized(seed=3, group_size=64, symmetric=False)
    same(xgemm.load(saved, model=model), quantized())


def test_dtype_is_the_models_or_the_asked_one(saved: Path) -> None:
    model = xgemm.load(saved, model=Net().half().eval())
    assert model.up.bias.dtype == torch.float16
    assert model.norm.weight.dtype == torch.float16
    assert model.up.qweight.dtype == torch.uint8
    model = xgemm.load(saved, model=Net().eval(), dtype=torch.bfloat16)
    assert model.up.bias.dtype == torch.bfloat16
    assert model.head.weight.dtype == torch.bfloat16
    assert torch.equal(model.up.qweight, quantized().up.qweight)


def test_act_order_bf16_scales_and_activation_come_back(tmp_path: Path) -> None:
    q = xgemm.quantize_weight(
        torch.randn(70, 96), group_size=32, symmetric=False, scale_dtype=torch.bfloat16
    )
    g_idx = (torch.randperm(96) // 32).int()
    q = xgemm.QuantizedWeight(q.codes, q.scales, q.zeros, g_idx, 32)
    layer = QuantLinear.from_packed(xgemm.pack(q), torch.randn(70), "silu")
    xgemm.save(nn.Sequential(layer), tmp_path / "out")
    other = xgemm.load(tmp_path / "out", model=nn.Sequential(nn.Linear(96, 70)))[0]
    x = torch.randn(3, 96)
    assert torch.equal(other(x), layer(x))
    assert other.format == layer.format
    assert other.activation == "silu"


def test_a_layer_with_two_names_comes_back_as_one(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    model.append(model[0])
    xgemm.quantize(model, group_size=32)
    xgemm.save(model, tmp_path / "out")
    fresh = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    fresh.append(fresh[0])
    xgemm.load(tmp_path / "out", model=fresh)
    assert fresh[0] is fresh[2]
    x = torch.randn(2, 64)
    assert torch.equal(fresh(x), model(x))


def test_saving_over_the_directory_it_was_loaded_from(saved: Path) -> None:
    model = load_into_new(saved)
    (saved / "tokenizer.json").write_text("{}")
    (saved / "assets").mkdir()
    (saved / "assets" / "note").write_text("mine")
    xgemm.save(model, saved, max_shard_bytes=6000)
    same(load_into_new(saved), quantized())
    assert (saved / "tokenizer.json").read_text() == "{}"
    assert (saved / "assets" / "note").read_text() == "mine"
    assert not (saved / "model.safetensors").exists()
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_every_file_may_be_read_by_whom_the_umask_lets(saved: Path) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in saved.iterdir()}
    assert set(modes.values()) == {modes["config.json"]}, modes


def test_a_directory_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match="neither empty nor an xgemm checkpoint"):
        xgemm.save(quantized(), tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    with pytest.raises(NotADirectoryError, match="is a file"):
        xgemm.save(quantized(), tmp_path / "thesis.tex")
    with pytest.raises(NotADirectoryError, match=r"save: .*thesis.tex/out cannot be written"):
        xgemm.save(quantized(), tmp_path / "thesis.tex" / "out")
    with pytest.raises(FileNotFoundError, match=r"load: .*not an xgemm checkpoint"):
        xgemm.load(tmp_path / "thesis.tex")


def test_what_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got dict"):
        xgemm.save({}, tmp_path / "out")
    with pytest.raises(ValueError, match=r"0.weight has no data"):
        xgemm.save(nn.Sequential(nn.Linear(8, 8, device="meta")), tmp_path / "out")
    with pytest.raises(TypeError, match="max_shard_bytes must be an int, got bool"):
        xgemm.save(Net(), tmp_path / "out", max_shard_bytes=True)
    assert list(tmp_path.iterdir()) == []


# ---- guards, and directories without a manifest ----


def test_guards_stand_where_the_float_weights_were(saved: Path) -> None:
    tensors = safetensors_torch.load_file(saved / "model.safetensors")
    empty = {name for name, tensor in tensors.items() if tensor.numel() == 0}
    assert empty == {"up.weight", "down.weight", "up.import_xgemm.hf_before_from_pretrained"}
    with pytest.raises(RuntimeError, match=r"size mismatch for up.weight"):
        Net().load_state_dict(tensors, strict=False)


def without_manifest(path: Path) -> None:
    """What transformers' save_pretrained leaves: no manifest, no ids; a tied tensor left out."""
    (path / MANIFEST_FILE).unlink()
    edit(path / CONFIG_FILE, lambda config: config["quantization_config"].pop("save_id"))
    for shard in path.glob("*.safetensors"):
        tensors = safetensors_torch.load_file(shard)
        safetensors_torch.save_file(tensors, shard, metadata={"format": "pt"})


@pytest.mark.parametrize("max_shard_bytes", [1 << 30, 6000])
def test_a_directory_without_manifest_is_read(tmp_path: Path, max_shard_bytes: int) -> None:
    model = quantized(symmetric=False)
    xgemm.save(model, tmp_path / "out", max_shard_bytes=max_shard_bytes)
    without_manifest(tmp_path / "out")
    other = load_into_new(tmp_path / "out")
    same(model, other)
    assert other.head.weight is other.embed.weight
    larger = Net()
    larger.extra = nn.Linear(2, 2, bias=False)
    with pytest.raises(ValueError, match=r"the checkpoint lacks extra\.weight"):
        xgemm.load(tmp_path / "out", model=larger)


def test_files_that_an_index_may_not_name(tmp_path: Path) -> None:
    xgemm.save(quantized(), tmp_path / "out", max_shard_bytes=6000)
    without_manifest(tmp_path / "out")
    index = tmp_path / "out" / INDEX_FILE
    edit(index, lambda value: value["weight_map"].update({"up.bias": "../../secret.safetensors"}))
    with pytest.raises(
        ValueError, match=r"'\.\./\.\./secret\.safetensors' is not the name of a check"
    ):
        load_into_new(tmp_path / "out")


def test_a_save_whose_manifest_is_gone_is_refused(saved: Path) -> None:
    (saved / MANIFEST_FILE).unlink()
    with pytest.raises(FileNotFoundError, match=f"{MANIFEST_FILE} is missing"):
        load_into_new(saved)


def test_the_recipe_is_in_the_config(tmp_path: Path) -> None:
    xgemm.save(quantized(skip="up", scale_dtype=torch.bfloat16), tmp_path / "out")
    section = json.loads((tmp_path / "out" / CONFIG_FILE).read_text())["quantization_config"]
    assert section["method"] == "rtn"
    assert section["group_size"] == 32
    assert section["skip"] == ["up"]
    assert section["scale_dtype"] == "bfloat16"
    assert section["experts"] == {}


def test_directories_of_before_are_read(saved: Path) -> None:
    """Neither experts, recipe nor guards, and no tensor of the format."""
    tensors = safetensors_torch.load_file(saved / "model.safetensors")
    old = {n: t for n, t in tensors.items() if t.numel() > 0 and "packed_format" not in n}
    assert len(old) == len(tensors) - 5
    save_id = json.loads((saved / MANIFEST_FILE).read_text())["save_id"]
    metadata = {"format": "pt", "xgemm_save_id": save_id}
    safetensors_torch.save_file(old, saved / "model.safetensors", metadata=metadata)
    section: dict[str, Any] = {}

    def strip(config: dict[str, Any]) -> None:
        kept = ("quant_method", "format", "layout_version", "save_id", "modules")
        config["quantization_config"] = {k: config["quantization_config"][k] for k in kept}
        section.update(config["quantization_config"])

    edit(saved / CONFIG_FILE, strip)

    def shrink(manifest: dict[str, Any]) -> None:
        manifest["tensors"] = {n: t for n, t in manifest["tensors"].items() if n in old}
        manifest["files"]["model.safetensors"] = (saved / "model.safetensors").stat().st_size
        manifest["quantization_config_sha256"] = hash_json(section)

    edit(saved / MANIFEST_FILE, shrink)
    same(load_into_new(saved), quantized())
