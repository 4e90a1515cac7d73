"""Checkpoints of other tools into a transformers model: float tensors by transformers, 4-bit ones
here, layer by layer, as they are.

transformers makes the model on the meta device and loads what it knows. A quantized layer's float
weight is missing from the files, and its tensors have no place in the model. Before transformers
initializes what is missing, each of these layers is read, packed, and put in the place of the float
one, on the device that is meant for it: in memory are the packed model and one layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.integrations.accelerate import get_device

from xgemm.formats.foreign import Quantizer, Shards, foreign_format
from xgemm.formats.headers import FOREIGN_FILE, checkpoint_files, pickle_error
from xgemm.formats.manifest import CONFIG_FILE, RECIPE
from xgemm.hf.config import XgemmConfig
from xgemm.hf.foreign_module import check_shapes, packed_module
from xgemm.hf.foreign_names import ForeignNames, Source
from xgemm.hf.loading import keep_in_fp32
from xgemm.nn import QuantExperts, QuantLinear


class ForeignConfig(XgemmConfig):
    """What another tool wrote as quantization_config, until the model is loaded.

    section: its values. file: where it lies, for messages; None for config.json. requantize: how
    weights that no integers hold are quantized again.
    """

    def __init__(
        self,
        section: Mapping[str, Any],
        file: Path | None = None,
        requantize: Quantizer | None = None,
    ) -> None:
        super().__init__(**dict.fromkeys(RECIPE), modules={})
        self.section = dict(section)
        self.file = file
        self.requantize = requantize

    @classmethod
    def from_dict(
        cls, config_dict: dict[str, Any], return_unused_kwargs: bool = False, **kwargs: Any
    ) -> Any:
        config = cls(config_dict)
        config.quant_method = config_dict["quant_method"]
        return (config, kwargs) if return_unused_kwargs else config

    def to_dict(self) -> dict[str, Any]:
        return dict(self.section)


class ForeignLoading:
    """The quantized layers of a checkpoint, from the construction of the model to their places.

    weights: the float parameters that they stand for, which no file has.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        config: ForeignConfig,
        files: Iterable[str],
        dtype: torch.dtype,
    ) -> None:
        paths = [Path(file) for file in files]
        directory = paths[0].parent if paths else Path()
        for path in paths:
            if path.suffix != ".safetensors":
                raise pickle_error(path)
            if path.parent != directory or path.name.startswith("."):
                raise ValueError(f"load: {path} must be a file of {directory}")
        form = foreign_format(
            config.file or directory / CONFIG_FILE, config.section, config.requantize
        )
        self._shards = Shards(directory, [path.name for path in paths], form)
        self._shapes = self._shards.shapes()
        if not self._shapes:
            raise ValueError(
                f"load: {directory}: quantization_config says {form.method}, and no file holds a "
                f"tensor *.{form.key}"
            )
        self._names = ForeignNames(model)
        self._sources = self._names.sources(directory, self._shapes)
        self.weights = {f"{source.module}.{leaf}" for source in self._sources for leaf in
                        source.parts}  # fmt: skip
        self._dtype = dtype
        # Bytes a weight: half a byte, and its share of a scale and a zero point.
        self.element_size = 0.5 + max(
            4.0 * shape.groups / max(shape.k, 1) for shape in self._shapes.values()
        )
        for source in self._sources:
            check_shapes(directory, self._shapes, source)
        self._stand_in(model)

    def _stand_in(self, model: PreTrainedModel) -> None:
        """Have the layers filled when transformers looks at what is missing, once, on this model.

        A quantizer is called before and after that, and never told which device a layer is for.
        """
        move = model._move_missing_keys_from_meta_to_device
        adjust = model._adjust_missing_and_unexpected_keys

        def fill_and_move(missing: Any, device_map: Any, *args: Any, **kwargs: Any) -> None:
            del model.__dict__["_move_missing_keys_from_meta_to_device"]
            layers = {}
            with self._shards, torch.inference_mode(False), torch.no_grad():
                for source in self._sources:
                    layers[source.module] = self._fill(model, source, device_map)
            keep_in_fp32(model, layers, self._dtype)
            move(set(missing) - self.weights, device_map, *args, **kwargs)

        def forget_and_adjust(info: Any) -> None:
            del model.__dict__["_adjust_missing_and_unexpected_keys"]
            info.missing_keys -= self.weights
            # bitsandbytes' packed weights have the name of the float ones.
            info.mismatched_keys -= {k for k in info.mismatched_keys if k[0] in self.weights}
            with self._shards:
                info.unexpected_keys -= self._placed(info.unexpected_keys)
            adjust(info)

        model.__dict__["_move_missing_keys_from_meta_to_device"] = fill_and_move
        model.__dict__["_adjust_missing_and_unexpected_keys"] = forget_and_adjust

    # ---- reading ----

    def _fill(
        self, model: PreTrainedModel, source: Source, device_map: Any
    ) -> QuantLinear | QuantExperts:
        """Put the packed module of one source into the model, and return it."""
        leaf = next(iter(source.parts))
        device = get_device(device_map, f"{source.module}.{leaf}")
        if device == "disk":
            raise ValueError(
                f"load: {source.module} is for the disk (device_map): load the model without "
                "offloading, save it with xgemm.save, and offload that"
            )
        new = packed_module(self._shards, source, model.get_submodule(source.module), device)
        for tensor in (*new.parameters(recurse=False), *new.buffers(recurse=False)):
            if not tensor.is_meta:  # a bias that no file has is still to be initialized
                _mark_initialized(tensor)
        model.set_submodule(source.module, new)
        return new

    # ---- what transformers found no place for ----

    def _placed(self, unexpected: set[str]) -> set[str]:
        """The names, among the unexpected ones, of tensors that are in the layers by now.

        Some tools give each layer a bias; one that the model has no place for must be 0.
        ValueError for another tensor of a quantized layer: without it the layer would be wrong.
        """
        placed = set()
        parts = set(self._shards.form.parts)
        for name in self._shards.tensors:
            owner, _, leaf = name.rpartition(".")
            here = self._names.unexpected(name) & unexpected
            if not here:
                continue
            if name in self._shards.taken or (
                owner in self._shapes and self._is_zero_bias(name, leaf)
            ):
                placed |= here
            elif owner in self._shapes or leaf in parts:
                file = self._shards.directory / self._shards.tensors[name].file
                raise ValueError(
                    f"load: {file}: {name} has no place in the model, and is no tensor that a "
                    f"layer of {self._shards.form.method} has"
                )
        return placed

    def _is_zero_bias(self, name: str, leaf: str) -> bool:
        return leaf == "bias" and not bool(self._shards.tensor(name).any())


def _mark_initialized(tensor: Any) -> None:
    tensor._is_hf_initialized = True


def load_foreign(
    cls: Any,
    path: Path,
    config: Any,
    source: tuple[Path, dict[str, Any]],
    device: torch.device | str | int | None,
    dtype: torch.dtype | None,
    requantize: Quantizer | None = None,
) -> nn.Module:
    """The transformers model of another tool's directory; every weight of it comes from there.

    cls, config: the model's class, and transformers' object of its config.json.
    """
    from xgemm.hf.source import check_loading

    for part in (config, config.get_text_config(decoder=True)):
        part.__dict__.pop("quantization_config", None)  # else transformers looks for its quantizer
    if dtype is None and config.dtype is None:  # transformers would take that of the first scales
        files = checkpoint_files(path, FOREIGN_FILE)
        dtype = Shards(path, files, foreign_format(*source, requantize)).float_dtype()
    placed = {} if device is None else {"device_map": {"": device}}
    model, info = cls.from_pretrained(
        path,
        config=config,
        quantization_config=ForeignConfig(source[1], source[0], requantize),
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        dtype=dtype or "auto",
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # check_loading refuses them by name
        **placed,
    )
    check_loading(path, type(model).__name__, info)
    return model
