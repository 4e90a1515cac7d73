"""Broken checkpoints of other tools are refused by file, tensor, what was expected and found."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("accelerate")
pytest.importorskip("transformers")

from foreign import (
    awq_config,
    awq_tensors,
    compressed_config,
    compressed_tensors,
    gptq_config,
    gptq_tensors,
    write_directory,
)
from hf_models import llama, mixtral
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import xgemm
import xgemm.hf

Q = "model.layers.1.self_attn.q_proj"
W2 = "model.layers.0.block_sparse_moe.experts.2.w2"


@pytest.fixture(scope="module")
def directories(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("foreign")
    tools: dict[str, tuple[dict, Any, dict]] = {
        "gptq": (gptq_config(), gptq_tensors, {"symmetric": True}),
        "awq": (awq_config(), awq_tensors, {}),
        "compressed": (compressed_config(symmetric=False), compressed_tensors, {}),
    }
    for name, (config, tensors_of, options) in tools.items():
        write_directory(root / name, llama(), config, tensors_of, **options)
    config, tensors_of, options = tools["gptq"]
    write_directory(root / "experts", mixtral(), config, tensors_of, **options)
    write_directory(root / "sharded", llama(), config, tensors_of, shards=2, **options)
    return {path.name: path for path in root.iterdir()}


def damaged(source: Path, to: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    shutil.copytree(source, to)
    tensors = load_file(to / "model.safetensors")
    change(tensors)
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    return to


def put(name: str, value: Callable[[torch.Tensor], torch.Tensor] | None) -> Callable[[dict], None]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value(tensors[name]).contiguous()

    return change


def first(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[0] = value
        return tensor

    return change


MISSING = r"\.scales is missing: of this layer the files hold"
TENSORS: dict[str, tuple[str, Callable[[dict], None], str]] = {
    "missing": ("gptq", put(f"{Q}.scales", None), Q.replace(".", r"\.") + MISSING),
    "rows": (
        "gptq",
        put(f"{Q}.qzeros", lambda t: t[:1]),
        r"model\.safetensors: model\.layers\.1.*qzeros must be int32 \[2, 8\], got int32 \[1, 8\]",
    ),
    "dtype": (
        "gptq",
        put(f"{Q}.qweight", lambda t: t.float()),
        r"qweight must be int32 \[8, 64\], got float32 \[8, 64\]",
    ),
    "rank": (
        "gptq",
        put(f"{Q}.qweight", lambda t: t[None]),
        r"qweight must have 2 dimensions, got \[1, 8, 64\]",
    ),
    "another-model": (
        "gptq",
        put(f"{Q}.g_idx", lambda t: t[:-1]),
        r"q_proj must be \[64, 64\], as model\.layers\.1\.self_attn\.q_proj\.weight is in the "
        r"model, got \[64, 63\]",
    ),
    "g_idx-high": (
        "gptq",
        put(f"{Q}.g_idx", first(2)),
        r"g_idx must be within 0\.\.1, got 0\.\.2",
    ),
    "g_idx-low": (
        "gptq",
        put(f"{Q}.g_idx", first(-1)),
        r"g_idx must be within 0\.\.1, got -1\.\.1",
    ),
    "g_idx-uneven": (
        "gptq",
        put(f"{Q}.g_idx", first(1)),
        r"q_proj: pack: g_idx must give every group 32 channels",
    ),
    "nan": ("awq", put(f"{Q}.scales", first(float("nan"))), r"scales must be finite"),
    "columns": (
        "awq",
        put(f"{Q}.qzeros", lambda t: t[:, 1:]),
        r"qzeros must be int32 \[2, 8\], got int32 \[2, 7\]",
    ),
    "weight_shape": (
        "compressed",
        put(f"{Q}.weight_shape", first(65)),
        r"weight_shape must be \[64, 57\.\.64\] for the int32 \[64, 8\] of weight_packed, "
        r"got \[65, 64\]",
    ),
    "zeros-range": (
        "compressed",
        put(f"{Q}.weight_zero_point", lambda t: torch.full((64, 2), 8, dtype=torch.int8)),
        r"weight_zero_point must be within -8\.\.7, got 8\.\.8",
    ),
    "no-zeros": (
        "compressed",
        put(f"{Q}.weight_zero_point", None),
        r"q_proj\.weight_zero_point is missing",
    ),
    "bias": (
        "gptq",
        lambda tensors: tensors.update({f"{Q}.bias": torch.ones(64)}),
        r"model\.safetensors: .*q_proj\.bias has no place in the model",
    ),
    "left-over": (
        "gptq",
        put(f"{Q}.qweight", None),
        r"q_proj\.(scales|qzeros|g_idx) has no place in the model, and is no tensor that a layer",
    ),
    "float": (
        "gptq",
        put("model.norm.weight", lambda t: t[:-1]),
        r"1 weight of another shape .* model\.norm\.weight is \[63\], must be \[64\]",
    ),
    "expert": (
        "experts",
        put(f"{W2}.qweight", None),
        r"mlp\.experts: down_proj is made of 4 layers for each of 1 names, got 3 quantized ones",
    ),
}


@pytest.mark.parametrize("case", TENSORS)
def test_a_tensor(case: str, directories, tmp_path: Path) -> None:
    name, change, message = TENSORS[case]
    path = damaged(directories[name], tmp_path / "damaged", change)
    with pytest.raises(ValueError, match=message):
        xgemm.load(path)


def values(**changes: Any) -> Callable[[dict], None]:
    return lambda section: section.update(changes)


def group(**changes: Any) -> Callable[[dict], None]:
    return lambda section: section["config_groups"]["group_0"].update(changes)


def weights(**changes: Any) -> Callable[[dict], None]:
    return lambda section: section["config_groups"]["group_0"]["weights"].update(changes)


CONFIGS: dict[str, tuple[str, Callable[[dict], None], str]] = {
    "bits": ("gptq", values(bits=3), r"config\.json: quantization_config: bits must be 4"),
    "no-bits": ("gptq", values(bits=None), "bits must be an int, got None"),
    "bits-type": ("awq", values(bits="4"), "bits must be an int, got '4'"),
    "format": ("gptq", values(checkpoint_format="bitblas"), "checkpoint_format must be 'gptq' or"),
    "marlin": ("gptq", values(checkpoint_format="marlin"), r"no file holds a tensor \*\.B"),
    "group_size": ("gptq", values(group_size=0), "group_size must be -1 or positive, got 0"),
    "group_size-other": (
        "awq",
        values(group_size=16),
        r"qzeros must be int32 \[10, 8\], got int32 \[5, 8\]",
    ),
    "dynamic": (
        "gptq",
        values(dynamic={"+:(": {}}),
        r"dynamic: \+:\( must be a regular expression",
    ),
    "dynamic-bits": (
        "gptq",
        values(dynamic={r"+:.*\.layers\.1\.self_attn.*": {"bits": 8}}),
        r"dynamic: .*: bits must be 4",
    ),
    "gemv": ("awq", values(version="gemv"), "version must be 'gemm', got 'gemv'"),
    "method": ("awq", values(quant_method="exl3"), "quant_method must be 'xgemm', 'gptq', 'awq'"),
    "bitsandbytes": (
        "awq",
        values(quant_method="bitsandbytes"),
        "quant_method must be .* got 'bitsandbytes' .*quantized again",
    ),
    "layout": ("compressed", values(format="float-quantized"), "format must be 'pack-quantized'"),
    "num_bits": ("compressed", weights(num_bits=8), "group_0: weights: num_bits must be 4"),
    "type": ("compressed", weights(type="float"), "type must be 'int', got 'float'"),
    "strategy": ("compressed", weights(strategy="block"), "strategy must be 'group', 'channel'"),
    "targets": ("compressed", group(targets="Linear"), "targets must be a list of strings"),
    "pattern": ("compressed", group(targets=["re:("]), "targets must be a regular expression"),
    "groups": ("compressed", values(config_groups={}), "config_groups must be an object with"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_config(case: str, directories, tmp_path: Path) -> None:
    name, change, message = CONFIGS[case]
    shutil.copytree(directories[name], tmp_path / "damaged")
    path = tmp_path / "damaged" / "config.json"
    config = json.loads(path.read_text())
    change(config["quantization_config"])
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        xgemm.load(tmp_path / "damaged")


def test_a_truncated_file(directories, tmp_path: Path) -> None:
    path = shutil.copytree(directories["gptq"], tmp_path / "damaged") / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"model\.safetensors: .*incomplete|not fully covered"):
        xgemm.load(tmp_path / "damaged")


@pytest.mark.parametrize("name", ["../elsewhere.safetensors", "/etc/passwd", "../model.bin"])
def test_an_index_that_names_other_files(name: str, directories, tmp_path: Path) -> None:
    path = shutil.copytree(directories["sharded"], tmp_path / "damaged")
    index = path / "model.safetensors.index.json"
    value = json.loads(index.read_text())
    value["weight_map"][f"{Q}.qweight"] = name
    index.write_text(json.dumps(value))
    rule = r"is not (the name of a checkpoint file|a file of the directory)"
    with pytest.raises(ValueError, match=rule):
        xgemm.load(path)


def test_a_missing_shard(directories, tmp_path: Path) -> None:
    path = shutil.copytree(directories["sharded"], tmp_path / "damaged")
    (path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model-00002-of-00002\.safetensors is missing"):
        xgemm.load(path)


class Bomb:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("exploded"),)


PICKLE = r"load: .*/{file} must be a \.safetensors file: .* nothing is unpickled"


@pytest.mark.parametrize("way", ["load", "convert", "take_over"])
@pytest.mark.parametrize("file", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin"])
def test_a_pickle_is_named_and_not_opened(
    way: str, file: str, directories, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = shutil.copytree(directories["gptq"], tmp_path / "damaged")
    (path / "model.safetensors").unlink()
    (path / file).write_bytes(pickle.dumps(Bomb()))
    if file != "pytorch_model.bin":
        index = {"metadata": {}, "weight_map": {f"{Q}.qweight": file}}
        (path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    ways = {
        "load": xgemm.load,
        "convert": lambda path: xgemm.hf.convert(path, tmp_path / "other", to="awq"),
        "take_over": AutoModelForCausalLM.from_pretrained,
    }
    if way == "take_over":
        xgemm.hf.take_over("gptq")
    try:
        with pytest.raises(ValueError, match=PICKLE.format(file=file)):
            ways[way](path)
    finally:
        xgemm.hf.give_back()
    assert not (tmp_path / "exploded").exists()
    assert not (tmp_path / "other").exists()


def test_an_index_that_names_a_pickle(directories, tmp_path: Path) -> None:
    path = shutil.copytree(directories["sharded"], tmp_path / "damaged")
    index = path / "model.safetensors.index.json"
    value = json.loads(index.read_text())
    value["weight_map"][f"{Q}.qweight"] = "model.bin"
    index.write_text(json.dumps(value))
    (path / "model.bin").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match=PICKLE.format(file=r"model\.bin")):
        xgemm.load(path)


def test_a_pickle_in_a_directory_of_xgemms(tmp_path: Path) -> None:
    model = xgemm.quantize(llama(), group_size=32)
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match=PICKLE.format(file=r"pytorch_model\.bin")):
        xgemm.load(tmp_path)
