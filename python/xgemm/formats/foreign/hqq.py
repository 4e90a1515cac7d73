"""HQQ's format, as HQQLinear saves its state: four bits, groups along K, real zero points.

    W_q      uint8 [rows / 2, g]   codes of rows 0 .. rows / 2 - 1 in the upper four bits, of the
                                   other half in the lower; the rows are the groups of W, in order
    scale    [rows, 1]             w = (code - zero) * scale
    zero     [rows, 1]
    shape    int64 [2]             N, K
    nbits, group_size, axis, ...   one number each

With `view_as_float` the bytes of W_q are viewed as floats. Scales are taken over bit for bit; zero
points are rounded once, to fp16, where they are fp32. Source: hqq 0.2.8, hqq/core/quantize.py and
bitpack.py.
"""

from __future__ import annotations

import torch

from xgemm.formats.foreign.layer import SCALES, ForeignLayer, LayerShape
from xgemm.formats.foreign.section import Section
from xgemm.formats.quantized import QuantizedWeight

_BITS = 4


class Hqq:
    method = "hqq"
    separator = "."
    key = "W_q"
    parts: tuple[str, ...] = (
        *("W_q", "scale", "zero", "shape", "nbits", "group_size", "axis", "packing"),
        *("unpack_view_dtype", "view_as_float", "compute_dtype", "channel_wise", "optimize"),
        *("round_zero", "quant_scale", "quant_zero", "offload_meta"),
        *("encoded_state_dict", "stores_quant_config"),
    )

    def __init__(self, section: Section) -> None:
        # Every layer says itself how it is quantized; some files say it for all, too.
        where = section.inside("quant_config", section.mapping("quant_config"))
        weights = where.inside("weight_quant_params", where.mapping("weight_quant_params"))
        for name, expected in (("nbits", _BITS), ("axis", 1)):
            if name in weights.values and weights.values[name] != expected:
                raise weights.error(name, str(expected), weights.values[name])

    def shape(self, layer: ForeignLayer) -> LayerShape:
        for part, expected in (
            ("nbits", _BITS),
            ("axis", 1),
            ("quant_scale", 0),
            ("quant_zero", 0),
        ):
            found = layer.integer(part) if part in layer or expected else 0
            if found != expected:
                raise ValueError(f"{layer.where(part)} must be {expected} here, got {found}")
        layer.check("shape", ("int64",), (2,))
        n, k = layer.tensor("shape").tolist()
        size = layer.integer("group_size") if "group_size" in layer else k
        if n < 1 or size < 1 or k % size or n * (k // size) % 2:
            raise ValueError(
                f"{layer.where('shape')} must be [N, K] with K a multiple of the group_size {size} "
                f"and an even number of groups, got [{n}, {k}]"
            )
        rows = n * (k // size)
        stored = layer.spec("W_q")
        if stored.dtype == "uint8":
            layer.check("W_q", ("uint8",), (rows // 2, size))
        else:
            itemsize = 4 if stored.dtype == "float32" else 2
            layer.check("W_q", SCALES, (rows // 2, size // itemsize))
        for part in ("scale", "zero"):
            layer.check(part, SCALES, (rows, 1))
        return LayerShape(n, k, size, zeros=True)

    def read(self, layer: ForeignLayer) -> QuantizedWeight:
        shape = self.shape(layer)
        packed = layer.tensor("W_q").view(torch.uint8)

        def by_group(values: torch.Tensor) -> torch.Tensor:
            return values.view(shape.n, shape.groups).t().contiguous()

        return layer.weight(
            shape,
            codes=torch.cat((packed >> 4, packed & 15)).view(shape.n, shape.k),
            scales=by_group(layer.scales("scale")),
            zeros=by_group(layer.tensor("zero")),
            g_idx=None,
        )
