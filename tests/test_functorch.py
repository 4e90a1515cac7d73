"""torch.func's derivatives of the ops (jvp, grad, jacobians, nested), against torch in float64."""

from __future__ import annotations

import pytest
import torch
from functorch_cases import CASES, Case, compare, each_case, loss, small_layer, tangents
from fusing import X, block
from helpers import randn, small_packed
from torch.autograd import forward_ad
from torch.func import (
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    vjp,
    vmap,
)

import xgemm
from xgemm import reference
from xgemm.formats.packed_format import PackedFormat
from xgemm.nn.experts_linear import experts_linear

ops = torch.ops.xgemm
mul, sgemm = ops.mul.default, ops.sgemm.default

pytestmark = pytest.mark.filterwarnings(
    "error:There is a performance drop"
)  # a batching rule lacks


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
