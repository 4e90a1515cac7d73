"""Calibrated quantizers on what a model shares, block by block; and the same bits each time."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import xgemm

pytest.importorskip("transformers")

import hf_models

from xgemm.nn import QuantLinear
from xgemm.quantize.calibrate.block import Block

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:quantize:UserWarning"),
]

IDS = torch.randint(3, 120, (4, 24), generator=torch.Generator().manual_seed(0))
UP = [f"model.layers.{i}.mlp.up_proj" for i in (0, 1)]


def quantized(model: nn.Module, **options: Any) -> Any:
    call = {"method": "gptq", "group_size": 32, **options}
    if call["method"] in ("gptq", "awq"):
        call["calibration"] = [IDS[:2], IDS[2:]]
    return xgemm.quantize(copy.deepcopy(model), **call)


@pytest.mark.parametrize("lm_head", [False, True])
@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_a_head_that_is_tied_to_the_embedding_is_left_and_stays_tied(
    method: str, lm_head: bool
) -> None:
    model = hf_models.llama(tie=True)
    ours = quantized(model, method=method, lm_head=lm_head)
    assert type(ours.lm_head) is nn.Linear
    assert ours.lm_head.weight is ours.model.embed_tokens.weight
    assert torch.equal(ours.lm_head.weight, model.lm_head.weight)
    reason = "its weight is tied to model.embed_tokens.weight"
    assert ours.xgemm_report.left["lm_head"] == reason
    assert len(ours.xgemm_report.quantized) == 2 * 7


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_a_linear_of_two_blocks_is_quantized_once(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = hf_models.llama()
    model.model.layers[1].mlp.up_proj = model.model.layers[0].mlp.up_proj
    done: list[str] = []
    put = Block.set

    def watched(self: Block, layer: Any, *arguments: Any, **options: Any) -> None:
        done.append(layer.name)
        put(self, layer, *arguments, **options)

    monkeypatch.setattr(Block, "set", watched)
    ours = quantized(model, method=method)
    assert len(done) == len(set(done)) == 2 * 7 - 1
    assert isinstance(ours.model.layers[0].mlp.up_proj, QuantLinear)
    assert ours.model.layers[1].mlp.up_proj is ours.model.layers[0].mlp.up_proj
    assert set(UP) <= set(ours.xgemm_report.quantized)
    # awq: scales in what both blocks compute with would change the other one.
    unscaled = {n.rpartition(".")[2] for n in ours.xgemm_report.fallbacks} - {"o_proj"}
    assert unscaled == ({"gate_proj", "up_proj", "down_proj"} if method == "awq" else set())
    with torch.no_grad():
        expected = model(IDS).logits
        error = float((ours(IDS).logits - expected).norm() / expected.norm())
    assert error < 0.2


def test_two_linears_of_one_weight_are_left_and_named() -> None:
    model = hf_models.llama()
    model.model.layers[1].mlp.up_proj.weight = model.model.layers[0].mlp.up_proj.weight
    ours = quantized(model)
    first, second = (ours.get_submodule(name) for name in UP)
    assert first.weight is second.weight
    for name, other in zip(UP, reversed(UP), strict=True):
        assert ours.xgemm_report.left[name] == f"its weight is tied to {other}.weight"


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("rtn", None),
        ("hqq", None),
        ("gptq", None),
        ("gptq", {"act_order": "desc_act"}),
        ("gptq", {"asymmetry": 0.25}),
        ("awq", None),
        ("awq", {"rounding": "gptq"}),
    ],
)
def test_a_seed_gives_the_same_bits_by_name(method: str, options: dict[str, Any] | None) -> None:
    model = hf_models.mixtral()
    more = {} if options is None else {"options": options}
    states = []
    for noise in (1, 2):
        torch.manual_seed(noise)  # what else draws random numbers is no part of it
        states.append(quantized(model, method=method, seed=7, **more).state_dict())
    one, other = states
    assert one.keys() == other.keys()
    assert sum(name.endswith("qweight") for name in one) == 2 * 6
    for name in one:
        assert torch.equal(one[name], other[name]), name
