"""The ops and the layer under torch's tracers, checkpointing and gradcheck."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import randn, small_packed, w4a16_form
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import xgemm
from xgemm.nn import QuantLinear

ops = torch.ops.xgemm
mul, sgemm = ops.mul.default, ops.sgemm.default

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

_, P = small_packed(48, 64, group_size=32, zeros="real", act_order=True)
QWEIGHT, PERM, FORM = P.qweight, P.perm, w4a16_form(P)
B, BIAS = randn((64, 5), torch.float32, 1), randn((48,), torch.float32, 2)

CALLS = {
    "mul": lambda x: mul(x, B, activation="gelu"),
    "mul by its packet": lambda x: ops.mul(x, B),
    "mul.w4a16": lambda x: ops.mul.w4a16(x, QWEIGHT, 48, 64, 32, BIAS, PERM, **FORM),
    "linear": lambda x: xgemm.linear(x, P, BIAS, "silu"),
    "sgemm": lambda x: sgemm(x, B, alpha=0.5),
    "sum": lambda x: ops.sum(x, [1]),
    "norm": lambda x: ops.norm(x, p=3.0),
    "argmax": lambda x: ops.argmax(x, 1),
}
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


def x_of(rows: int, seed: int = 0) -> torch.Tensor:
    return randn((rows, 64), torch.float32, seed)


def layers() -> Any:
    torch.manual_seed(0)
    linear = torch.nn.Linear(64, 48)
    for trainable in (False, True):
        layer = QuantLinear.from_linear(linear, group_size=32, activation="relu")
        yield layer.requires_grad_(trainable)
        yield torch.nn.Sequential(layer, torch.nn.ReLU()).requires_grad_(trainable)


@each_call
def test_symbolic_trace(call: Any) -> None:
    assert torch.equal(torch.fx.symbolic_trace(call)(x_of(3)), call(x_of(3)))


@each_call
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx(call: Any, mode: str) -> None:
    traced = make_fx(call, tracing_mode=mode, _allow_non_fake_inputs=True)(x_of(3))
    assert any("xgemm" in str(node.target) for node in traced.graph.nodes)
    assert torch.equal(traced(x_of(3, 1)), call(x_of(3, 1)))


@each_call
@pytest.mark.parametrize("grad", [False, True])
def test_jit_trace(call: Any, grad: bool) -> None:
    """Its own check runs without gradients, and must find the same graph."""
    traced = torch.jit.trace(call, x_of(3).requires_grad_(grad))
    assert torch.equal(traced(x_of(7, 1)), call(x_of(7, 1)))


def test_layers() -> None:
    x = x_of(3)
    for layer in layers():
        for traced in (
            torch.fx.symbolic_trace(layer),
            make_fx(layer)(x),
            torch.jit.trace(layer, x),
            torch.jit.script(layer),
        ):
            assert torch.equal(traced(x), layer(x))


def test_packed_weight_of_a_layer_is_a_constant_of_a_trace() -> None:
    layer = next(layers())
    bias = layer.bias.detach()
    traced = torch.fx.symbolic_trace(lambda x: xgemm.linear(x, layer.to_packed(), bias))
    assert type(layer.to_packed().qweight) is torch.Tensor
    assert layer.to_packed().qweight.data_ptr() == layer.qweight.data_ptr()
    assert torch.equal(torch.relu(traced(x_of(3))), layer(x_of(3)))


def test_jit_script() -> None:
    @torch.jit.script
    def run(a: torch.Tensor, b: torch.Tensor, q: torch.Tensor, bias: torch.Tensor):
        y = torch.ops.xgemm.mul(a, q, 48, 64, 32, bias, zeros=True, activation="relu")
        z = torch.ops.xgemm.sgemm(a, b, alpha=2.0)
        return torch.ops.xgemm.mul(a, b), y, torch.ops.xgemm.sum(z, [1]), torch.ops.xgemm.norm(z)

    a = x_of(3)
    found = run(a, B, QWEIGHT, BIAS)
    product = sgemm(a, B, alpha=2.0)
    packed = ops.mul.w4a16(a, QWEIGHT, 48, 64, 32, BIAS, zeros=True, activation="relu")
    expected = (mul(a, B), packed, ops.sum(product, [1]), ops.norm(product))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@each_call
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(call: Any, reentrant: bool) -> None:
    if not call(x_of(3)).is_floating_point():
        return
    x, again = x_of(3).requires_grad_(), x_of(3).requires_grad_()
    checkpoint(call, x, use_reentrant=reentrant).sum().backward()
    call(again).sum().backward()
    assert torch.equal(x.grad, again.grad)


@pytest.mark.parametrize(
    ("call", "shapes"),
    [
        (mul, ((3, 4), (4, 5), (5,))),
        (lambda a, b, c: sgemm(a, b, c, beta=0.5), ((3, 4), (4, 2), (3, 2))),
        (lambda x, bias: xgemm.linear(x, P, bias), ((1, 64), (48,))),
        (lambda x: ops.mean(x, [1]), ((3, 4),)),
        (lambda x: ops.prod(x), ((4,),)),
        (lambda x: ops.norm(x, [1], p=2.0), ((3, 4),)),
    ],
)
@pytest.mark.filterwarnings("ignore:Input .* requires gradient and is not a double")
def test_gradcheck(call: Any, shapes: tuple[tuple[int, ...], ...]) -> None:
    """Every mode that torch's own checks know, in float32."""
    inputs = tuple(randn(s, torch.float32, i).requires_grad_() for i, s in enumerate(shapes))
    tolerance = {"eps": 1e-2, "atol": 1e-2, "rtol": 1e-2}
    assert torch.autograd.gradcheck(
        call,
        inputs,
        **tolerance,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    )
    assert torch.autograd.gradgradcheck(
        lambda *x: call(*x).sin(), inputs, **tolerance, check_fwd_over_rev=True
    )


@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_vectorized_jacobian(strategy: str) -> None:
    x = x_of(2)
    jacobian = torch.autograd.functional.jacobian(
        lambda x: xgemm.linear(x, P), x, vectorize=True, strategy=strategy
    )
    w = P.dequantize()
    for i in range(2):
        torch.testing.assert_close(jacobian[i, :, i], w)
        assert not jacobian[i, :, 1 - i].any()
