"""Gradients of the GEMM ops, and what autograd must know of the ops that write a tensor.

The formulas are kernels of the Autograd key rather than `torch.library.register_autograd`'s, which
can differentiate an op but not replace it: where a gradient is needed, an activation is not fused.
The GEMM runs without it and torch's own activation follows, so that nothing is computed twice and a
compiler sees both. Every backward calls the library's ops and can be differentiated again.
"""

from __future__ import annotations

from typing import Any

import torch

from .activations import ACTIVATIONS, activate

_mul = torch.ops.xgemm.mul.default
_mul_w4a16 = torch.ops.xgemm.mul.w4a16
_sgemm = torch.ops.xgemm.sgemm.default
_w4a16_grad_a = torch.ops.xgemm.w4a16_grad_a.default
_mul_into = torch.ops.xgemm.mul_into.default
_mul_into_w4a16 = torch.ops.xgemm.mul_into.w4a16
_sgemm_into = torch.ops.xgemm.sgemm_into.default

_BELOW_AUTOGRAD = torch._C._after_autograd_keyset
_below_autograd = torch._C._AutoDispatchBelowAutograd
_grad_enabled = torch.is_grad_enabled

Tensor = torch.Tensor
Gradients = tuple[Tensor | None, ...]


def _needs_grad(*tensors: Tensor | None) -> bool:
    return any(tensor is not None and tensor.requires_grad for tensor in tensors)


class _Mul(torch.autograd.Function):
    """a @ b + bias, operands as torch.matmul takes them."""

    @staticmethod
    def forward(a: Tensor, b: Tensor, bias: Tensor | None, options: dict[str, Any]) -> Tensor:
        with _below_autograd():
            return _mul(a, b, bias, **options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        a, b, bias, ctx.options = inputs
        ctx.save_for_backward(a, b)
        ctx.bias_shape = None if bias is None else bias.shape

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        (grad,) = grads
        a, b = ctx.saved_tensors
        grad_a = grad_b = grad_bias = None
        # A 1-D operand is a matrix of one row (a) or column (b), and the result lacks that one.
        rows = a.unsqueeze(0) if a.dim() == 1 else a
        columns = b.unsqueeze(1) if b.dim() == 1 else b
        if b.dim() == 1:
            grad = grad.unsqueeze(-1)
        if a.dim() == 1:
            grad = grad.unsqueeze(-2)
        if ctx.needs_input_grad[2]:
            grad_bias = grad.sum_to_size(ctx.bias_shape)
        if ctx.needs_input_grad[0]:
            product = _mul(grad, columns.mT, **ctx.options)
            grad_a = product.sum_to_size(rows.shape).reshape(a.shape)
        if ctx.needs_input_grad[1]:
            if columns.dim() == 2 and rows.dim() > 2:
                # One GEMM over all rows of the batch, in place of a product for each to be summed.
                rows, grad = rows.flatten(0, -2), grad.flatten(0, -2)
            product = _mul(rows.mT, grad, **ctx.options)
            grad_b = product.sum_to_size(columns.shape).reshape(b.shape)
        return grad_a, grad_b, grad_bias, None


class _MulW4A16(torch.autograd.Function):
    """a W^T + bias of a packed 4-bit weight W, which has no gradient itself."""

    @staticmethod
    def forward(
        a: Tensor,
        qweight: Tensor,
        shape: tuple[int, int, int],
        bias: Tensor | None,
        perm: Tensor | None,
        form: dict[str, bool],
        options: dict[str, bool],
    ) -> Tensor:
        with _below_autograd():
            return _mul_w4a16(a, qweight, *shape, bias, perm, **form, **options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, qweight, ctx.shape, bias, perm, ctx.form, _ = inputs
        ctx.save_for_backward(qweight, perm)
        ctx.bias_shape = None if bias is None else bias.shape

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        (grad,) = grads
        qweight, perm = ctx.saved_tensors
        grad_a = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_a = _w4a16_grad_a(grad, qweight, *ctx.shape, perm, **ctx.form)
        if ctx.needs_input_grad[3]:
            grad_bias = grad.sum_to_size(ctx.bias_shape)
        return grad_a, None, None, grad_bias, None, None, None


class _W4A16GradA(torch.autograd.Function):
    """grad W: linear in grad, so that its own gradient is the forward op."""

    @staticmethod
    def forward(
        grad: Tensor,
        qweight: Tensor,
        shape: tuple[int, int, int],
        perm: Tensor | None,
        form: dict[str, bool],
    ) -> Tensor:
        with _below_autograd():
            return _w4a16_grad_a(grad, qweight, *shape, perm, **form)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, qweight, ctx.shape, perm, ctx.form = inputs
        ctx.save_for_backward(qweight, perm)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        qweight, perm = ctx.saved_tensors
        return (
            _mul_w4a16(grads[0], qweight, *ctx.shape, None, perm, **ctx.form),
            None,
            None,
            None,
            None,
        )


class _Sgemm(torch.autograd.Function):
    """alpha op(a) op(b) + beta c."""

    @staticmethod
    def forward(
        a: Tensor,
        b: Tensor,
        c: Tensor | None,
        transa: bool,
        transb: bool,
        alpha: float,
        beta: float,
        options: dict[str, str],
    ) -> Tensor:
        with _below_autograd():
            return _sgemm(a, b, c, transa=transa, transb=transb, alpha=alpha, beta=beta, **options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        a, b, _, ctx.transa, ctx.transb, ctx.alpha, ctx.beta, ctx.options = inputs
        ctx.save_for_backward(a, b)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        (grad,) = grads
        a, b = ctx.saved_tensors
        transa, transb, options = ctx.transa, ctx.transb, {"alpha": ctx.alpha, **ctx.options}
        grad_a = grad_b = grad_c = None
        if ctx.needs_input_grad[0]:  # d op(a) = dC op(b)^T
            if transa:
                grad_a = _sgemm(b, grad, transa=transb, transb=True, **options)
            else:
                grad_a = _sgemm(grad, b, transb=not transb, **options)
            grad_a = grad_a.sum_to_size(a.shape)
        if ctx.needs_input_grad[1]:  # d op(b) = op(a)^T dC
            if transb:
                grad_b = _sgemm(grad, a, transa=True, transb=transa, **options)
            else:
                grad_b = _sgemm(a, grad, transa=not transa, **options)
            grad_b = grad_b.sum_to_size(b.shape)
        if ctx.needs_input_grad[2]:
            # c is not read where beta is 0: its gradient is 0 even where grad is not finite.
            grad_c = torch.zeros_like(grad) if ctx.beta == 0 else grad * ctx.beta
        return grad_a, grad_b, grad_c, None, None, None, None, None


def _mul_kernel(
    keys: Any, a: Tensor, b: Tensor, bias: Tensor | None = None, **options: Any
) -> Tensor:
    activation = options.get("activation", "none")
    if not (_grad_enabled() and _needs_grad(a, b, bias)) or activation not in ACTIVATIONS:
        return _mul.redispatch(keys & _BELOW_AUTOGRAD, a, b, bias, **options)
    options.pop("activation", None)
    return activate(_Mul.apply(a, b, bias, options), activation)


def _mul_w4a16_kernel(
    keys: Any,
    a: Tensor,
    qweight: Tensor,
    n: int,
    k: int,
    group_size: int,
    bias: Tensor | None = None,
    perm: Tensor | None = None,
    **options: Any,
) -> Tensor:
    activation = options.get("activation", "none")
    if not (_grad_enabled() and _needs_grad(a, bias)) or activation not in ACTIVATIONS:
        return _mul_w4a16.redispatch(
            keys & _BELOW_AUTOGRAD, a, qweight, n, k, group_size, bias, perm, **options
        )
    options.pop("activation", None)
    form = {name: options.pop(name) for name in ("bf16_scales", "zeros") if name in options}
    y = _MulW4A16.apply(a, qweight, (n, k, group_size), bias, perm, form, options)
    return activate(y, activation)


def _w4a16_grad_a_kernel(
    keys: Any,
    grad: Tensor,
    qweight: Tensor,
    n: int,
    k: int,
    group_size: int,
    perm: Tensor | None = None,
    **form: Any,
) -> Tensor:
    if not (_grad_enabled() and _needs_grad(grad)):
        return _w4a16_grad_a.redispatch(
            keys & _BELOW_AUTOGRAD, grad, qweight, n, k, group_size, perm, **form
        )
    return _W4A16GradA.apply(grad, qweight, (n, k, group_size), perm, form)


def _sgemm_kernel(
    keys: Any,
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    transa: bool = False,
    transb: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
    **options: Any,
) -> Tensor:
    if not (_grad_enabled() and _needs_grad(a, b, c)):
        return _sgemm.redispatch(
            keys & _BELOW_AUTOGRAD,
            a,
            b,
            c,
            transa=transa,
            transb=transb,
            alpha=alpha,
            beta=beta,
            **options,
        )
    return _Sgemm.apply(a, b, c, transa, transb, alpha, beta, options)


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
        if _grad_enabled():
            for index, argument in tensors:
                if index < len(args) and args[index] is not None and args[index].requires_grad:
                    raise ValueError(
                        f"{full_name}: {argument} must not require a gradient, as an op that "
                        f"writes {written} has none: call it under torch.no_grad(), or "
                        f"call {functional}"
                    )
        op.redispatch(keys & _BELOW_AUTOGRAD, *args, **options)
        torch.autograd.graph.increment_version(args[0])

    library.impl(full_name, kernel, "Autograd", with_keyset=True)


_library = torch.library.Library("xgemm", "IMPL")
_library.impl("mul", _mul_kernel, "Autograd", with_keyset=True)
_library.impl("mul.w4a16", _mul_w4a16_kernel, "Autograd", with_keyset=True)
_library.impl("w4a16_grad_a", _w4a16_grad_a_kernel, "Autograd", with_keyset=True)
_library.impl("sgemm", _sgemm_kernel, "Autograd", with_keyset=True)
for _op in (_mul_into, _mul_into_w4a16, _sgemm_into):
    _register_into(_library, _op)
