"""half() and float() of a quantized transformers model, which transformers refuses."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from xgemm.formats.manifest import QUANT_METHOD


def let_casts_pass() -> None:
    """Make `half` and `float` of every PreTrainedModel cast a model that xgemm has quantized.

    transformers refuses the two of any quantized model, though it lets `to(dtype)` pass. They are
    methods of the class: an attribute of one model could refer to that model only weakly, and
    `from_pretrained(directory).half()` drops the model before the call. Done once.
    """
    for name in ("half", "float"):
        method = getattr(PreTrainedModel, name)
        if not hasattr(method, "_xgemm_casts"):
            setattr(PreTrainedModel, name, _casting(method))


def _casting(method: Callable[..., Any]) -> Callable[..., Any]:
    plain = getattr(nn.Module, method.__name__)

    @wraps(method)
    def cast(self: PreTrainedModel, *args: Any) -> Any:
        ours = getattr(self, "quantization_method", None) == QUANT_METHOD
        return (plain if ours else method)(self, *args)

    cast._xgemm_casts = True  # type: ignore[attr-defined]
    return cast
