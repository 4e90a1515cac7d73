"""The quantization method "xgemm": vLLM serves what `xgemm.save` and `save_pretrained` wrote.

Imports vLLM. A fused layer of vLLM's (qkv_proj) holds the packed rows of its linears one below the
other.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
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

from xgemm.formats.guard import HINT
from xgemm.formats.manifest import (
    CONFIG_FILE,
    QUANT_METHOD,
    ExpertsSpec,
    ModuleSpec,
    parse_quantization_config,
)
from xgemm.formats.packed import GROUP_SIZES, ROW_COLUMNS, Layout
from xgemm.formats.packed_format import FIELDS, PackedFormat
from xgemm.formats.split import channels
from xgemm.vllm.interface import check_experts
from xgemm.vllm.parts import check_parts, join, load_order, members, multiply, shard_index

FINEST_GROUP = min(size for size in GROUP_SIZES if size > 0)


@register_quantization_config(QUANT_METHOD)
class XgemmConfig(QuantizationConfig):
    """Which linears of an xgemm directory are packed, and how."""

    def __init__(self, modules: dict[str, ModuleSpec | ExpertsSpec]) -> None:
        super().__init__()
        self.names = tuple(modules)  # as the files have them
        self.modules = modules  # by vLLM's names

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> XgemmConfig:
        return cls(parse_quantization_config(Path(CONFIG_FILE), {"quantization_config": config}))

    @classmethod
    def get_name(cls) -> str:
        return QUANT_METHOD

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    @classmethod
    def get_min_capability(cls) -> int:
        return 80

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    def apply_vllm_mapper(self, hf_to_vllm_mapper: Any) -> None:
        self.modules = hf_to_vllm_mapper.apply_dict(self.modules)

    def get_checkpoint_weight_mapper(self) -> Any:
        """Drops the guards, which are for readers that do not know the format."""
        # It imports all that models need; vLLM has it by now, but not when it loads plugins.
        from vllm.model_executor.models.utils import WeightsMapper

        packed = "|".join(re.escape(name) for name in self.names)
        guards = re.compile(rf"^(?:{packed})\.(?:weight|gate_up_proj|up_proj|down_proj)$")
        return WeightsMapper(orig_to_new_regex={guards: None, re.compile(re.escape(HINT)): None})

    def get_quant_method(self, layer: Any, prefix: str) -> Any:
        if isinstance(layer, RoutedExperts):
            return self._method_of_experts(layer, prefix)
        if not isinstance(layer, LinearBase | ParallelLMHead):
            return None
        specs = self._specs(prefix)
        if specs and isinstance(layer, ParallelLMHead) and specs[0].n % ROW_COLUMNS != 0:
            raise ValueError(
                f"xgemm: {prefix}: vLLM pads an output head, which must have a multiple of "
                f"{ROW_COLUMNS} columns, got {specs[0].n}"
            )
        if specs:
            return XgemmLinearMethod(prefix, specs)
        return UnquantizedLinearMethod() if isinstance(layer, LinearBase) else None

    def _method_of_experts(self, layer: Any, prefix: str) -> Any:
        """None where the layer's experts are float."""
        spec = self.modules.get(prefix)
        if not isinstance(spec, ExpertsSpec):
            return None
        check_experts()
        from xgemm.vllm.own_experts import XgemmPackedExpertsMethod  # of the vLLM that is expected

        return XgemmPackedExpertsMethod(prefix, spec, layer)

    def _specs(self, prefix: str) -> list[ModuleSpec]:
        """Of the packed linears that vLLM's layer `prefix` is made of; none where it is float."""
        names = members(prefix, self.modules, self.packed_modules_mapping)
        found = {name: self.modules[name] for name in names}
        return check_parts(prefix, found)


@register_weight_loader_v2_supported_method
class XgemmLinearMethod(LinearMethodBase):
    """A packed linear, or several that vLLM joins along the output."""

    def __init__(self, prefix: str, specs: list[ModuleSpec]) -> None:
        self.prefix = prefix
        self.specs = specs
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
        spec, k = self.specs[0], input_size_per_partition
        self._check_sizes(k, output_partition_sizes, input_size, output_size)
        self.k, self.columns = k, output_partition_sizes
        layout = Layout(sum(output_partition_sizes), k, spec.group_size, spec.zeros)
        qweight = _PackedWeight(
            data=torch.empty(layout.rows, layout.row_bytes, dtype=torch.uint8),
            whole=PackedFormat(
                output_size, input_size, spec.group_size, spec.bf16_scales, spec.zeros
            ),
            channels=k,
            input_dim=1,
            output_dim=0,
            packed_dim=0,
            packed_factor=ROW_COLUMNS,
            weight_loader=extra_weight_attrs["weight_loader"],
        )
        layer.register_parameter("qweight", qweight)
        # Not of the layer's shape: they have loaders of their own.
        formats = torch.empty(len(FIELDS), dtype=torch.int64)
        layer.register_parameter(
            "packed_format", BasevLLMParameter(formats, weight_loader=self._check_format)
        )
        if spec.act_order:
            perm = torch.empty(len(output_partition_sizes), k, dtype=torch.int32)
            layer.register_parameter("perm", BasevLLMParameter(perm, weight_loader=load_order))

    def _check_sizes(self, k: int, columns: list[int], input_size: int, output_size: int) -> None:
        if self.specs[0].act_order and k != input_size:
            raise ValueError(
                f"xgemm: {self.prefix}: a weight with an order of channels (act-order) cannot be "
                f"split along its {input_size} input channels, to {k} a GPU"
            )
        multiple = 1 if self.specs[0].group_size == -1 else FINEST_GROUP
        if k != input_size and k % multiple != 0:
            raise ValueError(
                f"xgemm: {self.prefix}: a GPU's input channels must be a multiple of {multiple}, "
                f"got {k} of {input_size}"
            )
        whole = len(columns) == 1 and columns[0] == output_size
        if not whole and any(n % ROW_COLUMNS != 0 for n in columns):
            raise ValueError(
                f"xgemm: {self.prefix}: output columns of a joined or split layer must be "
                f"multiples of {ROW_COLUMNS}, got {columns} of {output_size}"
            )

    def _check_format(self, param: Any, loaded: torch.Tensor, shard_id: Any = None) -> None:
        """The format that the file's tensor tells must be the one that its config.json tells."""
        index = shard_index(shard_id)
        spec = self.specs[index if index < len(self.specs) else 0]
        expected = PackedFormat(spec.n, spec.k, spec.group_size, spec.bf16_scales, spec.zeros)
        expected.check(f"xgemm: {self.prefix}", loaded)

    def process_weights_after_loading(self, layer: Any) -> None:
        self.spec = replace(self.specs[0], group_size=layer.qweight.group_size)
        layer.qweight = torch.nn.Parameter(layer.qweight.data, requires_grad=False)
        del layer.packed_format
        perms = None
        if self.specs[0].act_order:
            perms = list(layer.perm.data.unbind())
            del layer.perm
        layer.xgemm_parts = join(self.columns, perms)

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        parts, k = layer.xgemm_parts, self.k
        return multiply(x, layer.qweight, parts, self.spec, k, bias, self.batch_invariant)


class _PackedWeight(PackedvLLMParameter):
    """Rows of 64 output columns; a row parallel layer's GPU takes a range of input channels.

    Where the range begins within a group, it has smaller groups of the same scales.
    """

    data: torch.Tensor

    def __init__(self, whole: PackedFormat, channels: int, **kwargs: Any) -> None:
        self.whole = whole
        self.channels = channels
        self.group_size = whole.group_size
        super().__init__(**kwargs)

    def load_row_parallel_weight(self, loaded_weight: torch.Tensor) -> None:
        start = self.tp_rank * self.channels
        loaded = loaded_weight.to(self.data.device)  # where it may be repacked
        own = channels(loaded, self.whole, range(start, start + self.channels))
        self.group_size = own.group_size
        self.data = own.qweight
