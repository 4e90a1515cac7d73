"""Calls of the GEMM ops that autograd need not see go below it, where no Python runs.

The kernels of the Autograd key are Python (autograd.py): a call that reaches them takes 5 us more
of the host, even where there is nothing to differentiate. So each op's callable is one that looks
first. With plain tensors, of which none requires a gradient (or with gradients off), and with no
mode and no transform active, it excludes the autograd keys and calls the op. Everything else, and
every tensor of another class, takes the way of any op. The ops behave as before, by whatever name
they are called: this holds for `torch.ops.xgemm.mul`, `torch.ops.xgemm.mul.default` and what calls
them; Dynamo and TorchScript see the ops themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

# The ops of which autograd.py has kernels, and which do not write what they are given.
_OPS = ("mul", "sgemm", "w4a16_grad_a")

_below_autograd = torch._C._AutoDispatchBelowAutograd
_inference_mode = torch.is_inference_mode_enabled
_grad_enabled = torch.is_grad_enabled
_transforms = torch._C._are_functorch_transforms_active
_function_modes = torch._C._len_torch_function_stack
_dispatch_modes = torch._C._len_torch_dispatch_stack

# Classes whose tensors have no behaviour of their own; xgemm.nn adds that of packed weights.
PLAIN_TENSORS: set[type] = {torch.Tensor, torch.nn.Parameter}
_VALUES = frozenset({int, float, bool, str, type(None)})


def _skipping_autograd(op: Callable[..., Any]) -> Callable[..., Any]:
    """`op`, called below autograd where autograd has nothing to do."""

    def call(*args: Any, **options: Any) -> Any:
        if _inference_mode():  # autograd is out of the way already
            return op(*args, **options)
        if not (
            _transforms()
            or _function_modes()
            or _dispatch_modes()
            or forward_ad._current_level >= 0
        ):
            grad = _grad_enabled()
            for argument in (*args, *options.values()) if options else args:
                kind = type(argument)
                if kind in PLAIN_TENSORS:
                    if grad and argument.requires_grad:
                        break
                elif kind not in _VALUES:
                    break
            else:
                with _below_autograd():
                    return op(*args, **options)
        return op(*args, **options)

    return call


def install() -> None:
    """Make the ops' callables those that look first: once, before anything keeps one of them."""
    for name in _OPS:
        packet = getattr(torch.ops.xgemm, name)
        for overload in packet.overloads():
            resolved: Any = getattr(packet, overload)
            resolved._op = _skipping_autograd(resolved._op)
        packet._op = _skipping_autograd(packet._op)
        # TorchScript finds an op by its callable.
        torch.jit._builtins._register_builtin(packet._op, packet._qualified_op_name)
