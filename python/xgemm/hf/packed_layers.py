"""The layers of an xgemm directory as other tools have them: a linear layer, or expert, each.

A packed module can be several layers of a checkpoint: transformers joins gate and up, and gathers
experts. What its own conversion, reversed, does with the numbers of the rows says which they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from xgemm.formats.foreign import TensorFiles
from xgemm.formats.guard import HINT, guard_names
from xgemm.formats.headers import checkpoint_files
from xgemm.formats.manifest import CONFIG_FILE, ExpertsSpec, ModuleSpec, parse_quantization_config
from xgemm.formats.packed import PackedWeight, unpack
from xgemm.formats.quantized import QuantizedWeight
from xgemm.hf.foreign_names import ForeignNames
from xgemm.hf.names import Names


@dataclass(frozen=True)
class _Rows:
    """Where a layer lies: rows of the packed weight `key`, of one expert where there are any."""

    prefix: str  # of the names of the packed weight's tensors: "mlp.up_proj." or "experts.up_proj_"
    spec: ModuleSpec
    expert: int | None
    rows: slice


class PackedLayers:
    """An xgemm directory, read layer by layer, under the names that other tools give them.

    asymmetric: whether a layer has zero points. others: names of the float tensors in the files.
    """

    def __init__(self, directory: Path, config: dict[str, Any], model: PreTrainedModel) -> None:
        specs = parse_quantization_config(directory / CONFIG_FILE, config)
        self._model = model
        self._files = TensorFiles(directory, checkpoint_files(directory))
        names = ForeignNames(model)
        self._in_file = {names.in_model(key) or key: key for key in self._files.tensors}
        self._layers: dict[str, _Rows] = {}
        here = Names(model).find_all(specs)
        for saved, spec in specs.items():
            module = here[saved]
            if isinstance(spec, ExpertsSpec):
                for leaf, form in spec.projections.items():
                    self._add(f"{module}.{leaf}", f"{module}.{leaf}_", form, spec.num_experts)
            else:
                self._add(f"{module}.weight", f"{module}.", spec, None)
        self.asymmetric = any(layer.spec.zeros for layer in self._layers.values())
        own = set(guard_names(self._in_file))
        for layer in self._layers.values():
            own |= {layer.prefix + part for part in ("qweight", "perm", "packed_format")}
        self.others = [
            name for name in self._in_file if name not in own and not name.endswith(HINT)
        ]

    def __exit__(self, *error: Any) -> None:
        self._files.__exit__(None, None, None)

    @property
    def layers(self) -> list[str]:
        return list(self._layers)

    def _add(self, weight: str, prefix: str, spec: ModuleSpec, experts: int | None) -> None:
        """Enter the layers of one packed weight; `weight` is the float weight's name."""
        count = 1 if experts is None else experts
        numbers = torch.arange(count * spec.n).view(count, spec.n, 1)
        module = self._model.get_submodule(weight.rpartition(".")[0])
        if experts is None:
            numbers = numbers[0]
        elif getattr(module, "is_transposed", False):
            numbers = numbers.transpose(1, 2)
        for name, tensor in revert_weight_conversion(self._model, {weight: numbers}).items():
            found = tensor.flatten()
            first = int(found[0]) if found.numel() else 0
            expert, row = divmod(first, max(spec.n, 1))
            one = row + found.numel() <= spec.n and torch.equal(
                found, torch.arange(first, first + found.numel())
            )
            if not one or not name.endswith(".weight"):
                raise ValueError(
                    f"convert: {weight} holds all experts in one tensor, in transformers' own "
                    "files as well: other tools' formats have a layer for each expert"
                )
            rows = slice(row, row + found.numel())
            self._layers[name.removesuffix(".weight")] = _Rows(
                prefix, spec, None if experts is None else expert, rows
            )

    def read(self, name: str) -> QuantizedWeight:
        layer = self._layers[name]
        spec, prefix, expert = layer.spec, layer.prefix, layer.expert
        spec.form.check(f"load: {prefix[:-1]}", self._tensor(f"{prefix}packed_format"))
        weight = PackedWeight(
            self._tensor(f"{prefix}qweight", expert),
            *(spec.n, spec.k, spec.group_size, spec.bf16_scales, spec.zeros),
            self._tensor(f"{prefix}perm", expert) if spec.act_order else None,
            fp4=spec.fp4,
        )
        return unpack(weight).rows(layer.rows)

    def other(self, name: str) -> dict[str, torch.Tensor]:
        """A float tensor under the names that other tools give it, experts taken apart."""
        tensor = self._tensor(name)
        if name not in self._model.state_dict(keep_vars=True):
            return {name: tensor}
        reverted: dict[str, torch.Tensor] = revert_weight_conversion(self._model, {name: tensor})
        return reverted

    def _tensor(self, name: str, expert: int | None = None) -> torch.Tensor:
        if name not in self._in_file:
            raise ValueError(f"load: {self._files.directory}: {name} is missing")
        return self._files.tensor(self._in_file[name], expert)
