"""quantize_weight: one float weight to 4 bits, by any method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from xgemm.formats.packed import check_group_size
from xgemm.formats.quantized import QuantizedWeight
from xgemm.quantize.hqq import quantize_hqq
from xgemm.quantize.rtn import CLIPS, SCALE_DTYPES, quantize_rtn

METHODS = ("rtn", "hqq")
# Methods of a model with calibration data, not of a weight: where each of them is.
CALIBRATED_METHODS = {
    "gptq": ("xgemm.quantize.gptq", "Gptq"),
    "awq": ("xgemm.quantize.awq", "Awq"),
}


def check_method(where: str, method: Any, calibrated: bool = False) -> None:
    """Refuse a method that this xgemm does not have; `calibrated`: also of a model with data."""
    known = (*METHODS, *CALIBRATED_METHODS) if calibrated else METHODS
    if method in known:
        return
    if method in CALIBRATED_METHODS:
        raise ValueError(
            f"{where}: method {method!r} needs a model's calibration data: "
            f"xgemm.quantize(model, method={method!r}, calibration=batches), or "
            f"`xgemm quantize SRC DST --method {method}`"
        )
    allowed = ", ".join(repr(name) for name in known)
    raise ValueError(f"{where}: method must be one of: {allowed}, got {method!r}")


def choose_clip(where: str, method: Any, clip: Any) -> str:
    """`clip`, or for None what serves `method` best; refuses what does not exist or serve it."""
    if clip is None:
        return "none" if method == "hqq" else "mse"
    if clip not in CLIPS:
        raise ValueError(f"{where}: clip must be one of {CLIPS} or None, got {clip!r}")
    if method == "hqq" and clip != "none":
        raise ValueError(f"{where}: clip must be 'none' for method 'hqq', got {clip!r}")
    return clip


def quantize_weight(
    w: torch.Tensor,
    method: str = "rtn",
    group_size: int = 128,
    symmetric: bool = True,
    clip: str | None = None,
    scale_dtype: torch.dtype | None = None,
    importance: torch.Tensor | None = None,
) -> QuantizedWeight:
    """Quantize `w` to 4 bits a weight.

    w: [N, K], fp16, bf16, fp32 or fp64, finite.
    method: "rtn", round to nearest; or "hqq", half-quadratic quantization, which fits scales and
        zero points to the weights.
    group_size: channels (along K) that share a scale: 32, 64, 128, or -1 for all of K. The last
        group is short where K is not a multiple.
    symmetric: zero point 8 everywhere, none stored; else a zero point for each group: an integer
        by "rtn", a real number by "hqq".
    clip: "none", or, for "rtn", "mse": each group's range is shrunk to where its squared error,
        weighted by |w|, is least, in 5 times the time. None is "mse" for "rtn", else "none".
    scale_dtype: fp16 or bf16; None takes fp16, or bf16 where a scale is out of fp16's normal range.
    importance: [K], for clip="mse": what a squared error in each channel counts, such as the mean
        square of the channel's inputs, in place of |w|. Any multiple of it is the same.

    Returns codes uint8 [N, K], scales [groups, N], zeros fp16 [groups, N] or None, on w's device.
    Raises ValueError where w holds NaN or infinity, or where scale_dtype cannot hold a scale.
    """
    check_method("quantize_weight", method)
    check_group_size("quantize_weight: group_size", group_size)
    clip = choose_clip("quantize_weight", method, clip)
    if scale_dtype is not None and scale_dtype not in SCALE_DTYPES:
        raise ValueError(
            f"quantize_weight: scale_dtype must be torch.float16, torch.bfloat16 or None, "
            f"got {scale_dtype}"
        )
    if not isinstance(w, torch.Tensor):
        raise TypeError(f"quantize_weight: w must be a tensor, got {type(w).__name__}")
    floating = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    if w.dim() != 2 or w.dtype not in floating:
        raise ValueError(
            f"quantize_weight: w must be fp16, bf16, fp32 or fp64 [N, K], "
            f"got {w.dtype} {list(w.shape)}"
        )
    if w.is_meta:
        raise ValueError("quantize_weight: w has no data (it is on the meta device)")
    w = w.detach()
    _check_finite(w)
    if importance is not None:
        _check_importance(importance, w, clip)
    if method == "hqq":
        return quantize_hqq(w, group_size, symmetric, scale_dtype)
    return quantize_rtn(w, group_size, symmetric, clip, scale_dtype, importance)


@dataclass(frozen=True)
class WeightRecipe:
    """How `quantize_weight` is to quantize: its arguments of these names."""

    method: str = "rtn"
    group_size: int = 128
    symmetric: bool = True
    clip: str | None = None
    scale_dtype: torch.dtype | None = None

    @classmethod
    def of(cls, where: str, values: Mapping[str, Any]) -> WeightRecipe:
        """From a caller's mapping, checked before a weight is read."""
        if not isinstance(values, Mapping):
            raise TypeError(f"{where} must be a mapping or None, got {type(values).__name__}")
        known = [field.name for field in fields(cls)]
        if unknown := [key for key in values if key not in known]:
            raise ValueError(f"{where} must have keys of {', '.join(known)}, got {unknown[0]!r}")
        recipe = cls(**values)
        recipe(torch.zeros(1, 1))  # its errors name what is wrong
        return recipe

    def __call__(self, w: torch.Tensor) -> QuantizedWeight:
        return quantize_weight(
            w, self.method, self.group_size, self.symmetric, self.clip, self.scale_dtype
        )


def _check_finite(w: torch.Tensor) -> None:
    finite = torch.isfinite(w)
    if not bool(finite.all()):
        row, column = (~finite).nonzero()[0].tolist()
        raise ValueError(
            f"quantize_weight: w must be finite, got {float(w[row, column])} at [{row}, {column}]"
        )


def _check_importance(importance: torch.Tensor, w: torch.Tensor, clip: str) -> None:
    if clip != "mse":
        raise ValueError(f"quantize_weight: importance is for clip 'mse', got clip {clip!r}")
    if tuple(importance.shape) != (w.shape[1],) or not importance.dtype.is_floating_point:
        raise ValueError(
            f"quantize_weight: importance must be floating, [{w.shape[1]}], "
            f"got {importance.dtype} {list(importance.shape)}"
        )
    if importance.device != w.device:
        raise ValueError(
            f"quantize_weight: importance must be on {w.device}, as w, got {importance.device}"
        )
    if not bool((torch.isfinite(importance) & (importance >= 0)).all()):
        raise ValueError("quantize_weight: importance must be finite and not negative")
