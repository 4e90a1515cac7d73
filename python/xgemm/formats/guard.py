"""Guards: tensors of a saved directory that make a reader fail that does not know its format.

transformers skips a quantization_config of a method that it does not know, with a warning, and
would then initialize every quantized layer at random. So a directory holds, for each packed weight,
a tensor of the float weight's name and of shape [0]: such a reader stops at the size mismatch. One
more name, which it lists as unexpected, says what to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

HINT = "import_xgemm.hf_before_from_pretrained"
_LINEAR, _EXPERTS = "qweight", "_qweight"


def guarded_name(name: str) -> str | None:
    """The float weight's name for a packed weight's; None for another tensor's.

    "mlp.up_proj.qweight" stands for "mlp.up_proj.weight", and "mlp.experts.down_proj_qweight", of a
    module of experts, for the parameter "mlp.experts.down_proj".
    """
    owner, _, leaf = name.rpartition(".")
    prefix = f"{owner}." if owner else ""
    if leaf == _LINEAR:
        return f"{prefix}weight"
    if leaf.endswith(_EXPERTS):
        return prefix + leaf.removesuffix(_EXPERTS)
    return None


def guard_names(names: Iterable[str]) -> list[str]:
    """The names of the guards of a directory whose tensors are called `names`; the hint's first."""
    found = [guard for name in names if (guard := guarded_name(name)) is not None]
    if not found:
        return []
    owner, _, _ = found[0].rpartition(".")
    return [f"{owner}.{HINT}" if owner else HINT, *found]


def guards(names: Iterable[str]) -> dict[str, torch.Tensor]:
    """The guards by name: uint8 of shape [0]."""
    return {name: torch.empty(0, dtype=torch.uint8) for name in guard_names(names)}


def drop_guards(state: dict[str, Any], prefix: str, leaves: Iterable[str]) -> None:
    """Take the guards of one module, whose names begin with `prefix`, out of a state."""
    state.pop(prefix + HINT, None)
    for leaf in leaves:
        guard = state.get(prefix + leaf)
        if isinstance(guard, torch.Tensor) and guard.dtype == torch.uint8 and guard.numel() == 0:
            del state[prefix + leaf]
