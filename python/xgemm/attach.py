"""attach: transformers is told that a model of its own is quantized, where it is imported."""

from __future__ import annotations

import sys
import warnings

from torch import nn


def attach(model: nn.Module) -> None:
    """Make transformers see that `model`, or a model within it, is quantized.

    See `xgemm.hf.attach`. Nothing is done where no transformers model is involved.
    """
    transformers = sys.modules.get("transformers.modeling_utils")
    pretrained = getattr(transformers, "PreTrainedModel", ())
    if not any(isinstance(module, pretrained) for module in model.modules()):
        return
    try:
        from xgemm.hf import attach as attach_in_transformers
    except ImportError as error:
        warnings.warn(
            f"transformers cannot be told that the model is quantized, so that save_pretrained "
            f"would lose it (xgemm.save does not): {error}",
            UserWarning,
            stacklevel=3,
        )
        return
    attach_in_transformers(model)
