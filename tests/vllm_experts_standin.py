"""Stand-ins for vLLM's layer of experts and the methods of its formats, as in vllm_standin.py.

Parameters have the shapes that vLLM's methods give them on one rank; a test fills them.
"""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from vllm_standin import QuantizeMethodBase

op_registry_oot: dict[str, type] = {}


class MoEActivation(enum.Enum):
    SILU = "silu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    RELU2 = "relu2"
    SWIGLUOAI = "swigluoai"
    SITU = "situ"
    SWIGLUOAI_UNINTERLEAVE = "swigluoai_uninterleave"
    SWIGLUSTEP = "swiglustep"
    SILU_NO_MUL = "silu_no_mul"
    GELU_NO_MUL = "gelu_no_mul"
    GELU_TANH_NO_MUL = "gelu_tanh_no_mul"
    RELU2_NO_MUL = "relu2_no_mul"


@dataclass
class FusedMoEParallelConfig:
    tp_size: int = 1
    pcp_size: int = 1
    dp_size: int = 1
    ep_size: int = 1
    tp_rank: int = 0
    pcp_rank: int = 0
    dp_rank: int = 0
    ep_rank: int = 0
    sp_size: int = 1
    use_ep: bool = False
    all2all_backend: str = ""
    enable_eplb: bool = False

    @property
    def is_sequence_parallel(self) -> bool:
        return self.sp_size > 1


@dataclass
class FusedMoEConfig:
    num_experts: int
    experts_per_token: int
    hidden_dim: int
    intermediate_size: int
    num_local_experts: int
    num_logical_experts: int
    activation: MoEActivation = MoEActivation.SILU
    device: str = "cpu"
    routing_method: Any = None
    moe_parallel_config: FusedMoEParallelConfig = field(default_factory=FusedMoEParallelConfig)
    in_dtype: torch.dtype = torch.bfloat16
    router_logits_dtype: torch.dtype | None = None
    hidden_dim_unpadded: int | None = None
    intermediate_size_per_partition_unpadded: int | None = None
    intermediate_pad: int | None = None
    moe_backend: str = "auto"
    max_num_tokens: int = 256
    elastic_ep_max_dp_size: int | None = None
    has_bias: bool = False
    is_lora_enabled: bool = False
    has_hash_routing: bool = False
    require_decomposed_backend: bool = False
    shared_expert_prefix: str | None = None
    skip_final_all_reduce: bool = False
    _defer_moe_finalize: bool = False
    defer_moe_finalize_max_num_tokens: int = -1
    swiglu_limit: float | None = None
    swiglu_alpha: float | None = None
    swiglu_beta: float | None = None
    activation_situ_beta: float | None = None
    activation_situ_linear_beta: float | None = None
    max_capture_size: int = 0
    intermediate_size_per_partition: int = -1
    tp_shard_with_padding: bool = False
    rocm_aiter_fmoe_enabled: bool = False
    aiter_fmoe_shared_expert_enabled: bool = False
    use_mxfp4_w4a4_dsv4: bool = False

    def __post_init__(self) -> None:
        self.intermediate_size_per_partition = (
            self.intermediate_size // self.moe_parallel_config.tp_size
        )
        self.hidden_dim_unpadded = self.hidden_dim_unpadded or self.hidden_dim


class FusedMoEMethodBase(QuantizeMethodBase):
    def __init__(self, moe: FusedMoEConfig) -> None:
        self.moe, self.moe_kernel, self.moe_quant_config = moe, None, None

    @abstractmethod
    def create_weights(
        self,
        layer: Any,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None: ...

    @abstractmethod
    def get_fused_moe_quant_config(self, layer: Any) -> Any: ...

    def maybe_roundup_sizes(
        self,
        hidden_size: int,
        intermediate_size_per_partition: int,
        act_dtype: torch.dtype,
        moe_parallel_config: Any,
    ) -> tuple[int, int]:
        return hidden_size, intermediate_size_per_partition

    def apply(
        self,
        layer: Any,
        x: Any,
        topk_weights: Any,
        topk_ids: Any,
        shared_experts: Any,
        shared_experts_input: Any,
    ) -> torch.Tensor:
        raise NotImplementedError


class UnquantizedFusedMoEMethod(FusedMoEMethodBase):
    def create_weights(self, layer: Any, *args: Any, **kwargs: Any) -> None: ...  # type: ignore[override]

    def get_fused_moe_quant_config(self, layer: Any) -> None: ...


class PluggableLayer(torch.nn.Module):
    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return super().__new__(op_registry_oot.get(cls.__name__, cls))

    @classmethod
    def register_oot(cls, _decorated_layer_cls: Any = None, name: str | None = None) -> Any:
        known_as = name or cls.__name__
        assert known_as not in op_registry_oot, f"Duplicate layer name: {known_as}"
        op_registry_oot[known_as] = _decorated_layer_cls
        return _decorated_layer_cls


class RoutedExperts(PluggableLayer):
    def __init__(
        self,
        layer_name: str,
        moe_config: FusedMoEConfig,
        quant_config: Any,
        expert_map: torch.Tensor | None = None,
        apply_router_weight_on_input: bool = False,
    ) -> None:
        super().__init__()
        self.layer_name, self.moe_config = layer_name, moe_config
        self.expert_map = expert_map
        self.activation = moe_config.activation
        self.apply_router_weight_on_input = apply_router_weight_on_input
        self.e_score_correction_bias = torch.nn.Parameter(torch.zeros(4), requires_grad=False)
        self.quant_method = self._get_quant_method(layer_name, quant_config, moe_config)
        hidden, inner = self.quant_method.maybe_roundup_sizes(
            moe_config.hidden_dim,
            moe_config.intermediate_size_per_partition,
            moe_config.in_dtype,
            moe_config.moe_parallel_config,
        )
        moe_config.hidden_dim, moe_config.intermediate_size_per_partition = hidden, inner
        self.quant_method.create_weights(
            self,
            num_experts=moe_config.num_local_experts,
            hidden_size=hidden,
            intermediate_size_per_partition=inner,
            params_dtype=moe_config.in_dtype,
            weight_loader=None,
            global_num_experts=moe_config.num_experts,
        )

    def _get_quant_method(self, prefix: str, quant_config: Any, moe_config: Any) -> Any:
        method = quant_config.get_quant_method(self, prefix)
        return method or UnquantizedFusedMoEMethod(moe_config)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterable[str]:
        """Experts that a file holds as one tensor, [E, ...]: gate and up are halves of dim 1."""
        for name, loaded in weights:
            for part, shards in (("gate_up_proj", ("w1", "w3")), ("down_proj", ("w2",))):
                if f"experts.{part}" not in f"experts.{name}":
                    continue
                parameter_name = name.replace(
                    part, "w2_weight" if len(shards) == 1 else "w13_weight"
                )
                param = getattr(self, parameter_name)
                for chunk, shard in enumerate(shards):
                    if loaded.dim() == 3:
                        pieces, first = loaded.chunk(len(shards), dim=1)[chunk].unbind(), 0
                    else:
                        pieces, first = (loaded,), chunk
                    for expert, piece in enumerate(pieces, start=first):
                        param.weight_loader(
                            param=param, loaded_weight=piece, weight_name=parameter_name,
                            shard_id=shard, expert_id=expert, return_success=True,
                        )  # fmt: skip
                yield parameter_name

    def forward(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return self.quant_method.apply(self, x, weights, ids, None, None)


class GptOssRoutedExperts(RoutedExperts):
    """As vllm.model_executor.models.gpt_oss has it."""


def apply_moe_activation(
    activation: MoEActivation,
    output: torch.Tensor,
    input: torch.Tensor,
    *,
    activation_config: Any = None,
    topk_ids: torch.Tensor | None = None,
    expert_map: torch.Tensor | None = None,
    valid_token_counts: torch.Tensor | None = None,
) -> torch.Tensor:
    assert activation == MoEActivation.SWIGLUOAI
    gate, up = input[..., ::2].float(), input[..., 1::2].float()
    gate, up = gate.clamp(max=7.0), up.clamp(min=-7.0, max=7.0)
    return output.copy_((up + 1) * gate * torch.sigmoid(1.702 * gate))


class _OfFormat(FusedMoEMethodBase):
    """Makes the parameters of a format, empty. shapes: of (name, n, k) on this rank."""

    dtype: ClassVar[torch.dtype | None] = None  # of all but biases, where it is one

    def __init__(self, moe: FusedMoEConfig, group_size: int, zeros: bool) -> None:
        super().__init__(moe)
        self.group_size, self.symmetric, self.num_bits = group_size, not zeros, 4
        self.weight_quant = SimpleNamespace(actorder=None)
        self.quant_config = SimpleNamespace(
            group_size=group_size, weight_bits=4, is_sym=not zeros, zero_point=zeros, desc_act=False
        )

    def create_weights(
        self,
        layer: Any,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        sizes = {
            "w13": (2 * intermediate_size_per_partition, hidden_size),
            "w2": (hidden_size, intermediate_size_per_partition),
        }
        for part, (n, k) in sizes.items():
            groups = 1 if self.group_size == -1 else k // self.group_size
            for name, shape in self.shapes(n, k, groups).items():
                is_float = "scale" in name or name == "bias"
                dtype = self.dtype or (params_dtype if is_float else torch.int32)
                dtype = torch.bfloat16 if self.dtype and name == "bias" else dtype
                made = torch.nn.Parameter(
                    torch.zeros(num_experts, *shape, dtype=dtype), requires_grad=False
                )
                layer.register_parameter(f"{part}_{name}", made)

    def get_fused_moe_quant_config(self, layer: Any) -> None:
        return None

    def shapes(self, n: int, k: int, groups: int) -> dict[str, tuple[int, ...]]:
        raise NotImplementedError


class CompressedTensorsWNA16MoEMethod(_OfFormat):
    def shapes(self, n: int, k: int, groups: int) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {
            "weight_packed": (n, k // 8), "weight_scale": (n, groups), "weight_shape": (2,),
        }  # fmt: skip
        if self.moe.has_bias:
            shapes["bias"] = (n,)
        return shapes if self.symmetric else {**shapes, "weight_zero_point": (n // 8, groups)}


class AutoGPTQMoEMethod(_OfFormat):
    def shapes(self, n: int, k: int, groups: int) -> dict[str, tuple[int, ...]]:
        return {
            "qweight": (k // 8, n), "scales": (groups, n), "qzeros": (groups, n // 8), "bias": (n,)
        }  # fmt: skip


class AutoAWQMoEMethod(_OfFormat):
    def shapes(self, n: int, k: int, groups: int) -> dict[str, tuple[int, ...]]:
        return {"qweight": (k, n // 8), "scales": (groups, n), "qzeros": (groups, n // 8)}


class CompressedTensorsW4A4Mxfp4MoEMethod(_OfFormat):
    dtype = torch.uint8
    use_cutlass_mxfp4 = False  # with native FP4

    def shapes(self, n: int, k: int, groups: int) -> dict[str, tuple[int, ...]]:
        return {"weight_packed": (n, k // 2), "weight_scale": (n, k // 32)}


class GptOssMxfp4MoEMethod(_OfFormat):
    dtype = torch.uint8
    weight_dtype = "gpt_oss_mxfp4"

    def maybe_roundup_sizes(
        self,
        hidden_size: int,
        intermediate_size_per_partition: int,
        act_dtype: torch.dtype,
        moe_parallel_config: Any,
    ) -> tuple[int, int]:
        """As Marlin asks for."""
        inner = intermediate_size_per_partition
        return -(-hidden_size // 256) * 256, -(-inner // 128) * 128

    def shapes(self, n: int, k: int, groups: int) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {"weight": (n, k // 2), "weight_scale": (n, k // 32)}
        return {**shapes, "bias": (n,)} if self.moe.has_bias else shapes
