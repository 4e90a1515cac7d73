"""torch.vmap over the ops (nested, in chunks, with gradients), against torch in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from functorch_cases import Case, P, close, compare, each_case, loss, small_layer, tangents
from helpers import randn, small_packed
from torch.func import functional_call, grad, jvp, stack_module_state, vmap

import xgemm

ops = torch.ops.xgemm
mul, w4a16, sgemm = ops.mul.default, ops.mul.w4a16, ops.sgemm.default

pytestmark = pytest.mark.filterwarnings(
    "error:There is a performance drop"
)  # a batching rule lacks


def in_dims_of(count: int) -> Any:
    """Every choice of which inputs are batched, at least one."""
    for bits in range(1, 2**count):
        yield tuple(0 if bits >> i & 1 else None for i in range(count))


@each_case
@pytest.mark.parametrize("samples", [6, 1])
def test_vmap(case: Case, samples: int) -> None:
    """Over every choice of inputs, and with a gradient in all of them."""
    count = len(case.shapes)
    for in_dims in in_dims_of(count):
        plain, batched = case.inputs(), case.inputs(samples)
        inputs = [plain[i] if dim is None else batched[i] for i, dim in enumerate(in_dims)]
        compare(case, lambda op, x, d=in_dims: vmap(op, d)(*x), inputs)
        compare(
            case, lambda op, x, d=in_dims: vmap(grad(loss(op), tuple(range(count))), d)(*x), inputs
        )
        compare(
            case,
            lambda op, x, d=in_dims: grad(
                lambda *y: vmap(op, d)(*y).sin().sum(), tuple(range(count))
            )(*x),
            inputs,
        )


@each_case
def test_vmap_over_the_last_dimension_and_out_of_another(case: Case) -> None:
    inputs = [x.movedim(0, -1) for x in case.inputs(6)]
    compare(case, lambda op, x: vmap(op, in_dims=-1, out_dims=-1)(*x), inputs)


@each_case
def test_vmap_nested_and_in_chunks(case: Case) -> None:
    compare(case, lambda op, x: vmap(vmap(op))(*x), case.inputs(3, 2))
    compare(case, lambda op, x: vmap(op, chunk_size=4)(*x), case.inputs(6))
    outer, inner = case.inputs(3), case.inputs(2)
    if len(inner) > 1:  # one input batched outside, the others inside
        inner_dims = (None, *[0] * (len(inner) - 1))
        outer_dims = (0, *[None] * (len(inner) - 1))
        compare(
            case,
            lambda op, x: vmap(vmap(op, inner_dims), outer_dims)(*x),
            [outer[0], *inner[1:]],
        )


@each_case
def test_jvp_of_a_vmap_and_the_other_way_round(case: Case) -> None:
    compare(case, lambda op, x: jvp(vmap(op), x, tangents(x)), case.inputs(3))
    compare(case, lambda op, x: vmap(lambda *y: jvp(op, y, tangents(y)))(*x), case.inputs(3))


def test_per_sample_gradients_of_a_layer() -> None:
    layer, x = small_layer(0), randn((5, 3, 40), torch.float32)
    w = layer.to_packed().dequantize().double()
    parameters = {"bias": layer.bias.detach()}

    def ours(parameters, x):
        return functional_call(layer, parameters, (x,)).sin().sum()

    def theirs(parameters, x):
        return (x @ w.t() + parameters["bias"]).sin().sum()

    found = vmap(grad(ours, argnums=(0, 1)), in_dims=(None, 0))(parameters, x)
    wide = {"bias": parameters["bias"].double()}
    expected = vmap(grad(theirs, argnums=(0, 1)), in_dims=(None, 0))(wide, x.double())
    assert found[0]["bias"].shape == (5, 48)
    close(found, expected)


def test_an_ensemble_of_layers_is_a_vmap_over_their_packed_weights() -> None:
    layers, x = [small_layer(seed) for seed in range(3)], randn((7, 40), torch.float32)
    parameters, buffers = stack_module_state(layers)

    def call(parameters, buffers, x):
        return functional_call(layers[0], (parameters, buffers), (x,))

    y = vmap(call, (0, 0, None))(parameters, buffers, x)
    assert torch.equal(y, torch.stack([layer(x) for layer in layers]))
    found = vmap(grad(lambda *args: call(*args).sin().sum(), 2), (0, 0, None))(
        parameters, buffers, x
    )
    for layer, one in zip(layers, found, strict=True):
        torch.testing.assert_close(one, grad(lambda x, f=layer: f(x).sin().sum())(x))


def test_packed_weights_batched_along_any_dimension() -> None:
    weights = [small_packed(group_size=32, zeros="real", seed=i) for i in range(2)]
    packed = [p.qweight for _, p in weights]
    x, form = randn((2, 3, 64), torch.float32), {"zeros": True}
    y = vmap(lambda x, q: w4a16(x, q, 48, 64, 32, **form), (1, 2), out_dims=1)(
        x.movedim(0, 1), torch.stack(packed, 2)
    )
    for i in range(2):
        assert torch.equal(y[:, i], w4a16(x[i], packed[i], 48, 64, 32, **form))
    dense = vmap(lambda q: ops.dequantize_w4(q, 48, 64, 32, **form))(torch.stack(packed))
    codes, scales, zeros = vmap(lambda q: ops.unpack_w4(q, 48, 64, 32, **form))(torch.stack(packed))
    for i, (q, p) in enumerate(weights):
        assert torch.equal(dense[i], p.dequantize())
        assert torch.equal(codes[i], q.codes)
    packing = vmap(lambda *parts: ops.pack_w4(*parts, 32))(codes, scales, zeros)
    assert torch.equal(packing, torch.stack(packed))
    with pytest.raises(ValueError, match=r"^mul: torch\.vmap .* at least 1 sample, got 0$"):
        vmap(lambda q: w4a16(x, q, 48, 64, 32))(torch.empty(0, 1, 5, dtype=torch.uint8))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("keepdim", [False, True])
def test_vmap_over_indices(name: str, keepdim: bool) -> None:
    ours, theirs = getattr(ops, name), getattr(torch, name)
    for shape in ((5,), (5, 4), (5, 3, 4)):
        x = randn(shape, torch.float32)
        for dim in (None, *range(len(shape) - 1), -1):
            for in_dim in range(len(shape)):
                found = vmap(lambda x, d=dim: ours(x, d, keepdim), in_dim)(x)
                expected = torch.stack([theirs(one, dim, keepdim) for one in x.unbind(in_dim)])
                assert torch.equal(found, expected)


def test_vmap_over_no_samples() -> None:
    b = randn((4, 5), torch.float32)
    assert vmap(lambda a: mul(a, b))(torch.ones(0, 3, 4)).shape == (0, 3, 5)
    assert vmap(lambda a: sgemm(a, b))(torch.ones(0, 3, 4)).shape == (0, 3, 5)
    assert vmap(lambda a: xgemm.linear(a, P))(torch.ones(0, 40)).shape == (0, 48)
    assert vmap(lambda a: ops.sum(a, [0]))(torch.ones(0, 3, 4)).shape == (0, 4)


B = torch.ones(4, 5)
WRONG = [
    (
        lambda a: mul(a, B),
        (3, 5),
        r"^mul: the last dimension of a .* got a \[3, 5\] and b \[4, 5\]$",
    ),
    (lambda a: mul(a, B), (), r"^mul: a must have at least 1 dimension, got a 0-D tensor$"),
    (lambda a: mul(B.t(), B, a), (4,), r"^mul: bias must have the shape \[5\], got \[4\]$"),
    (lambda a: sgemm(a, B), (4,), r"^sgemm: a must have at least 2 dimensions, got \[4\]$"),
    (lambda a: sgemm(B.t(), B, a), (5,), r"^sgemm: c must have the shape \[5, 5\], got \[5\]$"),
    (lambda a: xgemm.linear(a, P), (), r"^mul\.w4a16: the last dimension of a must be k=40, got a"),
    (lambda a: ops.sum(a, [2]), (3, 4), r"^sum: dim must be in \[-2, 1\] for a 2-D tensor, got 2$"),
    (lambda a: ops.amax(a), (0, 4), r"^amax: dim 0 must not be empty .* got x of shape \[0, 4\]$"),
]


@pytest.mark.parametrize(("call", "shape", "message"), WRONG)
def test_errors_under_vmap_speak_of_one_sample(call: Any, shape: Any, message: str) -> None:
    samples = torch.ones(40, *shape)  # as many as would fit where a batch is taken for a dimension
    with pytest.raises((ValueError, IndexError), match=message):
        vmap(call)(samples)


def test_vmap_is_one_call() -> None:
    """A batch of rows is not a loop, nor is anything else left in a trace."""
    x = randn((5, 40), torch.float32)
    for f in (
        lambda x: xgemm.linear(x, P),
        lambda x: mul(x, torch.ones(40, 3)),
        lambda x: ops.sum(x, [0]),
    ):
        graph = torch.fx.experimental.proxy_tensor.make_fx(vmap(f))(x)
        names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
        assert sum(name.startswith("xgemm.") for name in names) == 1
        assert not any("empty" in name or "stack" in name for name in names)
