"""Calls that only a kernel has to see: taken where they may be, and the same numbers."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from helpers import randn, random_weight
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import xgemm
from xgemm import direct

mul = torch.ops.xgemm.mul.default
w4a16 = torch.ops.xgemm.mul.w4a16


class Functions(TorchFunctionMode):
    """Answers for every function itself; attributes are looked up."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args) if func.__name__ == "__get__" else torch.zeros(())


class Dispatched(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return torch.zeros(())


class Named(torch.Tensor):
    """A class of its own, which might have rules of its own."""


@pytest.fixture
def taken(monkeypatch):
    """The names of direct.py's ops, in the order in which they are called and do not refuse."""
    names: list[str] = []
    for name in ("mul", "mul_w4a16", "w4a16_grad_a", "reduce"):
        op = getattr(direct, name)

        def counted(*args, name=name, op=op):
            result = op(*args)
            names.append(name)
            return result

        monkeypatch.setattr(direct, name, counted)
    return names


def calls(x: torch.Tensor):
    p = xgemm.pack(random_weight(70, 64, 32, "real"))
    layer = xgemm.nn.QuantLinear.from_packed(p)
    return {
        "mul": lambda: mul(x, x.mT),
        "packet": lambda: torch.ops.xgemm.mul(x, x.mT),
        "linear": lambda: xgemm.linear(x, p),
        "layer": lambda: layer(x),
        "sum": lambda: torch.ops.xgemm.sum(x),
        "argmax": lambda: torch.ops.xgemm.argmax(x, 1),
    }


NAMES = {
    "mul": "mul",
    "packet": "mul",
    "linear": "mul_w4a16",
    "layer": "mul_w4a16",
    "sum": "reduce",
    "argmax": "reduce",
}


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_plain_calls_take_the_shortest_way(taken, mode):
    x = randn((5, 64), torch.float32)
    for name, call in calls(x).items():
        taken.clear()
        with mode():
            call()
        assert taken == [NAMES[name]], name


@pytest.mark.parametrize(
    "seen",
    [
        Functions,
        Dispatched,
        torch.profiler.profile,
        torch.autograd.forward_ad.dual_level,
        "subclass",
        "func",
    ],
)
def test_what_is_to_see_the_ops_does(taken, seen):
    x = randn((5, 64), torch.float32)
    context = nullcontext() if isinstance(seen, str) else seen()
    found = calls(x.as_subclass(Named) if seen == "subclass" else x)
    with context:
        for name, call in found.items():
            if seen == "func":
                torch.func.vmap(lambda _, call=call: call())(torch.zeros(2))
            else:
                call()
            assert taken == [], name


def test_the_numbers_are_those_of_the_ops(taken):
    ops = torch.ops.xgemm
    x, y = randn((5, 64), torch.float32), randn((64, 33), torch.float32, 1)
    results = [mul(x, y), ops.mul(x, y)]
    assert taken == ["mul"] * 2
    assert all(torch.equal(result, mul(x, y, None)) for result in results)
    for name in direct.REDUCTIONS:
        op = getattr(ops, name)
        for dim in (None, 0, -1):
            taken.clear()
            result = op(x) if dim is None else op(x, dim)
            assert taken == ["reduce"]
            want = op(x, dim, False)
            assert torch.equal(result, want), (name, dim)
            assert result.dtype == want.dtype, (name, dim)
        if not name.startswith("arg"):
            taken.clear()
            assert torch.equal(op(x, [1]), op(x, [1], False)), name
            assert taken == ["reduce"]
            with pytest.raises(TypeError, match="dim must be an int, a list of ints or None"):
                op(x, [None])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("zeros", ["none", "real"])
@pytest.mark.parametrize("bf16_scales", [False, True])
def test_packed_products_are_those_of_the_op(taken, dtype, zeros, bf16_scales):
    q = random_weight(70, 64, 32, zeros)
    if bf16_scales:
        q = xgemm.QuantizedWeight(q.codes, q.scales.bfloat16(), q.zeros, None, 32)
    p = xgemm.pack(q)
    x, bias = randn((5, 64), dtype), randn((70,), dtype, 1)
    for b in (None, bias):
        result = xgemm.linear(x, p, b)
        want = w4a16(x, p.qweight, 70, 64, 32, b, bf16_scales=bf16_scales, zeros=zeros != "none")
        assert torch.equal(result, want)
    x.requires_grad_()
    xgemm.linear(x, p).backward(torch.ones(5, 70, dtype=dtype))
    assert taken == ["mul_w4a16"] * 3 + ["w4a16_grad_a"]
    want = torch.ops.xgemm.w4a16_grad_a.default(
        torch.ones(5, 70, dtype=dtype),
        p.qweight, 70, 64, 32, bf16_scales=bf16_scales, zeros=zeros != "none",
    )  # fmt: skip
    assert torch.equal(x.grad, want)
    # An option that is given as False is not one that is set.
    x.grad = None
    y = w4a16(x, p.qweight, 70, 64, 32, bf16_scales=bf16_scales, zeros=zeros != "none")
    y.backward(torch.ones_like(y))
    assert torch.equal(x.grad, want)


def test_under_autocast_operands_are_cast():
    x = randn((5, 64), torch.float32)
    p = xgemm.pack(random_weight(70, 64, 32, "real"))
    with torch.autocast("cpu", torch.bfloat16):
        assert mul(x, x.mT).dtype == torch.bfloat16
        assert torch.equal(xgemm.linear(x, p), xgemm.linear(x.bfloat16(), p))
        assert xgemm.linear(x, p, randn((70,), torch.float32)).dtype == torch.bfloat16


def test_negated_views_are_resolved(taken):
    z = torch.complex(randn((5, 64), torch.float32), randn((5, 64), torch.float32, 1))
    x = z.conj().imag
    assert x.is_neg()
    assert torch.equal(mul(x, x.mT), mul(x.resolve_neg(), x.resolve_neg().mT))
    assert torch.equal(torch.ops.xgemm.sum(x), torch.ops.xgemm.sum(x.resolve_neg()))
    assert taken == ["mul"] * 2 + ["reduce"] * 2


def test_a_gradient_is_recorded_once(taken):
    x = randn((5, 64), torch.float32).requires_grad_()
    p = xgemm.pack(random_weight(70, 64, 32, "real"))
    y = xgemm.linear(x, p)
    assert type(y.grad_fn).__name__ == "_MulW4A16Backward"
    assert taken == ["mul_w4a16"]
    with torch.no_grad():
        assert xgemm.linear(x, p).grad_fn is None
