"""GPTQ's format, as AutoGPTQ, GPTQModel and AutoRound write it.

    qweight   int32 [ceil(K / 8), N]   the codes of 8 channels, the lowest bits first
    qzeros    int32 [G, ceil(N / 8)]   zero points; in version 1 each word less 0x11111111
    scales    fp16 [G, N]
    g_idx     int32 [K]                the group of each channel; without it k // group_size

`checkpoint_format` is "gptq" (version 1) or "gptq_v2". GPTQModel goes from one to the other by an
addition to whole words, so that zero points of 0, which borrow from their neighbours, come back;
this module does the same. Source: GPTQModel 7.7, nn_modules/qlinear and utils/model.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from xgemm.formats.foreign.layer import SCALES, ForeignLayer, LayerShape
from xgemm.formats.foreign.nibbles import PER_WORD, pack_nibbles, unpack_nibbles
from xgemm.formats.foreign.section import Section
from xgemm.formats.foreign.written import Written, check_multiples, usual, whole_zeros
from xgemm.formats.quantized import QuantizedWeight

V1_OFFSET = 0x11111111  # what version 1 takes off each word of zero points
_VERSIONS = ("gptq", "gptq_v2")


class Gptq:
    method = "gptq"
    separator = "."
    key = "qweight"
    parts: tuple[str, ...] = ("qweight", "qzeros", "scales", "g_idx")

    def __init__(self, section: Section) -> None:
        self._section = section
        section.four_bits("bits", "wbits", "w_bit")
        version = section.text("checkpoint_format", "format", default="gptq").lower()
        if version not in _VERSIONS:
            raise section.error("checkpoint_format", " or ".join(map(repr, _VERSIONS)), version)
        self.version = _VERSIONS.index(version) + 1
        self._rules = [
            _rule(section, pattern, values)
            for pattern, values in section.mapping("dynamic").items()
        ]

    def shape(self, layer: ForeignLayer) -> LayerShape:
        group_size, symmetric = self._scheme(layer.name)
        words, n = layer.size("qweight", 0), layer.size("qweight", 1)
        k = layer.size("g_idx", 0, rank=1) if "g_idx" in layer else words * PER_WORD
        shape = LayerShape(n, k, group_size, zeros=not symmetric)
        groups = shape.groups
        layer.check("qweight", ("int32",), (-(-k // PER_WORD), n))
        layer.check("qzeros", ("int32",), (groups, -(-n // PER_WORD)))
        layer.check("scales", SCALES, (groups, n))
        if "g_idx" in layer:
            layer.check("g_idx", ("int32", "int64"), (k,))
        return shape

    def read(self, layer: ForeignLayer) -> QuantizedWeight:
        shape = self.shape(layer)
        words = layer.tensor("qzeros")
        if self.version == 1:
            words = words + V1_OFFSET
        return layer.weight(
            shape,
            codes=unpack_nibbles(layer.tensor("qweight").t(), shape.k),
            scales=layer.scales("scales"),
            zeros=unpack_nibbles(words, shape.n),
            g_idx=layer.g_idx("g_idx", shape),
        )

    def _scheme(self, layer: str) -> tuple[int, bool]:
        """(group_size, symmetric) of a layer: what the first rule of `dynamic` says, or all."""
        sections = [self._section]
        for pattern, rule in self._rules:
            if rule is not None and pattern.match(layer):
                sections.insert(0, rule)
                break
        if len(sections) > 1 and "bits" in sections[0].values:
            sections[0].four_bits("bits")
        size = next((s.group_size("group_size") for s in sections if "group_size" in s.values), 128)
        return size, next((s.flag("sym") for s in sections if "sym" in s.values), True)


def _rule(
    section: Section, pattern: str, values: Mapping[str, Any]
) -> tuple[re.Pattern[str], Section | None]:
    """A rule of `dynamic`: "-:regex" leaves layers float, "+:regex" or "regex" changes values."""
    where = section.inside("dynamic", {})
    negative = pattern.startswith("-:")
    try:
        compiled = re.compile(pattern.removeprefix("-:").removeprefix("+:"))
    except re.error as error:
        raise where.error(pattern, f"a regular expression ({error})", pattern) from None
    if negative:
        return compiled, None
    if not isinstance(values, dict):
        raise where.error(pattern, "an object", values)
    return compiled, where.inside(pattern, values)


class GptqWriter:
    """Version 2 where a layer has zero points, which older readers of version 1 take one by one;
    version 1, which every reader knows, where none has."""

    def __init__(self, asymmetric: bool) -> None:
        self._version = 2 if asymmetric else 1

    def tensors(self, name: str, weight: QuantizedWeight) -> dict[str, torch.Tensor]:
        check_multiples("gptq", name, weight, n=PER_WORD, k=PER_WORD)
        zeros = pack_nibbles(whole_zeros("gptq", name, weight))
        return {
            "qweight": pack_nibbles(weight.codes).t().contiguous(),
            "qzeros": zeros - V1_OFFSET if self._version == 1 else zeros,
            "scales": weight.scales,
            "g_idx": weight.group_of_channel().int(),
        }

    def section(self, layers: Mapping[str, Written], floats: list[str]) -> dict[str, Any]:
        base = usual(layers.values())
        rules: dict[str, Any] = {rf"-:^{re.escape(name)}$": {} for name in floats}
        for name, found in layers.items():
            if (found.group_size, found.symmetric) != (base.group_size, base.symmetric):
                rules[rf"+:^{re.escape(name)}$"] = {
                    "group_size": found.group_size,
                    "sym": found.symmetric,
                }
        return {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": base.group_size,
            "desc_act": any(found.act_order for found in layers.values()),
            "sym": base.symmetric,
            "lm_head": "lm_head" in layers,
            "checkpoint_format": _VERSIONS[self._version - 1],
            "pack_dtype": "int32",
            "dynamic": rules,
        }
