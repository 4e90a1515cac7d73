"""XgemmHfQuantizer: how transformers loads, quantizes, saves and trains models of xgemm's."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.quantizers.base import HfQuantizer

from xgemm.formats.collect import refuse_shares
from xgemm.formats.trust import refuse_foreign_implementations
from xgemm.hf.back import BackReference
from xgemm.hf.config import XgemmConfig
from xgemm.hf.dequantizing import dequantize_modules
from xgemm.hf.foreign import ForeignConfig, ForeignLoading
from xgemm.hf.loading import Loading, check_files, packed_config
from xgemm.hf.peft_experts import refuse_packed_experts
from xgemm.hf.quantizing import QuantizeWeights, Quantizing
from xgemm.hf.shares import drop_awaited, refuse_tensor_parallel
from xgemm.hf.state import describe, mark, state_with_guards, unmark


class XgemmHfQuantizer(HfQuantizer):
    """The quantizer of the method "xgemm". transformers makes and calls it."""

    requires_calibration = False
    quantization_config: XgemmConfig
    pre_quantized: bool

    def __init__(self, quantization_config: XgemmConfig, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        if isinstance(quantization_config, ForeignConfig):
            self.pre_quantized = True  # though the model's config does not say so
        self._quantizing: Quantizing | None = None
        self._foreign: ForeignLoading | None = None
        self._model: BackReference | None = None

    # ---- loading ----

    def validate_environment(self, *args: Any, **kwargs: Any) -> None:
        if not self.pre_quantized:
            self.quantization_config.check_recipe()
        elif self.quantization_config.only_recipe:
            raise ValueError(
                "from_pretrained: the model's config holds a recipe, and no modules that are "
                "quantized: to quantize while loading, pass it as quantization_config="
            )

    @property
    def quantized_element_size(self) -> float:
        """Bytes a weight: half a byte, and its share of the scale and the zero point."""
        config = self.quantization_config
        parts = 1 if config.symmetric else 2
        group_size = config.group_size or -1
        return 0.5 + (0.0 if group_size == -1 else 2.0 * parts / group_size)

    def param_needs_quantization(
        self, model: PreTrainedModel, param_name: str, **kwargs: Any
    ) -> bool:
        return self._quantizing is not None and param_name in self._quantizing.weights

    def param_element_size(
        self, model: PreTrainedModel, param_name: str, param: torch.Tensor
    ) -> float:
        # Of what another tool quantized, device_map="auto" still sees the float weights.
        if self._foreign is not None and param_name in self._foreign.weights:
            return self._foreign.element_size
        return super().param_element_size(model, param_name, param)

    def get_quantize_ops(self) -> QuantizeWeights:
        assert self._quantizing is not None  # a parameter needed quantization
        return QuantizeWeights(self._quantizing)

    def get_new_dtype(self, converter: Any, param: Any, dtype: torch.dtype | None) -> Any:
        new = super().get_new_dtype(converter, param, dtype)
        if new is not None and not new.is_floating_point:
            raise ValueError(
                f"from_pretrained: {converter} must be {new} in the checkpoint, got floating point"
            )
        return new

    def update_attn_implementation(self, config: Any) -> Any:
        # The last call before the model is made, and with it before a kernel is fetched.
        refuse_foreign_implementations(config, "from_pretrained")
        return super().update_attn_implementation(config)

    def _process_model_before_weight_loading(
        self, model: PreTrainedModel, dtype: torch.dtype | None = None, **kwargs: Any
    ) -> None:
        files = kwargs.get("checkpoint_files") or ()
        check_files(files, model.config.name_or_path)
        if isinstance(self.quantization_config, ForeignConfig):
            refuse_tensor_parallel(model, "a model that another tool quantized")
            self._foreign = ForeignLoading(
                model,
                self.quantization_config,
                files,
                dtype or torch.get_default_dtype(),
            )
            return
        if not self.pre_quantized:
            packed = packed_config(files)
            if packed is not None:
                self.quantization_config, self.pre_quantized = packed, True
        if self.pre_quantized:
            Loading(model, self.quantization_config, dtype or torch.get_default_dtype(), files)
        else:
            refuse_tensor_parallel(model, "a model that is quantized")
            self._quantizing = Quantizing(model, self.quantization_config)

    def update_parallel_plan(self, model: PreTrainedModel, plan: dict[str, str]) -> None:
        super().update_parallel_plan(model, plan)
        drop_awaited(model, plan)

    def _process_model_after_weight_loading(
        self, model: PreTrainedModel, **kwargs: Any
    ) -> PreTrainedModel:
        if self._quantizing is not None:
            model.xgemm_report = self._quantizing.finish(model)
            self._quantizing = None
        self._foreign = None
        self.bind(model)
        return model

    def bind(self, model: PreTrainedModel) -> None:
        """Make `model`, and the models within it, say that they are quantized by this quantizer."""
        self._model = BackReference(model)
        self.quantization_config = describe(model, self.quantization_config)
        mark(model, self)
        if self.quantization_config.experts:
            refuse_packed_experts()

    # ---- what can be done with the model ----

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        """Adapters, heads, norms and embeddings train; gradients pass through packed weights."""
        return True

    @property
    def is_qat_trainable(self) -> bool:
        """Whether Trainer takes the model without adapters: where some parameters are frozen.

        Whoever freezes parameters has chosen what to train. Otherwise Trainer refuses, as it does
        for other methods: packed weights would stay as they are.
        """
        model = None if self._model is None else self._model()
        if model is None:
            return False
        floats = [p.requires_grad for p in model.parameters() if p.is_floating_point()]
        return any(floats) and not all(floats)

    @property
    def is_compileable(self) -> bool:
        return True

    def get_state_dict_and_metadata(self, model: PreTrainedModel) -> tuple[dict[str, Any], dict]:
        """The state with its guards, for save_pretrained; config.json gets the names of now."""
        refuse_shares("save_pretrained", model)
        model.config.quantization_config = describe(model, self.quantization_config)
        return state_with_guards(model), {}

    def _dequantize(
        self, model: PreTrainedModel, dtype: torch.dtype | str | None = None
    ) -> PreTrainedModel:
        # save_pretrained leaves a name as config.dtype.
        dequantize_modules(model, getattr(torch, dtype) if isinstance(dtype, str) else dtype)
        return model

    def remove_quantization_config(self, model: PreTrainedModel) -> None:
        unmark(model)
