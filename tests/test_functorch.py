"""torch.func over the ops (jvp, grad, jacobians, vmap, nested), against torch in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from fusing import X, block
from helpers import randn, small_packed, w4a16_args, w4a16_form
from torch.autograd import forward_ad
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)

import xgemm
from xgemm import reference
from xgemm.activations import activate
from xgemm.formats.packed_format import PackedFormat
from xgemm.nn import QuantLinear
from xgemm.nn.experts_linear import experts_linear

ops = torch.ops.xgemm
mul, w4a16, sgemm = ops.mul.default, ops.mul.w4a16, ops.sgemm.default

pytestmark = pytest.mark.filterwarnings(
    "error:There is a performance drop"
)  # a batching rule lacks


@dataclass
class Case:
    """An op, the same in float64 torch, and inputs that are differentiable and can be batched."""

    ours: Any
    theirs: Any
    shapes: tuple[tuple[int, ...], ...]

    def inputs(self, *batch: int) -> list[torch.Tensor]:
        return [randn((*batch, *s), torch.float32, i) for i, s in enumerate(self.shapes)]


Q, P = small_packed(48, 40, group_size=32, zeros="real", act_order=True)
W = reference.dequantize(Q)


def _sgemm(transa: bool, transb: bool, beta: float) -> Any:
    def ours(a, b, c):
        return sgemm(a, b, c, transa=transa, transb=transb, alpha=1.5, beta=beta)

    def theirs(a, b, c):
        return 1.5 * (a.mT if transa else a) @ (b.mT if transb else b) + beta * c

    return ours, theirs


def _mul(activation: str) -> Any:
    def theirs(a, b, bias=None):
        y = torch.matmul(a, b)
        if bias is not None:
            y = y + (bias if b.dim() > 1 else bias.squeeze(0))
        return activate(y, activation)

    return (lambda *inputs: mul(*inputs, activation=activation)), theirs


CASES = {
    "mul": Case(*_mul("none"), ((3, 4), (4, 5))),
    "mul-bias-gelu": Case(*_mul("gelu"), ((3, 4), (4, 5), (5,))),
    "mul-vectors": Case(*_mul("none"), ((4,), (4,), (1,))),
    "mul-vector-matrix": Case(*_mul("silu"), ((4,), (4, 5), (5,))),
    "mul-matrix-vector": Case(*_mul("none"), ((3, 4), (4,), (1,))),
    "mul-vector-batch": Case(*_mul("none"), ((4,), (2, 4, 5))),
    "mul-batch-vector": Case(*_mul("none"), ((2, 3, 4), (4,))),
    "mul-batch-matrix": Case(*_mul("none"), ((2, 3, 4), (4, 5), (5,))),
    "mul-matrix-batch": Case(*_mul("none"), ((3, 4), (2, 4, 5), (5,))),
    "mul-batches": Case(*_mul("none"), ((2, 1, 3, 4), (2, 4, 5))),
    "sgemm": Case(*_sgemm(False, False, 0.5), ((3, 4), (4, 5), (3, 5))),
    "sgemm-transposed": Case(*_sgemm(True, True, 0.0), ((4, 3), (5, 4), (3, 5))),
    "sgemm-batches": Case(*_sgemm(False, True, 2.0), ((2, 3, 4), (5, 4), (2, 3, 5))),
    "linear": Case(
        lambda x, bias: xgemm.linear(x, P, bias, "silu"),
        lambda x, bias: activate(x @ W.t() + bias, "silu"),
        ((3, 40), (48,)),
    ),
    "linear-vector": Case(
        lambda x: xgemm.linear(x, P, activation="gelu_tanh"),
        lambda x: activate(x @ W.t(), "gelu_tanh"),
        ((40,),),
    ),
    "grad_a": Case(
        lambda g: ops.w4a16_grad_a(g, *w4a16_args(P), P.perm, **w4a16_form(P)),
        lambda g: g @ W,
        ((3, 48),),
    ),
    "sum": Case(lambda x: ops.sum(x, [1]), lambda x: x.sum(1), ((3, 4),)),
    "mean": Case(
        lambda x: ops.mean(x, [0, -1], True), lambda x: x.mean((0, 2), True), ((3, 4, 2),)
    ),
    "prod": Case(lambda x: ops.prod(x, [-2]), lambda x: x.prod(-2), ((3, 4),)),
    "amax": Case(lambda x: ops.amax(x, [0], True), lambda x: x.amax(0, True), ((3, 4),)),
    "amin": Case(lambda x: ops.amin(x), lambda x: x.amin(), ((3, 4),)),
    "norm": Case(
        lambda x: ops.norm(x, [1]), lambda x: torch.linalg.vector_norm(x, dim=1), ((3, 4),)
    ),
    "norm-3": Case(
        lambda x: ops.norm(x, p=3.0), lambda x: torch.linalg.vector_norm(x, 3), ((3, 4),)
    ),
    "sum-scalar": Case(lambda x: ops.sum(x), lambda x: x.sum(), ((),)),
}


EXPERTS = [
    small_packed(48, 40, group_size=32, zeros="real", act_order=True, seed=i) for i in range(3)
]
BOUNDS = torch.tensor([0, 2, 2, 5])  # of 6 rows: the second expert has none, the last row has none


def _experts(a, bias):
    qweight = torch.stack([p.qweight for _, p in EXPERTS])
    perm = torch.stack([p.perm for _, p in EXPERTS])
    form = PackedFormat(48, 40, 32, False, True)
    return experts_linear(a, qweight, BOUNDS, bias, perm, form)


def _experts_expected(a, bias):
    rows = [
        a[start:end] @ reference.dequantize(q).t() + bias[e]
        for e, ((q, _), start, end) in enumerate(zip(EXPERTS, BOUNDS[:-1], BOUNDS[1:], strict=True))
    ]
    return torch.cat([*rows, a.new_zeros(1, 48)])


EXPERTS_CASE = Case(_experts, _experts_expected, ((6, 40), (3, 48)))
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def close(found: Any, expected: Any) -> None:
    found, spec = torch.utils._pytree.tree_flatten(found)
    expected, expected_spec = torch.utils._pytree.tree_flatten(expected)
    assert spec == expected_spec
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float32
        scale = float(other.abs().max()) if other.numel() else 0.0
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=2e-5 * max(scale, 1.0))


def compare(case: Case, transform: Any, inputs: list[torch.Tensor] | None = None) -> None:
    """transform(op, inputs) of ours, next to the same of torch's in float64."""
    inputs = case.inputs() if inputs is None else inputs
    wide = [x.double() for x in inputs]
    close(transform(case.ours, tuple(inputs)), transform(case.theirs, tuple(wide)))


def tangents(inputs: Any) -> Any:
    return tuple(torch.linspace(-1, 2, x.numel(), dtype=x.dtype).view(x.shape) for x in inputs)


def loss(op: Any) -> Any:
    return lambda *inputs: op(*inputs).sin().sum()


@each_case
def test_jvp(case: Case) -> None:
    compare(case, lambda op, x: jvp(op, x, tangents(x)))


@each_case
def test_jvp_in_one_input(case: Case) -> None:
    for i in range(len(case.shapes)):

        def transform(op, x, i=i):
            def of_one(one):
                return op(*x[:i], one, *x[i + 1 :])

            return jvp(of_one, (x[i],), tangents((x[i],)))

        compare(case, transform)


@each_case
def test_forward_ad(case: Case) -> None:
    """Dual numbers, with a gradient through the tangent as well."""

    def transform(op, x):
        x = [one.requires_grad_() for one in x]
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(*both) for both in zip(x, tangents(x), strict=True)]
            result = forward_ad.unpack_dual(op(*duals))
            assert result.tangent is not None
            total = result.primal.sin().sum() + result.tangent.sin().sum()
        return torch.autograd.grad(total, x, allow_unused=True, materialize_grads=True)

    compare(case, transform)


@each_case
def test_grad_and_vjp(case: Case) -> None:
    every = tuple(range(len(case.shapes)))
    compare(case, lambda op, x: grad_and_value(loss(op), every)(*x))
    compare(case, lambda op, x: vjp(op, *x)[1](torch.ones_like(op(*x))))


@each_case
def test_jacobians(case: Case) -> None:
    every = tuple(range(len(case.shapes)))
    compare(case, lambda op, x: jacrev(op, every)(*x))
    compare(case, lambda op, x: jacrev(op, every, chunk_size=2)(*x))
    compare(case, lambda op, x: jacfwd(op, every)(*x))


@each_case
def test_second_derivatives(case: Case) -> None:
    every = tuple(range(len(case.shapes)))
    compare(case, lambda op, x: jvp(lambda *y: jvp(op, y, tangents(y))[1].sin(), x, tangents(x)))
    compare(case, lambda op, x: jvp(grad(loss(op), every), x, tangents(x)))
    compare(case, lambda op, x: grad(lambda *y: jvp(loss(op), y, tangents(y))[1], every)(*x))
    compare(
        case,
        lambda op, x: grad(lambda *y: sum(g.sin().sum() for g in grad(loss(op), every)(*y)), every)(
            *x
        ),
    )


def test_hessian() -> None:
    compare(CASES["mul-bias-gelu"], lambda op, x: hessian(loss(op), (0, 1, 2))(*x))
    compare(CASES["linear-vector"], lambda op, x: hessian(loss(op))(*x))


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


def small_layer(seed: int) -> QuantLinear:
    torch.manual_seed(seed)
    return QuantLinear.from_linear(torch.nn.Linear(40, 48), group_size=32)


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


def test_ops_that_write_are_refused_by_name() -> None:
    a, b, dst = (randn(s, torch.float32) for s in ((3, 4), (4, 5), (3, 5)))

    def into(a):
        ops.mul_into(dst, a, b)
        return a

    with pytest.raises(ValueError, match=r"^mul_into: a must not have a tangent .* call mul$"):
        jvp(into, (a,), (a,))
    with pytest.raises(ValueError, match=r"^mul_into: a must not require a gradient"):
        grad(lambda a: into(a).sum())(a)
    with pytest.raises(NotImplementedError, match=r"^mul_into: torch\.vmap .* call mul$"):
        vmap(into)(torch.stack([a, a]))
    ops.mul_into(dst, a, b)
    assert jvp(lambda x: (into(a), x)[1], (a,), (a,))[1] is not None  # what it writes has none
    assert torch.equal(dst, mul(a, b))


def test_no_grad_inside() -> None:
    def transform(op, x):
        def f(a):
            with torch.no_grad():
                frozen = op(a, x[1])
            return (frozen * op(a, x[1])).sum()

        return grad(f)(x[0]), grad(lambda a: jvp(f, (a,), tangents((a,)))[1])(x[0])

    compare(CASES["mul"], transform)


def test_an_operand_without_a_tangent_is_not_multiplied_by_zero() -> None:
    a, b = randn((3, 4), torch.float32), torch.full((4, 5), float("inf"))
    _, tangent = jvp(lambda a: sgemm(a, b, torch.full((3, 5), float("nan"))), (a,), (a * 0 + 1,))
    assert torch.equal(tangent, torch.full((3, 5), float("inf")))
    _, tangent = jvp(lambda b: mul(torch.full((3, 4), float("inf")), b), (b,), (b * 0 + 1,))
    assert tangent.isnan().all()  # the tangent itself is NaN: 0 * inf + 1
    _, tangent = jvp(lambda b: mul(torch.full((3, 4), float("inf")), b), (b,), (torch.ones(4, 5),))
    assert torch.equal(tangent, torch.full((3, 5), float("inf")))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits(dtype: torch.dtype) -> None:
    tolerance = 8e-3 if dtype == torch.float16 else 6e-2
    for name in ("mul-bias-gelu", "linear", "norm"):
        case = CASES[name]
        inputs = [x.to(dtype) for x in case.inputs(4)]
        wide = tuple(x.double() for x in inputs)
        for transform in (
            lambda op, x: jvp(vmap(op), x, tangents(x))[1],
            lambda op, x: vmap(grad(loss(op)))(*x),
        ):
            found, expected = transform(case.ours, tuple(inputs)), transform(case.theirs, wide)
            assert found.dtype == dtype
            scale = float(expected.abs().max())
            torch.testing.assert_close(
                found.double(), expected, rtol=tolerance, atol=tolerance * scale
            )


def test_under_autocast() -> None:
    layer, x = small_layer(0), randn((5, 40), torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = vmap(grad(lambda x: layer(x).float().sin().sum()))(x)
        y, tangent = jvp(layer, (x,), (x,))
    expected = vmap(grad(lambda x: layer(x).sin().sum()))(x).detach()
    assert found.dtype == torch.float32
    assert y.dtype == tangent.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=0.06, atol=0.06 * float(expected.abs().max()))


def test_under_compile() -> None:
    layer, x = small_layer(0), randn((5, 40), torch.float32)
    for f in (
        vmap(grad(lambda x: layer(x).sin().sum())),
        lambda x: jvp(
            lambda x: mul(layer(x), x.t().new_ones(48, 2), activation="gelu"), (x,), (x,)
        ),
        lambda x: jacrev(lambda x: ops.norm(layer(x), [1]))(x),
    ):
        compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), f(x))


def test_linearize_and_batched_gradients() -> None:
    compare(CASES["mul"], lambda op, x: linearize(op, *x)[1](*tangents(x)))

    def batched(op, x):
        x = [one.requires_grad_() for one in x]
        y = op(*x)
        directions = torch.linspace(-1, 1, 3 * y.numel(), dtype=y.dtype).view(3, *y.shape)
        return torch.autograd.grad(y, x, directions, is_grads_batched=True)

    for name in ("mul-bias-gelu", "linear", "sgemm", "norm"):
        compare(CASES[name], batched)


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


def test_experts() -> None:
    """Without torch.vmap, which takes them one sample after another."""
    for argnums in ((0,), (1,), (0, 1)):
        compare(EXPERTS_CASE, lambda op, x, n=argnums: grad(loss(op), n)(*x))
    case = EXPERTS_CASE
    compare(case, lambda op, x: jvp(op, x, tangents(x)))
    compare(case, lambda op, x: jvp(lambda a: op(a, x[1]), x[:1], tangents(x[:1])))
    compare(case, lambda op, x: jvp(lambda b: op(x[0], b), x[1:], tangents(x[1:])))
    compare(case, lambda op, x: jvp(grad(loss(op)), x, tangents(x)))
    compare(case, lambda op, x: grad(lambda *y: jvp(loss(op), y, tangents(y))[1])(*x))


def test_fused_layers() -> None:
    fused, plain = xgemm.fuse(block()), block()
    for f in (vmap, lambda model: vmap(grad(lambda x: model(x).sin().sum()))):
        torch.testing.assert_close(f(fused)(X), f(plain)(X), rtol=1e-4, atol=1e-5)
        with torch.no_grad():
            torch.testing.assert_close(f(fused)(X), f(plain)(X), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(jvp(fused, (X,), (X,)), jvp(plain, (X,), (X,)))
