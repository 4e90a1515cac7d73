"""xgemm.nn.Linear and swap: an nn.Linear in all respects, whose product is mul."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.nn.utils.prune
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import xgemm
from xgemm.nn import Linear, QuantLinear

pytestmark = pytest.mark.usefixtures("one_thread")


class Products(TorchDispatchMode):
    """Counts the calls of mul, and of what F.linear calls."""

    def __init__(self) -> None:
        super().__init__()
        self.ours = self.theirs = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ours += func is torch.ops.xgemm.mul.default
        self.theirs += func in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
        return func(*args, **(kwargs or {}))


def products(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[int, int]:
    with torch.no_grad(), Products() as mode:
        module(*args, **kwargs)
    return mode.ours, mode.theirs


def pair(bias: bool = True, dtype: torch.dtype = torch.float32) -> tuple[nn.Linear, Linear]:
    """An nn.Linear, and a Linear over the same parameters."""
    torch.manual_seed(0)
    theirs = nn.Linear(33, 17, bias, dtype=dtype)
    ours = Linear(33, 17, bias, dtype=dtype)
    ours.weight, ours.bias = theirs.weight, theirs.bias
    return theirs, ours


def inputs(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    assert a.dtype == b.dtype
    tolerance = 1e-5 if a.dtype in (torch.float32, torch.float64) else 2e-2
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


# ---- Linear ----


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(33,), (1, 33), (5, 33), (2, 3, 33), (0, 33)])
def test_computes_by_mul(bias: bool, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    theirs, ours = pair(bias, dtype)
    x = inputs(*shape, dtype=dtype)
    close(ours(x), theirs(x))
    assert products(ours, x) == (1, 0)


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_fuses_the_activation(activation: str) -> None:
    functions: dict[str, Any] = {
        "relu": F.relu,
        "gelu": F.gelu,
        "gelu_tanh": lambda y: F.gelu(y, approximate="tanh"),
        "silu": F.silu,
    }
    theirs, _ = pair()
    ours = Linear(33, 17, activation=activation)
    ours.load_state_dict(theirs.state_dict())
    for dtype in (torch.float32, torch.float64):
        x = inputs(4, 33, dtype=dtype)
        close(ours.to(dtype)(x), functions[activation](theirs.to(dtype)(x)))
    assert f"activation={activation!r}" in repr(ours)


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Linear: activation must be one of .*, got 'tanh'"):
        Linear(3, 4, activation="tanh")


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_other_dtypes_go_the_way_of_nn_linear(dtype: torch.dtype) -> None:
    theirs, ours = pair()
    x = torch.randn(5, 33, dtype=dtype)
    assert torch.equal(ours.to(dtype)(x), theirs.to(dtype)(x))


def test_what_nn_linear_takes_is_taken() -> None:
    theirs, ours = pair()
    nested = torch.nested.nested_tensor([inputs(2, 33), inputs(5, 33)], layout=torch.jagged)
    assert torch.equal(ours(nested).values(), theirs(nested).values())
    sparse = inputs(5, 33).relu().to_sparse_csr()
    close(ours(sparse), theirs(sparse))
    with torch.autocast("cpu", torch.bfloat16):
        close(ours(inputs(5, 33)), theirs(inputs(5, 33)))
    mixed = inputs(5, 33, dtype=torch.bfloat16)
    for layer in (theirs, ours):  # the same error, where there is one
        with pytest.raises(RuntimeError, match="same dtype"):
            layer(mixed)
    meta = torch.empty(5, 33, device="meta")
    assert copy.deepcopy(ours).to("meta")(meta).shape == (5, 17)


def test_trains_like_nn_linear() -> None:
    def train(layer: nn.Module) -> list[torch.Tensor]:
        layer = copy.deepcopy(layer)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            layer(inputs(8, 33)).square().mean().backward()
            optimizer.step()
        return [parameter.detach() for parameter in layer.parameters()]

    theirs, ours = pair()
    for a, b in zip(train(ours), train(theirs), strict=True):
        close(a, b)


def test_state_copies_and_compilers() -> None:
    theirs, ours = pair()
    assert isinstance(ours, nn.Linear)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    x = inputs(5, 33)
    expected = theirs(x)
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert type(copied) is Linear
        close(copied(x), expected)
    torch._dynamo.reset()
    close(torch.compile(ours, fullgraph=True, backend="aot_eager")(x), expected)
    program = torch.export.export(ours, (x,))
    assert any(node.target is torch.ops.xgemm.mul.default for node in program.graph.nodes)
    close(program.module()(x), expected)
    close(torch.jit.script(ours)(x), expected)
    close(torch.func.functional_call(ours, {"bias": torch.zeros(17)}, (x,)), expected - ours.bias)
    nn.utils.prune.l1_unstructured(ours, "weight", 0.5)
    close(ours(x), F.linear(x, ours.weight, ours.bias))
    with pytest.raises(RuntimeError, match="activation 'relu' cannot be scripted"):
        torch.jit.script(Linear(3, 4, activation="relu"))


# ---- swap ----


class Special(nn.Linear):
    pass


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 32)
        self.up = nn.Linear(32, 48)
        self.same = self.up
        self.special = Special(48, 48)
        self.wide = nn.Linear(48, 48, dtype=torch.float64)
        self.down = nn.Linear(48, 32, bias=False)
        self.head = nn.Linear(32, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.special(torch.relu(self.up(self.embed(tokens))))
        return self.head(self.down(self.wide(x.double()).float()))


TOKENS = torch.arange(20)


def test_swaps_in_place_and_back() -> None:
    torch.manual_seed(0)
    model = Net()
    modules, parameters = list(model.modules()), dict(model.named_parameters())
    before = products(model, TOKENS)
    expected = model(TOKENS)
    assert xgemm.swap(model) is model
    assert model.xgemm_swap.swapped == ["up", "same", "down", "head"]
    assert model.xgemm_swap.left == {
        "special": "a subclass of a linear layer (Special)",
        "wide": "its weight is float64",
    }
    assert "swapped 4 linear layers; left 2" in str(model.xgemm_swap)
    assert list(model.modules()) == modules
    assert all(p is parameters[name] for name, p in model.named_parameters())
    assert model.up is model.same
    assert model.head.weight is model.embed.weight
    assert products(model, TOKENS) == (3, before[1] - 3)
    close(model(TOKENS), expected)
    model(TOKENS).sum().backward()
    assert model.up.weight.grad is not None
    xgemm.swap(model)  # again: nothing changes
    assert model.xgemm_swap.swapped == ["up", "same", "down", "head"]

    assert xgemm.unswap(model) is model
    assert type(model.up) is nn.Linear
    assert not hasattr(model, "xgemm_swap")
    assert products(model, TOKENS) == before


def test_skip_and_what_it_is_given() -> None:
    model = xgemm.swap(Net(), skip=["*d", "up"])
    assert model.xgemm_swap.swapped == ["down"]
    assert model.xgemm_swap.left["head"] == "skip names it ('*d')"
    assert model.xgemm_swap.left["same"] == "skip names it ('up')"
    with pytest.raises(ValueError, match="swap: skip: 'gone' matches no linear layer"):
        xgemm.swap(Net(), skip="gone")
    with pytest.raises(TypeError, match=r"swap: model must be a torch.nn.Module, got dict"):
        xgemm.swap({})
    with pytest.raises(TypeError, match="unswap: model must be"):
        xgemm.unswap({})


def test_a_layer_alone_and_one_with_an_activation() -> None:
    assert type(xgemm.swap(nn.Linear(3, 4))) is Linear
    model = nn.Sequential(Linear(3, 4, activation="relu"), nn.Linear(4, 5))
    xgemm.unswap(xgemm.swap(model))
    assert [type(layer) for layer in model] == [Linear, nn.Linear]


def test_hooks_stay_and_patched_layers_are_left() -> None:
    seen = []
    model = Net()
    model.up.register_forward_hook(lambda module, args, out: seen.append(type(module)))
    model.down.forward = model.down.forward
    xgemm.swap(model)(TOKENS)
    assert seen == [Linear]
    assert "forward was replaced" in model.xgemm_swap.left["down"]


def test_a_swapped_model_is_quantized_like_another() -> None:
    plain = xgemm.quantize(Net(), group_size=32)
    swapped = xgemm.quantize(xgemm.swap(Net()), group_size=32)
    assert swapped.xgemm_report.quantized == plain.xgemm_report.quantized
    assert type(swapped.up) is QuantLinear
    xgemm.swap(swapped)
    assert type(swapped.up) is QuantLinear
    assert "up" not in swapped.xgemm_swap.left
    activated = nn.Sequential(Linear(32, 32, activation="relu"), nn.Linear(32, 64))
    xgemm.quantize(activated, group_size=32)  # a QuantLinear would lose the activation
    assert type(activated[0]) is Linear


@pytest.mark.parametrize("name", ["Llama", "BERT", "GPT-2"])
def test_transformers_models(name: str) -> None:
    pytest.importorskip("transformers")
    from architectures import ARCHITECTURES

    architecture = next(a for a in ARCHITECTURES if a.name == name)
    model: Any = architecture.make_tiny()
    given = architecture.inputs()
    with torch.no_grad():
        expected = model(**given)[0]
    keys = list(model.state_dict())
    xgemm.swap(model)
    assert products(model, **given) == (len(model.xgemm_swap.swapped), 0)
    assert list(model.state_dict()) == keys
    with torch.no_grad():
        close(model(**given)[0], expected)
    if name == "GPT-2":
        model = pickle.loads(pickle.dumps(model))
        with torch.no_grad():
            close(model.double()(**given)[0], expected.double())
            close(xgemm.unswap(model.float())(**given)[0], expected)
        assert products(model, **given)[0] == 0
        xgemm.swap(model)
        xgemm.quantize(model, group_size=32)
        assert "transformer.h.0.attn.c_attn" in model.xgemm_report.quantized
    if name == "Llama":
        torch._dynamo.reset()
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        with torch.no_grad():
            close(compiled(**given).logits, expected)
