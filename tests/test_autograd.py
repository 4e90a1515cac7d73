"""Gradients of the GEMM ops against torch's own in float64, and the rules around them."""

from __future__ import annotations

import pytest
import torch
from helpers import (
    ACTIVATIONS,
    assert_within,
    laid_out,
    randn,
    random_weight,
    small_packed,
    w4a16_args,
    w4a16_form,
)

import xgemm
from xgemm import reference
from xgemm.activations import activate

mul = torch.ops.xgemm.mul.default
sgemm = torch.ops.xgemm.sgemm.default
grad_a = torch.ops.xgemm.w4a16_grad_a.default

# Of fp32 sums of under 200 products of normal numbers, over the gradients' own magnitude.
RTOL = {torch.float32: 2e-5, torch.float16: 8e-3, torch.bfloat16: 6e-2}


def close(actual, expected, dtype):
    assert actual is not None
    assert actual.dtype == dtype
    assert actual.shape == expected.shape
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(
        actual.double(), expected, rtol=RTOL[dtype], atol=RTOL[dtype] * scale
    )


def compare(op, expected_op, *inputs, dtype=torch.float32):
    """op's gradients in every input, next to expected_op's in float64."""
    ours = [x.detach().requires_grad_() for x in inputs]
    theirs = [x.detach().double().requires_grad_() for x in inputs]
    y, y_expected = op(*ours), expected_op(*theirs)
    assert y.requires_grad
    close(y.detach(), y_expected.detach(), dtype)
    grad = randn(y.shape, dtype, 99)
    found = torch.autograd.grad(y, ours, grad)
    expected = torch.autograd.grad(y_expected, theirs, grad.double())
    for one, other in zip(found, expected, strict=True):
        close(one, other, dtype)


SHAPES = [
    ((17,), (17,)),
    ((17,), (17, 5)),
    ((3, 17), (17,)),
    ((4, 3, 17), (17,)),
    ((17,), (4, 17, 5)),
    ((9, 17), (17, 15)),
    ((1, 129), (129, 16)),
    ((4, 3, 17), (17, 5)),
    ((3, 17), (4, 17, 5)),
    ((4, 3, 17), (4, 17, 5)),
    ((1, 3, 17), (4, 17, 5)),
    ((2, 1, 3, 17), (4, 17, 5)),
    ((0, 17), (17, 5)),
    ((3, 0), (0, 5)),
]


@pytest.mark.parametrize(("a_shape", "b_shape"), SHAPES)
@pytest.mark.parametrize("activation", ["none", "gelu"])
def test_mul(a_shape, b_shape, activation):
    a, b = randn(a_shape, torch.float32), randn(b_shape, torch.float32, 1)

    def expected(a, b):
        return activate(torch.matmul(a, b), activation)

    compare(lambda a, b: mul(a, b, activation=activation), expected, a, b)


@pytest.mark.parametrize(("a_shape", "b_shape"), SHAPES)
def test_mul_bias(a_shape, b_shape):
    a, b = randn(a_shape, torch.float32), randn(b_shape, torch.float32, 1)
    bias = randn((b_shape[-1] if len(b_shape) > 1 else 1,), torch.float32, 2)

    def expected(a, b, bias):
        return torch.matmul(a, b) + (bias if b.dim() > 1 else bias[0])

    compare(mul, expected, a, b, bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_mul_activations_and_dtypes(activation, dtype):
    a, b, bias = randn((9, 33), dtype), randn((33, 15), dtype, 1) / 4, randn((15,), dtype, 2)
    compare(
        lambda a, b, bias: mul(a, b, bias, activation=activation),
        lambda a, b, bias: activate(a @ b + bias, activation),
        a,
        b,
        bias,
        dtype=dtype,
    )


@pytest.mark.parametrize(
    "which", [(True, False, False), (False, True, False), (False, False, True)]
)
def test_mul_some_inputs(which):
    inputs = [randn(s, torch.float32) for s in ((4, 5), (5, 6), (6,))]
    for x, needed in zip(inputs, which, strict=True):
        x.requires_grad_(needed)
    mul(*inputs, activation="silu").sum().backward()
    assert tuple(x.grad is not None for x in inputs) == which


def test_mul_strided_operands_and_gradient():
    a, b = randn((17, 33), torch.float32), randn((9, 33), torch.float32, 1)
    compare(lambda a, b: mul(a.t(), b.t().mT.t()), lambda a, b: a.t() @ b.t(), a.t(), b)
    x = laid_out(a, "strided").detach().requires_grad_()
    y = mul(x, b.t())
    y.sum().backward()  # an expanded gradient, of strides 0
    close(x.grad, b.sum(0).expand(17, 33).double(), torch.float32)


def test_mul_second_derivative():
    inputs = [randn(s, torch.float32).double() for s in ((3, 5), (5, 4), (4,))]

    def penalty(op, a, b, bias):
        y = op(a, b, bias)
        (first,) = torch.autograd.grad((y * y).sum(), a, create_graph=True)
        return (first * first).sum()

    ours = [x.float().requires_grad_() for x in inputs]
    theirs = [x.requires_grad_() for x in inputs]
    found = torch.autograd.grad(
        penalty(lambda a, b, bias: mul(a, b, bias, activation="gelu"), *ours), ours
    )
    expected = torch.autograd.grad(
        penalty(lambda a, b, bias: activate(a @ b + bias, "gelu"), *theirs), theirs
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("transa", [False, True])
@pytest.mark.parametrize("transb", [False, True])
@pytest.mark.parametrize("beta", [0.0, -0.5])
def test_sgemm(transa, transb, beta):
    a = randn((7, 5) if transa else (5, 7), torch.float32)
    b = randn((4, 7) if transb else (7, 4), torch.float32, 1)
    c = randn((5, 4), torch.float32, 2)

    def op(a, b, c):
        return sgemm(a, b, c, transa=transa, transb=transb, alpha=1.5, beta=beta)

    def expected(a, b, c):
        return 1.5 * (a.mT if transa else a) @ (b.mT if transb else b) + beta * c

    compare(op, expected, a, b, c)


@pytest.mark.parametrize("transa", [False, True])
@pytest.mark.parametrize("transb", [False, True])
def test_sgemm_broadcast_batches(transa, transb):
    a = randn((3, 7, 5) if transa else (3, 5, 7), torch.float32)
    b = randn((2, 1, 4, 7) if transb else (2, 1, 7, 4), torch.float32, 1)
    compare(
        lambda a, b: sgemm(a, b, transa=transa, transb=transb),
        lambda a, b: (a.mT if transa else a) @ (b.mT if transb else b),
        a,
        b,
    )


def test_sgemm_c_without_beta_gets_zeros_even_from_a_nan():
    a, b, c = (randn(s, torch.float32) for s in ((2, 3), (3, 4), (2, 4)))
    c.requires_grad_()
    (grad,) = torch.autograd.grad(sgemm(a, b, c), c, torch.full((2, 4), float("nan")))
    assert torch.equal(grad, torch.zeros(2, 4))


def test_sgemm_second_derivative():
    a, b = (randn(s, torch.float32).requires_grad_() for s in ((3, 5), (4, 5)))
    torch.autograd.gradgradcheck(
        lambda a, b: sgemm(a, b, transb=True, alpha=0.5),
        (a, b),
        eps=1e-2,
        atol=1e-2,
        rtol=1e-2,
        nondet_tol=0.0,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("activation", ["none", "gelu_tanh"])
@pytest.mark.parametrize("act_order", [False, True])
def test_w4a16(dtype, activation, act_order):
    q, p = small_packed(72, 130, group_size=32, zeros="real", act_order=act_order)
    w = reference.dequantize(q)
    x, bias = randn((2, 5, 130), dtype), randn((72,), dtype, 1)
    compare(
        lambda x, bias: xgemm.linear(x, p, bias, activation),
        lambda x, bias: activate(x @ w.t() + bias, activation),
        x,
        bias,
        dtype=dtype,
    )


@pytest.mark.parametrize("shape", [(64,), (1, 64), (0, 64), (2, 3, 64)])
def test_w4a16_leading_dimensions(shape):
    q, p = small_packed(group_size=64)
    w = reference.dequantize(q)
    bias = randn((48,), torch.float32, 1)
    compare(
        lambda x, bias: xgemm.linear(x, p, bias),
        lambda x, bias: x @ w.t() + bias,
        randn(shape, torch.float32),
        bias,
    )


@pytest.mark.parametrize("needs", ["x", "bias"])
def test_w4a16_one_input(needs):
    _, p = small_packed()
    x, bias = randn((3, 64), torch.float32), randn((48,), torch.float32, 1)
    (x if needs == "x" else bias).requires_grad_()
    xgemm.linear(x, p, bias, "relu").sum().backward()
    assert (x.grad is not None) == (needs == "x")
    assert (bias.grad is not None) == (needs == "bias")


def test_w4a16_grad_a_has_the_forward_op_as_its_gradient():
    q, p = small_packed(48, 64, group_size=32, zeros="integer", act_order=True)
    g = randn((3, 48), torch.float32).requires_grad_()
    v = randn((3, 64), torch.float32, 1)
    dx = grad_a(g, *w4a16_args(p), p.perm, **w4a16_form(p))
    (found,) = torch.autograd.grad(dx, g, v)
    assert_within(found, reference.w4a16(v, q), reference.w4a16_bound(v, q))


def test_w4a16_second_derivative():
    q, p = small_packed(48, 64, group_size=32, zeros="integer", act_order=True)
    w = reference.dequantize(q)

    def penalty(y, x):
        (first,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
        return (first * first).sum()

    x = randn((3, 64), torch.float32).requires_grad_()
    x64 = x.detach().double().requires_grad_()
    (found,) = torch.autograd.grad(penalty(xgemm.linear(x, p, None, "silu"), x), x)
    expected = penalty(activate(x64 @ w.t(), "silu"), x64)
    (expected,) = torch.autograd.grad(expected, x64)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


def test_no_graph_without_need():
    a, b = randn((2, 3), torch.float32), randn((3, 4), torch.float32).requires_grad_()
    assert not mul(a, b.detach()).requires_grad
    with torch.no_grad():
        assert not mul(a, b).requires_grad
    with torch.inference_mode():
        assert mul(a, b, activation="gelu").is_inference()
    assert mul(a, b).requires_grad


def test_a_call_without_need_leaves_autograd_as_it_was():
    """Off below another op's autograd kernel, on elsewhere, also where the call failed."""
    a, b = randn((2, 4), torch.float32), randn((4, 3), torch.float32, 1)
    excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
    key = torch._C.DispatchKey.AutogradFunctionality
    with torch._C._AutoDispatchBelowAutograd():
        mul(a, b)
        assert excluded(key)
    mul(a, b)
    assert not excluded(key)
    with pytest.raises(ValueError, match="mul: "):
        mul(a, a)
    assert not excluded(key)
    assert mul(a.requires_grad_(), b).requires_grad


def test_a_gradient_is_needed_wherever_its_tensor_is_given():
    """By position or by name, among numbers and None."""
    a, b, bias = (randn(shape, torch.float32) for shape in ((2, 4), (4, 3), (3,)))
    bias.requires_grad_()
    assert mul(a, b, bias).requires_grad
    assert mul(a, b, bias=bias).requires_grad
    assert mul(b=b, a=a.clone().requires_grad_()).requires_grad
    _, p = small_packed()
    w4a16, x = torch.ops.xgemm.mul.w4a16, randn((2, p.k), torch.float32)
    wanted = randn((p.n,), torch.float32).requires_grad_()
    form = (p.qweight, p.n, p.k, p.group_size)
    assert not w4a16(x, *form).requires_grad
    assert w4a16(x, *form, wanted).requires_grad
    assert w4a16(x, *form, wanted, None).requires_grad
    assert w4a16(x, *form, bias=wanted).requires_grad


def test_the_activation_is_not_fused_where_a_gradient_is_needed():
    """In bfloat16 the product is rounded before the activation; without a gradient, once."""
    a, b = randn((9, 33), torch.bfloat16), randn((33, 15), torch.bfloat16, 1)
    fused = mul(a, b, activation="gelu")
    apart = mul(a.detach().requires_grad_(), b, activation="gelu")
    assert torch.equal(apart.detach(), activate(mul(a, b), "gelu"))
    assert not torch.equal(apart.detach(), fused)


def test_a_saved_operand_that_changed_is_noticed():
    a, b = randn((2, 3), torch.float32).requires_grad_(), randn((3, 4), torch.float32)
    y = mul(a, b)
    b.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_trains_a_quantized_model_with_lora():
    """A frozen 4-bit layer between trainable dense ones: the loss goes down."""
    torch.manual_seed(0)
    _, p = small_packed(32, 32, group_size=32)
    down = torch.nn.Parameter(torch.randn(32, 4) * 0.1)
    up = torch.nn.Parameter(torch.randn(4, 32) * 0.1)
    optimizer = torch.optim.Adam([down, up], lr=1e-2)
    x, target = torch.randn(64, 32), torch.randn(64, 32)
    losses = []
    for _ in range(20):
        hidden = mul(x, down, activation="gelu")
        loss = (xgemm.linear(x + mul(hidden, up), p) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.95 * losses[0]


def test_random_weight_has_no_gradient_in_its_bytes():
    q = random_weight(48, 64, 32)
    p = xgemm.pack(q)
    x = randn((2, 64), torch.float32).requires_grad_()
    y = xgemm.linear(x, p)
    assert not p.qweight.requires_grad
    y.sum().backward()
    assert p.qweight.grad is None
