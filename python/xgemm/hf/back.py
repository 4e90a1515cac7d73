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


class Cast:
    """`half` or `float` as nn.Module has them, as an attribute of one model.

    transformers refuses these two of any quantized model, though it lets `to(dtype)` pass.
    """

    def __init__(self, model: nn.Module, name: str) -> None:
        self._model = BackReference(model)
        self._name = name

    def __call__(self) -> Any:
        model = self._model()
        if model is None:
            raise ReferenceError(
                f"{self._name}: the model is gone, nothing else held it: write "
                f"model = xgemm.load(...), then model.{self._name}()"
            )
        return getattr(nn.Module, self._name)(model)
