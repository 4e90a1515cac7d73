"""vLLM's experts on xgemm, on stand-ins that have vLLM's signatures (vllm_interface.json)."""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import vllm_experts_standin as standin
import vllm_standin
from helpers import in_act_order, random_mxfp4

from xgemm.formats.describe import quantization_config
from xgemm.formats.foreign.nibbles import pack_nibbles
from xgemm.formats.packed import pack
from xgemm.formats.quantized import QuantizedWeight
from xgemm.nn import QuantExperts

INTERFACE = json.loads((Path(__file__).parent / "vllm_interface.json").read_text())
E, TOP, HIDDEN, INNER = 6, 2, 256, 128
METHODS = {name: getattr(standin, name) for name in INTERFACE["experts"]}
FORMATS = {"compressed-tensors": METHODS["CompressedTensorsWNA16MoEMethod"],
           "gptq": METHODS["AutoGPTQMoEMethod"], "awq": METHODS["AutoAWQMoEMethod"]}  # fmt: skip


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made = vllm_standin.install(monkeypatch, INTERFACE["cuda_kernels"])
    yield made["vllm"]
    standin.op_registry_oot.clear()


def register() -> None:
    from xgemm.vllm import register

    register()


def moe(**changes: Any) -> standin.FusedMoEConfig:
    sizes = {
        "num_experts": E, "experts_per_token": TOP, "hidden_dim": HIDDEN,
        "intermediate_size": INNER, "num_local_experts": E, "num_logical_experts": E,
    }  # fmt: skip
    return standin.FusedMoEConfig(**{**sizes, **changes})


def layer_of(method: Any, config: standin.FusedMoEConfig, **more: Any) -> Any:
    quant_config = SimpleNamespace(get_quant_method=lambda layer, prefix: method)
    return standin.RoutedExperts("model.layers.0.mlp.experts", config, quant_config, **more)


def weights(
    n: int, k: int, group_size: int, zeros: bool, dtype: torch.dtype, count: int = E
) -> list[QuantizedWeight]:
    g = torch.Generator().manual_seed(n + k + group_size)
    groups = 1 if group_size == -1 else k // group_size
    return [
        QuantizedWeight(
            torch.randint(16, (n, k), generator=g, dtype=torch.uint8),
            (torch.rand(groups, n, generator=g) * 0.02 + 0.002).to(dtype),
            torch.randint(16, (groups, n), generator=g).half() if zeros else None,
            None,
            group_size,
        )
        for _ in range(count)
    ]


def stored(name: str, q: QuantizedWeight) -> dict[str, torch.Tensor]:
    """The parameters of one expert's projection, as vLLM loads them."""
    if name == "compressed-tensors":
        parts = {"weight_packed": pack_nibbles(q.codes), "weight_scale": q.scales.t()}
        if q.zeros is not None:
            parts["weight_zero_point"] = pack_nibbles(q.zeros.byte()).t()
        return parts
    if name == "gptq":
        return {"qweight": pack_nibbles(q.codes).t(), "scales": q.scales}
    assert q.zeros is not None
    words = {"qweight": q.codes.t(), "qzeros": q.zeros.byte()}
    order = [0, 2, 4, 6, 1, 3, 5, 7]  # the column in each nibble of a word, lowest first
    parts = {
        key: pack_nibbles(columns.unflatten(1, (-1, 8))[..., order].flatten(1))
        for key, columns in words.items()
    }
    return {**parts, "scales": q.scales}


def loaded(
    name: str, config: standin.FusedMoEConfig, group_size: int, zeros: bool, **more: Any
) -> tuple[Any, list[QuantizedWeight], list[QuantizedWeight]]:
    """A layer with random weights, packed, and the weights of its two projections."""
    inner, dtype = config.intermediate_size, config.in_dtype
    up = weights(2 * inner, config.hidden_dim, group_size, zeros, dtype, config.num_local_experts)
    down = weights(config.hidden_dim, inner, group_size, zeros, dtype, config.num_local_experts)
    layer = layer_of(FORMATS[name](config, group_size, zeros), config, **more)
    for part, experts in (("w13", up), ("w2", down)):
        for e, q in enumerate(experts):
            for key, value in stored(name, q).items():
                getattr(layer, f"{part}_{key}").data[e].copy_(value)
    layer.quant_method.process_weights_after_loading(layer)
    return layer, up, down


ACTIVATIONS: dict[str, Any] = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}


def expected(
    x: torch.Tensor, ids: torch.Tensor, scale: torch.Tensor, up: Any, down: Any, act: str = "silu",
    biases: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:  # fmt: skip
    y = torch.zeros(x.shape[0], down[0].codes.shape[0], dtype=torch.float64)
    for t, row in enumerate(x.double()):
        for j, e in enumerate(ids[t].tolist()):
            if not 0 <= e < len(up):
                continue
            inner = row @ up[e].dequantize(torch.float64).t()
            inner = inner if biases is None else inner + biases[0][e].double()
            gate, rest = inner.chunk(2)
            out = (ACTIVATIONS[act](gate) * rest) @ down[e].dequantize(torch.float64).t()
            out = out if biases is None else out + biases[1][e].double()
            y[t] += scale[t, j].double() * out
    return y


def routed(tokens: int, dtype: torch.dtype, experts: int = E, k: int = TOP) -> Any:
    g = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, HIDDEN, generator=g).to(dtype)
    ids = torch.stack([torch.randperm(experts, generator=g)[:k] for _ in range(tokens)]).int()
    return x, ids, torch.rand(tokens, k, generator=g)


@pytest.mark.parametrize("name", METHODS)
def test_stand_ins_have_the_parameters_of_vllm(name):
    found = set()
    for has_bias in (False, True):
        config = moe(has_bias=has_bias)
        layer = layer_of(METHODS[name](config, 32, True), config)
        found |= {key for key in layer._parameters if key.startswith("w")}
    assert sorted(found) == INTERFACE["experts"][name]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("name", "group_size", "zeros"),
    [
        ("compressed-tensors", 128, False), ("compressed-tensors", 32, True),
        ("compressed-tensors", -1, False), ("gptq", 64, False), ("gptq", -1, False),
        ("awq", 64, True),
    ],
)  # fmt: skip
def test_experts_multiply_what_vllm_loads(name, group_size, zeros, dtype, monkeypatch):
    register()
    import xgemm.vllm.experts as experts

    monkeypatch.setattr(experts, "CODES_AT_ONCE", 2 * 2 * INNER * HIDDEN)  # two and two at once
    layer, up, down = loaded(name, moe(in_dtype=dtype), group_size, zeros)
    assert type(layer.quant_method).__name__ == "XgemmExpertsMethod"
    left = {key for key, _ in layer.named_parameters()}
    assert left == {"e_score_correction_bias", "up_qweight", "down_qweight"}
    x, ids, scale = routed(7, dtype)
    assert layer(x, ids, scale).dtype == dtype
    torch.testing.assert_close(
        layer(x, ids, scale).double(), expected(x, ids, scale, up, down), rtol=3e-2, atol=3e-2
    )


def test_columns_that_fill_no_row_are_packed_expert_by_expert():
    register()
    layer, up, down = loaded("gptq", moe(intermediate_size=40, hidden_dim=HIDDEN), -1, False)
    x, ids, scale = routed(5, torch.bfloat16)
    torch.testing.assert_close(
        layer(x, ids, scale).double(), expected(x, ids, scale, up, down), rtol=3e-2, atol=3e-2
    )


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_activations(act):
    register()
    config = moe(activation=standin.MoEActivation(act))
    layer, up, down = loaded("compressed-tensors", config, 128, False)
    x, ids, scale = routed(5, torch.bfloat16)
    torch.testing.assert_close(
        layer(x, ids, scale).double(), expected(x, ids, scale, up, down, act), rtol=3e-2, atol=3e-2
    )


@pytest.mark.parametrize("name", ["compressed-tensors", "gptq"])
def test_biases_are_added_where_there_are_any(name):
    register()
    config = moe(has_bias=True)
    layer = layer_of(FORMATS[name](config, 128, False), config)
    g = torch.Generator().manual_seed(1)
    biases = tuple(torch.randn(E, n, generator=g).bfloat16() for n in (2 * INNER, HIDDEN))
    up = weights(2 * INNER, HIDDEN, 128, False, torch.bfloat16)
    down = weights(HIDDEN, INNER, 128, False, torch.bfloat16)
    for part, experts, bias in (("w13", up, biases[0]), ("w2", down, biases[1])):
        getattr(layer, f"{part}_bias").data.copy_(bias)
        for e, q in enumerate(experts):
            for key, value in stored(name, q).items():
                getattr(layer, f"{part}_{key}").data[e].copy_(value)
    layer.quant_method.process_weights_after_loading(layer)
    x, ids, scale = routed(5, torch.bfloat16)
    torch.testing.assert_close(
        layer(x, ids, scale).double(), expected(x, ids, scale, up, down, biases=biases),
        rtol=3e-2, atol=3e-2,
    )  # fmt: skip


@pytest.mark.parametrize("id_dtype", [torch.int32, torch.int64], ids=str)
def test_gpus_that_share_the_experts_add_up(id_dtype):
    """expert_map has -1 for the experts of another GPU, whose slots count as 0 here."""
    register()
    x, ids, scale = routed(9, torch.bfloat16)
    total, up, down = torch.zeros(9, HIDDEN, dtype=torch.float64), [], []
    for rank in range(2):
        config = moe(num_local_experts=E // 2)
        mapped = torch.full((E,), -1, dtype=torch.int32)
        mapped[rank * E // 2 : (rank + 1) * E // 2] = torch.arange(E // 2, dtype=torch.int32)
        layer, *own = loaded("compressed-tensors", config, 128, False, expert_map=mapped)
        up, down = up + own[0], down + own[1]
        total += layer(x, ids.to(id_dtype), scale).double()
    torch.testing.assert_close(total, expected(x, ids, scale, up, down), rtol=3e-2, atol=3e-2)


def test_router_weights_go_on_the_input_where_vllm_says_so():
    register()
    config = moe(experts_per_token=1)
    layer, up, down = loaded("gptq", config, 128, False, apply_router_weight_on_input=True)
    x, ids, scale = routed(5, torch.bfloat16, k=1)
    weighted = (x * scale.bfloat16()).bfloat16()
    torch.testing.assert_close(
        layer(x, ids, scale).double(), expected(weighted, ids, torch.ones_like(scale), up, down),
        rtol=3e-2, atol=3e-2,
    )  # fmt: skip


def test_it_is_compiled_without_a_break():
    register()
    layer, *_ = loaded("compressed-tensors", moe(), 128, False)
    x, ids, scale = routed(5, torch.bfloat16)
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, ids, scale), layer(x, ids, scale))


# ---- xgemm's own directories ----


class Experts(torch.nn.Module):
    """As transformers holds them."""

    has_gate, has_bias, is_transposed = True, False, False

    def __init__(self, inner: int = INNER) -> None:
        super().__init__()
        self.num_experts = E
        g = torch.Generator().manual_seed(inner)
        shapes = {"gate_up_proj": (E, 2 * inner, HIDDEN), "down_proj": (E, HIDDEN, inner)}
        for name, shape in shapes.items():
            weight = torch.randn(shape, generator=g, dtype=torch.bfloat16) * 0.05
            self.register_parameter(name, torch.nn.Parameter(weight))
        self.act_fn = torch.nn.SiLU()


def directory(experts: Any) -> tuple[Any, list[tuple[str, torch.Tensor]]]:
    """vLLM's config of a directory with these experts, and what its files hold of them."""
    model = torch.nn.Module()
    model.experts = experts
    register()
    config = vllm_standin.methods["xgemm"].from_config(
        {**quantization_config(model), "save_id": "0" * 32}
    )
    config.modules = {f"model.layers.0.mlp.{name}": one for name, one in config.modules.items()}
    dropped = config.get_checkpoint_weight_mapper().orig_to_new_regex
    state = [
        (name.removeprefix("experts."), value)
        for name, value in model.state_dict().items()
        if not any(pattern.search(name) for pattern in dropped)
    ]
    return config, state


PREFIX = "model.layers.0.mlp.experts"


@pytest.mark.parametrize(
    ("group_size", "symmetric", "act_order"),
    [(128, True, False), (32, False, False), (-1, True, False), (32, True, True), ("fp4", 1, 0)],
)
def test_packed_experts_are_served(group_size, symmetric, act_order):
    if group_size == "fp4":
        sizes = {"gate_up_proj": (2 * INNER, HIDDEN), "down_proj": (HIDDEN, INNER)}
        made = {
            name: [pack(random_mxfp4(*size, (117, 121), seed=e)) for e in range(E)]
            for name, size in sizes.items()
        }
        experts = QuantExperts.from_packed(Experts(), made)
    elif act_order:
        experts = in_act_order(Experts(), group_size)
    else:
        experts = QuantExperts.from_experts(Experts(), group_size=group_size, symmetric=symmetric)
    config, state = directory(experts)
    layer = standin.RoutedExperts(PREFIX, moe(), config)
    assert len(list(layer.load_weights(state))) == len(state)
    layer.quant_method.process_weights_after_loading(layer)
    x, ids, scale = routed(7, torch.bfloat16)
    with torch.no_grad():
        wanted = experts(x, ids.long(), scale.bfloat16())
    torch.testing.assert_close(layer(x, ids, scale), wanted, rtol=3e-2, atol=3e-2)
    assert torch.equal(layer.w13_weight_qweight, experts.gate_up_proj_qweight)


@pytest.mark.parametrize(("group_size", "ranks"), [(128, 2), (128, 4), (32, 4), (-1, 2)])
def test_gpus_share_packed_experts(group_size, ranks):
    """64 or 128 inner channels each; every second GPU's begin within a group of 128."""
    experts = QuantExperts.from_experts(Experts(256), group_size=group_size)
    x, ids, scale = routed(7, torch.bfloat16)
    total = torch.zeros(7, HIDDEN, dtype=torch.float64)
    for rank in range(ranks):
        parallel = standin.FusedMoEParallelConfig(tp_size=ranks, tp_rank=rank)
        config, state = directory(experts)
        own = moe(intermediate_size=256, moe_parallel_config=parallel)
        layer = standin.RoutedExperts(PREFIX, own, config)
        list(layer.load_weights(state))
        layer.quant_method.process_weights_after_loading(layer)
        total += layer(x, ids, scale).double()
    wanted = experts.to_experts()
    floats = [[QuantizedRows(w) for w in part] for part in (wanted.gate_up_proj, wanted.down_proj)]
    torch.testing.assert_close(total, expected(x, ids, scale, *floats), rtol=3e-2, atol=3e-2)


class QuantizedRows:
    """A float weight in the place of a quantized one."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.codes = self.weight = weight.detach()

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        return self.weight.to(dtype)


def test_gpus_hold_packed_experts_of_their_own():
    experts = QuantExperts.from_experts(Experts(), group_size=128)
    x, ids, scale = routed(7, torch.bfloat16)
    total = torch.zeros(7, HIDDEN)
    for rank in range(2):
        mapped = torch.full((E,), -1, dtype=torch.int32)
        mapped[rank::2] = torch.arange(E // 2, dtype=torch.int32)
        config, state = directory(experts)
        own = moe(num_local_experts=E // 2)
        layer = standin.RoutedExperts(PREFIX, own, config, expert_map=mapped)
        list(layer.load_weights(state))
        layer.quant_method.process_weights_after_loading(layer)
        total += layer(x, ids, scale)
    with torch.no_grad():
        wanted = experts(x, ids.long(), scale).float()
    torch.testing.assert_close(total, wanted, rtol=3e-2, atol=3e-2)


def test_packed_experts_that_cannot_be_served_are_refused():
    experts = QuantExperts.from_experts(Experts(), group_size=128)
    config, state = directory(experts)
    for changes, reason in [
        ({"is_lora_enabled": True}, "LoRA is not taken"),
        (
            {"moe_parallel_config": standin.FusedMoEParallelConfig(tp_size=4)},
            "each of 4 GPUs must have a multiple of 64 of the 128 inner channels",
        ),
    ]:
        with pytest.raises(ValueError, match=f"xgemm: {PREFIX}: packed experts cannot") as error:
            standin.RoutedExperts(PREFIX, moe(**changes), config)
        assert str(error.value).endswith(reason)
    ordered, _ = directory(in_act_order(Experts()))
    parallel = standin.FusedMoEParallelConfig(tp_size=2)
    with pytest.raises(ValueError, match="cannot be split over 2 GPUs"):
        standin.RoutedExperts(PREFIX, moe(moe_parallel_config=parallel), ordered)
    layer = standin.RoutedExperts(PREFIX, moe(), config)
    wrong = [(name, value + 1 if "format" in name else value) for name, value in state]
    with pytest.raises(ValueError, match=f"xgemm: {PREFIX}: gate_up_proj|down_proj: layout_ver"):
        list(layer.load_weights(wrong))
    del config.modules[PREFIX]
    float_one = standin.RoutedExperts(PREFIX, moe(), config)
    assert type(float_one.quant_method) is standin.UnquantizedFusedMoEMethod


# ---- what is left to vLLM ----


def desc_act(own: Any) -> None:
    own.quant_config.desc_act = True


def eight_bits(own: Any) -> None:
    own.num_bits = own.quant_config.weight_bits = 8


def no_zeros(own: Any) -> None:
    own.quant_config.zero_point = False


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("gptq", desc_act, "an order of channels (act-order) is not taken"),
        ("gptq", eight_bits, "weights of 8 bits, symmetric: True, not taken"),
        ("compressed-tensors", eight_bits, "weights of 8 bits are not taken"),
        ("awq", no_zeros, "AWQ without zero points is not taken"),
    ],
)
def test_formats_that_are_not_taken_are_named(name, change, reason):
    register()
    import xgemm.vllm.experts as experts

    own = FORMATS[name](moe(), 32, name == "awq")
    change(own)
    assert experts.refusal(own, SimpleNamespace(moe_config=moe())) == reason
    assert type(layer_of(own, moe()).quant_method) is FORMATS[name]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"moe_backend": "marlin"}, "the backend marlin is asked for"),
        ({"is_lora_enabled": True}, "LoRA is not taken"),
        ({"in_dtype": torch.float32}, "activations of torch.float32 is not taken"),
        ({"activation": standin.MoEActivation.SWIGLUOAI}, "the activation swigluoai is not taken"),
        ({"activation": standin.MoEActivation.SILU_NO_MUL}, "silu_no_mul is not taken"),
        ({"swiglu_limit": 7.0}, "clamped gates is not taken"),
        ({"hidden_dim_unpadded": 250}, "padded hidden states is not taken"),
        ({"tp_shard_with_padding": True}, "padded shards is not taken"),
        ({"dp_size": 2}, "data parallelism is not taken"),
        ({"pcp_size": 2}, "prefill context parallelism is not taken"),
        ({"sp_size": 2}, "sequence parallelism is not taken"),
        ({"enable_eplb": True}, "load balancing of experts (EPLB) is not taken"),
    ],
    ids=str,
)
def test_layers_that_are_not_taken_are_named(changes, reason, caplog):
    parallel = {f.name for f in dataclasses.fields(standin.FusedMoEParallelConfig)}
    if changes.keys() <= parallel:
        changes = {"moe_parallel_config": standin.FusedMoEParallelConfig(**changes)}
    register()
    config = moe(**changes)
    own = FORMATS["gptq"](config, 32, False)
    with caplog.at_level(logging.DEBUG, logger="vllm.xgemm"):
        layer = layer_of(own, config)
    assert layer.quant_method is own
    assert caplog.messages[-1].endswith(reason)
    assert caplog.messages[-1].startswith("model.layers.0.mlp.experts stays with vLLM's own")


def test_another_group_size_and_batch_invariance_are_left(vllm):
    register()
    import xgemm.vllm.experts as experts

    layer = SimpleNamespace(moe_config=moe())
    own = FORMATS["gptq"](moe(), 16, False)
    assert experts.refusal(own, layer) == "a group size of 16 is not taken"
    vllm.envs.VLLM_BATCH_INVARIANT = True
    own = FORMATS["gptq"](moe(), 32, False)
    assert experts.refusal(own, layer) == "batch invariance of experts is not taken"
    other = standin.UnquantizedFusedMoEMethod(moe())
    assert experts.refusal(other, layer) == "UnquantizedFusedMoEMethod is not taken"


def test_switches_leave_the_experts_to_vllm(vllm, monkeypatch):
    own = FORMATS["gptq"](moe(), 32, False)
    monkeypatch.setenv("XGEMM_VLLM", "0")
    register()
    assert layer_of(own, moe()).quant_method is own
    monkeypatch.delenv("XGEMM_VLLM")
    register()
    register()
    assert layer_of(own, moe()).quant_method is not own
    vllm.envs.VLLM_DISABLED_KERNELS = ["XgemmExpertsMethod"]
    assert layer_of(own, moe()).quant_method is own


@pytest.mark.parametrize("what", ["field", "argument", "plugin"])
def test_another_vllm_keeps_its_experts_and_one_warning_says_why(what, monkeypatch, caplog):
    fused_moe = sys.modules["vllm.model_executor.layers.fused_moe"]
    if what == "field":
        fields = [(f.name, f.type) for f in dataclasses.fields(standin.FusedMoEConfig)]
        other = dataclasses.make_dataclass("FusedMoEConfig", [*fields, ("sinks", int)])
        monkeypatch.setattr(fused_moe, "FusedMoEConfig", other)
        reason = "FusedMoEConfig has a field 'sinks'"
    elif what == "argument":

        class Other(standin.FusedMoEMethodBase):
            def apply(self, layer: Any, x: Any) -> Any: ...  # type: ignore[override]

        monkeypatch.setattr(fused_moe, "FusedMoEMethodBase", Other)
        reason = "FusedMoEMethodBase.apply takes ['self', 'layer', 'x'], expected"
    else:
        standin.RoutedExperts.register_oot(type("Theirs", (standin.RoutedExperts,), {}))
        reason = "is in the place of vLLM's RoutedExperts"
    with caplog.at_level(logging.WARNING, logger="xgemm"):
        register()
    (message,) = caplog.messages
    assert reason in message
    assert message.endswith("vLLM's experts stay with its own kernels")
    linear = sys.modules["vllm.model_executor.kernels.linear"]
    kernels = linear._POSSIBLE_KERNELS[vllm_standin.PlatformEnum.CUDA]
    assert kernels[0].__name__ == "XgemmLinearKernel"
