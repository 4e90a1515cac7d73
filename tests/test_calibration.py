"""quantize with calibration data: blocks, inputs, masks, experts, and going on after a stop."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import xgemm
from xgemm.nn import QuantExperts, QuantLinear

transformers = pytest.importorskip("transformers")

import hf_models  # noqa: E402

from xgemm.hf import XgemmConfig  # noqa: E402
from xgemm.quantize.calibrate.batches import read_batches  # noqa: E402
from xgemm.quantize.calibrate.block import Block  # noqa: E402
from xgemm.quantize.calibrate.stages import find_stages  # noqa: E402
from xgemm.quantize.gptq import Gptq  # noqa: E402
from xgemm.quantize.plan import plan  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL: dict[str, Any] = {"vocab_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.fixture(autouse=True)
def _small_models_stay_in_float() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def tokens(rows: int = 4, length: int = 24, vocabulary: int = 96, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, vocabulary, (rows, length), generator=generator)


def quantized(model: nn.Module, calibration: Any, method: str = "gptq", **options: Any) -> Any:
    return xgemm.quantize(
        copy.deepcopy(model),
        method=method,
        calibration=calibration,
        **{"group_size": 32, **options},
    )


def codes(model: nn.Module) -> dict[str, torch.Tensor]:
    return {k: v for k, v in model.state_dict().items() if k.endswith("qweight")}


def same(one: nn.Module, other: nn.Module) -> bool:
    a, b = codes(one), codes(other)
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def opt() -> Any:
    torch.manual_seed(0)
    config = transformers.OPTConfig(
        **SMALL, hidden_size=64, ffn_dim=96, max_position_embeddings=64, word_embed_proj_dim=32
    )
    return transformers.OPTForCausalLM(config).eval()


def bert() -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(**SMALL, hidden_size=64, intermediate_size=96)
    return transformers.BertModel(config).eval()


def albert() -> Any:
    torch.manual_seed(0)
    config = transformers.AlbertConfig(
        **SMALL, hidden_size=64, intermediate_size=96, embedding_size=32
    )
    return transformers.AlbertModel(config).eval()


def t5() -> Any:
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=96, d_model=64, d_kv=32, d_ff=96, num_layers=2, num_heads=2,
        decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config).eval()


ARCHITECTURES = {
    "llama": hf_models.llama,
    "gpt2": hf_models.gpt2,
    "mixtral": hf_models.mixtral,
    "opt": opt,
    "bert": bert,
    "albert": albert,
    "t5": t5,
}


def batches_for(name: str) -> list[Any]:
    ids = tokens()
    if name == "t5":
        return [{"input_ids": ids, "decoder_input_ids": tokens(4, 16, seed=1)}]
    return [ids[:2], ids[2:]]


def output(model: nn.Module, name: str) -> torch.Tensor:
    with torch.no_grad():
        first = batches_for(name)[0]
        result = model(**first) if isinstance(first, dict) else model(first)
    return result.logits if hasattr(result, "logits") else result.last_hidden_state


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_gptq_loses_less_than_rounding(name: str) -> None:
    model = ARCHITECTURES[name]()
    expected = output(model, name)
    rounded = xgemm.quantize(copy.deepcopy(model), group_size=32)
    ours = quantized(model, batches_for(name))
    assert ours.xgemm_report.quantized == sorted(
        rounded.xgemm_report.quantized, key=ours.xgemm_report.quantized.index
    )
    assert set(ours.xgemm_report.quantized) == set(rounded.xgemm_report.quantized)

    def error(other: nn.Module) -> float:
        return float((output(other, name) - expected).norm() / expected.norm())

    assert error(ours) < 0.8 * error(rounded)
    assert ours.xgemm_report.error.outputs is not None
    assert not ours.xgemm_report.fallbacks
    assert isinstance(next(m for m in ours.modules() if isinstance(m, QuantLinear)), QuantLinear)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama", ["model.layers.0", "model.layers.1"]),
        ("gpt2", ["transformer.h.0", "transformer.h.1"]),
        # The projections of embeddings lie before and behind the blocks.
        ("opt", ["", "model.decoder.layers.0", "model.decoder.layers.1", ""]),
        ("bert", ["encoder.layer.0", "encoder.layer.1"]),
        ("albert", [""]),  # one block that runs twice
        ("t5", ["encoder.block.0", "encoder.block.1", "decoder.block.0", "decoder.block.1"]),
    ],
)
def test_the_blocks_of_a_model(name: str, expected: list[str]) -> None:
    model = ARCHITECTURES[name]()
    with torch.no_grad():
        stages = find_stages(model, plan(model).chosen, read_batches(batches_for(name))[0])
    assert [stage.name if stage.module is not None else "" for stage in stages] == expected
    layers = [layer for stage in stages for layer in stage.layers]
    assert set(layers) == set(plan(model).chosen)
    assert len(layers) == len(set(layers))


def test_blocks_that_are_no_chain_are_taken_together() -> None:
    class Skips(nn.Module):
        """The last block reads what the first one gave."""

        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in "abc")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first = self.blocks[0](x)
            return self.blocks[2](self.blocks[1](first) + 2 * first)

    torch.manual_seed(0)
    model = Skips()
    x = torch.randn(256, 64)
    with torch.no_grad():
        (stage,) = find_stages(model, plan(model).chosen, read_batches([x])[0])
        assert stage.module is None
        expected = model(x)
        error = (quantized(model, [x])(x) - expected).norm()
        assert error < (quantized(model, None, "rtn")(x) - expected).norm()


def seen_inputs(model: Any, calibration: Any, monkeypatch: Any) -> dict[str, torch.Tensor]:
    """What gptq is shown of each layer's inputs."""
    seen: dict[str, list[torch.Tensor]] = {}
    inputs = Block.inputs

    def watched(self: Block, layers: Any, sink: Any, **options: Any) -> None:
        def both(layer: Any, x: torch.Tensor) -> None:
            seen.setdefault(layer.name, []).append(x.clone())
            sink(layer, x)

        inputs(self, layers, both, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Block, "inputs", watched)
        quantized(model, calibration)
    return {name: torch.cat(parts) for name, parts in seen.items()}


def test_layers_that_read_one_tensor_are_grouped(monkeypatch: Any) -> None:
    model = hf_models.llama()
    groups: list[list[str]] = []
    quantize_block = Gptq.quantize_block

    def watched(self: Gptq, block: Block) -> None:
        groups.extend([layer.name.rpartition(".")[2] for layer in g] for g in block.groups)
        quantize_block(self, block)

    monkeypatch.setattr(Gptq, "quantize_block", watched)
    quantized(model, [tokens()])
    one = [["q_proj", "k_proj", "v_proj"], ["o_proj"], ["gate_proj", "up_proj"], ["down_proj"]]
    assert groups == one * len(model.model.layers)


def test_inputs_are_those_of_the_quantized_blocks(monkeypatch: Any) -> None:
    # Of the last layer: what the model's own forward gives it, all else in 4 bits.
    model = hf_models.llama()
    seen = seen_inputs(model, [tokens()], monkeypatch)
    ours = quantized(model, [tokens()])
    last = f"model.layers.{len(model.model.layers) - 1}.mlp.down_proj"
    caught: list[torch.Tensor] = []
    hook = ours.get_submodule(last).register_forward_pre_hook(lambda m, a: caught.append(a[0]))
    with torch.no_grad():
        ours(tokens())
    hook.remove()
    x = caught[0].reshape(seen[last].shape)
    assert float((seen[last] - x).norm() / x.norm()) < 1e-4


def test_padding_does_not_count(monkeypatch: Any) -> None:
    model = hf_models.llama()
    ids = tokens(2, 12)
    mask = torch.ones_like(ids)
    mask[0, 7:] = 0
    ids[0, 7:] = 0
    padded = seen_inputs(model, [{"input_ids": ids, "attention_mask": mask}], monkeypatch)
    alone = seen_inputs(model, [ids[:1, :7], ids[1:]], monkeypatch)
    for name, x in padded.items():
        assert x.shape[0] == 7 + 12
        assert float((x - alone[name]).norm() / x.norm()) < 1e-4, name


def test_padding_does_not_count_for_experts(monkeypatch: Any) -> None:
    model = hf_models.mixtral()
    ids = tokens(2, 12)
    mask = torch.ones_like(ids)
    mask[0, 7:] = 0
    padded = seen_inputs(model, [{"input_ids": ids, "attention_mask": mask}], monkeypatch)
    of_first = [x for name, x in padded.items() if "layers.0" in name and "gate_up_proj" in name]
    per_token = model.config.num_experts_per_tok
    assert sum(x.shape[0] for x in of_first) == (7 + 12) * per_token


def test_experts_that_get_no_token_are_rounded_and_named() -> None:
    model = hf_models.mixtral()
    ours = quantized(model, [tokens(1, 1)])
    report = ours.xgemm_report
    experts = model.config.num_local_experts
    unused = experts - model.config.num_experts_per_tok
    names = [n for n in report.fallbacks if n.startswith("model.layers.0.mlp.experts.gate_up")]
    assert len(names) == unused
    assert "rtn" in report.fallbacks[names[0]]
    assert names[0] in str(report) or "gate_up_proj.*" in str(report)
    assert names[0] in report.to_json()
    module = ours.model.layers[0].mlp.experts
    assert isinstance(module, QuantExperts)
    weights = model.model.layers[0].mlp.experts.gate_up_proj
    unseen = {int(name.rpartition(".")[2]) for name in names}
    for expert in range(experts):
        rounded = xgemm.quantize_weight(weights[expert].detach(), group_size=32).codes
        got = xgemm.unpack(module.to_packed("gate_up_proj")[expert]).codes
        assert torch.equal(got, rounded) == (expert in unseen)


def test_layers_that_never_run_are_rounded_and_named() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    ours = quantized(Unused(), [torch.randn(100, 64)])
    assert list(ours.xgemm_report.fallbacks) == ["unused"]
    assert ours.xgemm_report.errors["used"].outputs is not None
    assert ours.xgemm_report.errors["unused"].outputs is None


def test_the_same_from_run_to_run_and_in_any_number_of_batches() -> None:
    model = hf_models.mixtral()
    ids = tokens()
    one = quantized(model, [ids])
    assert same(one, quantized(model, [ids]))
    assert same(one, quantized(model, iter([{"input_ids": ids}])))
    assert not same(one, quantized(model, [tokens(seed=3)]))


class Interrupt(KeyboardInterrupt):
    pass


def test_an_interrupted_run_goes_on_from_the_last_block(tmp_path: Any, monkeypatch: Any) -> None:
    model = hf_models.mixtral()
    whole = quantized(model, [tokens()])
    ran: list[str] = []
    quantize_block = Gptq.quantize_block
    stop_at = "model.layers.1"

    def watched(self: Gptq, block: Block) -> None:
        ran.append(block.name)
        if block.name == stop_at:
            raise Interrupt
        quantize_block(self, block)

    monkeypatch.setattr(Gptq, "quantize_block", watched)
    with pytest.raises(Interrupt):
        quantized(model, [tokens()], resume=tmp_path / "run")
    stop_at = ""
    resumed = quantized(model, [tokens()], resume=tmp_path / "run")
    assert ran == ["model.layers.0", "model.layers.1", "model.layers.1"]
    assert same(whole, resumed)
    assert resumed.xgemm_report.as_dict() == whole.xgemm_report.as_dict()
    # All is stored now: nothing is computed again.
    assert same(whole, quantized(model, [tokens()], resume=tmp_path / "run"))
    assert len(ran) == 3


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("settings", {"symmetric": False}),
        ("settings", {"options": {"damp": 0.02}}),
        ("calibration", {"calibration": [tokens(seed=5)]}),
        ("model", {"model": hf_models.llama(seed=1)}),
    ],
)
def test_a_run_of_something_else_is_not_gone_on_with(
    tmp_path: Any, what: str, change: dict[str, Any]
) -> None:
    call = {"model": hf_models.llama(), "calibration": [tokens()], "resume": tmp_path}
    quantized(**call)
    with pytest.raises(ValueError, match=f"run of another {what}"):
        quantized(**{**call, **change})


def test_a_folder_of_something_else_is_not_written_to(tmp_path: Any) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"notes\.txt"):
        quantized(hf_models.llama(), [tokens()], resume=tmp_path)


def test_an_error_leaves_the_block_as_it_was(monkeypatch: Any) -> None:
    model = hf_models.llama()
    before = {name: p.clone() for name, p in model.named_parameters()}
    quantize_layers = Gptq._quantize

    def fails(self: Gptq, block: Block, layers: Any, *moments: torch.Tensor) -> None:
        if layers[0].name == "model.layers.1.mlp.down_proj":
            raise RuntimeError("no more")
        quantize_layers(self, block, layers, *moments)

    monkeypatch.setattr(Gptq, "_quantize", fails)
    model.train()
    with pytest.raises(RuntimeError, match="no more"):
        xgemm.quantize(model, method="gptq", group_size=32, calibration=[tokens()])
    assert isinstance(model.model.layers[0].mlp.down_proj, QuantLinear)
    for name, parameter in model.model.layers[1].named_parameters():
        assert torch.equal(parameter, before[f"model.layers.1.{name}"]), name
    assert all(m.training for m in model.modules())
    assert model.config.use_cache
    assert not any("forward" in m.__dict__ for m in model.modules())
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_out_of_memory_says_what_needs_less(monkeypatch: Any) -> None:
    def fails(self: Gptq, block: Block) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Gptq, "quantize_block", fails)
    model = hf_models.llama()
    before = model.model.layers[0].mlp.up_proj
    with pytest.raises(torch.OutOfMemoryError, match=r"model\.layers\.0: out of memory.*Smaller"):
        xgemm.quantize(model, method="gptq", group_size=32, calibration=[tokens()])
    assert model.model.layers[0].mlp.up_proj is before


def test_progress_names_layers_with_their_errors() -> None:
    told: list[tuple[int, int, str]] = []
    model = hf_models.llama()
    quantized(model, [tokens()], progress=lambda *what: told.append(what))
    count = 7 * len(model.model.layers)
    assert [done for done, _, _ in told] == list(range(count + 1))
    assert {total for _, total, _ in told} == {count}
    assert told[1][2].startswith("model.layers.0.self_attn.q_proj, error ")
    assert told[1][2].endswith("%")


@pytest.mark.parametrize(
    ("calibration", "error", "message"),
    [
        (None, ValueError, "needs calibration"),
        ([], ValueError, "has no batch"),
        (torch.ones(2, 3), TypeError, "iterable of batches"),
        ({"input_ids": torch.ones(2, 3)}, TypeError, "iterable of batches"),
        ("some text", TypeError, "iterable of batches"),
        (["some text"], TypeError, "batch 0 must be a dict"),
        (
            [{"input_ids": tokens(1, 3), "attention_mask": torch.zeros(1, 3)}],
            ValueError,
            "every position of batch 0 is masked",
        ),
    ],
)
def test_what_is_no_calibration(calibration: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        quantized(hf_models.llama(), calibration)


def test_what_does_not_go_together() -> None:
    model = hf_models.llama()
    with pytest.raises(ValueError, match="method 'rtn' takes no calibration"):
        quantized(model, [tokens()], "rtn")
    with pytest.raises(ValueError, match="options, device and resume are for methods"):
        quantized(model, None, "rtn", resume="here")
    with pytest.raises(
        ValueError, match=r"options of method 'gptq' are act_order, damp.*'dampening'"
    ):
        quantized(model, [tokens()], options={"dampening": 0.1})
    with pytest.raises(ValueError, match="needs a model's calibration data"):
        xgemm.quantize_weight(torch.ones(32, 32), "gptq")
    with pytest.raises(ValueError, match="XgemmConfig: method 'gptq' needs a model's calibration"):
        XgemmConfig("gptq")


def test_an_offloaded_model_is_refused_by_name() -> None:
    accelerate = pytest.importorskip("accelerate")
    model = accelerate.cpu_offload(hf_models.llama())
    with pytest.raises(ValueError, match=r"embed_tokens is offloaded.*device='cuda'"):
        xgemm.quantize(model, method="gptq", group_size=32, calibration=[tokens()])


def test_a_shared_layer_is_quantized_once() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64)) for _ in range(2))
            self.blocks[1][0] = self.blocks[0][0]
            self.head = nn.Linear(64, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = x + block(x)
            return self.head(x)

    torch.manual_seed(0)
    model, x = Shared(), torch.randn(128, 64)
    ours = quantized(model, [x])
    assert ours.blocks[0][0] is ours.blocks[1][0]
    assert isinstance(ours.head, QuantLinear)
    with torch.no_grad():
        assert float((ours(x) - model(x)).norm() / model(x).norm()) < 0.1


def test_what_gptq_made_is_saved_and_loaded(tmp_path: Any) -> None:
    ours = quantized(hf_models.llama(), [tokens()], options={"act_order": "desc_act"})
    xgemm.save(ours, tmp_path / "saved")
    again = xgemm.load(tmp_path / "saved")
    with torch.no_grad():
        assert torch.equal(again(tokens()).logits, ours(tokens()).logits)


def test_float_inputs_are_those_of_the_float_model(monkeypatch: Any) -> None:
    model = hf_models.llama()
    last = model.model.layers[-1].mlp.down_proj
    caught: list[torch.Tensor] = []
    hook = last.register_forward_pre_hook(lambda m, a: caught.append(a[0]))
    with torch.no_grad():
        model(tokens())
    hook.remove()
    shown: dict[str, torch.Tensor] = {}
    input_pairs = Block.input_pairs

    def watched(self: Block, layers: Any, sink: Any) -> None:
        def both(layer: Any, x: torch.Tensor, floats: torch.Tensor) -> None:
            shown[layer.name] = floats.clone()
            sink(layer, x, floats)

        input_pairs(self, layers, both)

    monkeypatch.setattr(Block, "input_pairs", watched)
    ours = quantized(model, [tokens()], options={"asymmetry": 0.5})
    (name,) = (name for name, module in model.named_modules() if module is last)
    torch.testing.assert_close(shown[name], caught[0].reshape(shown[name].shape))
    assert not same(ours, quantized(model, [tokens()]))


@pytest.mark.gpu
def test_blocks_of_a_model_on_the_cpu_are_quantized_on_the_gpu() -> None:
    model = hf_models.mixtral()
    here = quantized(model, [tokens()])
    there = quantized(model, [tokens()], device="cuda")
    assert {p.device.type for p in there.state_dict().values()} == {"cpu"}
    a, b = here.xgemm_report.error.outputs, there.xgemm_report.error.outputs
    assert b == pytest.approx(a, rel=0.05)
    whole = quantized(model.cuda(), [tokens().cuda()])
    assert {p.device.type for p in whole.state_dict().values()} == {"cuda"}
    assert whole.xgemm_report.error.outputs == pytest.approx(a, rel=0.05)
