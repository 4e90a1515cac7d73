"""Guards: tensors of a state that make a reader fail that does not know its format.

transformers loads a directory of which it does not know the format with a warning, and would
initialize every quantized layer at random. So a layer's state holds, for each packed weight, a
tensor of the float weight's name and without elements: such a reader stops at the size mismatch. A
directory of ours has one more name, which the reader lists as unexpected and which says what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

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
    """The guards of a directory by name."""
    return {name: torch.empty(0, dtype=torch.uint8) for name in guard_names(names)}


def is_guard(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.uint8 and value.numel() == 0


def add_guards(
    module: nn.Module, state: dict[str, Any], prefix: str, leaves: Mapping[str, str]
) -> None:
    """Put the guards of a module, whose names begin with `prefix`, into its state.

    leaves: the name of the packed weight for that of the float weight. A packed weight on the meta
        device has no data to guard, unless accelerate has offloaded it: what fills a model on meta
        (accelerate) looks for a parameter or a buffer of each name in its state.
    """
    offloaded = hasattr(module, "_hf_hook")
    for leaf, packed in leaves.items():
        qweight = getattr(module, packed)
        if qweight.is_meta and not offloaded:
            continue
        # Of 3-D weights [E, 0, 0]: transformers takes those of Mixtral apart when it saves them.
        shape = (0,) if qweight.dim() == 2 else (qweight.shape[0], 0, 0)
        device = "cpu" if qweight.is_meta else qweight.device
        state[prefix + leaf] = torch.empty(shape, dtype=torch.uint8, device=device)


def drop_guards(state: dict[str, Any], prefix: str, leaves: Iterable[str]) -> None:
    """Take the guards of one module, whose names begin with `prefix`, out of a state.

    ValueError where a name holds another tensor: a float weight.
    """
    state.pop(prefix + HINT, None)
    for leaf in leaves:
        value = state.pop(prefix + leaf, None)
        if value is None or is_guard(value):
            continue
        got = type(value).__name__
        if isinstance(value, torch.Tensor):
            got = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
        raise ValueError(
            f"{prefix}{leaf} must be uint8 without elements, in the place of a weight that is "
            f"stored packed, got {got}: load a float state into the float model and quantize that"
        )
