"""A reference from a part of a model back to the model, which does not keep the model alive."""

from __future__ import annotations

import weakref
from typing import Any

from torch import nn


class BackReference:
    """Called, it gives the model; None when that is gone.

    A strong reference would make a cycle, and a deleted model would stay in memory until Python
    looks for cycles. In a copy or a pickle of the model it refers to that one.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = weakref.ref(model)

    def __call__(self) -> Any:
        return self._model()

    def __getstate__(self) -> dict[str, Any]:
        return {"model": self()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        gone = nn.Module()  # nothing holds it: a reference to it is one to nothing
        self._model = weakref.ref(gone if state["model"] is None else state["model"])
