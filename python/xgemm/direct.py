"""Calls that nothing but a kernel has to see, by ops of as few arguments as a kernel needs.

The dispatcher looks at each argument of a schema, given or not, and an Autograd kernel in Python
takes longer than a small product. So `mul`, `mul.w4a16`, `w4a16_grad_a` and the reductions have
second ops (`_mul`, `_mul_w4a16`, `_w4a16_grad_a`, `_reduce`) that run the same kernels: all their
arguments are positional, none is a string, and they fall through the Autograd key. They are called
for plain tensors, and are in no graph, trace or profile: under a transform, a dispatch mode or a
tracer they raise a RuntimeError, upon which the caller calls the public op. The dispatcher knows of
these for nothing; `watched` asks for the rest.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad, profiler

__all__ = [
    *("PLAIN_TENSORS", "REDUCTIONS"),
    *("mul", "mul_w4a16", "reduce", "seen", "w4a16_grad_a", "watched"),
]

# Classes whose tensors have no behaviour of their own; xgemm.nn adds that of packed weights.
PLAIN_TENSORS: set[type] = {torch.Tensor, torch.nn.Parameter}

# The order of csrc/common/reduction.h's ReduceOp.
REDUCTIONS = ("sum", "mean", "prod", "amax", "amin", "norm", "argmax", "argmin")

_transforms = torch._C._are_functorch_transforms_active
_function_modes = torch._C._len_torch_function_stack
_dispatch_modes = torch._C._len_torch_dispatch_stack
_tracing = torch._C._get_tracing_state


def watched() -> bool:
    """Whether something that the dispatcher does not tell of is to see the ops that are called."""
    return _function_modes() > 0 or profiler._is_profiler_enabled or forward_ad._current_level >= 0


def seen() -> bool:
    """Whether something besides a kernel is to see the ops that are called."""
    return bool(watched() or _transforms() or _dispatch_modes() or _tracing())


def _boxed(name: str) -> Any:
    """The op's callable without the look for classes that have a __torch_function__."""
    return partial(torch._C._dispatch_call_boxed, getattr(torch.ops.xgemm, name).default._handle)


mul = _boxed("_mul")
mul_w4a16 = _boxed("_mul_w4a16")
w4a16_grad_a = _boxed("_w4a16_grad_a")
reduce = _boxed("_reduce")


def _refuse(*_: Any) -> None:
    """The kernel where others see the ops: a call of the public op from here would be another
    line than the caller's, and torch.jit.trace compares lines."""
    raise RuntimeError("xgemm: the public op is to be called, as others are to see it")


# The keys of transforms, dispatch modes and tracers.
_SEEING = ("FuncTorchDynamicLayerFrontMode", "PythonTLSSnapshot", "Tracer")

_library = torch.library.Library("xgemm", "IMPL")
for _name in ("_mul", "_mul_w4a16", "_w4a16_grad_a", "_reduce"):
    _library.impl(_name, torch.library.fallthrough_kernel, "Autograd")
    for _key in _SEEING:
        _library.impl(_name, _refuse, _key)
