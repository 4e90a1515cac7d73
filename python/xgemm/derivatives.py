"""What a Python kernel of the Autograd key needs to be differentiated as torch's own kernels are.

Such a kernel computes its result below autograd and then records on it how it is differentiated.
torch.func runs the kernel once at each of its levels (grad, vjp, jvp); what is recorded is that of
one level, so that nested transforms, and vmap inside or around them, need nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch._C._functorch import TransformType, peek_interpreter_stack
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

Tensor = torch.Tensor
Gradients = tuple[Tensor | None, ...]

BELOW_AUTOGRAD = torch._C._after_autograd_keyset
below_autograd = torch._C._AutoDispatchBelowAutograd

_LEVEL = 0  # of forward_ad; torch has no other, torch.func nests by wrapping
_Function = torch.autograd.Function
_grad_enabled = torch.is_grad_enabled
_transformed = torch._C._are_functorch_transforms_active


def _forward_mode() -> bool:
    """Whether tensors may have tangents here: in a dual level, or a jvp that was compiled."""
    if forward_ad._current_level >= 0:
        return True
    return _transformed() and peek_interpreter_stack().key() == TransformType.Jvp


def needs_derivative(*tensors: Tensor | None) -> bool:
    """Whether a result over these is to be recorded: it needs a gradient, or may have a tangent."""
    if _forward_mode():
        return True
    if _grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def has_tangent(tensor: Tensor) -> bool:
    """Whether forward-mode AD carries a tangent with the tensor."""
    return _forward_mode() and forward_ad.unpack_dual(tensor, level=_LEVEL).tangent is not None


def record(function: type[_Function], result: Tensor, *inputs: Any) -> Tensor:
    """`result`, differentiated as `function` says; its forward is given [result] and the inputs.

    The forward keeps what the derivatives need (`keep`) and returns the result. In a list, so that
    it is not taken for an input that was returned. `Function.apply` is for functions above
    torch.func's levels; a kernel runs within one of them.
    """
    apply = _apply_of(function)
    if not _transformed():
        return apply([result], *inputs)
    with enable_single_level_autograd_function():
        return apply([result], *inputs)


@cache
def _apply_of(function: type[_Function]) -> Any:
    return super(_Function, function).apply  # type: ignore[misc]


def keep(ctx: Any, *tensors: Tensor | None, output: Tensor | None = None) -> None:
    """Keep tensors for the derivatives, which are given None for what is zero throughout.

    The output is kept for the backward only: a jvp is asked for before the output is recorded.
    """
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, output)
    if forward_ad._current_level >= 0 or (_transformed() and _forward_mode()):
        ctx.save_for_forward(*tensors)


@contextmanager
def primals(ctx: Any) -> Iterator[list[Any]]:
    """Within a jvp: the kept tensors without their tangents at this level.

    torch calls a jvp with forward-mode AD off, for the levels below as well, where the tangent may
    have a tangent of its own. With it on, this level's must not be followed a second time.
    """
    with forward_ad._set_fwd_grad_enabled(True):
        yield [
            None if tensor is None else forward_ad.unpack_dual(tensor, level=_LEVEL).primal
            for tensor in ctx.saved_tensors
        ]


def add(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """The sum, where None is zero."""
    if first is None or second is None:
        return second if first is None else first
    return first + second
