"""torchao's Int4Tensor (packing format "plain"), as transformers saves it.

    _weight_qdata        int8 [N, K / 2]   two's complement codes q of -8..7, the even channel of a
                                           pair in the lower four bits
    _weight_scale        [G, N]            w = q * scale + zero_point
    _weight_zero_point   [G, N]            in units of the weight

In canonical form a code is q + 8, and the zero point 8 - zero_point / scale, rounded once, to fp16:
a weight moves by at most 2**-11 of |8 * scale - zero_point|. A group whose zero point does not fit
is the constant zero_point, within 1.3e-4 of it: scale |zero_point|, codes 0, zero point 1 or -1.
Other packing formats are orders of a GPU's kernel. Source: torchao 0.18,
quantize_/workflows/int4/int4_tensor.py, and FBGEMM's int4_row_quantize_zp and pack_int4.
"""

from __future__ import annotations

import torch

from xgemm.formats.foreign.layer import SCALES, ForeignLayer, LayerShape
from xgemm.formats.foreign.section import Section
from xgemm.formats.quantized import SYMMETRIC_ZERO, QuantizedWeight

_CONFIG = "Int4WeightOnlyConfig"


class Torchao:
    method = "torchao"
    separator = "."
    key = "_weight_qdata"
    parts: tuple[str, ...] = (
        *("_weight_qdata", "_weight_scale", "_weight_zero_point"),
        *("_weight_act_pre_scale", "_weight_scale_and_zero"),
    )

    def __init__(self, section: Section) -> None:
        default = section.inside("quant_type", section.mapping("quant_type")).mapping("default")
        where = section.inside("quant_type", default)
        if default.get("_type") != _CONFIG:
            raise where.error("_type", repr(_CONFIG), default.get("_type"))
        data = where.inside("_data", where.mapping("_data"))
        packing = data.values.get("int4_packing_format")
        packing = packing.get("_data") if isinstance(packing, dict) else packing
        if str(packing).lower() != "plain":
            raise data.error(
                "int4_packing_format", "plain: others are in the order of a GPU's kernel", packing
            )

    def shape(self, layer: ForeignLayer) -> LayerShape:
        n, k = layer.size("_weight_qdata", 0), 2 * layer.size("_weight_qdata", 1)
        groups = layer.size("_weight_scale", 0)
        if groups < 1 or k % groups:
            raise ValueError(
                f"{layer.where('_weight_scale')} must have a number of rows that divides K={k}, "
                f"got {groups}"
            )
        if "_weight_act_pre_scale" in layer:
            raise ValueError(
                f"{layer.where('_weight_act_pre_scale')} scales activations, which is not read"
            )
        layer.check("_weight_qdata", ("int8", "uint8"), (n, k // 2))
        layer.check("_weight_scale", SCALES, (groups, n))
        layer.check("_weight_zero_point", SCALES, (groups, n))
        return LayerShape(n, k, k // groups, zeros=True)

    def read(self, layer: ForeignLayer) -> QuantizedWeight:
        shape = self.shape(layer)
        packed = layer.tensor("_weight_qdata").view(torch.uint8)
        # q + 8 of a two's complement half byte is the half byte with its upper bit flipped.
        codes = torch.stack((packed & 15, packed >> 4), dim=-1).view(shape.n, shape.k) ^ 8
        scales, added = layer.scales("_weight_scale"), layer.tensor("_weight_zero_point")
        zeros = (SYMMETRIC_ZERO - added.double() / scales.double()).half()
        constant = ~torch.isfinite(zeros)
        scales = torch.where(constant, added.abs().to(scales.dtype), scales)
        zeros = torch.where(constant, -added.sign().half(), zeros)
        of_group = constant.t().repeat_interleave(shape.k // shape.groups, dim=1)
        codes = codes.masked_fill(of_group, 0)
        return layer.weight(shape, codes, scales, zeros, g_idx=None)
