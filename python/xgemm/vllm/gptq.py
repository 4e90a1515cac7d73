"""The quantization method "xgemm_gptq": 4-bit GPTQ checkpoints that vLLM's own method refuses.

Those are the ones with an order of channels (act-order: `desc_act` with groups) and the ones with
zero points (`sym` false). Imports vLLM.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm import envs
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.linear import (
    LinearBase,
    LinearMethodBase,
    UnquantizedLinearMethod,
    register_weight_loader_v2_supported_method,
)
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.parameter import BasevLLMParameter, PackedvLLMParameter

from xgemm.formats.foreign.gptq import V1_OFFSET
from xgemm.formats.foreign.nibbles import PER_WORD, unpack_nibbles
from xgemm.formats.manifest import ModuleSpec
from xgemm.formats.packed import GROUP_SIZES, pack
from xgemm.formats.quantized import QuantizedWeight
from xgemm.vllm.parts import join, load_order, members, multiply

METHOD = "xgemm_gptq"
_OWN_NAMES = (None, "gptq", "auto_gptq", "gptq_marlin", METHOD)  # what a user may have asked for


@register_quantization_config(METHOD)
class XgemmGptqConfig(QuantizationConfig):
    """A GPTQ checkpoint's scheme, and which of its linears are quantized."""

    def __init__(self, group_size: int, symmetric: bool, act_order: bool, version: int) -> None:
        super().__init__()
        self.group_size = group_size
        self.symmetric = symmetric
        self.act_order = act_order
        self.version = version
        self.names: list[str] = []

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: dict[str, Any], user_quant: str | None, hf_config: Any = None
    ) -> str | None:
        act_order = hf_quant_cfg.get("desc_act") and hf_quant_cfg.get("group_size") != -1
        taken = (
            hf_quant_cfg.get("quant_method") == "gptq"
            and hf_quant_cfg.get("bits") == 4
            and (act_order or hf_quant_cfg.get("sym") is False)
            and user_quant in _OWN_NAMES
        )
        return METHOD if taken else None

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> XgemmGptqConfig:
        if any(not rule.startswith("-:") for rule in config.get("dynamic") or {}):
            raise ValueError(
                "xgemm: quantization_config.dynamic: rules that change a layer's scheme are not "
                "served from GPTQ's files: `xgemm convert` writes a directory that is"
            )
        if config["group_size"] not in GROUP_SIZES:
            raise ValueError(
                f"xgemm: quantization_config.group_size must be one of {GROUP_SIZES}, "
                f"got {config['group_size']}"
            )
        version = 2 if config.get("checkpoint_format") == "gptq_v2" else 1
        act_order = bool(config.get("desc_act")) and config["group_size"] != -1
        return cls(config["group_size"], bool(config.get("sym", True)), act_order, version)

    @classmethod
    def get_name(cls) -> str:
        return METHOD

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    @classmethod
    def get_min_capability(cls) -> int:
        return 80

    @staticmethod
    def get_config_filenames() -> list[str]:
        return ["quantize_config.json"]

    def maybe_update_config(
        self, model_name: str, hf_config: Any = None, revision: str | None = None
    ) -> None:
        """The quantized linears are those that the files have codes of."""
        from vllm.transformers_utils.config import get_safetensors_params_metadata

        names = get_safetensors_params_metadata(model_name, revision=revision)
        self.names = [n.removesuffix(".qweight") for n in names if n.endswith(".qweight")]

    def apply_vllm_mapper(self, hf_to_vllm_mapper: Any) -> None:
        self.names = hf_to_vllm_mapper.apply_list(self.names)

    def get_checkpoint_weight_mapper(self) -> Any:
        """vLLM drops the channels' groups unless they are asked for."""
        from vllm.model_executor.models.utils import WeightsMapper

        return WeightsMapper(orig_to_new_suffix={} if self.act_order else {".g_idx": None})

    def get_quant_method(self, layer: Any, prefix: str) -> Any:
        if isinstance(layer, RoutedExperts) and any(n.startswith(prefix) for n in self.names):
            raise ValueError(
                f"xgemm: {prefix}: vLLM cannot serve experts of GPTQ with act-order or zero points"
            )
        if not isinstance(layer, LinearBase | ParallelLMHead):
            return None
        if not members(prefix, set(self.names), self.packed_modules_mapping):
            return UnquantizedLinearMethod() if isinstance(layer, LinearBase) else None
        if isinstance(layer, ParallelLMHead):
            raise ValueError(
                f"xgemm: {prefix}: an output head is not served from GPTQ's files: `xgemm convert` "
                f"writes a directory that is"
            )
        return XgemmGptqLinearMethod(prefix, self)


@register_weight_loader_v2_supported_method
class XgemmGptqLinearMethod(LinearMethodBase):
    """A GPTQ linear, or several that vLLM joins along the output, packed when they are loaded."""

    def __init__(self, prefix: str, config: XgemmGptqConfig) -> None:
        self.prefix = prefix
        self.config = config
        self.batch_invariant = bool(envs.VLLM_BATCH_INVARIANT)

    def create_weights(
        self,
        layer: Any,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        k, columns, size = input_size_per_partition, output_partition_sizes, self.config.group_size
        self._check_sizes(k, columns, input_size)
        self.columns = columns
        self.spec = ModuleSpec(
            n=sum(columns), k=k, group_size=size, bf16_scales=False,
            zeros=not self.config.symmetric, act_order=self.config.act_order, bias=False,
            activation="none",
        )  # fmt: skip
        groups = 1 if size == -1 else -(-k // size)
        kind = _OfAllChannels if size == -1 else PackedvLLMParameter

        def parameter(kind: Any, rows: int, n: int, dtype: torch.dtype, **packing: int) -> Any:
            return kind(
                data=torch.empty(rows, n, dtype=dtype), input_dim=0, output_dim=1,
                weight_loader=extra_weight_attrs["weight_loader"], **packing,
            )  # fmt: skip

        by_rows, by_columns = ({"packed_dim": dim, "packed_factor": PER_WORD} for dim in (0, 1))
        n, words = self.spec.n, torch.int32
        qweight = parameter(PackedvLLMParameter, k // PER_WORD, n, words, **by_rows)
        scales = parameter(kind, groups, n, torch.float16, packed_dim=1, packed_factor=1)
        qzeros = parameter(kind, groups, n // PER_WORD, words, **by_columns)
        layer.register_parameter("qweight", qweight)
        layer.register_parameter("scales", scales)
        layer.register_parameter("qzeros", qzeros)
        if self.config.act_order:
            g_idx = torch.empty(len(columns), k, dtype=torch.int32)
            layer.register_parameter("g_idx", BasevLLMParameter(g_idx, weight_loader=load_order))

    def _check_sizes(self, k: int, columns: list[int], input_size: int) -> None:
        if self.config.act_order and k != input_size:
            raise ValueError(
                f"xgemm: {self.prefix}: a weight with an order of channels (act-order) cannot be "
                f"split along its {input_size} input channels, to {k} a GPU"
            )
        multiple = PER_WORD
        if k != input_size and self.config.group_size != -1:
            multiple = self.config.group_size
        if k % multiple != 0:
            raise ValueError(
                f"xgemm: {self.prefix}: a GPU's input channels must be a multiple of {multiple}, "
                f"got {k} of {input_size}"
            )
        if any(n % PER_WORD != 0 for n in columns):
            raise ValueError(
                f"xgemm: {self.prefix}: output columns must be multiples of {PER_WORD}, "
                f"got {columns}"
            )

    def process_weights_after_loading(self, layer: Any) -> None:
        """Pack the linears on their device, one after another."""
        orders = layer.g_idx.data if self.config.act_order else [None] * len(self.columns)
        packed, start = [], 0
        for n, order in zip(self.columns, orders, strict=True):
            own = slice(start, start + n)
            points = slice(start // PER_WORD, (start + n) // PER_WORD)
            packed.append(self._pack(layer, own, points, order))
            start += n
        rows = torch.cat([one.qweight for one in packed])
        layer.xgemm_parts = join(self.columns, [one.perm for one in packed])
        layer.qweight = torch.nn.Parameter(rows, requires_grad=False)
        del layer.scales, layer.qzeros
        if self.config.act_order:
            del layer.g_idx

    def _pack(self, layer: Any, own: slice, points: slice, order: torch.Tensor | None) -> Any:
        zeros = None
        if self.spec.zeros:
            words = layer.qzeros.data[:, points] + (V1_OFFSET if self.config.version == 1 else 0)
            zeros = unpack_nibbles(words, own.stop - own.start).half()
        codes = unpack_nibbles(layer.qweight.data[:, own].t(), self.spec.k)
        scales = layer.scales.data[:, own].contiguous()
        try:
            return pack(QuantizedWeight(codes, scales, zeros, order, self.spec.group_size))
        except ValueError as error:
            raise ValueError(f"xgemm: {self.prefix}: {error}") from None

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        parts, k = layer.xgemm_parts, self.spec.k
        return multiply(x, layer.qweight, parts, self.spec, k, bias, self.batch_invariant)


class _OfAllChannels(PackedvLLMParameter):
    """Scales or zero points of all channels: those of any GPU's, too."""

    def load_row_parallel_weight(self, loaded_weight: torch.Tensor) -> None:
        self.data.copy_(loaded_weight)
