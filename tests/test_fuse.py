"""fuse: siblings share one product, and the model is otherwise what it was."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from fusing import Attention, X, block, equal, inputs, products
from torch import nn
from torch.utils.checkpoint import checkpoint

import xgemm
from xgemm.nn import FusedLinear, QuantLinear

pytestmark = pytest.mark.usefixtures("one_thread")


# ---- what is joined, and that it is ----


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"sizes": (100, 7, 33)},  # no multiple of 64: packed rows of padding between
        {"sizes": (1, 64, 1)},
    ],
)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_one_product_serves_siblings(options: dict, mode: Any) -> None:
    if "sizes" in options:
        torch.manual_seed(0)
        model: Any = xgemm.quantize(Attention(**options).eval(), group_size=32)
    else:
        model = block(**options)
    with mode():
        expected = model(X), model(X[:1, :1])
    before = products(model, X)
    assert xgemm.fuse(model) is model
    assert before - products(model, X) == model.xgemm_fusion.launches_saved
    with mode():
        equal((model(X), model(X[:1, :1])), expected)
    assert products(model, X) == before - model.xgemm_fusion.launches_saved


def test_a_llama_block_makes_four_products() -> None:
    pytest.importorskip("transformers")
    from hf_models import llama

    model = xgemm.quantize(llama(), group_size=32)
    tokens = torch.arange(10)[None]
    with torch.no_grad():
        expected = model(tokens).logits
    assert products(model, tokens) == 14
    xgemm.fuse(model)
    assert products(model, tokens) == 8
    assert products(model, tokens) == 8
    with torch.no_grad():
        equal(model(tokens).logits, expected)
    report = str(model.xgemm_fusion)
    assert "2 x q_proj + k_proj + v_proj" in report
    assert "2 x gate_proj + up_proj" in report
    assert "6 launches fewer" in report
    xgemm.unfuse(model)
    assert products(model, tokens) == 14


NAMES = {"Llama", "Qwen2", "T5", "BERT", "Whisper", "DeepSeek-V3", "Qwen3-Next", "GPT-2"}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_architectures_answer_the_same(name: str) -> None:
    pytest.importorskip("transformers")
    from architectures import ARCHITECTURES

    architecture = next(a for a in ARCHITECTURES if a.name == name)
    model: Any = xgemm.quantize(architecture.make_tiny(), group_size=32)
    given = architecture.inputs()
    before = products(model, **given)
    with torch.no_grad():
        expected = model(**given)[0]
    xgemm.fuse(model)
    saved = model.xgemm_fusion.launches_saved
    assert (saved > 0) == (name != "GPT-2")
    assert products(model, **given) == before - saved
    with torch.no_grad():
        equal(model(**given)[0], expected)
    if architecture.generates:  # with a cache: cross-attention asks for q alone
        fused = model.generate(**given, max_new_tokens=3, do_sample=False)
        assert all(m._joined.same_input for m in model.modules() if isinstance(m, FusedLinear))
        plain = xgemm.unfuse(model).generate(**given, max_new_tokens=3, do_sample=False)
        assert torch.equal(fused, plain)


def test_rows_of_other_formats_are_left_with_the_reason() -> None:
    model = Attention()
    xgemm.quantize(model, group_size=32, skip=["k"])
    model.k = QuantLinear.from_linear(model.k, group_size=64)
    xgemm.fuse(model)
    assert model.xgemm_fusion.fused == {}
    assert model.xgemm_fusion.left == dict.fromkeys("qkv", "group_size is 32 and 64")
    assert type(model) is Attention

    model.k = QuantLinear.from_linear(nn.Linear(96, 64), group_size=32, symmetric=False)
    assert xgemm.fuse(model).xgemm_fusion.left["q"] == "has_zeros is False and True"
    model.k = QuantLinear.from_linear(nn.Linear(96, 64), group_size=32, activation="relu")
    assert "activation" in xgemm.fuse(model).xgemm_fusion.left["q"]
    model.k = model.q
    assert "shared" in xgemm.fuse(model).xgemm_fusion.left["q"]


def test_act_order_must_be_the_same() -> None:
    def act_order(seed: int) -> QuantLinear:
        order = torch.randperm(96, generator=torch.Generator().manual_seed(seed))
        q = xgemm.quantize_weight(inputs(64, 96, seed=seed), group_size=32)
        q = xgemm.QuantizedWeight(q.codes, q.scales, q.zeros, (order // 32).int(), 32)
        return QuantLinear.from_packed(xgemm.pack(q))

    model = Attention()
    model.q, model.k, model.v = act_order(1), act_order(1), act_order(1)
    model.k.qweight.data = act_order(1).qweight.data.flip(0)
    with torch.no_grad():
        expected = model(X)
    xgemm.fuse(model)
    assert products(model, X) == 1
    with torch.no_grad():
        equal(model(X), expected)
    model.k = act_order(2)
    assert "act-order" in xgemm.fuse(model).xgemm_fusion.left["q"]


def test_what_fuse_is_given() -> None:
    with pytest.raises(TypeError, match=r"fuse: model must be a torch.nn.Module, got int"):
        xgemm.fuse(3)
    with pytest.raises(TypeError, match="unfuse: model must be"):
        xgemm.unfuse(3)
    assert "fused 0 layers" in str(xgemm.fuse(nn.Linear(3, 4)).xgemm_fusion)


# ---- never another input's columns ----


@pytest.fixture
def attention() -> Any:
    torch.manual_seed(0)
    return xgemm.quantize(Attention().eval(), group_size=32)


class Between:
    def __init__(self, run: Any) -> None:
        self.run = run


def both(model: Any, *args: Any) -> tuple[Any, Any]:
    """What the model computes unfused and fused."""
    with torch.no_grad():
        expected = copy.deepcopy(model)(*(a.clone() for a in args))
        xgemm.fuse(model)
        return expected, model(*(a.clone() for a in args))


def test_another_input_is_multiplied_by_itself(attention: Any) -> None:
    expected, got = both(attention, X, inputs(2, 3, 96, seed=5))
    equal(got, expected)
    # Seen once to read two tensors, they do not share again: no column is computed in vain.
    assert not attention.q._joined.same_input
    assert products(attention, X) == 3
    assert xgemm.fuse(attention) is attention
    assert products(attention, X) == 1


def test_an_input_written_between_siblings_is_read_anew(attention: Any) -> None:
    x = X.clone()
    attention.between = Between(lambda: x.mul_(2))
    expected = [attention.k(2 * X), attention.v(2 * X)]
    xgemm.fuse(attention)
    with torch.no_grad():
        _, k, v = attention(x)
    equal([k, v], expected)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_hook_may_write_the_input(attention: Any, mode: Any) -> None:
    handle = attention.q.register_forward_hook(lambda module, args, out: args[0].mul_(2))
    with mode():
        expected = attention(X.clone())
        xgemm.fuse(attention)
        equal(attention(X.clone()), expected)
    handle.remove()
    assert products(attention, X) == 1
    attention.k.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    with mode():
        equal(attention(X)[1], attention.k(X))


def test_what_is_put_on_a_layer_is_called(attention: Any) -> None:
    """Hooks of all modules, and a forward that replaces a layer's own."""
    xgemm.fuse(attention)
    seen = []
    handle = nn.modules.module.register_module_forward_hook(lambda m, args, out: seen.append(m))
    with torch.no_grad():
        attention(X)
    handle.remove()
    assert {attention.q, attention.k, attention.v} <= set(seen)
    attention.k.forward = lambda x: x + 1
    with torch.no_grad():
        equal(attention(X)[1], X + 1)


def test_an_error_between_siblings_leaves_nothing(attention: Any) -> None:
    xgemm.fuse(attention)

    def fail() -> None:
        raise KeyError("between")

    attention.between = Between(fail)
    with torch.no_grad(), pytest.raises(KeyError):
        attention(X)
    attention.between = None
    x = X.clone()
    with torch.inference_mode():
        equal(attention.k(x.mul_(3)), QuantLinear.forward(attention.k, 3 * X))
    assert products(attention, X) == 1


def test_parts_called_from_outside_are_on_their_own(attention: Any) -> None:
    with torch.inference_mode():
        x = X.clone()
        expected = attention.q(x), attention.k(2 * x)
        xgemm.fuse(attention)
        q = attention.q(x)
        x.mul_(2)  # an inference tensor: nothing counts this write
        equal((q, attention.k(x)), expected)


def test_nothing_is_held_between_calls(attention: Any) -> None:
    xgemm.fuse(attention)
    gc.disable()
    try:
        with torch.no_grad():
            x = X.clone()
            q, k, v = attention(x)
            references = [weakref.ref(t) for t in (x, q, k, v)]
            del x, q, k, v
        assert [r() for r in references] == [None] * 4
        model = weakref.ref(attention.q)
        attention.q = None
        assert model() is None
    finally:
        gc.enable()


def test_inputs_that_need_care_and_mistakes(attention: Any) -> None:
    nested = torch.nested.nested_tensor([X[0], X[1]], layout=torch.jagged)
    with torch.no_grad():
        expected = attention(nested)
        xgemm.fuse(attention)
        equal([t.values() for t in attention(nested)], [t.values() for t in expected])
        messages = []
        for fused in (True, False):
            if not fused:
                xgemm.unfuse(attention)
            with pytest.raises((ValueError, RuntimeError)) as error:
                attention(torch.randn(2, 95))
            messages.append(str(error.value).splitlines()[0])
    assert messages[0] == messages[1]
    assert "95" in messages[0]


def test_threads_have_products_of_their_own(attention: Any) -> None:
    xgemm.fuse(attention)
    gate = threading.Barrier(2)
    attention.between = Between(gate.wait)
    found: dict[int, Any] = {}

    def run(seed: int) -> None:
        with torch.no_grad():
            found[seed] = attention(inputs(2, 96, seed=seed))[1:]

    workers = [threading.Thread(target=run, args=(seed,)) for seed in (1, 2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for seed in (1, 2):
        x = inputs(2, 96, seed=seed)
        equal(found[seed], (attention.k(x), attention.v(x)))


def test_results_are_no_views_of_each_other(attention: Any) -> None:
    xgemm.fuse(attention)
    with torch.no_grad():
        q, k, v = attention(X)
        expected = k.clone()
        q.mul_(0)
    equal(k, expected)
    assert k._version == 0
    weight = torch.ones(64, requires_grad=True)
    (v.mul_(weight) * 2).sum().backward()  # a view made without grad refuses to be written
    assert weight.grad is not None


def test_gradients_and_checkpointing_are_the_unfused_ones(attention: Any) -> None:
    def run(model: Any, use_reentrant: bool | None) -> list[torch.Tensor]:
        x = X.clone().requires_grad_()
        if use_reentrant is None:
            out = model(x)
        else:
            out = checkpoint(model, x, use_reentrant=use_reentrant)
        model.zero_grad()
        torch.cat(out, -1).square().sum().backward()
        return [x.grad, model.q.bias.grad.clone()]

    expected = run(attention, None)
    xgemm.fuse(attention)
    for use_reentrant in (None, False, True):
        equal(run(attention, use_reentrant), expected)


def test_autocast_takes_each_by_itself(attention: Any) -> None:
    xgemm.fuse(attention)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert [t.dtype for t in attention(X)] == [torch.bfloat16] * 3
    assert products(attention, X) == 1


def test_functional_call_reads_the_given_weights(attention: Any) -> None:
    xgemm.fuse(attention)
    other = {"q.bias": attention.q.bias + 1, "v.bias": attention.v.bias + 2}
    with torch.no_grad():
        q, k, v = attention(X)
        got = torch.func.functional_call(attention, other, (X,))
    equal(got, (q + 1, k, v + 2))


def test_weights_written_or_replaced_are_read(attention: Any) -> None:
    xgemm.fuse(attention)
    fresh = xgemm.quantize(Attention().eval(), group_size=32)
    with torch.no_grad():
        expected = fresh.k(X)
        attention.k.qweight.copy_(fresh.k.qweight)
        equal(attention(X)[1], expected)
        assert products(attention, X) == 1
        attention.k.qweight.data = torch.zeros_like(attention.k.qweight.data)
        assert attention(X)[1].abs().max() == 0
        attention.k.qweight = nn.Parameter(fresh.k.qweight.data.clone(), requires_grad=False)
        equal(attention(X)[1], expected)
