"""peft's `modules_to_save` over packed layers: refused.

peft trains a copy of the modules that `modules_to_save` names. Packed weights have no gradient, so
the copy of a packed layer would stay as it is, without a word.
"""

from __future__ import annotations

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from xgemm.nn import QuantExperts, QuantLinear

_PACKED = (QuantLinear, QuantExperts)


def refuse_packed() -> None:
    """Have peft's wrapper raise ValueError for packed layers, from here on."""
    register_module_module_registration_hook(_refuse)


def _refuse(parent: nn.Module, name: str, child: nn.Module | None) -> None:
    if name != "original_module" or child is None:
        return
    if type(parent).__name__ != "ModulesToSaveWrapper":
        return
    packed = [(path, each) for path, each in child.named_modules() if isinstance(each, _PACKED)]
    if not packed:
        return
    path, layer = packed[0]
    where = f"the {type(child).__name__} around {path!r}, " if path else ""
    raise ValueError(
        f"modules_to_save: expected modules with float weights, got {where}{layer}: packed weights "
        "have no gradient, so peft's copy would never be trained. Give it an adapter "
        "(target_modules), or keep it in float (`skip` when quantizing)"
    )
