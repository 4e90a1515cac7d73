"""take_over: from_pretrained puts other tools' 4-bit checkpoints onto xgemm's kernels."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from transformers.quantizers import auto

from xgemm.formats.foreign import FOREIGN_METHODS, foreign_format
from xgemm.formats.manifest import CONFIG_FILE
from xgemm.hf.foreign import ForeignConfig
from xgemm.hf.quantizer import XgemmHfQuantizer

logger = logging.getLogger("xgemm")

_theirs: dict[str, tuple[Any, Any]] = {}  # method -> transformers' config and quantizer classes


def take_over(*methods: str) -> None:
    """Let `from_pretrained` load checkpoints of these methods as xgemm's layers, as they are.

    methods: of "gptq", "awq", "compressed-tensors", "hqq" and "torchao". No package of these tools
        is needed, and nothing is decompressed: what `xgemm.load` reads of them.

    A checkpoint of such a method that is not of 4-bit integers stays transformers' own, with a
    warning (logger "xgemm") that says why. `give_back` undoes it; both may be called again.
    """
    for method in _checked("take_over", methods):
        if method in _theirs:
            continue
        _theirs[method] = (
            auto.AUTO_QUANTIZATION_CONFIG_MAPPING[method],
            auto.AUTO_QUANTIZER_MAPPING[method],
        )
        auto.AUTO_QUANTIZATION_CONFIG_MAPPING[method] = _config_class(method)
        auto.AUTO_QUANTIZER_MAPPING[method] = _quantizer_class(method)


def give_back(*methods: str) -> None:
    """Undo `take_over` for these methods; without any, for all. Loaded models stay as they are."""
    for method in _checked("give_back", methods or tuple(_theirs)):
        if method in _theirs:
            config, quantizer = _theirs.pop(method)
            auto.AUTO_QUANTIZATION_CONFIG_MAPPING[method] = config
            auto.AUTO_QUANTIZER_MAPPING[method] = quantizer


def _checked(name: str, methods: tuple[str, ...]) -> tuple[str, ...]:
    for method in methods:
        if method not in FOREIGN_METHODS:
            known = ", ".join(map(repr, FOREIGN_METHODS))
            raise ValueError(f"{name}: method must be one of {known}, got {method!r}")
    if not methods and name == "take_over":
        raise ValueError("take_over: name a method, such as 'gptq'")
    return methods


def _config_class(method: str) -> Any:
    theirs = _theirs[method][0]

    class TakenOverConfig(ForeignConfig):
        @classmethod
        def from_dict(
            cls, config_dict: dict[str, Any], return_unused_kwargs: bool = False, **kwargs: Any
        ) -> Any:
            try:
                form = foreign_format(Path(CONFIG_FILE), config_dict)
                if getattr(form, "mxfp4", False):
                    raise ValueError("it is MXFP4, of which only xgemm.load takes the experts")
            except ValueError as error:
                logger.warning("take_over: this checkpoint is left to transformers: %s", error)
                return theirs.from_dict(config_dict, return_unused_kwargs, **kwargs)
            return super().from_dict(config_dict, return_unused_kwargs, **kwargs)

    return TakenOverConfig


def _quantizer_class(method: str) -> Any:
    theirs = _theirs[method][1]

    class TakenOverHfQuantizer(XgemmHfQuantizer):
        def __new__(cls, quantization_config: Any, **kwargs: Any) -> Any:
            if not isinstance(quantization_config, ForeignConfig):
                return theirs(quantization_config, **kwargs)  # to quantize, or not 4-bit integers
            return super().__new__(cls)

    return TakenOverHfQuantizer
