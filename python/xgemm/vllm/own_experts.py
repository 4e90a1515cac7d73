"""The packed experts of xgemm's own directories, served by vLLM. Imports vLLM.

vLLM's loader takes a file's tensor of all experts apart: it hands over each expert's rows, those of
the gate and those of what it multiplies by themselves.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from xgemm.formats.manifest import ExpertsSpec, ModuleSpec
from xgemm.formats.packed import ROW_COLUMNS, Layout
from xgemm.formats.packed_format import PackedFormat
from xgemm.formats.split import channels
from xgemm.nn.mixture import Projection
from xgemm.vllm.experts import ExpertsMethod, refusal_of_layer

# vLLM's parameters for a projection are called `<this>_qweight`, `_packed_format`, `_perm`.
PARTS = {"gate_up_proj": "w13_weight", "down_proj": "w2_weight"}


class XgemmPackedExpertsMethod(ExpertsMethod):
    """Experts as QuantExperts saves them, each packed by itself."""

    def __init__(self, prefix: str, spec: ExpertsSpec, layer: Any) -> None:
        super().__init__(layer.moe_config)
        self.prefix, self.spec = prefix, spec
        if reason := refusal_of_layer(layer) or self._refusal(layer):
            raise ValueError(f"xgemm: {prefix}: packed experts cannot be served: {reason}")

    def _refusal(self, layer: Any) -> str | None:
        projections, moe = self.spec.projections, layer.moe_config
        if projections.keys() != PARTS.keys():
            return f"projections {', '.join(projections)} are not taken"
        if any(spec.bias for spec in projections.values()):
            return "biases of experts are not taken"
        if getattr(layer, "is_fused_checkpoint_transposed", False):
            return "a model whose own files hold experts transposed is not taken"
        ranks = moe.moe_parallel_config.tp_size
        if projections["down_proj"].k % (ranks * ROW_COLUMNS) != 0:
            return (
                f"each of {ranks} GPUs must have a multiple of {ROW_COLUMNS} of the "
                f"{projections['down_proj'].k} inner channels"
            )
        if ranks > 1 and projections["down_proj"].act_order:
            return f"an order of channels (act-order) cannot be split over {ranks} GPUs"
        return None

    def create_weights(
        self,
        layer: Any,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        inner, rank = intermediate_size_per_partition, layer.moe_config.moe_parallel_config.tp_rank
        found = layer.expert_map
        self.local = None if found is None else found.tolist()
        self.inner = range(rank * inner, (rank + 1) * inner)
        for name, part in PARTS.items():
            spec = self.spec.projections[name]
            form = self._form(name, spec)
            layout = Layout(form.n, form.k, form.group_size, form.zeros)
            shape = (num_experts, layout.rows, layout.row_bytes)
            self._register(layer, f"{part}_qweight", torch.empty(shape, dtype=torch.uint8))
            self._register(
                layer, f"{part}_packed_format", torch.empty(len(form.fields), dtype=torch.int64)
            )
            if spec.act_order:
                perm = torch.empty(num_experts, form.k, dtype=torch.int32)
                self._register(layer, f"{part}_perm", perm)

    def _form(self, name: str, spec: ModuleSpec) -> PackedFormat:
        """This GPU's share of a projection: columns of the first, channels of the second."""
        n, k, size = spec.n, spec.k, spec.group_size
        if name == "gate_up_proj":
            n = 2 * len(self.inner)
        else:
            k = len(self.inner)
            if size != -1 and self.inner.start % size != 0:  # as `channels` makes them
                size = math.gcd(self.inner.start, size)
        return spec.form._replace(n=n, k=k, group_size=size)

    def _register(self, layer: Any, name: str, data: torch.Tensor) -> None:
        parameter: Any = torch.nn.Parameter(data, requires_grad=False)
        parameter.weight_loader = self._load
        layer.register_parameter(name, parameter)

    def _load(
        self,
        param: Any,
        loaded_weight: torch.Tensor,
        weight_name: str,
        shard_id: str,
        expert_id: int,
        return_success: bool = False,
    ) -> bool | None:
        """One expert's rows of a projection's packed weight, or what all experts share."""
        name = "down_proj" if shard_id == "w2" else "gate_up_proj"
        spec = self.spec.projections[name]
        whole = spec.form
        if weight_name.endswith("_packed_format"):
            whole.check(f"xgemm: {self.prefix}: {name}", loaded_weight)
            return True
        experts = range(self.spec.num_experts) if self.local is None else self.local
        if weight_name.endswith("_perm"):
            for e, local in enumerate(experts):
                if local >= 0:
                    param.data[local].copy_(loaded_weight[e])
            return True
        local = experts[expert_id]
        if local < 0:  # another GPU's
            return False
        own = param.data[local]
        if name == "down_proj":
            loaded = loaded_weight.to(own.device)  # where it may be repacked
            own.copy_(channels(loaded, whole, self.inner).qweight)
        else:
            rows = own.shape[0] // 2
            half = own[:rows] if shard_id == "w1" else own[rows:]
            first = self.inner.start // ROW_COLUMNS
            half.copy_(loaded_weight[first : first + rows])
        return True

    def process_weights_after_loading(self, layer: Any) -> None:
        made = []
        for name, part in PARTS.items():
            spec = self.spec.projections[name]
            qweight = getattr(layer, f"{part}_qweight")
            perm = getattr(layer, f"{part}_perm").data if spec.act_order else None
            made.append(Projection(self._form(name, spec), qweight, None, perm))
            delattr(layer, f"{part}_packed_format")
        layer.xgemm_up, layer.xgemm_down = made
