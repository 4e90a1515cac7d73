"""from_pretrained with a tp_plan: a rank reads its shares of the packed layers, and no other bytes.

transformers splits parameters of float layers as it loads them. What it would do to a packed one is
not known to the layer, so packed layers that its plan has split are kept from it while it loads.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers import PreTrainedModel

from xgemm.formats.fill import packed_parts
from xgemm.hf.names import Names
from xgemm.nn import QuantExperts, QuantLinear


def tensor_parallel_size(model: PreTrainedModel) -> int:
    """Over how many ranks from_pretrained is about to split the model; 1 where it is not."""
    config = getattr(model.config, "distributed_config", None)
    return getattr(config, "tp_size", None) or 1


def refuse_tensor_parallel(model: PreTrainedModel, what: str) -> None:
    if (ranks := tensor_parallel_size(model)) > 1:
        raise ValueError(
            f"from_pretrained: tp_plan: {what} cannot be split over {ranks} ranks while it loads: "
            "save the quantized model, and load that"
        )


class _Awaited(nn.Module):
    """In the place of a layer while transformers loads the others: it has no tensors."""

    def __init__(self, layer: QuantLinear | QuantExperts) -> None:
        super().__init__()
        if isinstance(layer, QuantLinear):  # transformers' styles look for these
            self.in_features, self.out_features = layer.in_features, layer.out_features

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        raise RuntimeError("this layer has no weights yet")


def drop_awaited(model: PreTrainedModel, plan: dict[str, str]) -> None:
    """Take parameters of awaited layers out of a plan: transformers warns that there are none."""
    awaited = {
        re.sub(r"\.\d+(?=\.|$)", ".*", name)
        for name, module in model.named_modules()
        if isinstance(module, _Awaited)
    }
    for name in [name for name in plan if name.rpartition(".")[0] in awaited]:
        del plan[name]


class ShareLoading:
    """The packed layers that the plan of a model has split, until their shares are read."""

    def __init__(
        self, where: str, model: PreTrainedModel, layers: dict[str, QuantLinear | QuantExperts]
    ) -> None:
        """Put stand-ins in their places. `where` begins errors."""
        from xgemm.distributed.parallelize import own_styles, with_parts

        self._where = where
        config: Any = model.config.distributed_config
        if config.ep_size > 1 and any(isinstance(m, QuantExperts) for m in layers.values()):
            raise ValueError(
                f"{where}: ep_size must be 1 for packed experts, which tp_plan splits over its "
                f"ranks, got {config.ep_size}"
            )
        self._layers = layers
        modules = dict(model.named_modules())
        given, ranks = config.tp_plan, config.tp_size
        plan = {**model.tp_plan, **given} if isinstance(given, dict) else model.tp_plan
        styles = own_styles(where, model, modules, ranks, plan, False) if given != {} else {}
        self._splits = with_parts(where, modules, ranks, styles)
        self.names = {name for name, _, _ in self._splits}
        for name in self.names:
            model.set_submodule(name, _Awaited(layers[name]))

    def fill(self, model: Any, files: list[Path], names: Names) -> set[str]:
        """Read the shares into the layers and these into the model; the names of their tensors."""
        from xgemm.distributed.loading import split_layer

        mesh = model._mesh_manager.get_mesh("tp")
        device = torch.device(mesh.device_type)
        known: set[str] = set()
        with contextlib.ExitStack() as stack:
            found: dict[tuple[str, str], Any] = {}
            for file in files:
                opened = stack.enter_context(safe_open(file, framework="pt"))
                for key in opened.keys():  # noqa: SIM118 (no mapping)
                    owner, _, leaf = key.rpartition(".")
                    if (here := names.find(owner)) in self.names:
                        found[here, leaf] = opened.get_slice(key)
                        known |= {key, f"{here}.{leaf}"}
            for name, style, parts in self._splits:
                layer: Any = self._layers[name]

                def read(leaf: str, name: str = name) -> Any:
                    return found.get((name, leaf))

                def place(leaf: str, tensor: torch.Tensor, layer: Any = layer) -> torch.Tensor:
                    return tensor.to(device, getattr(layer, leaf).dtype)

                self._check_shapes(name, layer, read)
                where = f"{self._where}: {name}"
                split_layer(where, layer, style, mesh, parts, read, place)
                model.set_submodule(name, layer)
        return known

    def _check_shapes(self, name: str, layer: Any, read: Any) -> None:
        """Refuse files that lack a tensor of a layer, or have another one in its place."""
        formats = {f"{prefix}packed_format".lstrip(".") for prefix, _ in packed_parts("", layer)}
        for leaf, tensor in layer.state_dict().items():
            part = read(leaf)
            if part is None and leaf not in formats:
                raise ValueError(f"{self._where}: the checkpoint lacks {name}.{leaf}")
            if part is not None and tuple(part.get_shape()) != tuple(tensor.shape):
                raise ValueError(
                    f"{self._where}: {name}.{leaf} must be {list(tensor.shape)}, "
                    f"got {part.get_shape()}"
                )
