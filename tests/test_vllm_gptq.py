"""GPTQ checkpoints that vLLM refuses, with act-order or zero points, on stand-ins for vLLM."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import pytest
import torch
import vllm_experts_standin as experts_standin
import vllm_standin as standin
from test_vllm import COLUMNS, K, random_weight, refused, register, vllm  # noqa: F401

from xgemm.formats.foreign.gptq import GptqWriter
from xgemm.formats.quantized import QuantizedWeight

pytestmark = pytest.mark.usefixtures("vllm")
CONFIG = {
    "quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True,
    "checkpoint_format": "gptq",
}  # fmt: skip


def method_of(names: list[str], **changes: Any) -> Any:
    register()
    config = standin.methods["xgemm_gptq"].from_config({**CONFIG, **changes})
    config.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    standin.metadata.clear()
    standin.metadata.update(dict.fromkeys(f"{name}.qweight" for name in names))
    standin.metadata.update(dict.fromkeys(f"{name}.scales" for name in (*names, "other")))
    config.maybe_update_config("some-model")
    return config


def weight(
    n: int, group_size: int = 128, zeros: bool = False, order: int | None = None
) -> QuantizedWeight:
    q = random_weight(n, K, group_size, zeros, torch.float16)
    if order is None:
        return q
    shuffled = torch.randperm(K, generator=torch.Generator().manual_seed(order))
    groups = (torch.arange(K) // group_size)[shuffled].to(torch.int32)
    return dataclasses.replace(q, g_idx=groups)


def state_of(q: QuantizedWeight, act_order: bool = True) -> dict[str, torch.Tensor]:
    state = GptqWriter(q.zeros is not None).tensors("layer", q)
    return state if act_order else {k: v for k, v in state.items() if k != "g_idx"}


@pytest.mark.parametrize(
    ("changes", "user", "taken"),
    [
        ({}, None, True),
        ({}, "gptq_marlin", True),
        ({}, "awq", False),
        ({"desc_act": False}, None, False),
        ({"desc_act": False, "sym": False}, None, True),
        ({"group_size": -1}, None, False),
        ({"bits": 8}, None, False),
        ({"quant_method": "awq"}, None, False),
    ],
)
def test_what_vllm_refuses_is_taken_over(changes, user, taken):
    register()
    override = standin.methods["xgemm_gptq"].override_quantization_method
    assert override({**CONFIG, **changes}, user) == ("xgemm_gptq" if taken else None)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(("orders", "products"), [((1, 1, 1), 1), ((1, 2, 3), 3), ((1, None), 2)])
def test_joined_linears_keep_their_orders(orders, products, size):
    names = list(COLUMNS)[: len(orders)]
    config = method_of([f"attn.{name}_proj" for name in names])
    config.packed_modules_mapping = {"qkv_proj": [f"{name}_proj" for name in names]}
    weights = [weight(COLUMNS[n], order=order) for n, order in zip(names, orders, strict=True)]
    x = torch.randn(5, K, dtype=torch.bfloat16)
    for rank in range(size):
        with standin.rank_of(rank, size):
            columns = [COLUMNS[name] for name in names]
            layer = standin.LinearBase(K, columns, config, "attn.qkv_proj")
            for name, q in zip(names, weights, strict=True):
                layer.load_state(state_of(q), name)
        layer.quant_method.process_weights_after_loading(layer)
        assert [name for name, _ in layer.named_parameters()] == ["qweight"]
        assert len(layer.xgemm_parts) == products
        shares = [q.dequantize(torch.float64).chunk(size)[rank] for q in weights]
        expected = x.double() @ torch.cat(shares).t()
        torch.testing.assert_close(layer(x).double(), expected, rtol=2e-2, atol=0.3)
    mapper = config.get_checkpoint_weight_mapper()
    assert mapper.orig_to_new_suffix == {}  # the orders are not dropped, as vLLM does


@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("group_size", [64, -1])
def test_ranks_that_split_zero_points_add_up(group_size, version):
    changes = {"desc_act": False, "sym": False, "checkpoint_format": version}
    config = method_of(["attn.o_proj"], group_size=group_size, **changes)
    q = weight(192, group_size, zeros=True)
    state = state_of(q, act_order=False)
    if version == "gptq":
        state["qzeros"] = state["qzeros"] - 0x11111111
    x = torch.randn(5, K, dtype=torch.float16)
    total = torch.zeros(5, 192, dtype=torch.float64)
    for rank in range(4):
        with standin.rank_of(rank, 4):
            layer = standin.LinearBase(K, [192], config, "attn.o_proj", "channels")
            layer.load_state(state)
        layer.quant_method.process_weights_after_loading(layer)
        total += layer(x.chunk(4, dim=1)[rank]).double()
    expected = x.double() @ q.dequantize(torch.float64).t()
    torch.testing.assert_close(total, expected, rtol=2e-2, atol=0.3)
    assert config.get_checkpoint_weight_mapper().orig_to_new_suffix == {".g_idx": None}


def test_batch_invariance_is_asked_for_compiled_too():
    sys.modules["vllm"].envs.VLLM_BATCH_INVARIANT = True
    layer = standin.LinearBase(K, [192], method_of(["attn.o_proj"]), "attn.o_proj")
    layer.load_state(state_of(weight(192, order=1)))
    layer.quant_method.process_weights_after_loading(layer)
    x = torch.randn(40, K, dtype=torch.bfloat16)
    rows = torch.cat([layer(row[None]) for row in x])
    assert torch.equal(layer(x), rows)
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), rows)


def test_what_is_not_served_is_named():
    with refused("dynamic: rules that change a layer's scheme"):
        method_of([], dynamic={"-:^head$": {}, "layers.1": {"bits": 8}})
    with refused("group_size must be one of (32, 64, 128, -1), got 16"):
        method_of([], group_size=16)
    config = method_of(["attn.o_proj", "attn.q_proj", "mlp.experts.0.up", "lm_head"])
    assert isinstance(
        config.get_quant_method(object.__new__(standin.LinearBase), "attn.other"),
        standin.UnquantizedLinearMethod,
    )
    with standin.rank_of(0, 2), refused("attn.o_proj: a weight with an order of channels"):
        standin.LinearBase(K, [192], config, "attn.o_proj", "channels")
    with refused("attn.o_proj: output columns must be multiples of 8, got [191]"):
        standin.LinearBase(K, [191], config, "attn.o_proj")
    with refused("all of them must be packed, attn.k_proj is not"):
        standin.LinearBase(K, list(COLUMNS.values()), config, "attn.qkv_proj")
    with refused("lm_head: an output head is not served from GPTQ's files"):
        config.get_quant_method(object.__new__(standin.ParallelLMHead), "lm_head")
    with refused("mlp.experts: vLLM cannot serve experts of GPTQ with act-order"):
        config.get_quant_method(object.__new__(experts_standin.RoutedExperts), "mlp.experts")
    layer = standin.LinearBase(K, [192], config, "attn.o_proj")
    state = state_of(weight(192, order=1))
    layer.load_state({**state, "g_idx": torch.zeros(K, dtype=torch.int32)})
    with refused("xgemm: attn.o_proj: "):
        layer.quant_method.process_weights_after_loading(layer)
    config = method_of(["attn.o_proj"], desc_act=False, sym=False)
    with standin.rank_of(0, 8), refused("must be a multiple of 128, got 64 of 512"):
        standin.LinearBase(K, [192], config, "attn.o_proj", "channels")
