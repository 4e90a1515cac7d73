"""gpt-oss' MXFP4, as transformers saves it: the experts of a projection in one tensor.

    <name>_blocks   uint8 [E, N, K / 32, 16]   E2M1 codes, the low nibble first
    <name>_scales   uint8 [E, N, K / 32]       E8M0: 2^(e - 127)

for <name> gate_up_proj, whose rows are a gate and what it multiplies by turns, and down_proj. The
model's own function of the rows takes them so. Source: transformers 5.23, integrations/mxfp4.py.
"""

from __future__ import annotations

from xgemm.formats.foreign.layer import ForeignLayer, LayerShape
from xgemm.formats.foreign.section import Section
from xgemm.formats.mxfp4 import GROUP_SIZE, mxfp4_weight
from xgemm.formats.quantized import QuantizedWeight


class GptOssMxfp4:
    method = "mxfp4"
    separator = "_"
    key = "blocks"
    parts: tuple[str, ...] = ("blocks", "scales")

    def __init__(self, section: Section) -> None:
        pass  # modules_to_not_convert names modules whose tensors are float ones

    def shape(self, layer: ForeignLayer) -> LayerShape:
        experts, n, groups = (layer.size("blocks", d, rank=4) for d in range(3))
        layer.check("blocks", ("uint8",), (experts, n, groups, GROUP_SIZE // 2))
        layer.check("scales", ("uint8",), (experts, n, groups))
        k = groups * GROUP_SIZE
        return LayerShape(n, k, GROUP_SIZE, zeros=False, experts=experts, fp4=True)

    def read(self, layer: ForeignLayer) -> QuantizedWeight:
        self.shape(layer)
        try:
            return mxfp4_weight(layer.tensor("blocks"), layer.tensor("scales"))
        except ValueError as error:
            raise ValueError(f"{layer.where('scales')}: {error}") from None
