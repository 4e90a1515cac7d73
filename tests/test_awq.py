"""AWQ: scales folded into what comes before a layer, their search, clipping, and whole models."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import xgemm

pytest.importorskip("transformers")

import hf_models
from architectures import ARCHITECTURES

from xgemm.quantize.awq import Awq, LayerLoss, Seen, least_loss
from xgemm.quantize.calibrate.block import Block
from xgemm.quantize.folding import Folding, call_of, first_output

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _small_models_stay_in_float() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def tokens(rows: int = 4, length: int = 24, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 120, (rows, length), generator=generator)


def awq(model: nn.Module, **arguments: Any) -> Any:
    arguments = {"group_size": 32, "calibration": list(tokens().split(2)), **arguments}
    options = {"grid": 5, **arguments.pop("options", {})}  # a quarter of the default's time
    return xgemm.quantize(model, method="awq", options=options, **arguments)


def logits(model: nn.Module) -> torch.Tensor:
    return hf_models.output(model, tokens(seed=1))


# ---- folding ----

# What stays without scales: behind GELU, or a gate that clamps; and where a norm's output is also
# added to the residual, or there is none (OPT's and BERT's norms after the sum).
UNSCALED: dict[str, set[str]] = {
    "Llama": set(),
    "Qwen2": set(),
    "Qwen3": set(),
    "Gemma 2": set(),
    "Phi 3": set(),
    "OPT": set(),
    "GPT-2": {"c_proj of mlp"},
    "GPT-NeoX": {"dense_4h_to_h"},
    "Falcon": {"dense_4h_to_h"},
    "Mixtral": set(),
    "Qwen3-MoE": set(),
    "GPT-OSS": {"down_proj"},
    "BERT": {"query", "dense of intermediate", "dense of output"},  # attention's output is scaled
}


@pytest.mark.parametrize("name", UNSCALED)
def test_a_folded_block_computes_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With scales of 1/3 to 3, and each group that can be scaled is."""
    unscaled: set[str] = set()
    scaled: list[str] = []

    def scale(self: Awq, block: Block) -> None:
        if block.module is not block.replay.model:
            check(block)
        for group in block.groups:
            for layer in group:
                block.round(layer, "")

    def check(block: Block) -> None:
        call = call_of(block, block.module)
        before = first_output(call.run(block.module)).clone()
        folding = Folding(block)
        for group in block.groups:
            leaf = group[0].projection or group[0].name.rpartition(".")[2]
            parent = group[0].name.split(".")[-2]
            fold = folding.find(group)
            if fold is None:
                unscaled.add(f"{leaf} of {parent}" if leaf in ("c_proj", "dense") else leaf)
                continue
            s = 3 ** (2 * torch.rand(group[0].k) - 1)
            s = s if fold.shared is None else s[fold.shared]
            weight = group[0].weight.clone()
            assert folding.apply(fold, s)
            assert torch.allclose(group[0].weight, weight * s, rtol=1e-5, atol=1e-6)
            scaled.append(group[0].name)
        after = first_output(call.run(block.module))
        assert float((after - before).norm()) <= 1e-5 * float(before.norm())

    monkeypatch.setattr(Awq, "quantize_block", scale)
    architecture = next(a for a in ARCHITECTURES if a.name == name)
    model = architecture.make_tiny()
    awq(model, calibration=[tokens()], include=["*"])
    assert unscaled == UNSCALED[name]
    assert scaled


def test_a_layer_that_others_read_unscaled_is_left() -> None:
    """The norm's output also goes to the residual: no scale may go into the norm."""

    class Block_(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(64)
            self.up, self.down = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm(x)
            return y + self.down(torch.relu(self.up(y)))

    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.first = nn.Embedding(120, 64), nn.Linear(64, 64)
            self.blocks = nn.ModuleList(Block_() for _ in range(3))

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.first(self.embedding(ids))
            for block in self.blocks:
                x = block(x)
            return x

    model: Any = Model()
    norms = [block.norm.weight.clone() for block in model.blocks]
    awq(model)
    report = model.xgemm_report
    assert set(report.fallbacks) == {"first", *(f"blocks.{i}.up" for i in range(3))}
    assert "nothing before them takes the scales" in report.fallbacks["blocks.1.up"]
    assert "it is in no block" in report.fallbacks["first"]
    assert "not by awq: blocks.*.up (3 times)" in str(report)
    for block, norm in zip(model.blocks, norms, strict=True):
        assert torch.equal(block.norm.weight, norm)


# ---- clipping ----


@pytest.mark.parametrize("symmetric", [True, False])
def test_the_range_is_shrunk_to_the_least_loss_of_the_outputs(symmetric: bool) -> None:
    torch.manual_seed(0)
    w, x = torch.randn(6, 3, 32), torch.randn(3, 200, 32) * torch.rand(3, 1, 32) ** 3
    moments = x.transpose(1, 2) @ x
    shrinks = (1.0, 0.8, 0.6)

    def loss(scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
        code = (w / scale[:, :, None]).round().add(zero[:, :, None]).clamp(0, 15)
        error = (code - zero[:, :, None]) * scale[:, :, None] - w
        return torch.einsum("ngi,gti->ngt", error, x).square().sum(2)

    found = loss(*least_loss(w, moments, symmetric, shrinks, torch.float16))
    each = [loss(*least_loss(w, moments, symmetric, (s,), torch.float16)) for s in shrinks]
    assert torch.allclose(found, torch.stack(each).amin(0), rtol=1e-4)
    assert bool((found < 0.99 * each[0]).any())


# ---- models ----


def with_outliers() -> Any:
    """A Llama some of whose channels are 20 times as large as the others, as in real ones."""
    model = hf_models.llama()
    with torch.no_grad():
        for block in model.model.layers:
            for norm in (block.input_layernorm, block.post_attention_layernorm):
                norm.weight[::16] *= 20
            block.mlp.up_proj.weight[::16] *= 20
    return model


@pytest.mark.parametrize("symmetric", [True, False])
def test_outputs_lose_less_than_by_rounding(symmetric: bool) -> None:
    model = with_outliers()
    expected = logits(model)

    def loss(method: str, **arguments: Any) -> float:
        made = copy.deepcopy(model)
        if method == "awq":
            awq(made, symmetric=symmetric, group_size=64, **arguments)
        else:
            xgemm.quantize(made, method, 64, symmetric, **arguments)
        return float((logits(made) - expected).norm() / expected.norm())

    rtn = loss("rtn")
    for arguments in (
        {},
        {"clip": "none"},
        {"options": {"duo": False}},
        {"options": {"objective": "module", "tokens": 60}},
        {"options": {"rounding": "gptq"}},
    ):
        assert loss("awq", **arguments) < 0.85 * rtn, arguments


def test_experts_are_scaled_each_by_its_own_tokens() -> None:
    """gate_up of all experts, with the router, from the norm; down by each expert's up."""
    model = hf_models.mixtral()
    router = model.model.layers[0].mlp.gate.weight.clone()
    expected = logits(model)
    awq(model, calibration=[tokens(16)])
    assert not model.xgemm_report.fallbacks
    assert not torch.equal(model.model.layers[0].mlp.gate.weight, router)
    assert float((logits(model) - expected).norm() / expected.norm()) < 0.2


def test_the_search_is_by_what_layers_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    """LayerLoss is the squared error of the outputs over all tokens that count."""
    model = hf_models.llama()
    seen_losses = []

    def look(self: Awq, block: Block) -> None:
        group = block.groups[0]
        inputs: list[torch.Tensor] = []
        block.inputs(group[:1], lambda layer, x: inputs.append(x))
        loss = LayerLoss(group, Seen(block, [group]))
        other = {layer: layer.weight + 0.01 * torch.randn(layer.n, layer.k) for layer in group}
        x = torch.cat(inputs)
        expected = sum(float((x @ (w - layer.weight).t()).square().sum())
                       for layer, w in other.items())  # fmt: skip
        seen_losses.append((loss.of(other), expected))
        for layer in (layer for group in block.groups for layer in group):
            block.round(layer, "")

    monkeypatch.setattr(Awq, "quantize_block", look)
    ids = tokens()
    mask = torch.ones_like(ids)
    mask[:, 15:] = 0
    awq(model, calibration=[{"input_ids": ids, "attention_mask": mask}])
    for found, expected in seen_losses:
        assert found == pytest.approx(expected, rel=1e-4)


def test_bf16_and_files(tmp_path: Path) -> None:
    """Saved, loaded, in AutoAWQ's format and back: the folded norms go along."""
    assert not awq(with_outliers().to(torch.bfloat16)).xgemm_report.fallbacks
    model = awq(with_outliers())
    xgemm.save(model, tmp_path / "ours")
    hf_models.assert_same(xgemm.load(tmp_path / "ours"), model)
    convert = pytest.importorskip("xgemm.hf").convert
    convert(tmp_path / "ours", tmp_path / "awq", to="awq")
    hf_models.assert_same(xgemm.load(tmp_path / "awq"), model)
    convert(tmp_path / "awq", tmp_path / "back", to="xgemm")
    hf_models.assert_same(xgemm.load(tmp_path / "back"), model)


def test_it_goes_on_after_a_stop(tmp_path: Path) -> None:
    expected = awq(with_outliers())
    model, calls = with_outliers(), []

    def stop(done: int, total: int, name: str) -> None:
        calls.append(done)
        if done == 7:  # the first block
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        awq(copy.deepcopy(model), progress=stop, resume=tmp_path / "run")
    hf_models.assert_same(awq(model, resume=tmp_path / "run"), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounding": "hqq"}, r"rounding must be one of \('rtn', 'gptq'\), got 'hqq'"),
        ({"objective": "x"}, r"objective must be one of \('module', 'layer'\), got 'x'"),
        ({"duo": 1}, "duo must be a bool, got 1"),
        ({"grid": 0}, "grid must be a positive int, got 0"),
        ({"alpha": 1}, "options of method 'awq' are grid, duo, objective, tokens, rounding, got"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        awq(hf_models.llama(), options=options)
