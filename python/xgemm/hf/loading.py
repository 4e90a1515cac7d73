"""A checkpoint of xgemm's into a transformers model: layers swapped on meta, tensors checked."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from transformers import PreTrainedModel

from xgemm.formats.files import file_size, read_json
from xgemm.formats.fill import FORMAT_BUFFER, packed_parts, plan_replacements
from xgemm.formats.guard import HINT
from xgemm.formats.manifest import CONFIG_FILE, parse_quantization_config
from xgemm.hf.config import XgemmConfig
from xgemm.hf.names import Names, some
from xgemm.hf.shares import ShareLoading, tensor_parallel_size
from xgemm.nn import QuantExperts, QuantLinear

_FLOAT_WEIGHTS = (
    ". It holds no packed weight: if its weights are float ones, the config is of another model: "
    "take quantization_config out of config.json, or out of the config that was passed"
)


def check_files(files: Iterable[str], directory: str) -> None:
    """Refuse checkpoint files that are not regular, or not of the local directory that has them.

    transformers takes an index's names as they stand, and opens whatever they lead to.
    """
    base = os.path.abspath(directory)
    for file in files:
        if os.path.isdir(base) and not os.path.abspath(file).startswith(f"{base}{os.sep}"):
            raise ValueError(f"from_pretrained: {file} is not a file of {directory}")
        file_size(Path(file), "from_pretrained")


def packed_config(files: Iterable[str]) -> XgemmConfig | None:
    """What config.json says beside checkpoint files that hold packed weights; None of others.

    The config of a part of a model (CLIP's text model) is without it when transformers loads the
    part by itself.
    """
    for file in map(Path, files):
        if file.suffix != ".safetensors":
            continue
        with safe_open(file, framework="pt") as opened:
            if any(name.endswith(FORMAT_BUFFER) for name in opened.keys()):  # noqa: SIM118
                path = file.parent / CONFIG_FILE
                section = read_json(path).get("quantization_config")
                parse_quantization_config(path, {"quantization_config": section})
                return XgemmConfig.from_dict(cast(dict[str, Any], section))
    return None


class Loading:
    """What is known of a model between its construction on meta and the end of its loading."""

    def __init__(
        self,
        model: PreTrainedModel,
        config: XgemmConfig,
        dtype: torch.dtype,
        files: Iterable[str] = (),
    ) -> None:
        """Swap the quantized modules in, without data.

        files: the checkpoint's, for messages.
        """
        self.files = [Path(file) for file in files]
        specs = parse_quantization_config(
            Path(CONFIG_FILE), {"quantization_config": config.to_dict()}
        )
        self.saved_names = set(specs)
        self.names = Names(model)
        found = self.names.find_all(specs)
        wanted = {here: specs[saved] for saved, here in found.items()}
        self.layers = plan_replacements(model, wanted, self._where())
        for name, layer in self.layers.items():
            model.set_submodule(name, layer)
        keep_in_fp32(model, self.layers, dtype)
        self.shares: ShareLoading | None = None
        if tensor_parallel_size(model) > 1:
            self.shares = ShareLoading(self._where(), model, self.layers)
            self.layers = {n: m for n, m in self.layers.items() if n not in self.shares.names}
        self.shapes = {  # of the tensors of the quantized modules
            name: {key: tensor.shape for key, tensor in layer.state_dict().items()}
            for name, layer in self.layers.items()
        }
        _call_when_loaded(model, self._check)

    def _check(self, model: PreTrainedModel, info: Any) -> None:
        """Refuse a checkpoint that has not each tensor of the quantized modules, and no other."""
        if self.shares is not None:
            info.unexpected_keys -= self.shares.fill(model, self.files, self.names)
        info.unexpected_keys -= {key for key in info.unexpected_keys if self._is_guard(key)}
        formats = {
            prefix + FORMAT_BUFFER: form
            for name, layer in self.layers.items()
            for prefix, form in packed_parts(name, layer)
        }
        missing, unexpected = [], []
        for key in sorted(info.missing_keys):
            owner, _, leaf = key.rpartition(".")
            if key in formats:  # a file that was saved before it had them
                layer = self.layers[owner]
                device = next(layer.parameters()).device
                setattr(layer, leaf, formats[key].to_tensor(device))
                info.missing_keys.remove(key)
            elif owner in self.layers:
                missing.append(key)
        for key in sorted(info.unexpected_keys):
            if self.names.find(key.rpartition(".")[0]) in self.layers:
                unexpected.append(key)
        if missing:
            raise ValueError(
                f"from_pretrained: the checkpoint lacks {some(missing)}"
                + ("" if self._any_packed() else _FLOAT_WEIGHTS)
            )
        if unexpected:
            raise ValueError(f"from_pretrained: the model has no {some(unexpected)}")
        if info.mismatched_keys:
            return  # transformers refuses them by name
        for name, layer in self.layers.items():
            state = layer.state_dict()
            for key, expected in self.shapes[name].items():
                if state[key].shape != expected:  # older transformers do not look
                    raise ValueError(
                        f"from_pretrained: {name}.{key} must be {list(expected)}, "
                        f"got {list(state[key].shape)}"
                    )
            try:  # as its load_state_dict checks: format, permutation, alignment, finite scales
                layer.load_state_dict(layer.state_dict(keep_vars=True), assign=True)
            except (TypeError, ValueError) as error:
                where = f"from_pretrained: {self._file_of(name)}{name}"
                raise type(error)(f"{where}: {error}") from None

    def _any_packed(self) -> bool:
        """Whether the checkpoint has a packed weight at all."""
        return not self.files or any(self._file_of(name) for name in self.layers)

    def _where(self) -> str:
        """The beginning of messages, with the directory where it is known."""
        return f"from_pretrained: {self.files[0].parent}" if self.files else "from_pretrained"

    def _file_of(self, name: str) -> str:
        """The file that holds the packed weight of a module, as "FILE: "."""
        for file in self.files:
            if file.suffix == ".safetensors":
                with safe_open(file, framework="pt") as opened:
                    for key in opened.keys():  # noqa: SIM118 (no mapping)
                        owner, _, leaf = key.rpartition(".")
                        if leaf.endswith("qweight") and self.names.find(owner) == name:
                            return f"{file}: "
        return ""

    def _is_guard(self, key: str) -> bool:
        if key == HINT or key.endswith(f".{HINT}"):
            return True
        owner, _, leaf = key.rpartition(".")
        layer = self.layers.get(self.names.find(owner) or "")
        if isinstance(layer, QuantExperts):
            return leaf in layer.formats
        if leaf != "weight":
            return False
        return owner in self.saved_names or self.names.find(owner) in self.layers


def _call_when_loaded(model: PreTrainedModel, check: Any) -> None:
    """Have `check(model, loading_info)` called once, when all tensors are in their places.

    transformers hands a quantizer no list of missing and unexpected names, so its own method that
    adjusts this list is stood in for, on this one model, until it is called.
    """
    adjust = model._adjust_missing_and_unexpected_keys

    def adjust_and_check(info: Any) -> None:
        del model.__dict__["_adjust_missing_and_unexpected_keys"]
        adjust(info)
        check(model, info)

    model.__dict__["_adjust_missing_and_unexpected_keys"] = adjust_and_check


def keep_in_fp32(
    model: PreTrainedModel, layers: dict[str, QuantLinear | QuantExperts], dtype: torch.dtype
) -> None:
    """The compute dtype of layers whose float weight transformers would keep in fp32."""
    patterns: list[str] = []
    if dtype == torch.float16:
        patterns += getattr(model, "_keep_in_fp32_modules", None) or ()
    if dtype in (torch.float16, torch.bfloat16):
        patterns += getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    for pattern in patterns:
        compiled = re.compile(pattern.replace("*", ".*"))
        for name, layer in layers.items():
            if compiled.search(f"{name}.weight"):
                layer.compute_dtype = torch.float32
