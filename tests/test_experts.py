"""QuantExperts: each family of experts against transformers' own forward, state, gradients."""

from __future__ import annotations

import copy
import importlib
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import in_act_order, randn
from torch import nn

import xgemm
from xgemm.formats.guard import guards
from xgemm.formats.packed_format import PackedFormat
from xgemm.nn import QuantExperts
from xgemm.nn.float_experts import experts_projections

EXPERTS, HIDDEN, INNER, TOP_K = 5, 48, 40, 2

# Model, class, and what its config has beside the sizes.
FAMILIES = {
    "mixtral": "MixtralExperts",
    "qwen3_moe": "Qwen3MoeExperts",
    "gpt_oss": "GptOssExperts",
    "deepseek_v3": "DeepseekV3Experts",
    "qwen3_next": "Qwen3NextExperts",
    "deepseek_v4": "DeepseekV4Experts",
    "aria": "AriaExperts",
    "nemotron_h": "NemotronHExperts",
    "muse_spark": "MuseSparkExperts",
    "minimax_m3_vl": "MiniMaxM3VLExperts",
    "openai_privacy_filter": "OpenAIPrivacyFilterExperts",
    "granitemoe": "GraniteMoeExperts",
}


def experts_config(**changes: Any) -> SimpleNamespace:
    counts = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    return SimpleNamespace(
        **dict.fromkeys(counts, EXPERTS),
        hidden_size=HIDDEN,
        moe_hidden_size=HIDDEN,
        intermediate_size=INNER,
        moe_intermediate_size=INNER,
        moe_latent_size=None,
        hidden_act="silu",
        mlp_hidden_act="relu2",
        swiglu_alpha=1.7,
        swiglu_limit=0.5,
        post_norm_eps=1e-5,
        _experts_implementation="eager",
        **changes,
    )


def make(model: str, name: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Module:
    module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    experts = getattr(module, name)(experts_config())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in experts.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return experts.to(dtype).eval()


def routing(tokens: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(tokens, EXPERTS, generator=generator)
    weights, index = scores.topk(TOP_K, dim=-1)
    return index, weights


@pytest.fixture(params=FAMILIES.items(), ids=FAMILIES)
def family(request: pytest.FixtureRequest) -> nn.Module:
    pytest.importorskip("transformers")
    return make(*request.param)


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.dtype == expected.dtype
    scale = float(expected.abs().max())
    assert float((got - expected).abs().max()) <= 2e-6 * scale + 1e-7


@pytest.mark.parametrize("symmetric", [True, False])
def test_computes_what_transformers_does_with_the_dequantized_weights(
    family: nn.Module, symmetric: bool
) -> None:
    experts = QuantExperts.from_experts(family, group_size=32, symmetric=symmetric)
    reference = experts.to_experts()
    assert type(reference) is type(family)
    assert not experts.training
    x = randn((17, HIDDEN), torch.float32)
    index, weights = routing(17)
    with torch.no_grad():
        expected = reference(x, index, weights)
        got = experts(x, index, weights)
        float_model = family(x, index, weights)
        assert torch.equal(got, experts(x, index, weights))
    close(got, expected)
    # 4 bits of random weights are off by about a tenth, and more where a limit is near.
    error = float((got - float_model).norm() / float_model.norm())
    assert 1e-3 < error < 0.4


def test_gradients_are_those_of_the_dequantized_experts(family: nn.Module) -> None:
    experts = QuantExperts.from_experts(family, group_size=32)
    reference = experts.to_experts()
    x = randn((9, HIDDEN), torch.float32)
    index, weights = routing(9)
    inputs = []
    for module in (experts, reference):
        own = (x.clone().requires_grad_(), weights.clone().requires_grad_())
        biases = [p for n, p in module.named_parameters() if n.endswith("_bias")]
        y = module(own[0], index, own[1])
        inputs.append(torch.autograd.grad(y.square().sum(), (*own, *biases)))
    assert len(inputs[0]) == (4 if getattr(family, "has_bias", False) else 2)
    for got, expected in zip(*inputs, strict=True):
        assert float((got - expected).norm()) <= 1e-5 * float(expected.norm())


def test_the_sentinels_of_expert_parallelism_are_no_expert(family: nn.Module) -> None:
    experts = QuantExperts.from_experts(family, group_size=32)
    x = randn((6, HIDDEN), torch.float32)
    index, weights = routing(6)
    masked, without = index.clone(), weights.clone()
    masked[::2, 0], without[::2, 0] = EXPERTS + 3, 0.0
    weights.requires_grad_()
    got = experts(x, masked, weights)
    close(got.detach(), experts(x, index, without).detach())
    (grad,) = torch.autograd.grad(got.sum(), weights)
    assert bool((grad[::2, 0] == 0).all())
    assert bool((grad[1::2] != 0).all())
    for no_expert in (EXPERTS, -1):
        nothing = experts(x, torch.full_like(index, no_expert), weights)
        assert torch.equal(nothing, torch.zeros_like(x))
    masked[::2, 0] = -1
    assert torch.equal(got, experts(x, masked, weights))


def llama4(dtype: torch.dtype = torch.float32) -> nn.Module:
    return make("llama4", "Llama4TextExperts", dtype=dtype)


def test_llama4_gets_rows_for_every_expert() -> None:
    pytest.importorskip("transformers")
    experts = QuantExperts.from_experts(llama4(), group_size=32, symmetric=False)
    reference = experts.to_experts()
    tokens = 7
    index, weights = routing(tokens)
    scores = torch.zeros(tokens, EXPERTS).scatter_(1, index, weights)
    rows = randn((tokens, HIDDEN), torch.float32).repeat(EXPERTS, 1)
    routed = rows * scores.t().reshape(-1, 1)
    assert bool((routed == 0).all(dim=1).any())  # rows that are not computed
    results = []
    for module in (experts, reference):
        x = routed.clone().requires_grad_()
        y = module(x)
        results.append((y.detach(), torch.autograd.grad(y.square().sum(), x)[0]))
    for got, expected in zip(*results, strict=True):
        close(got, expected)


def test_llama4_needs_as_many_rows_for_each_expert() -> None:
    pytest.importorskip("transformers")
    experts = QuantExperts.from_experts(llama4(), group_size=32)
    with pytest.raises(ValueError, match=r"same number of rows for each of 5 experts, got \[7, 48"):
        experts(randn((7, HIDDEN), torch.float32))


@pytest.fixture
def mixtral() -> nn.Module:
    pytest.importorskip("transformers")
    return make("mixtral", "MixtralExperts")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(mixtral: nn.Module, dtype: torch.dtype) -> None:
    experts = QuantExperts.from_experts(mixtral.to(dtype), group_size=32)
    assert experts.compute_dtype == dtype
    x = randn((5, HIDDEN), dtype)
    index, weights = routing(5)
    y = experts(x, index, weights.to(dtype))
    assert y.dtype == dtype
    exact = experts.to_experts().double()(x.double(), index, weights.to(dtype).double()).detach()
    bound = 8 * torch.finfo(dtype).eps * float(exact.abs().max())
    assert float((y.double() - exact).abs().max()) <= bound
    # Weights of routing in float32, as some models have them: the result keeps the model's dtype.
    assert experts(x, index, weights).dtype == dtype


def test_a_tokens_result_does_not_depend_on_other_tokens_experts(mixtral: nn.Module) -> None:
    experts = QuantExperts.from_experts(mixtral, group_size=32)
    x = randn((4, HIDDEN), torch.float32)
    index = torch.tensor([[0, 1], [2, 3], [2, 4], [3, 4]])
    weights = torch.rand(4, 2)
    alone = experts(x[:1], index[:1], weights[:1])
    assert torch.equal(experts(x, index, weights)[:1], alone)


def test_autocast() -> None:
    pytest.importorskip("transformers")
    experts = QuantExperts.from_experts(make("gpt_oss", "GptOssExperts"), group_size=32)
    x = randn((5, HIDDEN), torch.float32)
    index, weights = routing(5)
    with torch.no_grad():
        wide = experts(x, index, weights)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = experts(x, index, weights)
    assert y.dtype == torch.float32
    assert 1e-5 < float((y - wide).norm() / wide.norm()) < 0.02


def test_no_tokens(mixtral: nn.Module) -> None:
    experts = QuantExperts.from_experts(mixtral, group_size=32)
    empty = torch.empty(0, TOP_K)
    assert experts(torch.empty(0, HIDDEN), empty.long(), empty).shape == (0, HIDDEN)


def test_compiles_without_a_break(mixtral: nn.Module) -> None:
    experts = QuantExperts.from_experts(mixtral, group_size=32)
    compiled = torch.compile(experts, backend="aot_eager", fullgraph=True, dynamic=True)
    for tokens in (3, 8):
        x = randn((tokens, HIDDEN), torch.float32).requires_grad_()
        index, weights = routing(tokens)
        y, expected = compiled(x, index, weights), experts(x, index, weights)
        close(y.detach(), expected.detach())
        (got,) = torch.autograd.grad(y.sum(), x)
        (grad,) = torch.autograd.grad(expected.sum(), x)
        close(got, grad)


def test_exported_and_without_data() -> None:
    pytest.importorskip("transformers")
    module = make("gpt_oss", "GptOssExperts")
    experts = QuantExperts.from_experts(module, group_size=32)
    arguments = (randn((5, HIDDEN), torch.float32), *routing(5))
    exported = torch.export.export(experts, arguments, strict=False)
    assert torch.equal(exported.module()(*arguments), experts(*arguments))
    empty = QuantExperts(module, experts.formats, device="meta").to("meta")
    y = empty(*(argument.to("meta") for argument in arguments))
    assert (y.shape, y.device.type) == ((5, HIDDEN), "meta")


def test_gradients_of_gradients(mixtral: nn.Module) -> None:
    experts = QuantExperts.from_experts(mixtral, group_size=32)
    index, weights = routing(7)
    results = []
    for module in (experts, experts.to_experts()):
        x = randn((7, HIDDEN), torch.float32).requires_grad_()
        (grad,) = torch.autograd.grad(module(x, index, weights).pow(2).sum(), x, create_graph=True)
        results.append(torch.autograd.grad(grad.sum(), x)[0])
    assert float((results[0] - results[1]).norm()) <= 1e-5 * float(results[1].norm())


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["mixtral", "gpt_oss", "nemotron_h"])
def test_on_a_gpu(name: str) -> None:
    pytest.importorskip("transformers")
    experts = QuantExperts.from_experts(make(name, FAMILIES[name]), group_size=32)
    index, weights = routing(33)
    index[3, 1] = EXPERTS  # no expert
    results = []
    for device in ("cpu", "cuda", "cuda"):
        x = randn((33, HIDDEN), torch.float32).to(device).requires_grad_()
        own = weights.to(device).requires_grad_()
        y = experts.to(device)(x, index.to(device), own)
        grads = torch.autograd.grad(y.square().sum(), (x, own))
        results.append([tensor.detach().cpu() for tensor in (y, *grads)])
    for on_cpu, on_gpu, again in zip(*results, strict=True):
        assert torch.equal(on_gpu, again)
        assert float((on_gpu - on_cpu).norm()) <= 1e-4 * float(on_cpu.norm())
    graph = torch.cuda.CUDAGraph()
    x = randn((33, HIDDEN), torch.float32).cuda().requires_grad_()
    arguments = (x, index.cuda(), weights.cuda())
    with pytest.raises(RuntimeError, match="cannot be captured"), torch.cuda.graph(graph):
        experts(*arguments)


# ---- state ----


def test_the_state_comes_back(family: nn.Module) -> None:
    experts = QuantExperts.from_experts(family, group_size=32, symmetric=False)
    state = experts.state_dict()
    assert {type(value) for value in state.values()} == {torch.Tensor}
    up = next(iter(experts.formats))
    assert state[f"{up}_packed_format"].tolist() == [1, *map(int, experts.formats[up])][:6]
    other = QuantExperts(family, experts.formats, device="meta")
    assert other.state_dict()[f"{up}_qweight"].is_meta
    other.load_state_dict(state, assign=True)
    x = randn((6, HIDDEN), torch.float32)
    arguments = (x, *routing(6))
    expected = experts(*arguments)
    for copied in (other, copy.deepcopy(experts), pickle.loads(pickle.dumps(experts))):
        assert torch.equal(copied(*arguments), expected)
    empty = QuantExperts(family, experts.formats, device="meta").to_empty(device="cpu")
    assert empty.down_proj_packed_format.tolist() == state["down_proj_packed_format"].tolist()


def test_a_state_of_another_format_is_refused(mixtral: nn.Module) -> None:
    experts = QuantExperts.from_experts(mixtral, group_size=32)
    other = QuantExperts.from_experts(mixtral, group_size=64)
    before = experts.gate_up_proj_qweight.clone()
    with pytest.raises(ValueError, match="gate_up_proj: group_size is 32 here, got 64"):
        experts.load_state_dict(other.state_dict())
    assert torch.equal(experts.gate_up_proj_qweight, before)
    with pytest.raises(
        ValueError, match=r"gate_up_proj must be uint8 without elements, .* got float32 \["
    ):
        experts.load_state_dict(mixtral.state_dict())
    state = experts.state_dict()
    state["down_proj_qweight"] = state["down_proj_qweight"].float()
    with pytest.raises(ValueError, match="down_proj_qweight must be uint8, got"):
        experts.load_state_dict(state)
    with pytest.raises(RuntimeError, match="QuantExperts: down_proj cannot be assigned: this wei"):
        experts.down_proj = torch.zeros(1)
    # A state of before, which has no guards, and one of a directory, which has one tensor more.
    state = experts.state_dict()
    experts.load_state_dict({**state, **guards(state)})
    experts.load_state_dict({name: t for name, t in state.items() if name not in guards(state)})


def test_dtype_follows_the_module_and_bytes_do_not() -> None:
    pytest.importorskip("transformers")
    experts = QuantExperts.from_experts(make("gpt_oss", "GptOssExperts"), group_size=32)
    before = experts.gate_up_proj_qweight.clone()
    experts.type(torch.float16)
    assert experts.gate_up_proj_bias.dtype == torch.float16
    experts.bfloat16()
    assert experts.compute_dtype == torch.bfloat16
    assert experts.gate_up_proj_bias.dtype == torch.bfloat16
    assert torch.equal(experts.gate_up_proj_qweight, before)
    experts.requires_grad_(True)
    assert experts.gate_up_proj_bias.requires_grad
    assert not experts.gate_up_proj_qweight.requires_grad
    y = experts(randn((3, HIDDEN), torch.bfloat16), *routing(3))
    assert y.dtype == torch.bfloat16


def test_the_float_weights_can_be_read(family: nn.Module) -> None:
    experts = QuantExperts.from_experts(family, group_size=32)
    for name in experts.formats:
        weight, source = getattr(experts, name), family._parameters[name]
        assert (weight.shape, weight.dtype) == (source.shape, source.dtype)
        assert torch.equal(weight + 0, experts.dequantize(name))
        error = (experts.dequantize(name) - source).detach().norm() / source.detach().norm()
        assert float(error) < 0.12
    with pytest.raises(RuntimeError, match="read-only"):
        experts.down_proj.zero_()
    missing = "up_proj" if "gate_up_proj" in experts.formats else "gate_up_proj"
    assert not hasattr(experts, missing)


def test_each_expert_is_quantized_by_itself(mixtral: nn.Module) -> None:
    experts = QuantExperts.from_experts(mixtral, group_size=64, symmetric=False)
    for e, packed in enumerate(experts.to_packed("gate_up_proj")):
        alone = xgemm.quantize_weight(mixtral.gate_up_proj[e], group_size=64, symmetric=False)
        got = xgemm.unpack(packed)
        assert torch.equal(got.codes, alone.codes)
        assert torch.equal(got.scales, alone.scales)


def test_one_expert_that_needs_bf16_scales_gives_them_to_all(mixtral: nn.Module) -> None:
    with torch.no_grad():
        mixtral.gate_up_proj[2] *= 1e-7
    experts = QuantExperts.from_experts(mixtral, group_size=32)
    assert experts.formats["gate_up_proj"].bf16_scales
    assert not experts.formats["down_proj"].bf16_scales
    for e, w in enumerate(mixtral.gate_up_proj.detach()):
        error = (experts.dequantize("gate_up_proj")[e] - w).norm() / w.norm()
        assert float(error) < 0.12


def test_act_order(mixtral: nn.Module) -> None:
    experts = in_act_order(mixtral)
    assert experts.down_proj_perm.shape == (EXPERTS, INNER)
    arguments = (randn((8, HIDDEN), torch.float32), *routing(8))
    close(experts(*arguments), experts.to_experts()(*arguments).detach())
    other = QuantExperts(mixtral, experts.formats, act_order=experts.formats, device="meta")
    other.load_state_dict(experts.state_dict(), assign=True)
    assert torch.equal(other(*arguments), experts(*arguments))
    state = experts.state_dict()
    state["down_proj_perm"][1, 0] = state["down_proj_perm"][1, 1]
    with pytest.raises(ValueError, match="down_proj_perm must hold each of"):
        other.load_state_dict(state)


# ---- what is refused ----


class OwnExperts(nn.Module):
    """A user's module that says how it computes."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self.num_experts = 2
        self.has_gate, self.has_bias, self.is_transposed = True, False, False
        self.gate_up_proj = nn.Parameter(torch.randn(2, 20, 32))
        self.down_proj = nn.Parameter(torch.randn(2, 32, 10))
        self.act_fn = nn.SiLU()
        self.__dict__.update(changes)


def test_a_users_own_module() -> None:
    module = OwnExperts()
    assert experts_projections(module) == {"gate_up_proj": (20, 32), "down_proj": (32, 10)}
    experts = QuantExperts.from_experts(module, group_size=32)
    x, index, weights = torch.randn(1, 32), torch.tensor([[1, 0]]), torch.tensor([[0.5, 2.0]])
    expected = torch.zeros(1, 32)
    for e, weight in ((1, 0.5), (0, 2.0)):
        gate, up = (x @ experts.dequantize("gate_up_proj")[e].t()).chunk(2, dim=-1)
        hidden = nn.functional.silu(gate) * up
        expected += weight * (hidden @ experts.dequantize("down_proj")[e].t())
    close(experts(x, index, weights), expected)


@pytest.mark.parametrize(
    "changes", [{"has_bias": True}, {"has_gate": None}, {"num_experts": 3}, {"has_gate": False}]
)
def test_modules_that_are_no_known_experts(changes: dict[str, Any]) -> None:
    module = OwnExperts(**changes)
    assert experts_projections(module) is None
    with pytest.raises(TypeError, match="in a form that is known, got OwnExperts"):
        QuantExperts.from_experts(module)
    assert experts_projections(nn.Linear(4, 4)) is None


def test_bad_calls_are_refused() -> None:
    experts = QuantExperts.from_experts(OwnExperts(), group_size=32)
    x, index, weights = torch.randn(3, 32), torch.zeros(3, 1).long(), torch.ones(3, 1)
    with pytest.raises(ValueError, match=r"must be \[tokens, k\], got \[3\] and \[3, 1\]"):
        experts(x, index[:, 0], weights)
    with pytest.raises(ValueError, match=r"with 3 tokens, got \[2, 32\]"):
        experts(x[:2], index, weights)
    with pytest.raises(ValueError, match="must have 32 channels, got 31"):
        experts(x[:, 1:], index, weights)
    with pytest.raises(ValueError, match="must be fp16, bf16 or fp32"):
        experts(x.double(), index, weights)
    form = experts.formats["down_proj"]
    with pytest.raises(ValueError, match=r"formats must name \['down_proj', 'gate_up_proj'\]"):
        QuantExperts(OwnExperts(), {"down_proj": form})
    with pytest.raises(ValueError, match=r"gate_up_proj is \[20, 32\] in the module, got"):
        QuantExperts(OwnExperts(), {"gate_up_proj": form, "down_proj": form})
    with pytest.raises(ValueError, match="name must be one of"):
        experts.dequantize("up_proj")
    wrong = {name: experts.to_packed(name)[:1] for name in experts.formats}
    with pytest.raises(ValueError, match="gate_up_proj must have 2 packed weights, got 1"):
        QuantExperts.from_packed(OwnExperts(), wrong)
    assert isinstance(form, PackedFormat)
