"""bitsandbytes' nf4, as transformers saves it: dequantized, and quantized again as asked.

    weight                    uint8 [N K / 2, 1]  indices of neighbours, the first in the upper four
                                                  bits; rows of W after one another
    weight.quant_map          fp32 [16]           the values of the indices
    weight.absmax             [blocks]            w = quant_map[index] * absmax of its block, which
                                                  is of `blocksize` numbers of all of W in order
    weight.quant_state.bitsandbytes__nf4          uint8: JSON with shape [N, K], blocksize, dtype

With double quantization absmax is of 8 bits, in blocks of `nested_blocksize`:

    weight.absmax             uint8 [blocks]      absmax = nested_quant_map[index] * nested_absmax
    weight.nested_quant_map   fp32 [256]                   + nested_offset
    weight.nested_absmax      fp32

The bytes of `weight` may be viewed as floats (bnb_4bit_quant_storage). The values of nf4 are the
quantiles of a normal distribution, no multiples of a scale, so that integers do not hold them.
Source: bitsandbytes 0.50, functional.py (QuantState, dequantize_4bit).
"""

from __future__ import annotations

import json
import math
from typing import Any, Protocol

import torch

from xgemm.formats.foreign.layer import SCALES, ForeignLayer, LayerShape
from xgemm.formats.foreign.section import Section
from xgemm.formats.quantized import QuantizedWeight

_STATE = "weight.quant_state.bitsandbytes__nf4"
_MAX_STATE = 4096  # bytes of JSON
_VALUES = 16
_NESTED_VALUES = 256


class Quantizer(Protocol):
    """How a float weight becomes 4 bits."""

    @property
    def group_size(self) -> int: ...

    @property
    def symmetric(self) -> bool: ...

    def __call__(self, w: torch.Tensor) -> QuantizedWeight: ...


class Bitsandbytes:
    method = "bitsandbytes"
    separator = "."
    key = _STATE
    parts: tuple[str, ...] = (
        *("weight", "weight.absmax", "weight.quant_map", _STATE),
        *("weight.nested_absmax", "weight.nested_quant_map"),
    )

    def __init__(self, section: Section, quantizer: Quantizer) -> None:
        if not section.flag("load_in_4bit", "_load_in_4bit", default=False):
            raise section.error("load_in_4bit", "true: 8 bits are not read", False)
        kind = section.text("bnb_4bit_quant_type", default="fp4")
        if kind != "nf4":
            raise section.error("bnb_4bit_quant_type", "'nf4'", kind)
        self.quantizer = quantizer

    def shape(self, layer: ForeignLayer) -> LayerShape:
        state = _State(layer)
        n, k = state.size
        numbers = n * k
        stored = layer.spec("weight")
        itemsize = {"uint8": 1, "int8": 1, "float32": 4}.get(stored.dtype, 2)
        layer.check(
            "weight", ("uint8", "int8", *SCALES), (-(-numbers // (2 * itemsize)), 1)
        )  # odd numbers end in half a byte
        blocks = -(-numbers // state.block)
        layer.check("weight.quant_map", ("float32",), (_VALUES,))
        if state.nested_block is None:
            layer.check("weight.absmax", SCALES, (blocks,))
        else:
            layer.check("weight.absmax", ("uint8",), (blocks,))
            layer.check("weight.nested_quant_map", ("float32",), (_NESTED_VALUES,))
            layer.check("weight.nested_absmax", SCALES, (-(-blocks // state.nested_block),))
        return LayerShape(n, k, self.quantizer.group_size, zeros=not self.quantizer.symmetric)

    def read(self, layer: ForeignLayer) -> QuantizedWeight:
        self.shape(layer)
        weight = dequantized(layer)
        if not bool(torch.isfinite(weight).all()):
            raise ValueError(f"{layer.where('weight.absmax')} must be finite, got NaN or infinity")
        return self.quantizer(weight)


class _State:
    """The JSON beside a layer, checked."""

    def __init__(self, layer: ForeignLayer) -> None:
        spec = layer.spec(_STATE)
        if spec.dtype != "uint8" or len(spec.shape) != 1 or spec.shape[0] > _MAX_STATE:
            raise ValueError(
                f"{layer.where(_STATE)} must be uint8 with at most {_MAX_STATE} bytes of JSON, "
                f"got {spec.dtype} {list(spec.shape)}"
            )
        try:
            values = json.loads(bytes(layer.tensor(_STATE).tolist()))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{layer.where(_STATE)} must be JSON: {error}") from None
        if not isinstance(values, dict):
            raise ValueError(f"{layer.where(_STATE)} must be a JSON object, got {values!r:.80}")
        self._where = layer.where(_STATE)
        size = values.get("shape")
        if not (isinstance(size, list) and len(size) == 2 and all(map(_is_positive, size))):
            raise self._error("shape", "[N, K]", size)
        self.size: tuple[int, int] = (size[0], size[1])
        self.block = self._positive(values, "blocksize")
        nested = "weight.nested_absmax" in layer
        self.nested_block = self._positive(values, "nested_blocksize") if nested else None
        self.offset = values.get("nested_offset", 0.0) if nested else 0.0
        if not isinstance(self.offset, (int, float)) or not math.isfinite(self.offset):
            raise self._error("nested_offset", "a finite number", self.offset)
        name = values.get("dtype")
        if name not in SCALES:
            raise self._error("dtype", f"one of {', '.join(SCALES)}", name)
        self.dtype: torch.dtype = getattr(torch, name)

    def _positive(self, values: dict[str, Any], key: str) -> int:
        value = values.get(key)
        if not _is_positive(value):
            raise self._error(key, "a positive int", value)
        assert isinstance(value, int)
        return value

    def _error(self, key: str, rule: str, value: Any) -> ValueError:
        return ValueError(f"{self._where}: {key} must be {rule}, got {value!r:.80}")


def _is_positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def dequantized(layer: ForeignLayer) -> torch.Tensor:
    """The float weight [N, K] of a layer whose shape was checked, in the dtype of its state."""
    state = _State(layer)
    n, k = state.size
    absmax = layer.tensor("weight.absmax")
    if state.nested_block is not None:
        outer = layer.tensor("weight.nested_absmax").float()
        scale = outer.repeat_interleave(state.nested_block)[: absmax.numel()]
        absmax = layer.tensor("weight.nested_quant_map")[absmax.int()] * scale + state.offset
    packed = layer.tensor("weight").contiguous().view(-1).view(torch.uint8)
    index = torch.stack((packed >> 4, packed & 15), dim=1).view(-1)[: n * k]
    values = layer.tensor("weight.quant_map")[index.int()]
    scales = absmax.float().repeat_interleave(state.block)[: n * k]
    return (values * scales).to(state.dtype).view(n, k)
