"""Quantized models used as people use any other model: what torch and transformers offer."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from architecture import tokens
from architectures import ARCHITECTURES
from torch import nn

import xgemm
from xgemm.nn import QuantLinear

pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("one_thread")

BY_NAME = {architecture.name: architecture for architecture in ARCHITECTURES}


def make(name: str, seed: int = 0) -> Any:
    return xgemm.quantize(BY_NAME[name].make_tiny(seed), group_size=32)


def dequantized(model: Any) -> Any:
    """A float copy of `model`: nn.Linear layers with the weights that the quantized ones hold."""
    copied = copy.deepcopy(model)
    for name, module in model.named_modules():
        if isinstance(module, QuantLinear):
            copied.set_submodule(name, module.to_linear())
    return copied


@pytest.fixture(scope="module")
def llama() -> Any:
    return make("Llama")


@pytest.fixture(scope="module")
def reference(llama: Any) -> Any:
    return dequantized(llama)


def relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


# ---- generate ----


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 3},
        {"num_beams": 3, "num_return_sequences": 2},
        {"do_sample": True, "num_return_sequences": 2, "top_k": 5},
        {"prompt_lookup_num_tokens": 2},
        {"use_cache": False},
        {"cache_implementation": "static", "disable_compile": True},
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    ],
    ids=lambda options: "-".join(options),
)
def test_ways_to_generate(llama: Any, reference: Any, options: dict[str, Any]) -> None:
    got, expected = (
        _generate(model, tokens(1), **{"do_sample": False, **options})
        for model in (llama, reference)
    )
    assert torch.equal(got, expected)


def _generate(model: Any, prompt: torch.Tensor, **options: Any) -> torch.Tensor:
    torch.manual_seed(0)
    mask = torch.ones_like(prompt)
    return model.generate(prompt, attention_mask=mask, max_new_tokens=6, **options)


def test_a_quantized_assistant(llama: Any) -> None:
    """Assisted generation changes the time, never the text."""
    expected = _generate(llama, tokens(1), do_sample=False)
    got = _generate(llama, tokens(1), do_sample=False, assistant_model=make("Llama", seed=5))
    assert torch.equal(got, expected)


def test_left_padding(llama: Any) -> None:
    prompt = tokens(1)
    padded = torch.cat([torch.zeros(1, 5, dtype=torch.int64), prompt], dim=1)
    mask = (padded != 0).long()
    with torch.inference_mode():
        alone = llama(prompt).logits
        batch = llama(
            torch.cat([padded, tokens(1, seed=3).repeat(1, 2)[:, : padded.shape[1]]]),
            attention_mask=torch.cat([mask, torch.ones_like(mask)]),
        ).logits
    assert relative(batch[:1, 5:], alone) < 1e-5


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_attention_implementations(llama: Any, reference: Any, implementation: str) -> None:
    with torch.inference_mode():
        expected = reference(tokens()).logits
        before = llama.config._attn_implementation
        llama.set_attn_implementation(implementation)
        got = llama(tokens(), output_hidden_states=True)
        llama.set_attn_implementation(before)
    assert relative(got.logits, expected) < 1e-5
    assert len(got.hidden_states) == 3


# ---- copies, files, processes ----


def _through_torch_save(model: nn.Module) -> nn.Module:
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


@pytest.mark.parametrize(
    "through",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), _through_torch_save],
    ids=["deepcopy", "pickle", "torch.save"],
)
@pytest.mark.parametrize("name", ["Llama", "Mixtral", "GPT-2"])
def test_whole_copies(name: str, through: Any) -> None:
    model = make(name)
    copied = through(model)
    with torch.inference_mode():
        assert torch.equal(copied(tokens()).logits, model(tokens()).logits)
    assert str(copied.xgemm_report) == str(model.xgemm_report)


@pytest.mark.parametrize("name", ["Llama", "Mixtral", "GPT-OSS"])
def test_state_dict_into_another(name: str) -> None:
    """weights_only, as torch.load does by default, and strict."""
    model, other = make(name), make(name, seed=5)
    stream = io.BytesIO()
    torch.save(model.state_dict(), stream)
    stream.seek(0)
    other.load_state_dict(torch.load(stream))
    with torch.inference_mode():
        assert torch.equal(other(tokens()).logits, model(tokens()).logits)


def test_shared_memory() -> None:
    model = make("Llama")
    with torch.inference_mode():
        expected = model(tokens()).logits
        model.share_memory()
        assert torch.equal(model(tokens()).logits, expected)
    assert all(parameter.is_shared() for parameter in model.parameters())


# ---- dtypes and devices ----


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["Llama", "Mixtral", "Mamba", "T5"])
def test_casts(name: str, dtype: torch.dtype) -> None:
    """There and back: the packed weights are untouched, whatever the model is cast to."""
    model = make(name)
    inputs = BY_NAME[name].inputs()
    packed = {key: value.clone() for key, value in model.state_dict().items() if "qweight" in key}
    assert packed
    with torch.inference_mode():
        expected = model(**inputs).logits
        low = model.to(dtype)(**inputs).logits
        assert low.dtype == BY_NAME[name].make_tiny().to(dtype)(**inputs).logits.dtype
        assert model.dtype == dtype
        assert relative(low.float(), expected) < 0.1
        assert model.float()(**inputs).logits.dtype == torch.float32
    after = model.state_dict()
    assert all(torch.equal(after[key], value) for key, value in packed.items())


def test_autocast(llama: Any, reference: Any) -> None:
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        got, expected = llama(tokens()).logits, reference(tokens()).logits
    assert got.dtype == expected.dtype
    assert relative(got.float(), expected.float()) < 0.05


def test_meta_and_back() -> None:
    model = make("Llama")
    state = model.state_dict()
    rebuilt = copy.deepcopy(model).to("meta")
    assert all(parameter.is_meta for parameter in rebuilt.parameters())
    rebuilt = rebuilt.to_empty(device="cpu")
    rebuilt.load_state_dict(state)
    for name, buffer in model.named_buffers():  # rotary tables are in no state_dict
        rebuilt.get_buffer(name).copy_(buffer)
    with torch.inference_mode():
        assert torch.equal(rebuilt(tokens()).logits, model(tokens()).logits)


def test_figures_of_the_model(llama: Any, reference: Any) -> None:
    assert llama.get_memory_footprint() < 0.6 * reference.get_memory_footprint()
    assert llama.dtype == torch.float32
    assert str(llama.device) == "cpu"
    layer, linear = (model.model.layers[0].mlp.up_proj for model in (llama, reference))
    assert layer.weight.shape == linear.weight.shape
    assert layer.weight.dtype == linear.weight.dtype
    assert layer.weight.device == linear.weight.device
    assert layer.weight.numel() == linear.weight.numel()


# ---- training around the packed weights ----


def _train_norms(model: Any, **options: Any) -> list[torch.Tensor]:
    """The gradients of the norms, which lie before and behind quantized layers."""
    model = copy.deepcopy(model).train()
    model.requires_grad_(False)
    norms = [p for name, p in model.named_parameters() if "norm" in name]
    for parameter in norms:
        parameter.requires_grad_(True)
    if options.get("checkpointing"):
        model.gradient_checkpointing_enable()
    model(tokens(), labels=tokens(), use_cache=False).loss.backward()
    return [parameter.grad for parameter in norms]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients(llama: Any, reference: Any, checkpointing: bool) -> None:
    got = _train_norms(llama, checkpointing=checkpointing)
    for mine, theirs in zip(got, _train_norms(reference), strict=True):
        assert relative(mine, theirs) < 1e-4


def test_an_optimizer_over_all_parameters(llama: Any) -> None:
    """Packed weights take no gradient: an optimizer and a clip over everything leave them alone."""
    model = copy.deepcopy(llama).train()
    packed = {key: value.clone() for key, value in model.state_dict().items() if "qweight" in key}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    losses = []
    for _ in range(3):
        loss = model(tokens(), labels=tokens()).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    assert losses[2] < losses[0]
    after = model.state_dict()
    assert all(torch.equal(after[key], value) for key, value in packed.items())


def test_requires_grad_of_everything(llama: Any) -> None:
    model = copy.deepcopy(llama).requires_grad_(True)
    assert all(p.requires_grad == p.is_floating_point() for p in model.parameters())
    model.requires_grad_(False)
    assert not any(p.requires_grad for p in model.parameters())


def test_an_average_of_models_keeps_the_packed_weights(llama: Any) -> None:
    """swa_utils averages every parameter, in floats, and cuts what it puts back into bytes."""
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    averaged = AveragedModel(llama, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for _ in range(5):
        averaged.update_parameters(llama)
    with torch.inference_mode():
        assert relative(averaged(tokens()).logits, llama(tokens()).logits) < 1e-5
    with pytest.raises(RuntimeError, match="cannot be averaged"):
        averaged.update_parameters(make("Llama", seed=5))


# ---- what rewrites or replaces weights ----


def test_new_tokens(llama: Any, reference: Any) -> None:
    model, other = copy.deepcopy(llama), copy.deepcopy(reference)
    torch.manual_seed(0)
    model.resize_token_embeddings(160, mean_resizing=False)
    torch.manual_seed(0)
    other.resize_token_embeddings(160, mean_resizing=False)
    with torch.inference_mode():
        got, expected = model(tokens()).logits, other(tokens()).logits
    assert got.shape[-1] == 160
    assert relative(got[..., :128], expected[..., :128]) < 1e-5


def test_initializing_again_changes_no_packed_weight(llama: Any) -> None:
    model = copy.deepcopy(llama)
    packed = {key: value.clone() for key, value in model.state_dict().items() if "qweight" in key}
    model.init_weights()
    after = model.state_dict()
    assert all(torch.equal(after[key], value) for key, value in packed.items())


def test_an_initializer_is_refused(llama: Any) -> None:
    layer = copy.deepcopy(llama.model.layers[0].mlp.up_proj)
    for write in (
        lambda: nn.init.normal_(layer.weight),
        lambda: layer.weight.data.normal_(),
        lambda: layer.weight.copy_(torch.zeros(160, 96)),
    ):
        with pytest.raises(RuntimeError, match=r"read-only.*4-bit"):
            write()


@pytest.mark.parametrize("name", ["Llama", "Mixtral"])
def test_functional_call(name: str) -> None:
    model, other = make(name), make(name, seed=5)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.inference_mode():
        for state in (tensors, model.state_dict()):
            got = torch.func.functional_call(other, state, (tokens(),)).logits
            assert torch.equal(got, model(tokens()).logits)
        assert torch.equal(other(tokens()).logits, make(name, seed=5)(tokens()).logits)


# ---- torch's own modules, tracing, compiling ----


def test_a_sequential_model() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(48, 64), nn.ReLU(), nn.Sequential(nn.Linear(64, 80), nn.Tanh())
    )
    quantized = xgemm.quantize(copy.deepcopy(model), group_size=32)
    x = torch.randn(5, 3, 16)
    expected = dequantized(quantized)(x)
    assert relative(quantized(x), expected) < 1e-5
    assert relative(expected, model(x)) < 0.3
    assert isinstance(quantized[3][0], QuantLinear)


def test_torchs_transformer() -> None:
    """Its fast path reads weights of layers by itself; the answers must be the same with it."""
    torch.manual_seed(0)
    model = nn.Transformer(64, 4, 1, 1, 96, batch_first=True).eval()
    quantized = xgemm.quantize(copy.deepcopy(model), group_size=32)
    source, target = torch.randn(2, 7, 64), torch.randn(2, 5, 64)
    for context in (torch.no_grad, torch.enable_grad):
        with context():
            expected = dequantized(quantized)(source, target)
            assert relative(quantized(source, target), expected) < 1e-5
            assert relative(quantized(source, target), model(source, target)) < 0.3
    assert quantized.xgemm_report.quantized


def test_fx_trace() -> None:
    torch.manual_seed(0)
    model = xgemm.quantize(nn.Sequential(nn.Linear(48, 64), nn.ReLU()), group_size=32)
    traced = torch.fx.symbolic_trace(model)
    x = torch.randn(5, 48)
    assert torch.equal(traced(x), model(x))


def test_jit_trace() -> None:
    torch.manual_seed(0)
    model = xgemm.quantize(nn.Sequential(nn.Linear(48, 64), nn.ReLU()), group_size=32)
    x = torch.randn(5, 48)
    with torch.no_grad():
        traced = torch.jit.trace(model, x)
        assert torch.equal(traced(x[:2]), model(x[:2]))


@pytest.mark.slow
def test_compile_of_the_whole_model(llama: Any) -> None:
    """Without a graph break, and over more than one length."""
    torch._dynamo.reset()
    compiled = torch.compile(llama, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        for length in (12, 7, 9):
            ids = tokens()[:, :length]
            got = compiled(ids, use_cache=False).logits
            assert relative(got, llama(ids, use_cache=False).logits) < 1e-5


def test_export() -> None:
    torch.manual_seed(0)
    model = xgemm.quantize(nn.Sequential(nn.Linear(48, 64), nn.ReLU()), group_size=32)
    rows = torch.export.Dim("rows", min=1, max=64)
    program = torch.export.export(model, (torch.randn(5, 48),), dynamic_shapes=({0: rows},))
    x = torch.randn(9, 48)
    assert torch.equal(program.module()(x), model(x))
