"""quantize: what it takes over of transformers' models, what it leaves, and what it says of it."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import xgemm
from xgemm.nn import QuantExperts, QuantLinear

transformers = pytest.importorskip("transformers")
TOKENS = torch.arange(1, 13)[None]
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 64,
}


def quantized(model: nn.Module, **options: Any) -> Any:
    """`model` quantized, whatever share of it that is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return xgemm.quantize(model.eval(), **{"group_size": 32, **options})


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


def mixtral(**options: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        **SMALL, intermediate_size=96, num_local_experts=4, num_experts_per_tok=2, **options
    )
    return transformers.MixtralForCausalLM(config).eval()


def test_gpt2s_conv1d() -> None:
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=64, n_layer=2, n_head=2, vocab_size=64, n_positions=32)
    ).eval()
    weight, bias = (
        model.transformer.h[0].mlp.c_fc.weight.detach(),
        model.transformer.h[0].mlp.c_fc.bias,
    )
    with torch.inference_mode():
        before = model(TOKENS).logits
        after = quantized(model)(TOKENS).logits
    report = model.xgemm_report
    assert len(report.quantized) == 8
    layer = model.transformer.h[0].mlp.c_fc
    assert type(layer) is QuantLinear
    assert (layer.out_features, layer.in_features) == (256, 64)
    assert layer.bias is bias
    expected = xgemm.quantize_weight(weight.t(), group_size=32)
    assert torch.equal(xgemm.unpack(layer.to_packed()).codes, expected.codes)
    assert relative_error(after, before) < 0.1
    assert report.left == {"lm_head": "its weight is tied to transformer.wte.weight"}


def test_falcons_linears() -> None:
    torch.manual_seed(0)
    config = transformers.FalconConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=64
    )
    model = transformers.FalconForCausalLM(config).eval()
    with torch.inference_mode():
        before = model(TOKENS).logits
        after = quantized(model)(TOKENS).logits
    assert len(model.xgemm_report.quantized) == 8
    assert relative_error(after, before) < 0.2


def test_experts() -> None:
    model = mixtral()
    experts = [layer.mlp.experts for layer in model.model.layers]
    with torch.inference_mode():
        before = model(TOKENS).logits
        after = quantized(model)(TOKENS).logits
    assert relative_error(after, before) < 0.2
    report = model.xgemm_report
    assert report.experts == ["model.layers.0.mlp.experts", "model.layers.1.mlp.experts"]
    assert set(report.experts) < set(report.quantized)
    assert len(report.quantized) == 2 * 5
    for layer, old in zip(model.model.layers, experts, strict=True):
        assert isinstance(layer.mlp.experts, QuantExperts)
        for e, packed in enumerate(layer.mlp.experts.to_packed("down_proj")):
            expected = xgemm.quantize_weight(old.down_proj[e], group_size=32)
            assert torch.equal(xgemm.unpack(packed).codes, expected.codes)
    packed_bytes = sum(p.numel() for p in model.parameters() if p.dtype == torch.uint8)
    assert report.bytes_after == packed_bytes
    assert "quantized 8 linear layers and 2 modules of experts (rtn" in str(report)
    before_quantizing = mixtral()
    total = sum(p.numel() for p in before_quantizing.parameters())
    weights = sum(
        p.numel()
        for name, p in before_quantizing.named_parameters()
        if "self_attn" in name or "experts" in name
    )
    assert report.parameters == total
    assert report.share_quantized == weights / total


def test_experts_can_be_skipped_and_are_named_then() -> None:
    model = mixtral()
    with pytest.warns(UserWarning, match="4 bits hold") as caught:
        xgemm.quantize(model, group_size=32, skip="*.experts")
    assert not model.xgemm_report.experts
    assert not isinstance(model.model.layers[0].mlp.experts, QuantExperts)
    text = str(caught[0].message)
    assert "model.layers.*.mlp.experts.gate_up_proj [4, 192, 64] (2 times)" in text
    assert "skip names it ('*.experts')" in text
    assert caught[0].filename == __file__


def test_routers_are_left() -> None:
    torch.manual_seed(0)
    config = transformers.Qwen2MoeConfig(
        **SMALL,
        intermediate_size=96,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        num_experts=4,
        num_experts_per_tok=2,
    )
    model = quantized(transformers.Qwen2MoeForCausalLM(config))
    left = model.xgemm_report.left
    assert left["model.layers.0.mlp.shared_expert_gate"] == "a router of experts"
    assert isinstance(model.model.layers[0].mlp.experts, QuantExperts)
    assert isinstance(model.model.layers[0].mlp.shared_expert.gate_proj, QuantLinear)
    assert model(TOKENS).logits.isfinite().all()


class Sparse(nn.Module):
    """A block of experts, each a module."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(32, 4)
        self.experts = nn.ModuleList([nn.Linear(32, 32) for _ in range(4)])
        self.gate_proj = nn.Linear(32, 32)


def test_a_gate_is_a_router_beside_experts_only() -> None:
    model = nn.Module()
    model.sparse, model.gate = Sparse(), nn.Linear(32, 32)
    report = quantized(model).xgemm_report
    assert report.left == {"sparse.gate": "a router of experts"}
    assert len(report.quantized) == 6


def bert(cls: str, **options: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=96,
        vocab_size=64,
        **options,
    )
    return getattr(transformers, cls)(config)


@pytest.mark.parametrize(
    ("cls", "head"),
    [
        ("BertForSequenceClassification", "classifier"),
        ("BertForQuestionAnswering", "qa_outputs"),
        ("BertModel", "pooler.dense"),
    ],
)
def test_classifiers_heads_are_left_unless_asked_for(cls: str, head: str) -> None:
    model = quantized(bert(cls))
    assert model.xgemm_report.left[head] == "a classifier's head"
    assert len(model.xgemm_report.quantized) == 6
    model = quantized(bert(cls), include=[head])
    assert head in model.xgemm_report.quantized
    assert model.xgemm_report.recipe["include"] == [head]


def test_a_users_classifier_with_hidden_layers_is_quantized() -> None:
    model = nn.Module()
    model.features = nn.Linear(32, 64)
    model.classifier = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    model.score = nn.Linear(64, 2)
    report = quantized(model).xgemm_report
    assert report.quantized == ["features", "classifier.0", "classifier.2"]
    assert report.left == {"score": "a classifier's head"}


class Own(nn.Linear):
    pass


def test_include_takes_what_is_left_by_default_and_no_more() -> None:
    model = nn.Sequential(nn.Linear(32, 32), Own(32, 32), nn.Linear(32, 32))
    model[2].register_full_backward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="include: 2 cannot be quantized: it has hooks"):
        quantized(model, include="2")
    with pytest.raises(ValueError, match="include: '3' matches no linear layer"):
        quantized(model, include="3")
    assert quantized(model, include="*").xgemm_report.quantized == ["0", "1"]
    assert model.xgemm_report.left == {"2": "it has hooks"}


def test_skip_is_stronger_than_include() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
    assert quantized(model, include="*", skip="0").xgemm_report.quantized == ["1"]


def test_computed_weights_are_left() -> None:
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(6)))
    nn.utils.parametrizations.weight_norm(model[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.utils.weight_norm(model[1])
    model[2].weight = None
    nn.utils.spectral_norm(model[3])
    prune.l1_unstructured(model[4], "weight", amount=0.3)
    report = quantized(model).xgemm_report
    assert report.left == {
        "0": "its weight is computed by a parametrization",
        "1": "its weight is computed by WeightNorm before each call",
        "2": "its weight is no parameter of its own",
        "3": "its weight is computed by SpectralNorm before each call",
        "4": "its weight is computed by L1Unstructured before each call",
    }
    assert report.quantized == ["5"]


def test_attentions_projection_is_left_to_attention() -> None:
    attention = nn.MultiheadAttention(32, 2, batch_first=True)
    model = nn.Sequential(attention, nn.Linear(32, 32)).eval()
    with pytest.raises(ValueError, match=r"0.out_proj cannot be quantized: torch.nn.MultiheadAtt"):
        quantized(model, include="0.out_proj")
    quantized(model)
    x = torch.randn(1, 3, 32)
    assert attention(x, x, x)[0].shape == x.shape


def test_modes_and_gradients_are_kept() -> None:
    model = mixtral().train()
    bias = nn.Parameter(torch.zeros(64), requires_grad=False)
    model.model.layers[0].self_attn.o_proj.bias = bias
    model.model.layers[1].eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        xgemm.quantize(model, group_size=32)
    first, second = model.model.layers
    assert first.mlp.experts.training
    assert not second.mlp.experts.training
    assert first.self_attn.q_proj.training
    assert not second.self_attn.q_proj.training
    assert first.self_attn.o_proj.bias is bias
    assert not bias.requires_grad


def test_tied_and_shared_experts() -> None:
    model = mixtral()
    first, second = (layer.mlp for layer in model.model.layers)
    second.experts = first.experts  # one module with two names
    quantized(model)
    assert first.experts is second.experts
    assert len(model.xgemm_report.experts) == 2
    model = mixtral()
    first, second = (layer.mlp for layer in model.model.layers)
    second.experts.down_proj = first.experts.down_proj  # two modules, one parameter
    quantized(model)
    reason = model.xgemm_report.left["model.layers.0.mlp.experts"]
    assert reason == "its weight is tied to model.layers.1.mlp.experts.down_proj"
    assert first.experts.down_proj is second.experts.down_proj


# ---- the report ----


def test_the_report_as_json() -> None:
    model = quantized(mixtral(), skip="*.q_proj")
    report = json.loads(json.dumps(model.xgemm_report.as_dict()))
    assert report["group_size"] == 32
    assert report["left"]["model.layers.0.self_attn.q_proj"] == "skip names it ('*.q_proj')"
    assert report["experts"] == ["model.layers.0.mlp.experts", "model.layers.1.mlp.experts"]
    kept = {entry["name"]: entry for entry in report["kept"]}
    embedding = kept["model.embed_tokens.weight"]
    assert embedding["shape"] == [64, 64]
    assert embedding["share"] == 64 * 64 / report["parameters"]
    assert embedding["reason"] == "an embedding, which is looked up"
    named = sum(entry["share"] for entry in report["kept"])
    assert 0.99 < named + report["share_quantized"] <= 1


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(32, 64, 5)
        self.up = nn.Linear(32, 64, bias=False)
        self.same = self.up


def test_the_warning_says_what_stays_and_why() -> None:
    with pytest.warns(UserWarning, match="4 bits hold") as caught:
        xgemm.quantize(Convolution(), group_size=32)
    total = 32 * 64 * 5 + 64 + 32 * 64
    share = 32 * 64 / total
    text = str(caught[0].message)
    assert f"4 bits hold {share:.1%} of the model's {total:,} parameters" in text
    assert f"conv.weight [64, 32, 5] {1 - share - 64 / total:.1%}: of Conv1d, which is no" in text


def test_no_warning_where_most_is_quantized() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        xgemm.quantize(model, group_size=32)
    assert model.xgemm_report.share_quantized > 0.9


def test_no_layer_at_all_is_an_error() -> None:
    with pytest.raises(
        ValueError, match=r"no layer of Sequential \(240 parameters\) was.*no linear"
    ):
        xgemm.quantize(nn.Sequential(nn.Conv1d(8, 6, 5, bias=False)))
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with pytest.raises(ValueError, match=r"was quantized: 0 and 1 more: skip names it \('\*'\)"):
        xgemm.quantize(model, skip="*")
    assert not hasattr(model, "xgemm_report")


def test_a_quantized_model_has_nothing_left() -> None:
    model = quantized(nn.Sequential(nn.Linear(32, 32)))
    with pytest.warns(UserWarning, match="no layer was left to quantize"):
        xgemm.quantize(model)
    assert model.xgemm_report.left == {"0": "already quantized"}
    assert model.xgemm_report.share_quantized == 1024 / (1024 + 32)
    with pytest.raises(ValueError, match="model is itself experts: use Quant"):
        xgemm.quantize(mixtral().model.layers[0].mlp.experts)


# ---- transformers and peft ----


def test_transformers_sees_a_quantized_model(tmp_path: Any) -> None:
    model = quantized(mixtral(), skip="*.k_proj")
    assert model.is_quantized
    assert model.config.quantization_config.skip == ["*.k_proj"]
    xgemm.save(model, tmp_path / "out")
    other = xgemm.load(tmp_path / "out")
    assert other.is_quantized
    assert other.config.quantization_config.group_size == 32
    assert isinstance(other.model.layers[0].mlp.experts, QuantExperts)
    with torch.inference_mode():
        assert torch.equal(other(TOKENS).logits, model(TOKENS).logits)
    # Saved again, the recipe is still there.
    xgemm.save(other, tmp_path / "again")
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert config["quantization_config"]["skip"] == ["*.k_proj"]


def test_after_peft_the_base_is_quantized_and_the_adapter_is_not() -> None:
    peft = pytest.importorskip("peft")
    model = bert("BertForSequenceClassification")
    config = peft.LoraConfig(
        r=4, target_modules=["query", "value"], modules_to_save=["classifier"], lora_alpha=8
    )
    model = quantized(peft.get_peft_model(model, config))
    names = {name: type(module) for name, module in model.named_modules()}
    query = "base_model.model.bert.encoder.layer.0.attention.self.query"
    assert names[f"{query}.base_layer"] is QuantLinear
    assert names[f"{query}.lora_A.default"] is nn.Linear
    left = model.xgemm_report.left
    assert left[f"{query}.lora_B.default"] == "an adapter's weight"
    head = "base_model.model.classifier"
    assert left[f"{head}.modules_to_save.default"] == "peft trains a copy of it (modules_to_save)"
    assert left[f"{head}.original_module"] == "peft trains a copy of it (modules_to_save)"
    assert f"{query.replace('query', 'key')}" in model.xgemm_report.quantized
    model(input_ids=TOKENS).logits.sum().backward()
    weight = model.get_submodule(f"{query}.lora_B.default").weight
    assert float(weight.grad.norm()) > 0
