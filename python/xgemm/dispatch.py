"""Calls of the ops that autograd need not see go below it, where no Python runs.

The kernels of the Autograd key are Python (autograd.py): a call that reaches them takes 5 us more
of the host, even where there is nothing to differentiate. So each op's callable is one that looks
first. With plain tensors, of which none requires a gradient (or with gradients off), and with no
mode and no transform active, it excludes the autograd key and calls the op. Where one requires a
gradient it calls autograd.py's formula without the detour through the dispatcher. Everything else,
and every tensor of another class, takes the way of any op. The ops behave as before, by whatever
name they are called: this holds for `torch.ops.xgemm.mul`, `torch.ops.xgemm.mul.default` and what
calls them; Dynamo and TorchScript see the ops themselves. `mul` of two plain tensors and a
reduction of one take the shortest way (direct.py).

Where the dispatcher refuses a call for an argument's type, the callables of all ops say which.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any

import torch

from . import direct
from .arguments import takes, type_error
from .direct import PLAIN_TENSORS, seen, watched

# The ops that have kernels of the Autograd key, and do not write what they are given; and the rest.
_DIFFERENTIABLE = ("mul", "sgemm", "w4a16_grad_a", "sum", "mean", "prod", "amax", "amin", "norm")
_OTHERS = (
    *("argmax", "argmin", "mul_into", "sgemm_into", "moe", "moe_sort"),
    *("pack_w4", "unpack_w4", "dequantize_w4", "explain", "explain_reduce"),
)

_inference_mode = torch.is_inference_mode_enabled
_grad_enabled = torch.is_grad_enabled
_autocast = torch._C._is_any_autocast_enabled
_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
# Does what torch._C._AutoDispatchBelowAutograd does for CPU and CUDA tensors, in half the time.
_exclude = torch._C._dispatch_tls_set_dispatch_key_excluded
_AUTOGRAD = torch._C.DispatchKey.AutogradFunctionality


def autograd_excluded() -> bool:
    """Whether this is within another op's autograd kernel."""
    return _excluded(_AUTOGRAD)


# Of an overload, by its name: what records the gradient of a call, given what calls the op below
# autograd, and the arguments.
FORMULAS: dict[str, Callable[..., Any]] = {}
_VALUES = frozenset({int, float, bool, str, type(None), list, tuple})  # lists are of dimensions


def _skipping_autograd(op: Callable[..., Any], overloads: list[Any]) -> Callable[..., Any]:
    """`op`, called below autograd where autograd has nothing to do."""
    schemas = [overload._schema for overload in overloads]
    # A packet has several overloads; which one is called is the dispatcher's to say.
    name = _full_name(schemas[0]) if len(schemas) == 1 else ""
    tensors_of = _tensors_by_count(schemas)
    scalars = _scalar_options(schemas)
    # What `op` is but for the look for classes with __torch_function__, which was taken by then.
    dispatched = op if not name else partial(torch._C._dispatch_call_boxed, overloads[0]._handle)

    def below(*args: Any, **options: Any) -> Any:
        try:
            _exclude(_AUTOGRAD, True)
            return dispatched(*args, **options)
        finally:
            _exclude(_AUTOGRAD, False)

    def call(*args: Any, **options: Any) -> Any:
        try:
            if _inference_mode():  # autograd is out of the way already
                return op(*args, **options)
            if not seen():
                tensors = tensors_of.get(len(args))
                looked_at = args if tensors is None else tensors(args)
                if options and not scalars.issuperset(options):
                    looked_at = (*looked_at, *options.values())
                grad, needed = _grad_enabled(), False
                for argument in looked_at:
                    kind = type(argument)
                    if kind in PLAIN_TENSORS:
                        if grad and argument.requires_grad:
                            needed = True
                    elif kind not in _VALUES:
                        break
                else:
                    if not (needed or _excluded(_AUTOGRAD)):
                        try:  # as `below`, whose frame would cost as much as the looking
                            _exclude(_AUTOGRAD, True)
                            return dispatched(*args, **options)
                        finally:
                            _exclude(_AUTOGRAD, False)
                    if needed and name in FORMULAS and not (_autocast() or _excluded(_AUTOGRAD)):
                        return FORMULAS[name](below, *args, **options)
            return op(*args, **options)
        except TypeError:
            # Of a formula, a function of Python: the dispatcher names an argument that is missing.
            if name not in FORMULAS or takes(schemas[0], args, options):
                raise
            return op(*args, **options)
        except (RuntimeError, AttributeError):  # the latter where a kernel of Python got None
            wrong = type_error(schemas, args, options)
            if wrong is None:
                raise
            raise wrong from None

    return call


def _mul_directly(op: Callable[..., Any]) -> Callable[..., Any]:
    """`op`, a callable of `mul`, by the shortest way where only a kernel has to see the call."""

    def call(*args: Any, **options: Any) -> Any:
        if len(args) == 2 and not options:
            a, b = args
            plain = type(a) in PLAIN_TENSORS and type(b) in PLAIN_TENSORS and not watched()
            if plain and not (_grad_enabled() and (a.requires_grad or b.requires_grad)):
                try:
                    return direct.mul(a, b, None)
                except (RuntimeError, TypeError):
                    pass  # `op` raises it again, by its own name
        return op(*args, **options)

    return call


def _reduced_directly(op: Callable[..., Any], index: int) -> Callable[..., Any]:
    """`op`, a callable of the reduction of that index, as _mul_directly makes one of `mul`."""
    takes_lists = not direct.REDUCTIONS[index].startswith("arg")

    def call(*args: Any, **options: Any) -> Any:
        if 1 <= len(args) <= 2 and not options:
            x, dim = args[0], args[1] if len(args) == 2 else None
            if takes_lists and type(dim) is list and len(dim) == 1 and type(dim[0]) is int:
                dim = dim[0]
            plain = type(x) in PLAIN_TENSORS and (dim is None or type(dim) is int) and not watched()
            if plain and not (_grad_enabled() and x.requires_grad):
                try:
                    return direct.reduce(x, index, dim)
                except (RuntimeError, TypeError):
                    pass  # `op` raises it again, by its own name
        return op(*args, **options)

    return call


def _scalar_options(schemas: list[Any]) -> frozenset[str]:
    """The keyword-only arguments that are no tensors, where there is one schema."""
    arguments = schemas[0].arguments if len(schemas) == 1 else []
    return frozenset(
        each.name for each in arguments if each.kwarg_only and "Tensor" not in str(each.type)
    )


def _tensors_by_count(schemas: list[Any]) -> dict[int, Callable[[tuple[Any, ...]], Any]]:
    """What takes the tensors out of so many positional arguments: for one schema, by the count."""
    if len(schemas) != 1:
        return {}
    arguments = [each for each in schemas[0].arguments if not each.kwarg_only]
    tensors = [i for i, each in enumerate(arguments) if "Tensor" in str(each.type)]
    found: dict[int, Callable[[tuple[Any, ...]], Any]] = {}
    for count in range(1, len(arguments) + 1):
        given = [i for i in tensors if i < count]
        # Of one index itemgetter makes no tuple.
        found[count] = itemgetter(*given) if len(given) > 1 else itemgetter(slice(1))
    return found


def _full_name(schema: Any) -> str:
    name: str = schema.name.partition("::")[2]
    return f"{name}.{schema.overload_name}" if schema.overload_name else name


def _saying_what_is_wrong(op: Callable[..., Any], overloads: list[Any]) -> Callable[..., Any]:
    """`op`, whose errors of types name the argument."""
    schemas = [overload._schema for overload in overloads]

    def call(*args: Any, **options: Any) -> Any:
        try:
            return op(*args, **options)
        except (RuntimeError, AttributeError):  # the latter where a kernel of Python got None
            wrong = type_error(schemas, args, options)
            if wrong is None:
                raise
            raise wrong from None

    return call


def install() -> None:
    """Make the ops' callables those of this module: once, before anything keeps one of them."""
    for name in (*_DIFFERENTIABLE, *_OTHERS):
        wrap = _skipping_autograd if name in _DIFFERENTIABLE else _saying_what_is_wrong
        packet = getattr(torch.ops.xgemm, name)
        overloads: list[Any] = [getattr(packet, overload) for overload in packet.overloads()]
        for overload in overloads:
            overload._op = wrap(overload._op, [overload])
        packet._op = wrap(packet._op, overloads)
        if name == "mul" or name in direct.REDUCTIONS:
            for each in (packet, packet.default):
                if name == "mul":
                    each._op = _mul_directly(each._op)
                else:
                    each._op = _reduced_directly(each._op, direct.REDUCTIONS.index(name))
        # TorchScript finds an op by its callable.
        torch.jit._builtins._register_builtin(packet._op, packet._qualified_op_name)
