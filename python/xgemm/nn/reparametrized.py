"""torch's older weight_norm and spectral_norm, which compute a weight before each call.

They take the weight out of the layer's parameters, where a packed layer has none, and ended in a
KeyError. Both begin with a function of their hook's class: it asks for the layer first, from here
on, and goes on as it was for every other layer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch.nn.utils  # noqa: F401  (its modules are shadowed by functions of their names)


def refuse_for(refuse: Callable[[Any], None]) -> None:
    """Have `refuse(module)`, which may raise, called before a module's `weight` is taken."""
    for name, hook in (("weight_norm", "WeightNorm"), ("spectral_norm", "SpectralNorm")):
        kind = getattr(sys.modules[f"torch.nn.utils.{name}"], hook)
        kind.apply = staticmethod(_asking(kind.apply, refuse))


def _asking(apply: Callable[..., Any], refuse: Callable[[Any], None]) -> Callable[..., Any]:
    def asked(module: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "weight":
            refuse(module)
        return apply(module, name, *args, **kwargs)

    return asked
