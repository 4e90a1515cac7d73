"""Gradients of the GEMM ops, and what autograd must know of the ops that write a tensor.

The formulas are kernels of the Autograd key rather than `torch.library.register_autograd`'s, which
can differentiate an op but not replace it: where a gradient is needed, an activation is not fused.
The GEMM runs without it and torch's own activation follows, so that nothing is computed twice and a
compiler sees both. Every backward calls the library's ops and can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Function

from . import direct
from .activations import ACTIVATIONS, activate
from .derivatives import (
    BELOW_AUTOGRAD,
    Gradients,
    add,
    below_autograd,
    has_tangent,
    keep,
    needs_derivative,
    primals,
    record,
)
from .direct import PLAIN_TENSORS, seen, watched
from .dispatch import FORMULAS, autograd_excluded

_mul = torch.ops.xgemm.mul.default
_mul_w4a16 = torch.ops.xgemm.mul.w4a16
_sgemm = torch.ops.xgemm.sgemm.default
_w4a16_grad_a = torch.ops.xgemm.w4a16_grad_a.default
_mul_into = torch.ops.xgemm.mul_into.default
_mul_into_w4a16 = torch.ops.xgemm.mul_into.w4a16
_sgemm_into = torch.ops.xgemm.sgemm_into.default

_grad_enabled = torch.is_grad_enabled
_autocast = torch._C._is_any_autocast_enabled
_BELOW_VERSIONS = torch._C._after_ADInplaceOrView_keyset

Tensor = torch.Tensor
Call = Callable[..., Tensor]  # an op below autograd
Formula = Callable[..., Tensor]


def _summed(grad: Tensor, shape: torch.Size) -> Tensor:
    """The gradient of what was broadcast from `shape`; mostly nothing was."""
    return grad if grad.shape == shape else grad.sum_to_size(shape)


class _Mul(Function):
    """a @ b + bias, operands as torch.matmul takes them."""

    @staticmethod
    def forward(
        ctx: Any,
        result: list[Tensor],
        a: Tensor,
        b: Tensor,
        bias: Tensor | None,
        options: dict[str, Any],
    ) -> Tensor:
        keep(ctx, a, b)
        ctx.bias_shape = None if bias is None else bias.shape
        ctx.result_shape = result[0].shape
        ctx.options = options
        return result[0]

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        _, a_tangent, b_tangent, bias_tangent, _ = tangents
        with primals(ctx) as (a, b):
            tangent = None
            if a_tangent is not None:
                tangent = _mul(a_tangent, b, **ctx.options)
            if b_tangent is not None:
                tangent = add(tangent, _mul(a, b_tangent, **ctx.options))
            if bias_tangent is not None:
                if b.dim() == 1:
                    bias_tangent = bias_tangent.squeeze(0)
                tangent = add(tangent, bias_tangent.expand(ctx.result_shape))
            return tangent

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Gradients:
        (grad,) = grads
        if grad is None:
            return (None,) * 5
        a, b, _ = ctx.saved_tensors
        _, needs_a, needs_b, needs_bias, _ = ctx.needs_input_grad
        grad_a = grad_b = grad_bias = None
        # A 1-D operand is a matrix of one row (a) or column (b), and the result lacks that one.
        rows = a.unsqueeze(0) if a.dim() == 1 else a
        columns = b.unsqueeze(1) if b.dim() == 1 else b
        if b.dim() == 1:
            grad = grad.unsqueeze(-1)
        if a.dim() == 1:
            grad = grad.unsqueeze(-2)
        if needs_bias:
            grad_bias = _summed(grad, ctx.bias_shape)
        if needs_a:
            product = _mul(grad, columns.mT, **ctx.options)
            grad_a = _summed(product, rows.shape).reshape(a.shape)
        if needs_b:
            if columns.dim() == 2 and rows.dim() > 2:
                # One GEMM over all rows of the batch, in place of a product for each to be summed.
                rows, grad = rows.flatten(0, -2), grad.flatten(0, -2)
            product = _mul(rows.mT, grad, **ctx.options)
            grad_b = _summed(product, columns.shape).reshape(b.shape)
        return None, grad_a, grad_b, grad_bias, None


class _MulW4A16(Function):
    """a W^T + bias of a packed 4-bit weight W, which has no gradient itself."""

    @staticmethod
    def forward(
        ctx: Any,
        result: list[Tensor],
        a: Tensor,
        qweight: Tensor,
        shape: tuple[int, int, int],
        bias: Tensor | None,
        perm: Tensor | None,
        form: dict[str, bool],
    ) -> Tensor:
        keep(ctx, qweight, perm)
        # One attribute: each is some 100 ns of a training step's forward.
        ctx.call = shape, form, None if bias is None else bias.shape, result[0].shape
        return result[0]

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        _, a_tangent, _, _, bias_tangent, _, _ = tangents
        shape, form, _, result_shape = ctx.call
        with primals(ctx) as (qweight, perm):
            if a_tangent is not None:
                return _mul_w4a16(a_tangent, qweight, *shape, bias_tangent, perm, **form)
            return bias_tangent.expand(result_shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Gradients:
        (grad,) = grads
        if grad is None:
            return (None,) * 7
        qweight, perm, _ = ctx.saved_tensors
        shape, form, bias_shape, _ = ctx.call
        needs = ctx.needs_input_grad
        grad_a = grad_bias = None
        if needs[1]:
            grad_a = _plain_grad_a(grad, qweight, shape, perm, form)
        if needs[4]:
            grad_bias = _summed(grad, bias_shape)
        return None, grad_a, None, None, grad_bias, None, None


def _plain_grad_a(
    grad: Tensor,
    qweight: Tensor,
    shape: tuple[int, int, int],
    perm: Tensor | None,
    form: dict[str, bool],
) -> Tensor:
    plain = perm is None and type(grad) in PLAIN_TENSORS and type(qweight) in PLAIN_TENSORS
    if plain and not (_grad_enabled() or seen()):
        zeros, bf16_scales = form.get("zeros", False), form.get("bf16_scales", False)
        return direct.w4a16_grad_a(grad, qweight, *shape, bf16_scales, zeros)
    return _w4a16_grad_a(grad, qweight, *shape, perm, **form)


class _W4A16GradA(Function):
    """grad W: linear in grad, so that its own gradient is the forward op."""

    @staticmethod
    def forward(
        ctx: Any,
        result: list[Tensor],
        grad: Tensor,
        qweight: Tensor,
        shape: tuple[int, int, int],
        perm: Tensor | None,
        form: dict[str, bool],
    ) -> Tensor:
        keep(ctx, qweight, perm)
        ctx.shape, ctx.form = shape, form
        return result[0]

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        with primals(ctx) as (qweight, perm):
            return _w4a16_grad_a(tangents[1], qweight, *ctx.shape, perm, **ctx.form)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Gradients:
        (grad,) = grads
        qweight, perm, _ = ctx.saved_tensors
        if grad is not None:
            grad = _mul_w4a16(grad, qweight, *ctx.shape, None, perm, **ctx.form)
        return None, grad, None, None, None, None


def _scaled(x: Tensor, beta: float) -> Tensor:
    """x * beta, where 0 is 0 even of what is not finite: sgemm does not read c then."""
    return torch.zeros_like(x) if beta == 0 else x * beta


class _Sgemm(Function):
    """alpha op(a) op(b) + beta c."""

    @staticmethod
    def forward(
        ctx: Any,
        result: list[Tensor],
        a: Tensor,
        b: Tensor,
        c: Tensor | None,
        form: dict[str, bool],
        beta: float,
        options: dict[str, Any],
    ) -> Tensor:
        keep(ctx, a, b)
        ctx.form, ctx.beta, ctx.options = form, beta, options
        return result[0]

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        _, a_tangent, b_tangent, c_tangent, *_ = tangents
        with primals(ctx) as (a, b):
            tangent = None
            if a_tangent is not None:
                tangent = _sgemm(a_tangent, b, **ctx.form, **ctx.options)
            if b_tangent is not None:
                tangent = add(tangent, _sgemm(a, b_tangent, **ctx.form, **ctx.options))
            if c_tangent is not None:
                tangent = add(tangent, _scaled(c_tangent, ctx.beta))
            return tangent

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Gradients:
        (grad,) = grads
        if grad is None:
            return (None,) * 7
        a, b, _ = ctx.saved_tensors
        _, needs_a, needs_b, needs_c, *_ = ctx.needs_input_grad
        transa, transb = ctx.form.get("transa", False), ctx.form.get("transb", False)
        options = ctx.options
        grad_a = grad_b = grad_c = None
        if needs_a:  # d op(a) = dC op(b)^T
            if transa:
                grad_a = _sgemm(b, grad, transa=transb, transb=True, **options)
            else:
                grad_a = _sgemm(grad, b, transb=not transb, **options)
            grad_a = _summed(grad_a, a.shape)
        if needs_b:  # d op(b) = op(a)^T dC
            if transb:
                grad_b = _sgemm(grad, a, transa=True, transb=transa, **options)
            else:
                grad_b = _sgemm(a, grad, transa=not transa, **options)
            grad_b = _summed(grad_b, b.shape)
        if needs_c:
            grad_c = _scaled(grad, ctx.beta)
        return None, grad_a, grad_b, grad_c, None, None, None


# ---- the formulas: a call below autograd, and what is recorded on its result ----


def _mul_formula(
    call: Call, a: Tensor, b: Tensor, bias: Tensor | None = None, **options: Any
) -> Tensor:
    activation = options.pop("activation", "none")
    if activation not in ACTIVATIONS:
        return call(a, b, bias, activation=activation, **options)  # which refuses it
    product = call(a, b, bias, **options)
    return activate(record(_Mul, product, a, b, bias, options), activation)


def _mul_w4a16_formula(
    call: Call,
    a: Tensor,
    qweight: Tensor,
    n: int,
    k: int,
    group_size: int,
    bias: Tensor | None = None,
    perm: Tensor | None = None,
    **options: Any,
) -> Tensor:
    activation = options.pop("activation", "none") if options else "none"
    args: tuple[Any, ...] = (a, qweight, n, k, group_size)
    if bias is not None or perm is not None:  # what is left out costs the call nothing
        args += (bias, perm)
    if activation not in ACTIVATIONS:
        return call(*args, activation=activation, **options)  # which refuses it
    y = call(*args, **options)
    if options:
        options.pop("batch_invariant", None)  # of the forward product alone
    shape = (n, k, group_size)
    y = record(_MulW4A16, y, a, qweight, shape, bias, perm, options)
    return y if activation == "none" else activate(y, activation)


def plain_w4a16(
    x: Tensor,
    qweight: Tensor,
    n: int,
    k: int,
    group_size: int,
    bias: Tensor | None,
    bf16_scales: bool,
    zeros: bool,
) -> Tensor:
    """`mul.w4a16` without act-order and activation, for what Dynamo does not trace.

    By the shortest way where only a kernel, and a recorded gradient, have to see the call.
    """
    if (
        type(x) in PLAIN_TENSORS
        and type(qweight) in PLAIN_TENSORS
        and (bias is None or type(bias) in PLAIN_TENSORS)
        and not watched()
    ):
        recorded = _grad_enabled() and (
            x.requires_grad or (bias is not None and bias.requires_grad)
        )
        if not (recorded and (_autocast() or autograd_excluded())):
            try:
                y = direct.mul_w4a16(x, qweight, n, k, group_size, bias, bf16_scales, zeros)
            except (RuntimeError, TypeError):
                pass  # the op raises it again, by its own name
            else:
                if not recorded:
                    return y
                form = _form(bf16_scales, zeros)
                return record(_MulW4A16, y, x, qweight, (n, k, group_size), bias, None, form)
    return _mul_w4a16(x, qweight, n, k, group_size, bias, **_form(bf16_scales, zeros))


def _form(bf16_scales: bool, zeros: bool) -> dict[str, bool]:
    form = {"bf16_scales": True} if bf16_scales else {}
    if zeros:
        form["zeros"] = True
    return form


def _w4a16_grad_a_formula(
    call: Call,
    grad: Tensor,
    qweight: Tensor,
    n: int,
    k: int,
    group_size: int,
    perm: Tensor | None = None,
    **form: Any,
) -> Tensor:
    grad_a = call(grad, qweight, n, k, group_size, perm, **form)
    return record(_W4A16GradA, grad_a, grad, qweight, (n, k, group_size), perm, form)


def _sgemm_formula(
    call: Call, a: Tensor, b: Tensor, c: Tensor | None = None, **options: Any
) -> Tensor:
    product = call(a, b, c, **options)
    beta = options.pop("beta", 0.0)
    form = {name: options.pop(name) for name in ("transa", "transb") if name in options}
    return record(_Sgemm, product, a, b, c, form, beta, options)


def _register(library: torch.library.Library, name: str, op: Any, formula: Formula) -> None:
    """Make `formula` the op's kernel of the Autograd key, and what dispatch.py calls instead."""

    def kernel(keys: Any, *args: Any, **options: Any) -> Tensor:
        keys &= BELOW_AUTOGRAD
        if not needs_derivative(*(arg for arg in args if isinstance(arg, Tensor))):
            return op.redispatch(keys, *args, **options)

        def below(*args: Any, **options: Any) -> Tensor:
            with below_autograd():
                return op.redispatch(keys, *args, **options)

        return formula(below, *args, **options)

    library.impl(name, kernel, "Autograd", with_keyset=True)
    FORMULAS[name] = formula


def _register_into(library: torch.library.Library, op: Any) -> None:
    """Refuse what would silently get no gradient, and count the write.

    The version counter is what tells another op's backward that a tensor it saved was overwritten.
    """
    name = op._schema.name.partition("::")[2]
    overload = op._schema.overload_name
    full_name = f"{name}.{overload}" if overload else name
    functional = full_name.replace("_into", "")
    written = op._schema.arguments[0].name
    tensors = [
        (index, argument.name)
        for index, argument in enumerate(op._schema.arguments)
        if str(argument.type) in ("Tensor", "Optional[Tensor]")
    ]

    def kernel(keys: Any, *args: Any, **options: Any) -> None:
        if needs_derivative(*(args[index] for index, _ in tensors if index < len(args))):
            for index, argument in tensors:
                tensor = args[index] if index < len(args) else None
                if tensor is None:
                    continue
                if _grad_enabled() and tensor.requires_grad:
                    raise ValueError(
                        f"{full_name}: {argument} must not require a gradient, as an op that "
                        f"writes {written} has none: call it under torch.no_grad(), or "
                        f"call {functional}"
                    )
                if has_tangent(tensor):
                    raise ValueError(
                        f"{full_name}: {argument} must not have a tangent (torch.func.jvp, "
                        f"torch.autograd.forward_ad), as an op that writes {written} has none: "
                        f"call {functional}"
                    )
        write(keys, *args, **options)

    def write(keys: Any, *args: Any, **options: Any) -> None:
        # Where no argument has a kernel of autograd's (inference tensors have none, and inference
        # mode takes it from all), this is the first to be asked.
        if args[0].is_inference() and not torch.is_inference_mode_enabled():
            raise ValueError(
                f"{full_name}: {written} must not be an inference tensor outside of inference "
                "mode, as writes into one are not counted: call it under torch.inference_mode(), "
                f"or clone {written}"
            )
        op.redispatch(keys & _BELOW_VERSIONS, *args, **options)
        torch.autograd.graph.increment_version(args[0])

    def negated(dst: Tensor, *args: Any, **options: Any) -> None:
        """Of tensors that hold the negatives of their values, as z.conj().imag does."""
        resolved = dst.resolve_neg()
        args = tuple(arg.resolve_neg() if isinstance(arg, Tensor) else arg for arg in args)
        op(resolved, *args, **options)
        if dst.is_neg():
            dst.copy_(resolved)

    library.impl(full_name, kernel, "Autograd", with_keyset=True)
    library.impl(full_name, write, "ADInplaceOrView", with_keyset=True)
    library.impl(full_name, negated, "Negative")


def _register_without_gradient(library: torch.library.Library, name: str, op: Any) -> None:
    """Refuse operands that would silently get no gradient."""

    def kernel(keys: Any, *args: Any, **options: Any) -> Tensor:
        for argument, value in zip(op._schema.arguments, args, strict=False):
            if isinstance(value, Tensor) and needs_derivative(value):
                raise ValueError(
                    f"{name}: {argument.name} must not require a gradient, as the op has none: "
                    "call it under torch.no_grad(), or use xgemm.nn.QuantExperts"
                )
        return op.redispatch(keys & BELOW_AUTOGRAD, *args, **options)

    library.impl(name, kernel, "Autograd", with_keyset=True)


_library = torch.library.Library("xgemm", "IMPL")
_register(_library, "mul", _mul, _mul_formula)
_register(_library, "mul.w4a16", _mul_w4a16, _mul_w4a16_formula)
_register(_library, "w4a16_grad_a", _w4a16_grad_a, _w4a16_grad_a_formula)
_register(_library, "sgemm", _sgemm, _sgemm_formula)
for _op in (_mul_into, _mul_into_w4a16, _sgemm_into):
    _register_into(_library, _op)
_register_without_gradient(_library, "moe.w4a16", torch.ops.xgemm.moe.w4a16)
