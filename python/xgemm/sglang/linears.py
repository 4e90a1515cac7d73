"""SGLang's int4 linears, loaded into packed weights and applied by `torch.ops.xgemm.mul.w4a16`.

A hook gets SGLang's own method first, and calls it for what the kernels do not take: another number
of bits, act-order, other dtypes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from xgemm.formats.foreign.awq import columns_of_words
from xgemm.formats.packed import GROUP_SIZES, PackedWeight, pack
from xgemm.formats.quantized import QuantizedWeight
from xgemm.vllm.words import pack_words

ACTIVATION_DTYPES = (torch.float16, torch.bfloat16)
FORMAT = "xgemm_options"  # of a layer that runs on xgemm: (n, k, group_size), options of the op

Read = Callable[[Any, Any], PackedWeight | None]


@dataclass(frozen=True)
class HookedLinear:
    """A format's linears.

    weight: the parameter that the packed weight takes the place of; others: those that go into it.
    read: the packed weight of (SGLang's object, layer), or None for what is not taken.
    """

    weight: str
    others: tuple[str, ...]
    read: Read

    def load(self, original: Callable[..., Any], kernel: Any, layer: Any) -> Any:
        """Around process_weights_after_loading: repack the layer on its device."""
        packed = self.read(kernel, layer)
        if packed is None:
            return original(kernel, layer)
        for name in self.others:
            if (old := getattr(layer, name, None)) is not None:
                setattr(layer, name, _parameter(old.data.new_empty(0)))
        setattr(layer, self.weight, _parameter(packed.qweight))
        options = {"bf16_scales": True} if packed.bf16_scales else {}
        options |= {"zeros": True} if packed.has_zeros else {}
        setattr(layer, FORMAT, ((packed.n, packed.k, packed.group_size), options))
        return None

    def apply(
        self,
        original: Callable[..., torch.Tensor],
        kernel: Any,
        layer: Any,
        x: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Around the method that multiplies."""
        found = getattr(layer, FORMAT, None)
        if found is None:
            return original(kernel, layer, x, bias)
        sizes, options = found
        qweight = getattr(layer, self.weight)
        y: torch.Tensor = torch.ops.xgemm.mul.w4a16(x, qweight, *sizes, bias, **options)
        return y


def _parameter(data: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(data, requires_grad=False)


def _takes(bits: int, dtype: torch.dtype, group_size: int) -> bool:
    return bits == 4 and dtype in ACTIVATION_DTYPES and group_size in GROUP_SIZES


def _takes_config(config: Any) -> bool:
    taken = _takes(config.weight_type.size_bits, config.act_type, config.group_size)
    return taken and not config.has_g_idx


def _read_compressed_tensors(scheme: Any, layer: Any) -> PackedWeight | None:
    """weight_packed [N, K / 8], weight_scale [N, G], weight_zero_point [N / 8, G]."""
    config = scheme.kernel_config
    if not _takes_config(config):
        return None
    zeros = layer.weight_zero_point.data.t() if config.zero_points else None
    words, scales = layer.weight_packed.data.t(), layer.weight_scale.data.t()
    return pack_words(words, scales, config.group_size, zeros)


def _read_gptq(kernel: Any, layer: Any) -> PackedWeight | None:
    """qweight [K / 8, N], scales [G, N]; zero points are 8."""
    config = kernel.kernel_config
    if not _takes_config(config) or config.zero_points:
        return None
    return pack_words(layer.qweight.data, layer.scales.data, config.group_size)


def _read_awq(kernel: Any, layer: Any) -> PackedWeight | None:
    """qweight [K, N / 8], qzeros [G, N / 8] in AWQ's order of columns, scales [G, N]."""
    config, scales = kernel.quant_config, layer.scales.data
    if not _takes(config.quant_type.size_bits, scales.dtype, config.group_size):
        return None
    codes = columns_of_words(layer.qweight.data).t().contiguous()
    zeros = columns_of_words(layer.qzeros.data).to(torch.float16)
    return pack(QuantizedWeight(codes, scales, zeros, None, config.group_size))


COMPRESSED_TENSORS = HookedLinear(
    "weight_packed", ("weight_scale", "weight_zero_point"), _read_compressed_tensors
)
GPTQ = HookedLinear("qweight", ("scales", "qzeros", "g_idx"), _read_gptq)
AWQ = HookedLinear("qweight", ("scales", "qzeros"), _read_awq)
