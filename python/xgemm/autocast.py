"""Autocast: `mul` and `mul.w4a16` follow torch.matmul's rule.

Inside `torch.autocast` their floating-point operands (a, b, bias; not a packed weight) are cast to
the autocast dtype, unless they are float64, which the ops then refuse by name, or on another
device. `sgemm` is defined for float32 alone and keeps it, as a caller who names it wants; the
`_into` forms keep the dtype of what they are given, as torch's `out=` forms do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Tensor = torch.Tensor

_AUTOCAST_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | (
    torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
)
_CASTABLE = (torch.float32, torch.float16, torch.bfloat16)


def _cast(tensor: Tensor | None, device_type: str, dtype: torch.dtype) -> Tensor | None:
    if tensor is None or tensor.dtype not in _CASTABLE or tensor.device.type != device_type:
        return tensor
    return tensor.to(dtype)


def _kernel(op: Any, bias_index: int, device_type: str, operands: int) -> Callable[..., Tensor]:
    """The autocast kernel of `op`: casts its first `operands` arguments and the bias."""

    def kernel(*args: Any, **options: Any) -> Tensor:
        dtype = torch.get_autocast_dtype(device_type)
        cast = [
            _cast(argument, device_type, dtype)
            if index < operands or index == bias_index
            else argument
            for index, argument in enumerate(args)
        ]
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_KEYS):
            return op(*cast, **options)

    return kernel


_library = torch.library.Library("xgemm", "IMPL")
for _key, _device_type in (("AutocastCPU", "cpu"), ("AutocastCUDA", "cuda")):
    _library.impl("mul", _kernel(torch.ops.xgemm.mul.default, 2, _device_type, 2), _key)
    _library.impl("mul.w4a16", _kernel(torch.ops.xgemm.mul.w4a16, 5, _device_type, 1), _key)
    _library.impl("_mul", _kernel(torch.ops.xgemm._mul.default, 2, _device_type, 2), _key)
    _library.impl(
        "_mul_w4a16", _kernel(torch.ops.xgemm._mul_w4a16.default, 5, _device_type, 1), _key
    )
