"""XgemmLinearKernel: vLLM's int4 linears by `torch.ops.xgemm.mul.w4a16`. Imports vLLM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm import envs
from vllm.model_executor.kernels.linear import (
    _POSSIBLE_KERNELS,
    MPLinearKernel,
    MPLinearLayerConfig,
)
from vllm.model_executor.parameter import permute_param_layout_
from vllm.platforms import PlatformEnum
from vllm.scalar_type import scalar_types

from xgemm.formats.packed import GROUP_SIZES
from xgemm.vllm.words import pack_words

ACTIVATION_DTYPES = (torch.float16, torch.bfloat16)


class XgemmLinearKernel(MPLinearKernel):
    """A 4-bit linear of compressed-tensors, GPTQ, AWQ or Quark on xgemm's W4A16 kernels.

    Takes weights of type uint4b8 (symmetric) and uint4 with zero points, fp16 and bf16 activations,
    any input and output size, groups of 32, 64 or 128 channels or one group for all.
    """

    @classmethod
    def get_min_capability(cls) -> int:
        return 80

    @classmethod
    def can_implement(cls, c: MPLinearLayerConfig) -> tuple[bool, str | None]:
        expected = scalar_types.uint4 if c.zero_points else scalar_types.uint4b8
        if c.weight_type != expected:
            points = "with" if c.zero_points else "without"
            return False, (
                f"xgemm takes weights of type {expected} {points} zero points, got {c.weight_type}"
            )
        if c.act_type not in ACTIVATION_DTYPES:
            return False, f"xgemm takes fp16 and bf16 activations, got {c.act_type}"
        if getattr(c, "out_type", None) not in (None, c.act_type):
            return False, f"xgemm's output has the activations' dtype, not {c.out_type}"
        if c.group_size not in GROUP_SIZES:
            return False, f"xgemm takes a group size of {GROUP_SIZES}, got {c.group_size}"
        return True, None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._options = {}
        if self.config.zero_points:
            self._options["zeros"] = True
        if self.config.act_type == torch.bfloat16:  # vLLM casts scales to the activations' dtype
            self._options["bf16_scales"] = True
        if envs.VLLM_BATCH_INVARIANT:
            self._options["batch_invariant"] = True

    def process_weights_after_loading(self, layer: Any) -> None:
        """Repack one layer on its device. Scales and zero points move into the packed weight."""
        parts: dict[str, torch.Tensor] = {}

        def take(part: str, **layout: int) -> Callable[[Any], torch.Tensor]:
            def move(parameter: Any) -> torch.Tensor:
                permute_param_layout_(parameter, input_dim=0, output_dim=1, **layout)
                parts[part] = parameter.data
                return parameter.data.new_empty(0)

            return move

        def repack(parameter: Any) -> torch.Tensor:
            take("words", packed_dim=0)(parameter)
            return pack_words(group_size=self.config.group_size, **parts).qweight

        self._transform_param(layer, self.w_s_name, take("scales"))
        if self.config.zero_points:
            self._transform_param(layer, self.w_zp_name, take("zeros", packed_dim=1))
        self._transform_param(layer, self.w_q_name, repack)

    def apply_weights(
        self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        k, n = self.config.partition_weight_shape
        qweight = getattr(layer, self.w_q_name)
        return torch.ops.xgemm.mul.w4a16(
            x, qweight, n, k, self.config.group_size, bias, **self._options
        )


def install() -> None:
    """Put the kernel in front of vLLM's own for CUDA, once."""
    kernels = _POSSIBLE_KERNELS[PlatformEnum.CUDA]
    if XgemmLinearKernel not in kernels:
        kernels.insert(0, XgemmLinearKernel)
