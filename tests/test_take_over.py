"""take_over: plain from_pretrained of other tools' checkpoints, and the memory of loading them."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
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
    unpacked,
    write_directory,
)
from hf_models import assert_same, llama, mixtral, quantized_names
from safetensors.torch import save_file
from transformers import AutoModel, AutoModelForCausalLM, LlamaConfig
from transformers.quantizers import auto

import xgemm
import xgemm.hf
from xgemm.nn import QuantLinear

pytestmark = pytest.mark.usefixtures("one_thread")

METHODS: dict[str, tuple[dict[str, Any], Any]] = {
    "gptq": (gptq_config(sym=False), gptq_tensors),
    "awq": (awq_config(), awq_tensors),
    "hqq": (hqq_config(), hqq_tensors),
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


MEMORY = """
import sys, threading, time
import torch, transformers, xgemm
import xgemm.hf

torch.set_num_threads(1)

def anonymous():  # bytes of memory that no file backs
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])

xgemm.load(sys.argv[1])  # what is imported on the way
before, peak, over = anonymous(), 0, False

def watch():
    global peak
    while not over:
        peak = max(peak, anonymous())
        time.sleep(0.002)

thread = threading.Thread(target=watch)
thread.start()
model = xgemm.load(sys.argv[2])
over = True
thread.join()
print(peak - before, sum(p.numel() * p.element_size() for p in model.parameters()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_while_loading_is_the_packed_model_and_one_layer(directories, tmp_path) -> None:
    """21 layers of 4.2 M and 1 M weights: 29 MB packed, and 101 MB as fp16."""
    hidden, inner, count = 1024, 4096, 3
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=count,
        num_attention_heads=8,
        vocab_size=64,
        architectures=["LlamaForCausalLM"],
        dtype="float16",
    )
    tensors = {
        f"{name}.weight": torch.zeros(64, hidden).half()
        for name in ("model.embed_tokens", "lm_head")
    }
    tensors["model.norm.weight"] = torch.ones(hidden).half()
    sizes = {f"self_attn.{p}_proj": (hidden, hidden) for p in "qkvo"}
    sizes |= {"mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden)}
    sizes["mlp.down_proj"] = (hidden, inner)
    for i in range(count):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{i}.{norm}.weight"] = torch.ones(hidden).half()
        for layer, (n, k) in sizes.items():
            name = f"model.layers.{i}.{layer}"
            tensors[f"{name}.qweight"] = torch.randint(-(2**31), 2**31, (k // 8, n)).int()
            tensors[f"{name}.qzeros"] = torch.full((k // 32, n // 8), 0x77777777).int()
            tensors[f"{name}.scales"] = torch.ones(k // 32, n).half()
            tensors[f"{name}.g_idx"] = (torch.arange(k) // 32).int()
    config.save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    values["quantization_config"] = gptq_config()
    (tmp_path / "config.json").write_text(json.dumps(values))
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    found = subprocess.run(
        [sys.executable, "-c", MEMORY, directories["gptq"], tmp_path],
        capture_output=True,
        text=True,
        check=True,
    )
    peak, packed = map(int, found.stdout.split()[-2:])
    largest = inner * hidden  # codes of one layer, a byte each
    floats = 2 * count * sum(n * k for n, k in sizes.values())
    assert packed < 0.35 * floats
    assert peak < packed + 6 * largest, (peak, packed)
    assert peak < 0.7 * floats
