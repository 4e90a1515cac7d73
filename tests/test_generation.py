"""generate with its decode steps in a static cache and, on a GPU, on one CUDA graph."""

from __future__ import annotations

import copy
import gc
import io
import logging
from typing import Any

import pytest
import torch

import xgemm

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from xgemm.hf import generation, recorded_step  # noqa: E402
from xgemm.hf.generation import accelerate_generation, plain_generation  # noqa: E402
from xgemm.nn import QuantExperts, experts  # noqa: E402

SIZES = dict(
    hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, vocab_size=100, max_position_embeddings=4096,
)  # fmt: skip
MODELS = {
    "Llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)),
    "Qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES)),
    "Qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES)),
    "Gemma": lambda: transformers.GemmaForCausalLM(transformers.GemmaConfig(**SIZES)),
    "Qwen3-MoE": lambda: transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(
            **SIZES, num_experts_per_tok=2, moe_intermediate_size=64, num_experts=6
        )
    ),
    "Mixtral": lambda: transformers.MixtralForCausalLM(
        transformers.MixtralConfig(**SIZES, num_experts_per_tok=2, num_local_experts=4)
    ),
    "OPT": lambda: transformers.OPTForCausalLM(
        transformers.OPTConfig(
            hidden_size=64,
            ffn_dim=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            vocab_size=100,
            word_embed_proj_dim=64,
            max_position_embeddings=600,
        )
    ),
}
CALLS = {
    "greedy": {"max_new_tokens": 20},
    "one token": {"max_new_tokens": 1},
    "sampling": {"max_new_tokens": 30, "do_sample": True, "temperature": 1.5, "top_p": 0.9},
    "a processor": {"max_new_tokens": 20, "repetition_penalty": 1.3},
    "several of each": {"max_new_tokens": 9, "num_return_sequences": 3, "do_sample": True},
    "a stop": {"max_new_tokens": 60, "do_sample": True, "eos_token_id": [7, 8, 9, 10, 11, 12]},
}


def make(name: str = "Llama", device: str = "cpu", dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    model = MODELS[name]().eval().to(device, dtype)
    model.generation_config.pad_token_id = 0
    model.generation_config.bos_token_id = 1
    model.generation_config.eos_token_id = None
    return model


def prompt(device: str = "cpu") -> dict[str, torch.Tensor]:
    """Two sequences, the first padded on the left."""
    ids = torch.randint(13, 100, (2, 9), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}


def run(model: Any, device: str = "cpu", **options: Any) -> Any:
    torch.manual_seed(5)
    return model.generate(**prompt(device), **options)


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same loop, its steps called as they are: what a graph adds needs a GPU."""
    monkeypatch.setattr(generation, "RECORDED_ON", ("cpu", "cuda"))


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_tokens_are_those_of_plain_generate(call: dict[str, Any], caplog: Any) -> None:
    model = make()
    expected = run(model, **call)
    assert accelerate_generation(model) is model
    assert torch.equal(run(model, **call), expected)
    assert caplog.text == ""  # nothing was refused
    plain_generation(model)
    assert "generate" not in vars(model)


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("name", MODELS)
def test_tokens_of_each_architecture(name: str, caplog: Any) -> None:
    model = make(name)
    expected = run(model, max_new_tokens=12)
    assert torch.equal(run(accelerate_generation(model), max_new_tokens=12), expected)
    assert caplog.text == ""


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("name", ["Llama", "Qwen3-MoE", "Mixtral"])
def test_a_quantized_model_and_its_scores(name: str, monkeypatch: Any) -> None:
    """Of experts, the calls that a graph can hold, and not the loop over them."""
    model = xgemm.quantize(make(name), group_size=32)
    packed = [module for module in model.modules() if isinstance(module, QuantExperts)]
    assert len(packed) == (0 if name == "Llama" else 2)
    monkeypatch.setattr(experts, "takes", lambda *given: True)
    monkeypatch.setattr(experts, "expert_bounds", None)
    options = {"max_new_tokens": 6, "return_dict_in_generate": True, "output_scores": True,
               "output_logits": True}  # fmt: skip
    expected = run(model, **options)
    found = run(accelerate_generation(model), **options)
    assert torch.equal(found.sequences, expected.sequences)
    assert len(found.scores) == len(found.logits) == 6
    torch.testing.assert_close(torch.stack(found.scores), torch.stack(expected.scores))
    torch.testing.assert_close(torch.stack(found.logits), torch.stack(expected.logits))


class Kept(transformers.generation.streamers.BaseStreamer):
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        assert not value.is_cuda
        self.tokens += value.flatten().tolist()

    def end(self) -> None:
        self.ended = True


def check_streaming(model: Any, device: str) -> None:
    inputs = {name: tensor[1:] for name, tensor in prompt(device).items()}
    call = {"max_new_tokens": 40, "do_sample": True, "eos_token_id": [7, 8, 9, 10]}
    told = []
    for _ in range(2):
        streamer = Kept()
        torch.manual_seed(1)
        found = model.generate(**inputs, **call, streamer=streamer)
        assert streamer.ended
        assert streamer.tokens == found[0].tolist()
        told.append(streamer.tokens)
        accelerate_generation(model)
    assert told[0] == told[1]
    assert len(told[0]) < 9 + 40  # it ended by itself


@pytest.mark.usefixtures("on_cpu")
def test_streaming_and_a_stop() -> None:
    check_streaming(make(), "cpu")


@pytest.mark.usefixtures("on_cpu")
def test_custom_criteria_and_lengths_share_a_step() -> None:
    class AfterFive(transformers.StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
            return torch.full((input_ids.shape[0],), input_ids.shape[1] >= 14)

    model = accelerate_generation(make())
    criteria = transformers.StoppingCriteriaList([AfterFive()])
    assert run(model, max_new_tokens=50, stopping_criteria=criteria).shape == (2, 14)
    run(model, max_new_tokens=100)
    steps = generation._STEPS[model]
    assert [step.length for step in steps.values()] == [512]
    run(model, max_new_tokens=600)
    assert [step.length for step in steps.values()] == [512, 1024]
    model.double().float()  # the weights lie elsewhere now
    run(model, max_new_tokens=3)
    assert [step.length for step in steps.values()] == [512]


def refused(model: Any, caplog: Any, reason: str, **options: Any) -> None:
    expected = run(model, **options)
    accelerate_generation(model)
    with caplog.at_level(logging.WARNING, "xgemm"):
        found = run(model, **options)
    assert torch.equal(found, expected)
    assert caplog.messages == [f"accelerate_generation: {reason}: plain generate goes on"]


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "generation mode beam_search": ("Llama", {"num_beams": 2}),
    "use_cache=False": ("Llama", {"use_cache": False}),
    "cache_implementation='static'": ("Llama", {"cache_implementation": "static"}),
    "prompt_lookup_num_tokens was given": ("Llama", {"prompt_lookup_num_tokens": 2}),
    "guidance_scale": ("Llama", {"guidance_scale": 1.5}),
}


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_taken_is_named(reason: str, caplog: Any) -> None:
    name, options = REFUSED[reason]
    if "prompt_lookup" in reason:  # of one sequence only
        model = make(name)
        inputs = {key: value[1:] for key, value in prompt().items()}
        expected = model.generate(**inputs, max_new_tokens=4, **options)
        found = accelerate_generation(model).generate(**inputs, max_new_tokens=4, **options)
        assert torch.equal(found, expected)
        assert f"accelerate_generation: {reason}: plain" in caplog.text
        return
    refused(make(name), caplog, reason, max_new_tokens=4, **options)


def test_a_model_on_the_cpu_is_named(caplog: Any) -> None:
    refused(make(), caplog, "the model is on the device 'cpu'", max_new_tokens=4)


@pytest.mark.usefixtures("on_cpu")
def test_a_sliding_window_is_named(caplog: Any) -> None:
    config = transformers.MistralConfig(**SIZES, sliding_window=8)
    torch.manual_seed(0)
    model = transformers.MistralForCausalLM(config).eval()
    model.generation_config.pad_token_id = 0
    refused(model, caplog, "a sliding window", max_new_tokens=4)


@pytest.mark.usefixtures("on_cpu")
def test_an_encoder_decoder_model_is_named(caplog: Any) -> None:
    config = transformers.T5Config(
        d_model=32, d_ff=64, d_kv=8, num_layers=1, num_heads=4, vocab_size=100,
        decoder_start_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(config).eval()
    refused(
        model, caplog, "T5ForConditionalGeneration is an encoder-decoder model", max_new_tokens=4
    )


def test_a_model_that_does_not_generate_is_refused() -> None:
    with pytest.raises(TypeError, match=r"model must be a transformers model that generates.*Line"):
        accelerate_generation(torch.nn.Linear(2, 2))


@pytest.mark.usefixtures("on_cpu")
def test_an_accelerated_model_is_copied_pickled_and_saved(tmp_path: Any) -> None:
    model = accelerate_generation(make())
    expected = run(model, max_new_tokens=5)
    copied = copy.deepcopy(model)
    assert copied.generate.args[0] is copied
    assert torch.equal(run(copied, max_new_tokens=5), expected)
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    assert torch.equal(run(torch.load(stream, weights_only=False), max_new_tokens=5), expected)
    model.save_pretrained(tmp_path)
    other = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(run(other, max_new_tokens=5), expected)


@pytest.mark.usefixtures("on_cpu")
def test_of_a_peft_model_the_base_generates_with_the_adapter() -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(2)
    config = peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False, r=4)
    model = peft.get_peft_model(make(), config).eval()
    expected = run(model, max_new_tokens=8)
    with model.disable_adapter():
        without = run(model, max_new_tokens=8)
    assert not torch.equal(expected, without)
    accelerate_generation(model)
    assert torch.equal(run(model, max_new_tokens=8), expected)
    with model.disable_adapter():
        assert torch.equal(run(model, max_new_tokens=8), without)


def test_no_garbage_is_collected_while_a_step_is_recorded() -> None:
    def record() -> None:
        with recorded_step._without_collections():
            assert not gc.isenabled()
            raise ValueError("not for a graph")

    assert gc.isenabled()
    with pytest.raises(ValueError, match="not for a graph"):
        record()
    assert gc.isenabled()
    gc.disable()
    try:
        with recorded_step._without_collections():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


# ---- on a GPU ----


@pytest.mark.gpu
@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_a_graph_gives_the_tokens_of_plain_generate(call: dict[str, Any], caplog: Any) -> None:
    """fp32: the order of a sum decides no token."""
    model = make(device="cuda")
    expected = run(model, "cuda", **call)
    accelerate_generation(model)
    for _ in range(2):
        assert torch.equal(run(model, "cuda", **call), expected)
    assert caplog.text == ""


@pytest.mark.gpu
def test_what_no_graph_can_hold_is_named_and_plain_generate_samples(caplog: Any) -> None:
    model = make(device="cuda")
    expected = run(model, "cuda", **CALLS["sampling"])
    accelerate_generation(model)
    # It waits for the device, which ends a recording with an error.
    hook = model.model.norm.register_forward_hook(lambda *_: torch.cuda.synchronize())
    assert torch.equal(run(model, "cuda", **CALLS["sampling"]), expected)
    assert "cannot be recorded" in caplog.text
    hook.remove()
    assert torch.equal(run(model, "cuda", **CALLS["sampling"]), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_graph_of_each_architecture(name: str, dtype: torch.dtype, caplog: Any) -> None:
    model = xgemm.quantize(make(name, "cuda", dtype), group_size=32)
    options = {"max_new_tokens": 12, "return_dict_in_generate": True, "output_logits": True}
    expected = run(model, "cuda", **options)
    found = run(accelerate_generation(model), "cuda", **options)
    limit = 1e-3 if dtype == torch.float32 else 0.1
    for mine, theirs in zip(found.logits, expected.logits, strict=True):
        assert float((mine - theirs).abs().max()) <= limit * float(theirs.abs().max())
        if not torch.equal(mine.argmax(-1), theirs.argmax(-1)):
            assert dtype == torch.bfloat16  # a tie of 8 bits; what follows is another text
            break
    assert caplog.text == ""
    assert not any("forward" in vars(module) for module in model.modules())
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.gpu
def test_streaming_from_a_graph() -> None:
    check_streaming(make(device="cuda"), "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_kernels_between_the_linears(dtype: torch.dtype) -> None:
    from xgemm.hf import decode_kernels as kernels

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=dtype)

    torch.manual_seed(0)
    eps = torch.finfo(dtype).eps
    for rows, size in ((1, 4096), (3, 100)):
        x, w = draw(rows, 1, size), draw(size)
        wide = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5)
        expected = w * wide.to(dtype)
        assert ((kernels.rms_norm(x, w, 1e-5) - expected).abs() <= 8 * eps * expected.abs()).all()
        gate, up = draw(rows, 1, 2 * size).chunk(2, dim=-1)
        expected = torch.nn.functional.silu(gate) * up
        error = (kernels.silu_mul(gate, up) - expected).abs()
        assert (error <= 4 * eps * expected.abs() + 1e-6).all()
    for rows, heads, kv_heads, size, length in ((2, 32, 8, 128, 1024), (1, 6, 2, 80, 130)):
        q = draw(rows, 1, heads * size).view(rows, 1, heads, size).transpose(1, 2)
        keys, values = draw(rows, kv_heads, length, size), draw(rows, kv_heads, length, size)
        seen = torch.zeros(rows, length, dtype=torch.bool, device="cuda")
        seen[:, 3:100] = True
        expected = torch.nn.functional.scaled_dot_product_attention(
            q.double(), keys.double(), values.double(), attn_mask=seen[:, None, None],
            enable_gqa=True,
        ).transpose(1, 2)  # fmt: skip
        found = kernels.attend(q, keys, values, seen, size**-0.5)
        assert found.shape == (rows, 1, heads, size)
        assert float((found - expected).abs().max()) <= 4 * eps + 1e-5
        slot = torch.tensor([100], device="cuda")
        new = draw(rows, 1, kv_heads * size).view(rows, 1, kv_heads, size).transpose(1, 2)
        kernels.append(new, new + 1, keys, values, slot)
        assert torch.equal(keys[:, :, 100:101], new)
        assert torch.equal(values[:, :, 100:101], new + 1)
