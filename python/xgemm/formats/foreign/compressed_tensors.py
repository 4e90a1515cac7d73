"""compressed-tensors' formats "pack-quantized" and "mxfp4-pack-quantized", as llm-compressor
writes them.

    weight_packed       int32 [N, ceil(K / 8)]   code - 8, plus 8, the lowest bits first
    weight_scale        fp16, bf16 or fp32 [N, G]
    weight_shape        int64 [2]                N, K
    weight_zero_point   int32 [ceil(N / 8), G]   zero - 8, plus 8; int8 [N, G] before 0.9
    weight_g_idx        int32 [K]                the group of each channel (actorder "group")

Of MXFP4, which is taken of experts:

    weight_packed       uint8 [N, K / 2]         E2M1 codes, the low nibble first
    weight_scale        uint8 [N, K / 32]        E8M0: 2^(e - 127)

Which of `config_groups` a layer is of, its `targets` say: names, "re:" and a regular expression, or
a class. Source: compressed-tensors 0.20, compressors/pack_quantized.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from xgemm.formats.foreign.layer import SCALES, ForeignLayer, LayerShape
from xgemm.formats.foreign.nibbles import PER_WORD, pack_nibbles, unpack_nibbles
from xgemm.formats.foreign.section import Section
from xgemm.formats.foreign.written import Written, usual, whole_zeros
from xgemm.formats.mxfp4 import GROUP_SIZE, mxfp4_weight
from xgemm.formats.quantized import QuantizedWeight

_MXFP4 = "mxfp4-pack-quantized"
_FORMATS = ("pack-quantized", "mixed-precision", _MXFP4)


class CompressedTensors:
    method = "compressed-tensors"
    separator = "."
    key = "weight_packed"
    parts: tuple[str, ...] = (
        *("weight_packed", "weight_scale", "weight_shape"),
        *("weight_zero_point", "weight_g_idx"),
    )

    def __init__(self, section: Section) -> None:
        layout = section.text("format", default="pack-quantized")
        if layout not in _FORMATS:
            raise section.error("format", " or ".join(map(repr, _FORMATS)), layout)
        self._section, self._layout = section, layout
        self.mxfp4 = layout == _MXFP4
        groups = section.mapping("config_groups")
        where = section.inside("config_groups", {})
        self._groups: list[tuple[list[str], Section]] = []
        for name, group in groups.items():
            if not isinstance(group, dict):
                raise where.error(name, "an object", group)
            inner = where.inside(name, group)
            targets = group.get("targets")
            if not isinstance(targets, list) or not all(isinstance(t, str) for t in targets):
                raise inner.error("targets", "a list of strings", targets)
            for target in targets:
                _check_pattern(inner, target)
            self._groups.append((targets, inner))
        if not self._groups:
            raise section.error("config_groups", "an object with a group", groups)
        if any(group.values.get("input_activations") for _, group in self._groups):
            warnings.warn(
                f"{section.where}: config_groups has input_activations: the activations are not "
                "quantized here",
                UserWarning,
                stacklevel=2,
            )

    def shape(self, layer: ForeignLayer) -> LayerShape:
        group = self._group(layer.name)
        weights = group.inside("weights", group.mapping("weights"))
        weights.four_bits("num_bits")
        if self._is_mxfp4(group):
            return _mxfp4_shape(weights, layer)
        if weights.text("type", default="int") != "int":
            raise weights.error("type", "'int'", weights.values["type"])
        n, words = layer.size("weight_packed", 0), layer.size("weight_packed", 1)
        layer.check("weight_shape", ("int64", "int32"), (2,))
        stated = layer.tensor("weight_shape").tolist()
        k = stated[1]
        if stated[0] != n or -(-k // PER_WORD) != words:
            raise ValueError(
                f"{layer.where('weight_shape')} must be [{n}, {words * PER_WORD - 7}.."
                f"{words * PER_WORD}] for the int32 {[n, words]} of weight_packed, got {stated}"
            )
        strategy = weights.text("strategy", default="group")
        if strategy not in ("group", "channel", "tensor"):
            raise weights.error("strategy", "'group', 'channel' or 'tensor'", strategy)
        size = weights.group_size("group_size", default=-1) if strategy == "group" else -1
        shape = LayerShape(n, k, size, zeros=not weights.flag("symmetric", default=True))
        layer.check("weight_packed", ("int32",), (n, words))
        if strategy != "tensor":
            layer.check("weight_scale", SCALES, (n, shape.groups))
        elif layer.spec("weight_scale").shape not in ((), (1,), (1, 1)):
            layer.check("weight_scale", SCALES, (1,))
        if shape.zeros and layer.spec("weight_zero_point").dtype == "int8":
            layer.check("weight_zero_point", ("int8",), (n, shape.groups))
        elif shape.zeros:
            layer.check("weight_zero_point", ("int32",), (-(-n // PER_WORD), shape.groups))
        if "weight_g_idx" in layer:
            layer.check("weight_g_idx", ("int32", "int64"), (k,))
        return shape

    def read(self, layer: ForeignLayer) -> QuantizedWeight:
        shape = self.shape(layer)
        if self._is_mxfp4(self._group(layer.name)):
            packed, scales = layer.tensor("weight_packed"), layer.tensor("weight_scale")
            try:
                return mxfp4_weight(packed, scales)
            except ValueError as error:
                raise ValueError(f"{layer.where('weight_scale')}: {error}") from None
        scales = layer.scales("weight_scale", transpose=layer.spec("weight_scale").shape != ())
        if scales.numel() == 1:
            scales = scales.reshape(1, 1).repeat(1, shape.n)
        return layer.weight(
            shape,
            codes=unpack_nibbles(layer.tensor("weight_packed"), shape.k),
            scales=scales,
            zeros=_zeros(layer, shape) if shape.zeros else None,
            g_idx=layer.g_idx("weight_g_idx", shape),
        )

    def _is_mxfp4(self, group: Section) -> bool:
        """By the group's own format, which is there where formats are mixed, else by the file's."""
        return (group.values.get("format") or self._layout) == _MXFP4

    def _group(self, layer: str) -> Section:
        """The group of a layer: by name or regular expression, else by class, else the only one."""
        for targets, group in self._groups:
            if any(_matches(layer, target) for target in targets):
                return group
        for targets, group in self._groups:
            if "Linear" in targets or len(self._groups) == 1:
                return group
        raise self._section.error("config_groups", f"a group with a target for {layer}", "none")


def _mxfp4_shape(weights: Section, layer: ForeignLayer) -> LayerShape:
    if weights.text("type", default="int") != "float":
        raise weights.error("type", "'float'", weights.values.get("type"))
    size = weights.group_size("group_size", default=GROUP_SIZE)
    if size != GROUP_SIZE:
        raise weights.error("group_size", str(GROUP_SIZE), size)
    n, half_k = layer.size("weight_packed", 0), layer.size("weight_packed", 1)
    layer.check("weight_packed", ("uint8",), (n, half_k))
    if half_k % (GROUP_SIZE // 2) != 0:
        raise ValueError(
            f"{layer.where('weight_packed')} must have a multiple of {GROUP_SIZE // 2} columns, "
            f"got {half_k}"
        )
    layer.check("weight_scale", ("uint8",), (n, 2 * half_k // GROUP_SIZE))
    return LayerShape(n, 2 * half_k, GROUP_SIZE, zeros=False, fp4=True)


def _matches(layer: str, target: str) -> bool:
    if target.startswith("re:"):
        return re.match(target.removeprefix("re:"), layer) is not None
    return target == layer


def _check_pattern(group: Section, target: str) -> None:
    try:
        re.compile(target.removeprefix("re:") if target.startswith("re:") else "")
    except re.error as error:
        raise group.error("targets", f"a regular expression after re: ({error})", target) from None


def _zeros(layer: ForeignLayer, shape: LayerShape) -> torch.Tensor:
    """Zero points as numbers of 0..15, [G, N]."""
    given: Any = layer.tensor("weight_zero_point")
    if given.dtype != torch.int8:
        return unpack_nibbles(given.t(), shape.n)
    low, high = (int(given.min()), int(given.max())) if given.numel() else (0, 0)
    if low < -8 or high > 7:
        raise ValueError(
            f"{layer.where('weight_zero_point')} must be within -8..7, got {low}..{high}"
        )
    return (given.t() + 8).to(torch.uint8)


class CompressedTensorsWriter:
    def __init__(self, asymmetric: bool) -> None:
        pass

    def tensors(self, name: str, weight: QuantizedWeight) -> dict[str, torch.Tensor]:
        tensors = {
            "weight_packed": pack_nibbles(weight.codes),
            "weight_scale": weight.scales.t().contiguous(),
            "weight_shape": torch.tensor([weight.n, weight.k]),
        }
        if weight.zeros is not None:
            zeros = whole_zeros("compressed-tensors", name, weight)
            tensors["weight_zero_point"] = pack_nibbles(zeros).t().contiguous()
        if weight.g_idx is not None:
            tensors["weight_g_idx"] = weight.g_idx.int()
        return tensors

    def section(self, layers: Mapping[str, Written], floats: list[str]) -> dict[str, Any]:
        schemes: dict[Written, list[str]] = {}
        for name, found in layers.items():
            schemes.setdefault(found, []).append(name)
        base = usual(layers.values())
        ordered = sorted(schemes, key=lambda scheme: scheme != base)
        return {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "ignore": floats,
            "config_groups": {
                f"group_{i}": {
                    "targets": ["Linear"] if scheme == base else schemes[scheme],
                    "weights": _arguments(scheme),
                    "input_activations": None,
                    "output_activations": None,
                }
                for i, scheme in enumerate(ordered)
            },
        }


def _arguments(scheme: Written) -> dict[str, Any]:
    """compressed-tensors' QuantizationArgs."""
    channel = scheme.group_size == -1
    return {
        "num_bits": 4,
        "type": "int",
        "symmetric": scheme.symmetric,
        "strategy": "channel" if channel else "group",
        "group_size": None if channel else scheme.group_size,
        "actorder": "group" if scheme.act_order else None,
    }
