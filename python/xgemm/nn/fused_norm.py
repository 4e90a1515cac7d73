"""RMSNorm in a fused model: two of torch's kernels, where transformers' own code launches eight.

In a decode step a norm moves a few kilobytes, and costs what its launches cost the host. What a
class computes is found by trial: a module takes another forward only where that gives the same
numbers on random input. It rounds where transformers' code rounds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from xgemm.nn.fused import fused_subclass

__all__ = ["close", "draw", "norm_class", "norm_eps", "norm_form"]

_EPS_NAMES = ("variance_epsilon", "eps")

_grad_enabled = torch.is_grad_enabled
_autocast_enabled = torch._C._is_any_autocast_enabled
_transforms = torch._C._are_functorch_transforms_active

Tensor = torch.Tensor


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * torch.rms_norm(x, weight.shape, None, eps)


def _one_plus_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Gemma's form, which rounds once."""
    normed = torch.rms_norm(x.float(), weight.shape, None, eps)
    return (normed * (1.0 + weight.float())).to(x.dtype)


_FORMS = (_rms_norm, _one_plus_rms_norm)


def norm_eps(module: nn.Module) -> tuple[str, float] | None:
    """The name and value of a module's epsilon, where it may be an RMSNorm with one weight."""
    parameters = module._parameters
    weight = parameters.get("weight")
    if not type(module).__name__.endswith("RMSNorm") or weight is None or weight.dim() != 1:
        return None
    if len(parameters) > 1:
        return None
    found = ((name, getattr(module, name, None)) for name in _EPS_NAMES)
    return next(((name, eps) for name, eps in found if isinstance(eps, float)), None)


def norm_form(module: nn.Module) -> int | None:
    """Which form of RMSNorm `module` computes, by trial; None where it is none, or has no data."""
    eps, weight = norm_eps(module), module._parameters.get("weight")
    if eps is None or weight is None or weight.is_meta or not weight.is_floating_point():
        return None
    theirs = type(module).forward  # not by a call of the module, which a user's hooks would see
    with torch.no_grad():
        (x,) = draw([(3, 1, weight.shape[0])], weight.dtype, weight.device)
        for index, form in enumerate(_FORMS):
            try:
                if close(form(x, weight, eps[1]), theirs(module, x)):
                    return index
            except (RuntimeError, TypeError, ValueError, AttributeError):
                return None  # another signature
    return None


def draw(shapes: list[tuple[int, ...]], dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Random tensors by a generator of their own: a caller's seed gives what it would give."""
    generator = torch.Generator(device).manual_seed(0)
    return [torch.randn(s, dtype=dtype, device=device, generator=generator) for s in shapes]


def close(mine: Tensor, theirs: Tensor) -> bool:
    """Equal but for the order of a sum: a few units in the last place of 16 bits."""
    if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
        return False
    wide = theirs.double()
    limit = 4 * torch.finfo(theirs.dtype).eps * wide.abs().max()
    return bool(((mine.double() - wide).abs() <= limit).all())


@functools.cache
def norm_class(base: Any, form: int, eps_name: str) -> Any:
    """`base`, an RMSNorm class, with a forward of fewer launches where no gradient is needed."""
    compute = _FORMS[form]
    plain: Callable[..., Tensor] = base.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        if (
            _grad_enabled()
            or len(args) != 1
            or _autocast_enabled()
            or _transforms()
            or forward_ad._current_level >= 0
            or is_compiling()  # a compiler fuses base's own code
        ):
            return plain(self, *args, **kwargs)
        return compute(args[0], self._parameters["weight"], getattr(self, eps_name))

    return fused_subclass(base, functools.wraps(plain)(forward), norm_class, form, eps_name)
