"""PackedParameter: packed bytes as a parameter that never has a gradient."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode

from xgemm.direct import PLAIN_TENSORS
from xgemm.nn.large_pages import ask_for_large_pages

__all__ = ["PackedParameter"]


_DATA: Any = torch._C.TensorBase.data


class PackedParameter(nn.Parameter):
    """A uint8 parameter that is left out when a whole model is asked to require gradients.

    `model.requires_grad_(True)`, and `p.requires_grad = True` for each of `model.parameters()`,
    leave it as it is, where torch would raise an error for a tensor of integers. `requires_grad` is
    always False. It begins at a multiple of 16 bytes, as kernels
    read it: a tensor that does not is cloned. It is pickled as an nn.Parameter, which `of` turns
    into a PackedParameter again.
    """

    def __new__(cls, data: torch.Tensor, requires_grad: bool = False) -> PackedParameter:
        # `requires_grad` is what torch's own code passes to the class of a parameter.
        if type(data) not in (torch.Tensor, nn.Parameter, cls):
            return nn.Parameter(data, requires_grad=False)  # type: ignore[return-value]
        return torch.Tensor._make_subclass(cls, data.data if _aligned(data) else data.clone())

    @classmethod
    def of(cls, tensor: torch.Tensor) -> nn.Parameter:
        """`tensor` as a parameter without gradient: the same object where it is a parameter.

        A parameter of another class than nn.Parameter (a DTensor's) is returned as it is. Bytes on
        the CPU are asked into pages of 2 MiB, where they lie.
        """
        parameter = cls._of(tensor)
        if has_values(parameter):
            ask_for_large_pages(parameter)
        return parameter

    @classmethod
    def _of(cls, tensor: torch.Tensor) -> nn.Parameter:
        if type(tensor) is nn.Parameter:
            if not _aligned(tensor):
                tensor.data = tensor.data.clone()
            tensor.__class__ = cls  # it may be the parameter of other modules too
            return tensor
        return tensor if isinstance(tensor, nn.Parameter) else cls(tensor)

    @property
    def requires_grad(self) -> bool:
        return False

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        """Nothing: see the class."""

    def requires_grad_(self, requires_grad: bool = True) -> PackedParameter:
        return self

    def detach(self) -> torch.Tensor:
        # nn.Parameter(p) asks for a detached tensor of p's own class.
        return PackedParameter(self.data)

    def plain(self) -> torch.Tensor:
        """The same bytes as a torch.Tensor, for a mode that knows torch's own classes only."""
        with _disable_current_modes():
            return self.data

    @property
    def data(self) -> torch.Tensor:
        return _DATA.__get__(self)

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        # torch's vector_to_parameters gives back as floats what parameters_to_vector made floats.
        if value.is_floating_point():
            self.copy_(value)
        else:
            _DATA.__set__(self, value)

    def copy_(self, src: torch.Tensor, non_blocking: bool = False) -> PackedParameter:
        """As Tensor.copy_. Floats must be the bytes that are here: averages of models are floats.

        torch.optim.swa_utils averages every parameter. That leaves equal bytes as they are, up to
        rounding, and would make other codes of unequal ones.
        """
        if src.is_floating_point():
            if not torch.equal(src.round().to(self), self):
                raise RuntimeError(
                    "packed 4-bit weights are codes, not numbers: no floats can be copied into "
                    "them, and models whose packed weights differ cannot be averaged (average the "
                    "parameters that are trained)"
                )
            return self
        super().copy_(src, non_blocking)
        return self


PLAIN_TENSORS.add(PackedParameter)


def has_values(tensor: Any) -> TypeGuard[torch.Tensor]:
    """Whether a tensor's values can be looked at: none of a meta, fake or distributed tensor's."""
    return (
        type(tensor) in (torch.Tensor, nn.Parameter, PackedParameter)
        and not tensor.is_meta
        and _get_current_dispatch_mode() is None
        and not torch._C._are_functorch_transforms_active()
    )


def _aligned(tensor: torch.Tensor) -> bool:
    return tensor.is_meta or tensor.data_ptr() % 16 == 0
