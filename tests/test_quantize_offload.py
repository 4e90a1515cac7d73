"""quantize on a model that accelerate has dispatched: hooks are kept, offloaded layers stay so."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from test_quantize_models import TOKENS, mixtral
from torch import nn

import xgemm
from xgemm.nn import QuantExperts, QuantLinear

accelerate = pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")


def quantize(model: nn.Module, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return xgemm.quantize(model, **{"group_size": 32, **options})


def logits(model: nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        return model(TOKENS).logits


@pytest.fixture
def expected() -> torch.Tensor:
    return logits(quantize(mixtral()))


def test_hooks_move_to_the_new_layers(expected: torch.Tensor) -> None:
    model = mixtral()
    for module in model.modules():
        if next(module.parameters(recurse=False), None) is not None:
            hook = accelerate.hooks.AlignDevicesHook("cpu", io_same_device=True)
            accelerate.hooks.add_hook_to_module(module, hook)
    attention, mlp = model.model.layers[0].self_attn, model.model.layers[0].mlp
    hooks = attention.q_proj._hf_hook, mlp.experts._hf_hook
    quantize(model)
    assert isinstance(attention.q_proj, QuantLinear)
    assert isinstance(mlp.experts, QuantExperts)
    assert (attention.q_proj._hf_hook, mlp.experts._hf_hook) == hooks
    assert torch.equal(logits(model), expected)
    calls = []
    hooks[0].pre_forward = lambda module, *args, **kwargs: (calls.append(module), (args, kwargs))[1]
    logits(model)
    assert calls == [attention.q_proj]
    accelerate.hooks.remove_hook_from_submodules(model)
    assert torch.equal(logits(model), expected)


def test_offloaded_to_memory(expected: torch.Tensor, tmp_path: Path) -> None:
    model = mixtral()
    state = dict(model.state_dict())
    accelerate.cpu_offload(model, execution_device="cpu", state_dict=state)
    assert model.model.layers[0].self_attn.q_proj.weight.is_meta
    quantize(model)
    layer = model.model.layers[0]
    assert layer.self_attn.q_proj.qweight.is_meta
    assert layer.mlp.experts.gate_up_proj_qweight.is_meta
    # The packed weights have taken the place of the float ones in the map.
    assert "model.layers.0.self_attn.q_proj.weight" not in state
    assert "model.layers.0.mlp.experts.down_proj" not in state
    assert state["model.layers.0.self_attn.q_proj.qweight"].dtype == torch.uint8
    assert torch.equal(logits(model), expected)
    assert layer.self_attn.q_proj.qweight.is_meta
    xgemm.save(model, tmp_path / "out")
    assert torch.equal(logits(xgemm.load(tmp_path / "out")), expected)
    accelerate.hooks.remove_hook_from_submodules(model)
    assert torch.equal(logits(model), expected)


def test_offloaded_to_disk(expected: torch.Tensor, tmp_path: Path) -> None:
    model = mixtral()
    accelerate.disk_offload(model, tmp_path, execution_device="cpu")
    quantize(model)
    layer = model.model.layers[1]
    assert isinstance(layer.mlp.experts, QuantExperts)
    assert layer.self_attn.k_proj.qweight.is_meta
    weights_map = layer.self_attn.k_proj._hf_hook.weights_map
    assert not weights_map.dataset.state_dict  # nothing went into memory
    xgemm.save(model, tmp_path / "out")
    assert torch.equal(logits(xgemm.load(tmp_path / "out")), expected)
    assert (tmp_path / "model.layers.1.self_attn.k_proj.qweight.dat").is_file()
    assert torch.equal(logits(model), expected)
    assert "model.layers.1.self_attn.k_proj.weight" not in list(weights_map.dataset)


def test_a_device_map_with_memory_and_disk(expected: torch.Tensor, tmp_path: Path) -> None:
    mixtral().save_pretrained(tmp_path / "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "model",
        device_map={"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk",
                    "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"},
        offload_folder=tmp_path / "offload",
    )  # fmt: skip
    assert model.model.layers[1].self_attn.q_proj.weight.is_meta
    quantize(model)
    assert len(model.xgemm_report.quantized) == 10
    assert model.model.layers[1].self_attn.q_proj.qweight.is_meta
    assert not model.model.layers[0].self_attn.q_proj.qweight.is_meta
    assert torch.equal(logits(model), expected)


def test_an_error_leaves_an_offloaded_model_as_it_was() -> None:
    model = mixtral()
    with torch.no_grad():
        model.model.layers[1].self_attn.o_proj.weight[1, 2] = float("inf")
    before = logits(model)
    accelerate.cpu_offload(model, execution_device="cpu")
    with pytest.raises(ValueError, match=r"layers.1.self_attn.o_proj: .*finite, got inf at \[1, 2"):
        quantize(model)
    assert not any(isinstance(m, QuantLinear | QuantExperts) for m in model.modules())
    assert model.model.layers[0].self_attn.q_proj.weight.is_meta
    assert torch.equal(logits(model).isnan(), before.isnan())


def test_a_weight_that_nobody_brings_is_refused_with_what_to_do() -> None:
    model = mixtral().to("meta")
    with pytest.raises(
        ValueError, match=r"q_proj: .*on the meta device\) and no hook.*XgemmConfig"
    ):
        quantize(model)


def test_a_forward_that_was_replaced_is_left_also_under_a_hook() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
    own = model[0].forward
    model[0].forward = lambda x: own(x) + 1
    accelerate.hooks.add_hook_to_module(model[0], accelerate.hooks.AlignDevicesHook("cpu"))
    accelerate.hooks.add_hook_to_module(model[1], accelerate.hooks.AlignDevicesHook("cpu"))
    quantize(model)
    assert model.xgemm_report.left == {"0": "it has hooks"}
    assert model.xgemm_report.quantized == ["1"]
