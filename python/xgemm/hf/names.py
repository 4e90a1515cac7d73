"""Which module of a model a saved name means, whatever class the model is of.

A name such as "model.layers.0.mlp.up_proj" of a ...ForCausalLM is "layers.0.mlp.up_proj" in the
bare model, and the other way round; transformers adds and removes the prefix of tensors itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming, rename_source_key


class Names:
    """The names of `model`'s modules, for those that a checkpoint has."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._modules = dict(model.named_modules(remove_duplicate=False))
        self._weights = {f"{name}.weight": True for name in self._modules}
        self._renamings: list[Any] | None = None

    def find(self, name: str) -> str | None:
        """The name in the model; None where it has no such module."""
        for candidate in self._candidates(name):
            if candidate in self._modules:
                return candidate
        return None

    def find_all(self, names: Iterable[str]) -> dict[str, str]:
        """The name in the checkpoint -> in the model. Modules of heads that it lacks are left out.

        ValueError where the model lacks a module that is no head, or has none of them.
        """
        found: dict[str, str] = {}
        absent = []
        for name in names:
            here = self.find(name)
            if here is None:
                absent.append(name)
            else:
                found[name] = here
        self.refuse_absent(absent, bool(found))
        return found

    def refuse_absent(self, absent: Iterable[str], found_any: bool) -> None:
        """ValueError for modules of the checkpoint that the model lacks, unless they are heads."""
        absent = list(absent)
        lost = [name for name in absent if not self._may_be_absent(name)]
        if lost or (absent and not found_any):
            raise ValueError(
                f"the checkpoint has quantized modules that {type(self._model).__name__} lacks: "
                f"{some(lost or absent)}"
            )

    def _candidates(self, name: str) -> Iterable[str]:
        yield name
        prefix = self._model.base_model_prefix
        if prefix:
            yield name.removeprefix(f"{prefix}.")
            yield f"{prefix}.{name}"
        # The names of older files, and of composite models saved as they came.
        if self._renamings is None:
            mapping = get_model_conversion_mapping(self._model)
            self._renamings = [m for m in mapping if isinstance(m, WeightRenaming)]
        renamed, _ = rename_source_key(f"{name}.weight", self._renamings, [], prefix, self._weights)
        yield renamed.removesuffix(".weight")

    def _may_be_absent(self, name: str) -> bool:
        saved = getattr(self._model.config, "architectures", None) or []
        prefix = self._model.base_model_prefix
        return type(self._model).__name__ not in saved and not (
            prefix and name.startswith(f"{prefix}.")
        )


def some(names: Iterable[str]) -> str:
    """The first few, for a message."""
    shown = sorted(names)
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")
