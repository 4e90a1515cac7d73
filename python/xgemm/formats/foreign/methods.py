"""Which formats of other tools there are, by the `quant_method` of config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from xgemm.formats.foreign.awq import Awq, AwqWriter
from xgemm.formats.foreign.bitsandbytes import Bitsandbytes, Quantizer
from xgemm.formats.foreign.compressed_tensors import CompressedTensors, CompressedTensorsWriter
from xgemm.formats.foreign.gpt_oss import GptOssMxfp4
from xgemm.formats.foreign.gptq import Gptq, GptqWriter
from xgemm.formats.foreign.hqq import Hqq
from xgemm.formats.foreign.layer import ForeignLayer, LayerShape
from xgemm.formats.foreign.marlin import Marlin, is_marlin
from xgemm.formats.foreign.section import Section
from xgemm.formats.foreign.torchao import Torchao
from xgemm.formats.foreign.written import Written
from xgemm.formats.quantized import QuantizedWeight


class ForeignFormat(Protocol):
    """A format, with what one checkpoint's config says."""

    method: str
    key: str  # the tensor that every quantized layer has
    parts: tuple[str, ...]  # the tensors that a quantized layer may have
    separator: str  # between a layer's name and these

    def shape(self, layer: ForeignLayer) -> LayerShape:
        """From the headers alone; ValueError by file and tensor for what is no such layer."""

    def read(self, layer: ForeignLayer) -> QuantizedWeight:
        """The layer's canonical weight; where its shape has experts, `layer` is one of them."""


class ForeignWriter(Protocol):
    """Writes a format; asymmetric: whether any layer has zero points."""

    def __init__(self, asymmetric: bool) -> None: ...

    def tensors(self, name: str, weight: QuantizedWeight) -> dict[str, torch.Tensor]:
        """A layer's tensors by part; ValueError by layer for what the format cannot hold."""

    def section(self, layers: Mapping[str, Written], floats: list[str]) -> dict[str, Any]:
        """quantization_config; floats: the names of modules with a 2-D float weight."""


_FORMATS: dict[str, Callable[[Section], ForeignFormat]] = {
    form.method: form for form in (Gptq, Awq, CompressedTensors, Hqq, Torchao)
}
FOREIGN_METHODS = tuple(_FORMATS)  # which transformers knows
_FORMATS[Marlin.method] = Marlin
_FORMATS[GptOssMxfp4.method] = GptOssMxfp4  # which take_over leaves to transformers
_MARLIN = ("gptq", "awq", "marlin")  # methods whose sections may say that weights lie as in Marlin
FOREIGN_WRITERS: dict[str, type[ForeignWriter]] = {
    "gptq": GptqWriter,
    "awq": AwqWriter,
    "compressed-tensors": CompressedTensorsWriter,
}
# Other names of these in config.json.
_SAME = {"auto_gptq": "gptq", "compression_config": "compressed-tensors"}
_REQUANTIZE = (
    " (its nf4 codes are no evenly spaced integers: with requantize, such as {'method': 'hqq', "
    "'group_size': 64, 'symmetric': False}, they are dequantized and quantized again; on the "
    "command line, convert --requantize)"
)


def is_read(method: str | None) -> bool:
    """Whether a `quant_method` is one of these formats."""
    return _SAME.get(str(method), method) in _FORMATS


def foreign_format(
    file: Path, section: dict[str, Any], requantize: Quantizer | None = None
) -> ForeignFormat:
    """The format that a `quantization_config`, which lies in `file`, describes.

    requantize: for bitsandbytes, whose codes are no evenly spaced integers: how its weights are
        quantized again; None refuses it.

    ValueError, by file and key, for a method or a value that is not read here.
    """
    where = f"{file}: quantization_config"
    given = section.get("quant_method")
    method = _SAME.get(str(given), str(given))
    values = Section(where, section)
    if method == Bitsandbytes.method and requantize is not None:
        return Bitsandbytes(values, requantize)
    if method not in _FORMATS:
        known = ", ".join(map(repr, _FORMATS))
        hint = _REQUANTIZE if method == Bitsandbytes.method else ""
        raise ValueError(
            f"load: {where}: quant_method must be 'xgemm', {known}, got {given!r}{hint}"
        )
    if requantize is not None:
        raise ValueError(
            f"load: {where}: requantize is for quant_method 'bitsandbytes', got {given!r}, which "
            "is read as it is"
        )
    if method in _MARLIN and is_marlin(values):
        return Marlin(values)
    return _FORMATS[method](values)
