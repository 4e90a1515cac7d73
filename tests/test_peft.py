"""peft over packed layers: what it gives over the dequantized layers, it gives over these."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

peft = pytest.importorskip("peft")

from adapters import (  # noqa: E402
    LAYERS,
    LINEARS,
    adapted,
    float_twin,
    gradients,
    llama,
    logits,
    lora,
    loss,
    mixtral,
    quantized,
    scatter,
    tokens,
)
from torch.testing import assert_close  # noqa: E402

from xgemm.hf.peft import prepare_for_training  # noqa: E402
from xgemm.nn import QuantLinear  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

LORA = {
    "all-linear": lora(),
    "listed": lora(target_modules=["q_proj", "down_proj"]),
    "rslora": lora(use_rslora=True),
    "dora": lora(use_dora=True),
    "bias=lora_only": lora(bias="lora_only"),
    "lora_bias": lora(lora_bias=True, target_modules=["q_proj"]),
    "rank_pattern": lora(rank_pattern={"q_proj": 2}, alpha_pattern={"down_proj": 3}),
    "modules_to_save": lora(modules_to_save=["lm_head"]),
    "trainable_tokens": lora(trainable_token_indices=[1, 2]),
    "orthogonal": lora(init_lora_weights="orthogonal"),
}
Q = {"target_modules": ["q_proj"]}
OTHERS = {
    "ia3": peft.IA3Config(
        target_modules=["q_proj", "down_proj"],
        feedforward_modules=["down_proj"],
        task_type="CAUSAL_LM",
    ),
    "vera": peft.VeraConfig(r=4, **Q),
    "loha": peft.LoHaConfig(r=4, **Q),
    "lokr": peft.LoKrConfig(r=4, **Q),
    "adalora": peft.AdaLoraConfig(init_r=4, total_step=9, tinit=1, tfinal=1, **Q),
    "oft": peft.OFTConfig(oft_block_size=4, **Q),
    "hra": peft.HRAConfig(**Q),
    "fourierft": peft.FourierFTConfig(n_frequency=10, **Q),
    "vblora": peft.VBLoRAConfig(num_vectors=8, vector_length=16, topk=1, **Q),
    "randlora": peft.RandLoraConfig(r=4, **Q),
    "prompt": peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"),
    "prefix": peft.PrefixTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"),
}


@pytest.mark.parametrize("config", [*LORA.values(), *OTHERS.values()], ids=[*LORA, *OTHERS])
def test_outputs_and_gradients_are_those_of_the_float_twin(config: Any) -> None:
    base = quantized()
    twin = adapted(float_twin(base), config)
    model = adapted(base, config)
    assert_close(logits(model), logits(twin), rtol=1e-4, atol=1e-5)
    found, expected = gradients(model), gradients(twin)
    assert list(found) == list(expected)
    assert found
    for name, gradient in found.items():
        assert_close(gradient, expected[name], rtol=1e-3, atol=1e-5, msg=name)
    assert any(gradient.abs().max() > 1e-4 for gradient in found.values())


def test_all_linear_wraps_every_packed_layer_and_trains_no_weight_of_the_base() -> None:
    model = peft.get_peft_model(quantized(), lora())
    wrapped = [m for m in model.modules() if isinstance(m, peft.tuners.lora.LoraLayer)]
    assert len(wrapped) == LAYERS * LINEARS
    assert all(type(layer.base_layer) is QuantLinear for layer in wrapped)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert len(trained) == 2 * len(wrapped)
    assert all("lora_" in name for name in trained)


@pytest.mark.parametrize("method", ["pissa", "pissa_niter_2", "olora"])
def test_an_initialization_that_changes_the_base_weight_is_refused(method: str) -> None:
    with pytest.raises(RuntimeError, match="changes the base weight needs the float model"):
        peft.get_peft_model(quantized(), lora(init_lora_weights=method))


def test_packed_bytes_are_no_target_parameters() -> None:
    config = lora(target_modules=[], target_parameters=["mlp.up_proj.weight"])
    with pytest.raises(ValueError, match="target_parameters"):
        peft.get_peft_model(quantized(), config)


@pytest.mark.parametrize(
    "targets",
    [
        {"target_modules": "all-linear"},
        {"target_modules": ["q_proj", "w1", "w2", "w3"]},
        {"target_modules": ["q_proj"], "target_parameters": ["experts.down_proj"]},
        {"target_modules": ["q_proj"], "target_parameters": ["experts.gate_up_proj_qweight"]},
    ],
)
def test_lora_over_packed_experts_is_refused(targets: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="LoRA over packed experts is not supported: name the"):
        peft.get_peft_model(mixtral(), peft.LoraConfig(**targets))


def test_layers_beside_packed_experts_are_adapted() -> None:
    config = lora(target_modules=["q_proj", "v_proj"])
    twin = mixtral()
    for layer in twin.model.layers:
        layer.mlp.experts = layer.mlp.experts.to_experts()
    twin, model = adapted(twin, config), adapted(mixtral(), config)
    assert_close(logits(model), logits(twin), rtol=1e-4, atol=1e-5)
    found, expected = gradients(model), gradients(twin)
    assert len(found) == 4 * LAYERS
    for name, gradient in found.items():
        assert_close(gradient, expected[name], rtol=1e-3, atol=1e-5, msg=name)


def test_an_adapter_of_float_experts_is_not_loaded_without_them(tmp_path: Path) -> None:
    base = mixtral()
    for layer in base.model.layers:
        layer.mlp.experts = layer.mlp.experts.to_experts()
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "w1", "w2", "w3"])
    peft.get_peft_model(base, config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="LoRA over packed experts is not supported"):
        peft.PeftModel.from_pretrained(mixtral(), tmp_path)


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_small_adapter_learns(dtype: torch.dtype, use_reentrant: bool) -> None:
    model = prepare_for_training(
        quantized(dtype), gradient_checkpointing_kwargs={"use_reentrant": use_reentrant}
    )
    torch.manual_seed(0)
    model = peft.get_peft_model(model, lora()).train()
    packed = {n: p.clone() for n, p in model.named_parameters() if n.endswith("qweight")}
    trained = [p for p in model.parameters() if p.requires_grad]
    assert {p.dtype for p in trained} == {torch.float32}
    optimizer = torch.optim.AdamW(trained, lr=5e-3)
    losses = []
    for _ in range(8):
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            value = loss(model)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(value.item())
    assert losses[-1] < 0.8 * losses[0], losses
    assert all(torch.equal(packed[n], p) for n, p in model.named_parameters() if n in packed)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_changes_no_gradient(use_reentrant: bool) -> None:
    plain = gradients(adapted(quantized(), lora()).train())
    base = prepare_for_training(
        quantized(), gradient_checkpointing_kwargs={"use_reentrant": use_reentrant}
    )
    model = adapted(base, lora()).train()
    calls = []
    layer = model.base_model.model.model.layers[0].mlp.up_proj.base_layer
    layer.register_forward_hook(lambda *_: calls.append(1))
    found = gradients(model)
    assert len(calls) == 2  # once more in the backward pass
    for name, gradient in found.items():
        assert_close(gradient, plain[name], msg=name)


@pytest.mark.parametrize("autocast", [False, True])
def test_a_bf16_base_with_fp32_adapters(autocast: bool) -> None:
    base = quantized(torch.bfloat16)
    twin, model = adapted(float_twin(base), lora()), adapted(base, lora())
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found, expected = logits(model), logits(twin)
    assert found.dtype == expected.dtype == torch.bfloat16
    assert (found - expected).norm() < 0.02 * expected.norm()


def test_several_adapters() -> None:
    def answers(model: Any) -> list[torch.Tensor]:
        model.add_adapter("second", lora(r=2))
        scatter(model, "second", seed=5)
        found = []
        for kind in ("svd", "linear", "cat"):
            name = f"by_{kind}"
            if kind != "linear":  # which wants equal ranks
                model.add_weighted_adapter(["default", "second"], [0.5, 0.7], name, kind)
                model.set_adapter(name)
                found.append(logits(model))
        for name in ("second", "default"):
            model.set_adapter(name)
            found.append(logits(model))
        found.append(logits(model, adapter_names=["second", "__base__"]))
        with model.disable_adapter():
            found.append(logits(model))
        model.delete_adapter("default")
        model.set_adapter("second")
        found.append(logits(model))
        return found

    base = quantized()
    expected = answers(adapted(float_twin(base), lora()))
    found = answers(adapted(base, lora()))
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found[2], found[3], atol=1e-3)
    assert_close(found[2], found[6])


@pytest.mark.parametrize("name", ["modules_to_save", "dora"])
def test_an_adapter_is_saved_and_loaded(name: str, tmp_path: Path) -> None:
    model = adapted(quantized(), LORA[name])
    expected = logits(model)
    model.save_pretrained(tmp_path)
    saved = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert saved < 120_000  # the adapter alone
    for options in ({}, {"low_cpu_mem_usage": True}):
        loaded = peft.PeftModel.from_pretrained(quantized(), tmp_path, **options)
        assert torch.equal(logits(loaded), expected)
    loaded.load_adapter(tmp_path, "again")
    loaded.set_adapter("again")
    assert torch.equal(logits(loaded), expected)


def test_an_adapter_is_swapped_in_place(tmp_path: Path) -> None:
    from peft.utils.hotswap import hotswap_adapter

    first, second = adapted(quantized(), lora()), adapted(quantized(), lora(), seed=7)
    second.save_pretrained(tmp_path)
    assert not torch.allclose(logits(first), logits(second), atol=1e-3)
    hotswap_adapter(first, tmp_path, "default")
    assert torch.equal(logits(first), logits(second))


@pytest.mark.parametrize("name", ["lora", "ia3", "vera", "loha", "adalora", "oft"])
def test_unload_gives_the_packed_model_back(name: str) -> None:
    base = adapted(quantized(), OTHERS.get(name, lora())).unload()
    assert torch.equal(logits(base), logits(quantized()))
    assert type(base.model.layers[0].self_attn.q_proj) is QuantLinear


def test_pefts_own_preparation_works() -> None:
    prepared = peft.prepare_model_for_kbit_training(quantized(torch.bfloat16))
    assert not any(p.requires_grad for p in prepared.parameters())
    assert {p.dtype for p in prepared.parameters()} == {torch.float32, torch.uint8}
    expected = logits(quantized(torch.bfloat16))
    found = logits(prepared)
    assert found.dtype == torch.float32
    assert (found - expected).norm() < 0.02 * expected.norm()
    assert gradients(adapted(prepared, lora()))


def test_preparation_freezes_and_casts_norms_on_request() -> None:
    model = prepare_for_training(
        quantized(torch.bfloat16), gradient_checkpointing=False, fp32_norms=True
    )
    assert not any(p.requires_grad for p in model.parameters())
    fp32 = [name for name, p in model.named_parameters() if p.dtype == torch.float32]
    assert len(fp32) == 2 * LAYERS + 1
    assert all("norm" in name for name in fp32)
    model = adapted(model, lora())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.isfinite(loss(model))


def test_preparation_refuses_what_it_would_harm() -> None:
    with pytest.raises(ValueError, match="holds no packed layer: quantize it first"):
        prepare_for_training(llama())
    with pytest.raises(ValueError, match="call it before get_peft_model"):
        prepare_for_training(peft.get_peft_model(quantized(), lora()))


@pytest.mark.parametrize("use_dora", [False, True])
def test_an_adapted_layer_compiles_in_one_graph(use_dora: bool) -> None:
    base = torch.nn.Sequential(QuantLinear.from_linear(torch.nn.Linear(64, 48)))
    model = adapted(base, peft.LoraConfig(r=2, use_dora=use_dora, target_modules=["0"]))
    x = torch.randn(3, 64, requires_grad=True)
    expected = model(x)
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    found = torch.compile(model, fullgraph=True, backend="aot_eager")(x)
    assert_close(found, expected)
    assert_close(torch.autograd.grad(found.sum(), x)[0], gradient)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_on_a_gpu(dtype: torch.dtype) -> None:
    base = prepare_for_training(quantized(dtype).cuda())
    twin, model = adapted(float_twin(base), lora()).train(), adapted(base, lora()).train()
    ids = tokens().cuda()

    def run(model: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        with torch.autocast("cuda", dtype):
            output = model(input_ids=ids, labels=ids)
        output.loss.backward()
        return output.logits, {n: p.grad for n, p in model.named_parameters() if p.requires_grad}

    (found, gradients), (expected, others) = run(model), run(twin)
    assert (found - expected).norm() < 0.02 * expected.norm()
    for name, gradient in gradients.items():
        assert (gradient - others[name]).norm() < 0.05 * others[name].norm(), name


def test_no_warning_of_a_layer_type_that_peft_does_not_know() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        peft.get_peft_model(quantized(), lora())


@pytest.mark.parametrize("name", ["q_proj", "mlp"])
def test_modules_to_save_of_packed_weights_are_refused_by_name(name: str) -> None:
    config = lora(target_modules=["o_proj"], modules_to_save=[name])
    with pytest.raises(ValueError, match=r"modules_to_save: .*QuantLinear.*\(target_modules\)"):
        adapted(quantized(), config)
