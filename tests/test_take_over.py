"""take_over: plain from_pretrained of other tools' checkpoints, and the memory of loading them."""

from __future__ import annotations

import json
import logging
import shutil
import sys
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
    hqq_config,
    hqq_tensors,
    same_weight,
    torchao_config,
    torchao_tensors,
    unpacked,
    write_directory,
)
from foreign_memory import LARGEST, peak_memory, write_large
from hf_models import assert_same, llama, mixtral, quantized_names
from transformers import AutoModel, AutoModelForCausalLM
from transformers.quantizers import auto

import xgemm
import xgemm.hf
from xgemm.nn import QuantLinear

pytestmark = pytest.mark.usefixtures("one_thread")

METHODS: dict[str, tuple[dict[str, Any], Any]] = {
    "gptq": (gptq_config(sym=False), gptq_tensors),
    "awq": (awq_config(), awq_tensors),
    "hqq": (hqq_config(), hqq_tensors),
    "torchao": (torchao_config(), torchao_tensors),
    "compressed-tensors": (compressed_config(symmetric=False), compressed_tensors),
}


@pytest.fixture(scope="module")
def directories(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("foreign")
    for method, (config, tensors_of) in METHODS.items():
        write_directory(root / method, llama(), config, tensors_of, shards=2)
    return {method: root / method for method in METHODS}


@pytest.fixture(autouse=True)
def _given_back():
    before = dict(auto.AUTO_QUANTIZER_MAPPING), dict(auto.AUTO_QUANTIZATION_CONFIG_MAPPING)
    yield
    xgemm.hf.give_back()
    assert before == (auto.AUTO_QUANTIZER_MAPPING, auto.AUTO_QUANTIZATION_CONFIG_MAPPING)


@pytest.mark.parametrize("method", METHODS)
def test_from_pretrained_makes_what_load_makes(method: str, directories, tmp_path: Path) -> None:
    xgemm.hf.take_over(method)
    xgemm.hf.take_over(method)  # again: no difference
    model, info = AutoModelForCausalLM.from_pretrained(
        directories[method], output_loading_info=True
    )
    assert not any(info.values()), info
    loaded: Any = xgemm.load(directories[method])
    assert quantized_names(model) == quantized_names(loaded)
    assert len(quantized_names(model)) == 14
    for name in quantized_names(model):
        a, b = model.get_submodule(name), loaded.get_submodule(name)
        assert type(a) is QuantLinear
        assert same_weight(unpacked(a), unpacked(b))
    assert_same(model, loaded)
    assert model.config.quantization_config.quant_method == "xgemm"
    model.save_pretrained(tmp_path / "saved")
    assert_same(AutoModelForCausalLM.from_pretrained(tmp_path / "saved"), model)


@pytest.mark.parametrize("device_map", ["auto", {"": "cpu"}])
def test_device_map_dtype_and_the_bare_model(directories, device_map) -> None:
    xgemm.hf.take_over("gptq", "awq")
    model = AutoModelForCausalLM.from_pretrained(
        directories["awq"], device_map=device_map, dtype=torch.bfloat16
    )
    layer = model.model.layers[0].mlp.up_proj
    assert (model.dtype, layer.compute_dtype) == (torch.bfloat16, torch.bfloat16)
    bare = AutoModel.from_pretrained(directories["awq"], dtype=torch.bfloat16)
    assert_same(bare, model.model)


def test_experts_through_from_pretrained(tmp_path: Path) -> None:
    xgemm.hf.take_over("compressed-tensors")
    config, tensors_of = METHODS["compressed-tensors"]
    write_directory(tmp_path / "its", mixtral(), config, tensors_of, shards=4)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "its")
    assert_same(model, xgemm.load(tmp_path / "its"))


def test_what_is_not_of_four_bits_stays_with_transformers(
    directories, tmp_path: Path, caplog
) -> None:
    path = shutil.copytree(directories["gptq"], tmp_path / "its") / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["bits"] = 8
    path.write_text(json.dumps(config))
    xgemm.hf.take_over("gptq")
    with (
        caplog.at_level(logging.WARNING, logger="xgemm"),
        pytest.raises(ImportError, match="optimum"),
    ):
        AutoModelForCausalLM.from_pretrained(tmp_path / "its")
    assert "bits must be 4: xgemm has 4-bit kernels, got 8" in caplog.text


def test_methods_are_checked() -> None:
    with pytest.raises(ValueError, match=r"take_over: method must be one of 'gptq'.*got 'hqq2'"):
        xgemm.hf.take_over("hqq2")
    with pytest.raises(ValueError, match="take_over: name a method"):
        xgemm.hf.take_over()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_while_loading_is_the_packed_model_and_one_layer(directories, tmp_path) -> None:
    """21 layers of 4.2 M and 1 M weights: 29 MB packed, and 101 MB as fp16."""
    floats = write_large(tmp_path / "its", blocks=3)
    peak, packed = peak_memory(
        "import xgemm, transformers, xgemm.hf; xgemm.load(argv[0])",
        "result = sum(t.nbytes for t in xgemm.load(argv[1]).parameters())",
        *(directories["gptq"], tmp_path / "its"),
    )
    assert packed < 0.35 * floats
    assert peak < packed + 6 * LARGEST, (peak, packed)
    assert peak < 0.7 * floats
