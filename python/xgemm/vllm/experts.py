"""vLLM's 4-bit experts on `torch.ops.xgemm.moe.w4a16`: compressed-tensors, GPTQ, AWQ, and MXFP4 of
gpt-oss and of compressed-tensors.

vLLM's own method of a format makes the parameters and loads them. xgemm's packs what they hold, and
multiplies by it. Imports vLLM.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm import envs
from vllm.logger import init_logger
from vllm.model_executor.custom_op import op_registry_oot
from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase, RoutedExperts
from vllm.model_executor.layers.fused_moe.activation import MoEActivation, apply_moe_activation

from xgemm.formats.foreign.awq import columns_of_words
from xgemm.formats.mxfp4 import GROUP_SIZE, e2m1_codes, e8m0_to_bfloat16
from xgemm.formats.packed import GROUP_SIZES, ROW_COLUMNS, Layout, pack
from xgemm.formats.packed_format import PackedFormat
from xgemm.formats.quantized import QuantizedWeight
from xgemm.nn.mixture import Projection, mixture
from xgemm.vllm.words import nibbles

logger = init_logger("vllm.xgemm")  # a name under vLLM's own, so that vLLM shows it

GATES = {"silu": "silu_and_mul", "gelu_tanh": "gelu_tanh_and_mul"}  # by vLLM's names of them
CODES_AT_ONCE = 1 << 25  # bytes of codes that are packed in one call: what loading needs more
NAME = "XgemmExpertsMethod"  # for VLLM_DISABLED_KERNELS
GPT_OSS = "GptOssRoutedExperts"  # of vllm.model_executor.models.gpt_oss


def refusal_of_layer(layer: Any, gates: tuple[str, ...] = (*GATES, "gelu")) -> str | None:
    """Why a layer of experts cannot be xgemm's, whatever its weights are; None where it can."""
    moe = layer.moe_config
    parallel = moe.moe_parallel_config
    asked = {
        "LoRA": moe.is_lora_enabled,
        "data parallelism": parallel.dp_size > 1,
        "prefill context parallelism": parallel.pcp_size > 1,
        "sequence parallelism": parallel.is_sequence_parallel,
        "load balancing of experts (EPLB)": parallel.enable_eplb,
        "batch invariance of experts": envs.VLLM_BATCH_INVARIANT,
        "clamped gates": (moe.swiglu_limit, moe.swiglu_alpha, moe.swiglu_beta) != (None,) * 3,
        f"the activation {moe.activation.value}": moe.activation.value not in gates,
        f"activations of {moe.in_dtype}": moe.in_dtype not in (torch.float16, torch.bfloat16),
        "padded hidden states": moe.hidden_dim != moe.hidden_dim_unpadded,
        "padded shards": moe.tp_shard_with_padding,
    }
    return next((f"{what} is not taken" for what, is_asked in asked.items() if is_asked), None)


def refusal(own: Any, layer: Any) -> str | None:
    """Why xgemm leaves a layer of experts to vLLM's own method for it; None where it does not."""
    form = _FORMATS.get(type(own).__name__)
    if form is None:
        return f"{type(own).__name__} is not taken"
    if layer.moe_config.moe_backend != "auto":
        return f"the backend {layer.moe_config.moe_backend} is asked for"
    return form.refusal(own) or refusal_of_layer(layer, form.gates)


class _Words:
    """How a format's parameters lie: the quantized weights of a range of experts."""

    gates: tuple[str, ...] = (*GATES, "gelu")  # the activations that its rows may have
    fp4 = False

    def __init__(self, own: Any) -> None:
        self.group_size: int = self.group_size_of(own)

    @staticmethod
    def group_size_of(own: Any) -> int:
        raise NotImplementedError

    @classmethod
    def refusal(cls, own: Any) -> str | None:
        size = cls.group_size_of(own)
        return None if size in GROUP_SIZES else f"a group size of {size} is not taken"

    def names(self, part: str) -> list[str]:
        """The parameters of projection "w13" or "w2": words, scales and zero points if any."""
        raise NotImplementedError

    def read(self, parameters: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Codes uint8 [E, N, K], scales [E, groups, N], zero points fp16 [E, groups, N] if any."""
        raise NotImplementedError


class _CompressedTensors(_Words):
    """int32 [E, N, K / 8], scales [E, N, groups], zero points int32 [E, N / 8, groups]."""

    @staticmethod
    def group_size_of(own: Any) -> int:
        return int(own.group_size)

    @classmethod
    def refusal(cls, own: Any) -> str | None:
        if own.num_bits != 4:
            return f"weights of {own.num_bits} bits are not taken"
        if own.weight_quant.actorder in ("group", "dynamic"):
            return "an order of channels (act-order) is not taken"
        return super().refusal(own)

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.symmetric = own.symmetric

    def names(self, part: str) -> list[str]:
        names = [f"{part}_weight_packed", f"{part}_weight_scale"]
        return names if self.symmetric else [*names, f"{part}_weight_zero_point"]

    def read(self, parameters: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        words, scales, *zeros = parameters
        points = [nibbles(z.mT).half() for z in zeros]
        return nibbles(words), scales.mT, *points


class _Gptq(_Words):
    """int32 [E, K / 8, N], scales [E, groups, N]; its zero points are 8."""

    @staticmethod
    def group_size_of(own: Any) -> int:
        return int(own.quant_config.group_size)

    @classmethod
    def refusal(cls, own: Any) -> str | None:
        config = own.quant_config
        if config.weight_bits != 4 or not config.is_sym:
            return f"weights of {config.weight_bits} bits, symmetric: {config.is_sym}, not taken"
        if config.desc_act and config.group_size != -1:
            return "an order of channels (act-order) is not taken"
        return super().refusal(own)

    def names(self, part: str) -> list[str]:
        return [f"{part}_qweight", f"{part}_scales"]

    def read(self, parameters: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        words, scales = parameters
        return nibbles(words.mT), scales


class _Awq(_Words):
    """int32 [E, K, N / 8] and zero points int32 [E, groups, N / 8] in AWQ's order of columns."""

    @staticmethod
    def group_size_of(own: Any) -> int:
        return int(own.quant_config.group_size)

    @classmethod
    def refusal(cls, own: Any) -> str | None:
        if not own.quant_config.zero_point:
            return "AWQ without zero points is not taken"
        return super().refusal(own)

    def names(self, part: str) -> list[str]:
        return [f"{part}_qweight", f"{part}_scales", f"{part}_qzeros"]

    def read(self, parameters: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        words, scales, zeros = parameters
        codes, points = (
            columns_of_words(w.flatten(0, 1)).view(*w.shape[:2], -1) for w in (words, zeros)
        )
        return codes.mT, scales, points.half()


class _Mxfp4(_Words):
    """uint8 [E, N, K / 2], scales E8M0 uint8 [E, N, K / 32]."""

    fp4 = True

    @staticmethod
    def group_size_of(own: Any) -> int:
        return GROUP_SIZE

    def read(self, parameters: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        words, scales = parameters
        return e2m1_codes(words), e8m0_to_bfloat16(scales).mT


class _CompressedMxfp4(_Mxfp4):
    @classmethod
    def refusal(cls, own: Any) -> str | None:
        if own.use_cutlass_mxfp4:
            return "MXFP4 on a GPU that multiplies it itself is not taken"
        return super().refusal(own)

    def names(self, part: str) -> list[str]:
        return [f"{part}_weight_packed", f"{part}_weight_scale"]


class _GptOss(_Mxfp4):
    """The first projection's rows are a gate and what it multiplies by turns."""

    gates = ("swigluoai",)

    def names(self, part: str) -> list[str]:
        return [f"{part}_weight", f"{part}_weight_scale"]


_FORMATS: dict[str, type[_Words]] = {
    "CompressedTensorsWNA16MoEMethod": _CompressedTensors,
    "CompressedTensorsW4A4Mxfp4MoEMethod": _CompressedMxfp4,
    "GptOssMxfp4MoEMethod": _GptOss,
    "AutoGPTQMoEMethod": _Gptq,
    "AutoAWQMoEMethod": _Awq,
}


class ExpertsMethod(FusedMoEMethodBase):
    """Multiplies by `layer.xgemm_up` and `layer.xgemm_down`, which a subclass makes."""

    def get_fused_moe_quant_config(self, layer: Any) -> None:
        return None  # of vLLM's kernels, which are not asked

    def apply(
        self,
        layer: Any,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any,
        shared_experts_input: torch.Tensor | None,
    ) -> torch.Tensor:
        ids, up, down = topk_ids, layer.xgemm_up, layer.xgemm_down
        if layer.expert_map is not None:
            ids = layer.expert_map[ids]  # -1: another GPU's
        if layer.apply_router_weight_on_input:  # of one expert a token
            x, topk_weights = x * topk_weights.to(x.dtype), torch.ones_like(topk_weights)
        act = layer.activation.value
        gate = GATES.get(act, _swigluoai_and_mul if act == "swigluoai" else _gelu_and_mul)
        return mixture(x, ids, topk_weights, up, down, gate)


class XgemmExpertsMethod(ExpertsMethod):
    """Experts in a format of vLLM's, whose own method makes and loads the parameters."""

    def __init__(self, own: Any, layer: Any) -> None:
        super().__init__(layer.moe_config)
        self.own = own
        self.words = _FORMATS[type(own).__name__](own)
        if hasattr(own, "weight_dtype"):  # by which gpt-oss' loader knows MXFP4
            self.weight_dtype = own.weight_dtype

    def maybe_roundup_sizes(
        self, hidden_size: int, intermediate_size_per_partition: int, *args: Any, **kwargs: Any
    ) -> tuple[int, int]:
        """Whole groups of channels of MXFP4, and no more, as vLLM's own kernels of it ask."""
        hidden, inner = super().maybe_roundup_sizes(
            hidden_size, intermediate_size_per_partition, *args, **kwargs
        )
        return hidden, -(-inner // GROUP_SIZE) * GROUP_SIZE if self.words.fp4 else inner

    def create_weights(self, layer: Any, *args: Any, **kwargs: Any) -> None:
        before = set(layer._parameters)
        self.own.create_weights(layer, *args, **kwargs)
        self.made = [name for name in layer._parameters if name not in before]

    def process_weights_after_loading(self, layer: Any) -> None:
        """Pack on the device. Scales and zero points move into the packed weights."""
        layer.xgemm_up = self._pack(layer, "w13")
        layer.xgemm_down = self._pack(layer, "w2")
        for name in self.made:
            if name in layer._parameters:
                delattr(layer, name)
        # Parameters, for what counts a model's bytes or moves them.
        layer.register_parameter("up_qweight", layer.xgemm_up.qweight)
        layer.register_parameter("down_qweight", layer.xgemm_down.qweight)

    def _pack(self, layer: Any, part: str) -> Projection:
        names = self.words.names(part)
        form, qweight = pack_experts(self.words, [getattr(layer, name).data for name in names])
        for name in names:
            delattr(layer, name)
        bias = getattr(layer, f"{part}_bias", None)
        if bias is not None:
            dtype = layer.moe_config.in_dtype
            # GPTQ's method always makes one.
            bias = bias.data.to(dtype) if bool(bias.any()) else None
        return Projection(form, torch.nn.Parameter(qweight, requires_grad=False), bias)


def pack_experts(
    words: _Words, parameters: list[torch.Tensor]
) -> tuple[PackedFormat, torch.Tensor]:
    """The format and the packed weights uint8 [E, rows, row_bytes], a few experts at a time."""
    experts, step, start = parameters[0].shape[0], 1, 0
    while start < experts:
        own = slice(start, min(start + step, experts))
        codes, scales, *zeros = words.read([p[own] for p in parameters])
        count, n, k = codes.shape
        # Experts whose columns fill their rows are one weight with the columns of all.
        joined = [p.movedim(0, 1).flatten(1).contiguous() for p in (scales, *zeros)]
        points = joined[1] if zeros else None
        packed = pack(
            QuantizedWeight(
                codes.flatten(0, 1), joined[0], points, None, words.group_size, words.fp4
            )
        )
        if start == 0:
            form = PackedFormat(
                n, k, packed.group_size, packed.bf16_scales, packed.has_zeros, packed.fp4
            )
            layout = Layout(n, k, packed.group_size, packed.has_zeros)
            qweight = packed.qweight.new_empty(experts, layout.rows, layout.row_bytes)
            if n % ROW_COLUMNS == 0:
                step = max(1, CODES_AT_ONCE // (n * k))
        qweight[own] = packed.qweight.view(count, layout.rows, layout.row_bytes)
        start = own.stop
    return form, qweight


def _gelu_and_mul(rows: torch.Tensor) -> torch.Tensor:
    gate, up = rows.chunk(2, dim=-1)
    return torch.nn.functional.gelu(gate) * up


def _swigluoai_and_mul(rows: torch.Tensor) -> torch.Tensor:
    """gpt-oss' clamped gate, by vLLM's own kernel: of columns that are gate and rest by turns."""
    y = rows.new_empty(rows.shape[0], rows.shape[1] // 2)
    apply_moe_activation(MoEActivation.SWIGLUOAI, y, rows)
    return y


def _chosen(layer: Any, prefix: str, own: Any) -> Any:
    """The method of a layer for which vLLM has taken `own`."""
    if NAME in envs.VLLM_DISABLED_KERNELS or isinstance(own, ExpertsMethod):
        return own
    if reason := refusal(own, layer):
        logger.debug("%s stays with vLLM's own kernels: %s", prefix, reason)
        return own
    logger.info_once("Using %s for %s", NAME, type(own).__name__)
    return XgemmExpertsMethod(own, layer)


class XgemmRoutedExperts(RoutedExperts):
    """vLLM's layer of experts, with xgemm's method in the place of one that it can stand for."""

    def _get_quant_method(self, prefix: str, quant_config: Any, moe_config: Any) -> Any:
        own = super()._get_quant_method(prefix, quant_config, moe_config)
        return _chosen(self, prefix, own)


def _ask_in_gpt_oss() -> None:
    """The same for gpt-oss' subclass, once: a class of a module that not every model imports, so
    that there is none yet to register another for."""
    theirs: Any = RoutedExperts._get_quant_method
    if hasattr(theirs, "_of_xgemm"):
        return

    def get_quant_method(self: Any, prefix: str, quant_config: Any, moe_config: Any) -> Any:
        own = theirs(self, prefix, quant_config, moe_config)
        return _chosen(self, prefix, own) if type(self).__name__ == GPT_OSS else own

    get_quant_method._of_xgemm = True  # type: ignore[attr-defined]
    RoutedExperts._get_quant_method = get_quant_method


def install() -> None:
    """Have vLLM make layers of experts that ask xgemm first, once."""
    there = op_registry_oot.get(RoutedExperts.__name__)
    if there is None:
        RoutedExperts.register_oot(XgemmRoutedExperts)
    elif there is not XgemmRoutedExperts:
        raise TypeError(f"{there.__module__} is in the place of vLLM's RoutedExperts")
    _ask_in_gpt_oss()
