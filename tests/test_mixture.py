"""QuantExperts without a gradient: three calls that a CUDA graph can hold, the loop's numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import in_act_order, randn
from test_experts import EXPERTS, FAMILIES, HIDDEN, TOP_K, close, make, routing
from torch import nn

from xgemm.nn import QuantExperts, experts, mixture

pytest.importorskip("transformers")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The three calls on the CPU, too; the gate of each, where it is fused."""
    found: list[str] = []

    def noted(x: Any, ids: Any, weights: Any, up: Any, down: Any, gate: Any, then: Any) -> Any:
        found.append(gate if isinstance(gate, str) else "own")
        return mixture.mixture(x, ids, weights, up, down, gate, then)

    monkeypatch.setattr(experts, "takes", lambda *given: True)
    monkeypatch.setattr(experts, "mixture", noted)
    return found


GATES = dict.fromkeys(FAMILIES, "own") | dict.fromkeys(
    ("mixtral", "qwen3_moe", "deepseek_v3", "qwen3_next", "aria", "granitemoe", "muse_spark"),
    "silu_and_mul",
)


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "zeros"])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_calls_compute_what_the_loop_does(name, symmetric, monkeypatch, calls):
    packed = QuantExperts.from_experts(
        make(name, FAMILIES[name]), group_size=32, symmetric=symmetric
    )
    x, (index, weights) = randn((17, HIDDEN), torch.float32), routing(17)
    index[3, 1] = index[5, 0] = EXPERTS + 2  # no expert
    with torch.no_grad():
        got = packed(x, index, weights)
        assert calls == [GATES[name]]
        monkeypatch.setattr(experts, "takes", lambda *given: False)
        close(got, packed(x, index, weights))
    assert calls == [GATES[name]]


def test_an_order_of_channels_and_a_tanh_gelu(monkeypatch, calls):
    module = make("mixtral", "MixtralExperts")
    module.act_fn = nn.GELU(approximate="tanh")
    with_order = in_act_order(module)
    x, (index, weights) = randn((9, HIDDEN), torch.float32), routing(9)
    with torch.no_grad():
        got = with_order(x, index, weights)
        close(got, with_order.to_experts()(x, index, weights))
    assert calls == ["gelu_tanh_and_mul"]


@pytest.mark.parametrize("what", ["input", "weights", "bias", "tangent"])
def test_where_a_derivative_is_needed_the_loop_goes_on(what, calls):
    packed = QuantExperts.from_experts(make("gpt_oss", "GptOssExperts"), group_size=32)
    packed.requires_grad_(what == "bias")
    x, (index, weights) = randn((5, HIDDEN), torch.float32), routing(5)
    packed(x, index, weights)
    assert len(calls) == (0 if what == "bias" else 1)
    calls.clear()
    if what == "tangent":
        run = lambda x: packed(x, index, weights)  # noqa: E731
        _, tangent = torch.func.jvp(run, (x,), (torch.ones_like(x),))
        assert bool(tangent.any())
    else:
        x.requires_grad_(what == "input")
        weights.requires_grad_(what == "weights")
        assert packed(x, index, weights).requires_grad
    assert calls == []


def test_compiled_and_exported_without_a_break(calls):
    packed = QuantExperts.from_experts(make("mixtral", "MixtralExperts"), group_size=32)
    compiled = torch.compile(packed, backend="aot_eager", fullgraph=True, dynamic=True)
    with torch.no_grad():
        for tokens in (3, 8):
            arguments = (randn((tokens, HIDDEN), torch.float32), *routing(tokens))
            close(compiled(*arguments), packed(*arguments))
        tokens = torch.export.Dim("tokens", min=2)
        exported = torch.export.export(
            packed, arguments, dynamic_shapes=({0: tokens},) * 3, strict=False
        )
        more = (randn((11, HIDDEN), torch.float32), *routing(11))
        close(exported.module()(*more), packed(*more))


def test_no_tokens_and_autocast(calls):
    packed = QuantExperts.from_experts(make("mixtral", "MixtralExperts"), group_size=32)
    empty = torch.empty(0, TOP_K)
    with torch.no_grad():
        assert packed(torch.empty(0, HIDDEN), empty.long(), empty).shape == (0, HIDDEN)
        x, (index, weights) = randn((5, HIDDEN), torch.float32), routing(5)
        expected = packed(x.bfloat16(), index, weights).float()
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(packed(x, index, weights), expected)
    assert len(calls) == 3


def test_which_way_is_taken(monkeypatch):
    x = SimpleNamespace(is_cuda=True, device=torch.device("cuda"))
    capturing = SimpleNamespace(now=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing.now)
    few, many = torch.empty(4, 2), torch.empty(mixture.MANY_ROWS * EXPERTS, 1)
    small = mixture.MANY_PRODUCTS // mixture.MANY_ROWS - 1
    assert mixture.takes(x, many, EXPERTS, small)
    assert mixture.takes(x, few, EXPERTS, small + 1)
    assert not mixture.takes(x, many, EXPERTS, small + 2)
    on_cpu = torch.empty(1)
    assert mixture.takes(on_cpu, few, EXPERTS, small + 2)
    assert not mixture.takes(on_cpu, many, EXPERTS, small)
    assert not mixture.takes(torch.empty(1, device="meta"), few, EXPERTS, small)
    capturing.now = True
    assert mixture.takes(x, many, EXPERTS, small + 2)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["mixtral", "gpt_oss", "nemotron_h"])
def test_a_graph_is_replayed_with_other_experts(name, dtype):
    packed = QuantExperts.from_experts(
        make(name, FAMILIES[name], dtype=dtype), group_size=32
    ).cuda()
    x, (index, weights) = randn((8, HIDDEN), dtype).cuda(), (t.cuda() for t in routing(8))
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        packed(x, index, weights)
        with torch.cuda.graph(graph):
            y = packed(x, index, weights)
    for seed in (1, 2):
        other, scale = routing(8, seed)
        other[0, 1] = EXPERTS
        index.copy_(other)
        weights.copy_(scale)
        graph.replay()
        expected = packed.to("cpu")(x.cpu(), other, scale) if dtype == torch.float32 else None
        packed.cuda()
        with torch.no_grad():
            again = packed(x, index, weights)
        assert torch.equal(y, again)
        if expected is not None:
            assert float((y.cpu() - expected).norm()) <= 1e-4 * float(expected.norm())
