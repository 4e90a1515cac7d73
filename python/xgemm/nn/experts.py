"""QuantExperts: the experts of a mixture-of-experts layer over 4-bit weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling

from xgemm.derivatives import needs_derivative
from xgemm.formats.guard import add_guards, drop_guards, is_guard
from xgemm.formats.packed import Layout, PackedWeight, check_permutation
from xgemm.formats.packed_format import PackedFormat
from xgemm.nn.experts_linear import FLOATS, expert_bounds, experts_linear
from xgemm.nn.float_experts import experts_projections, is_transposed, pack_experts
from xgemm.nn.mixture import Projection, fused_gate, mixture, takes
from xgemm.nn.parameter import PackedParameter, has_values
from xgemm.nn.weight import ReadOnlyWeight, is_made_by, refuse_assignment

__all__ = ["QuantExperts"]

# What nn.Module and accelerate keep in an instance; the rest is the module's own.
_NOT_OWN = frozenset(vars(nn.Module())) | {"_hf_hook", "_old_forward", "forward"}


@dataclass(frozen=True)
class _Dequantize:
    """Makes the float weights of a projection; equal to another for the same one."""

    experts: QuantExperts
    name: str

    def __call__(self) -> torch.Tensor:
        return self.experts.dequantize(self.name)


def _read_only_projection(name: str) -> property:
    def get(self: QuantExperts) -> torch.Tensor:
        return self._weight(name)

    def set(self: QuantExperts, value: Any) -> None:
        # functional_call assigns a state's guard, and what was there before.
        if not is_made_by(value, _Dequantize(self, name)) and not is_guard(value):
            refuse_assignment(type(self).__name__, name)

    doc = "The float weights in compute_dtype, read-only: see QuantLinear.weight."
    return property(get, set, doc=doc)


class QuantExperts(nn.Module):
    """Experts with 4-bit weights, in the place of a module that holds them as 3-D parameters.

    forward(hidden_states [T, H], top_k_index [T, k], top_k_weights [T, k]) -> [T, H], as in
    transformers: token t gets the sum over j of top_k_weights[t, j] times expert top_k_index[t, j]
    of it. An id below 0, or of num_experts or more, is no expert. Without an index (Llama 4's form)
    hidden_states is [E * T, H], T rows for each expert, and so is the result. With an index and
    without a gradient a CUDA graph can capture it.

    It takes over the attributes, submodules (act_fn, post_expert_norm) and other parameters of the
    module that it is made from, and computes the gate by that module's `_apply_gate`. The experts
    run one after the other, those with no token not at all. The result is the same from run to run.
    It has a gradient in hidden_states, top_k_weights and the biases.

    Parameters and buffers, for each projection ("gate_up_proj" or "up_proj", and "down_proj"):
        <name>_qweight: uint8 [E, rows, row_bytes], without gradient: each expert's packed weight
            [N, K], however the float weights lay.
        <name>_perm: int32 [E, K] or None (act-order).
        <name>_packed_format: int64 [6], as in QuantLinear; [7] of MXFP4.
        <name>_bias: the float module's own.

    formats: {projection: PackedFormat}. compute_dtype: as in QuantLinear.
    """

    num_experts: int
    formats: dict[str, PackedFormat]
    compute_dtype: torch.dtype
    _source_type: type[nn.Module]
    _transposed: bool
    act_fn: Callable[[torch.Tensor], torch.Tensor]

    def __init__(
        self,
        module: nn.Module,
        formats: Mapping[str, PackedFormat],
        *,
        act_order: Collection[str] = (),
        device: torch.device | str | None = None,
    ) -> None:
        """Weights of 0, to be filled, for `module`, whose own weights are not read.

        act_order: the projections that have a perm.
        device: of the packed weights; None takes that of the module's weights.
        """
        super().__init__()
        shapes = _projections(module)
        if shapes is None:
            raise TypeError(
                f"QuantExperts: module must hold experts as 3-D parameters in a form that is "
                f"known, got {type(module).__name__}"
            )
        if formats.keys() != shapes.keys():
            raise ValueError(
                f"QuantExperts: formats must name {sorted(shapes)}, got {sorted(formats)}"
            )
        self.__dict__.update((k, v) for k, v in vars(module).items() if k not in _NOT_OWN)
        up_weight: torch.Tensor = getattr(module, next(iter(shapes)))
        self.compute_dtype = up_weight.dtype
        if not isinstance(module, QuantExperts):
            self._source_type, self._transposed = type(module), bool(is_transposed(module))
        self.formats = {name: formats[name] for name in shapes}
        weights = _float_and_packed(shapes)
        for name, child in module._modules.items():
            self.add_module(name, child)
        for name, buffer in module._buffers.items():
            if name not in weights:
                self.register_buffer(name, buffer, name not in module._non_persistent_buffers_set)
        for name, shape in shapes.items():
            where = up_weight.device if device is None else device
            self._add_projection(name, shape, name in act_order, where)
        for name, parameter in module._parameters.items():
            if name not in weights:
                self.register_parameter(name, parameter)
        self.train(module.training)

    def _add_projection(
        self, name: str, shape: tuple[int, int], act_order: bool, device: torch.device | str
    ) -> None:
        form, experts = self.formats[name], self.num_experts
        if (form.n, form.k) != shape:
            raise ValueError(
                f"QuantExperts: {name} is {list(shape)} in the module, got a format of "
                f"[{form.n}, {form.k}]"
            )
        layout = Layout(form.n, form.k, form.group_size, form.zeros)
        shape_of_all = (experts, layout.rows, layout.row_bytes)
        qweight = torch.zeros(shape_of_all, dtype=torch.uint8, device=device)
        self.register_parameter(f"{name}_qweight", PackedParameter(qweight))
        perm = None
        if act_order:
            perm = torch.arange(form.k, dtype=torch.int32, device=device).repeat(experts, 1)
        self.register_buffer(f"{name}_perm", perm)
        self.register_buffer(f"{name}_packed_format", form.to_tensor(device))

    @classmethod
    def from_packed(
        cls, module: nn.Module, packed: Mapping[str, Sequence[PackedWeight]]
    ) -> QuantExperts:
        """`module` with the packed weights of each projection's experts, on their device.

        The experts of a projection must be of one format; where one has a perm, those without one
        get the order that they have.
        """
        formats, act_order = {}, []
        for name, weights in packed.items():
            formats[name] = _format_of(weights[0])
            for e, weight in enumerate(weights):
                if _format_of(weight) != formats[name]:
                    raise ValueError(
                        f"QuantExperts: {name}: expert {e} has another format than expert 0"
                    )
            if any(weight.perm is not None for weight in weights):
                act_order.append(name)
        experts = cls(module, formats, act_order=act_order, device="meta")
        for name, weights in packed.items():
            form, qweight = formats[name], torch.stack([p.qweight for p in weights])
            if qweight.shape[0] != experts.num_experts:
                raise ValueError(
                    f"QuantExperts: {name} must have {experts.num_experts} packed weights, "
                    f"got {len(weights)}"
                )
            experts._parameters[f"{name}_qweight"] = PackedParameter.of(qweight)
            experts._buffers[f"{name}_packed_format"] = form.to_tensor(qweight.device)
            if name in act_order:
                in_order = torch.arange(form.k, dtype=torch.int32, device=qweight.device)
                perms = [in_order if p.perm is None else p.perm for p in weights]
                experts._buffers[f"{name}_perm"] = torch.stack(perms)
        return experts

    @classmethod
    def from_experts(cls, module: nn.Module, method: str = "rtn", **options: Any) -> QuantExperts:
        """`module` with its weights quantized by `quantize_weight(weight, method, **options)`.

        Each expert is quantized by itself. Scales are fp16, or bf16 for all experts of a projection
        where one of them needs it.
        """
        shapes = experts_projections(module)
        if shapes is None:
            raise TypeError(
                f"from_experts: module must hold experts as 3-D parameters in a form that is "
                f"known, got {type(module).__name__}"
            )
        packed = {}
        for name in shapes:
            weights: Any = module._parameters[name]
            packed[name] = pack_experts(module, weights, method, **options)
        return cls.from_packed(module, packed)

    def to_packed(self, name: str) -> list[PackedWeight]:
        """The packed weight of each expert of a projection, sharing its tensors."""
        form = self._format(name)
        qweight, perm = self._parameters[f"{name}_qweight"], self._buffers[f"{name}_perm"]
        assert qweight is not None  # of every projection
        return [
            PackedWeight(
                qweight=qweight.detach()[e],
                n=form.n,
                k=form.k,
                group_size=form.group_size,
                bf16_scales=form.bf16_scales,
                has_zeros=form.zeros,
                perm=None if perm is None else perm[e],
                fp4=form.fp4,
            )
            for e in range(self.num_experts)
        ]

    def dequantize(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The float weights of a projection, as the float module holds them.

        dtype: fp16, bf16 or fp32; None takes compute_dtype.
        """
        dtype = self.compute_dtype if dtype is None else dtype
        weights = torch.stack([p.dequantize(dtype) for p in self.to_packed(name)])
        return weights.mT.contiguous() if self._transposed else weights

    def to_experts(self) -> nn.Module:
        """The float module that this one stands for, with the dequantized weights."""
        module = self._source_type.__new__(self._source_type)
        nn.Module.__init__(module)
        ours = {"formats", "compute_dtype", "_source_type", "_transposed"} | _NOT_OWN
        module.__dict__.update((k, v) for k, v in vars(self).items() if k not in ours)
        packed = _float_and_packed(self.formats)
        for name in self.formats:
            module.register_parameter(name, nn.Parameter(self.dequantize(name)))
        for name, parameter in self._parameters.items():
            if name not in packed:
                module.register_parameter(name, parameter)
        for name, buffer in self._buffers.items():
            if name not in packed:
                module.register_buffer(name, buffer, name not in self._non_persistent_buffers_set)
        for name, child in self._modules.items():
            module.add_module(name, child)
        return module.train(self.training)

    def _format(self, name: str) -> PackedFormat:
        if name not in self.formats:
            raise ValueError(
                f"QuantExperts: name must be one of {list(self.formats)}, got {name!r}"
            )
        return self.formats[name]

    def _weight(self, name: str) -> torch.Tensor:
        if name not in self.formats:
            raise AttributeError(f"{type(self).__name__} has no {name}")
        if is_compiling():
            return self.dequantize(name)
        form = self.formats[name]
        shape = (form.k, form.n) if self._transposed else (form.n, form.k)
        device = getattr(self, f"{name}_qweight").device
        return ReadOnlyWeight(
            (self.num_experts, *shape), self.compute_dtype, device, _Dequantize(self, name)
        )

    gate_up_proj = _read_only_projection("gate_up_proj")
    up_proj = _read_only_projection("up_proj")
    down_proj = _read_only_projection("down_proj")

    # ---- forward ----

    def forward(
        self,
        hidden_states: torch.Tensor,
        top_k_index: torch.Tensor | None = None,
        top_k_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if top_k_index is None or top_k_weights is None:
            return self._forward_sorted(hidden_states)
        if top_k_index.dim() != 2 or top_k_weights.shape != top_k_index.shape:
            raise ValueError(
                f"QuantExperts: top_k_index and top_k_weights must be [tokens, k], "
                f"got {list(top_k_index.shape)} and {list(top_k_weights.shape)}"
            )
        tokens, k = top_k_index.shape
        if hidden_states.dim() != 2 or hidden_states.shape[0] != tokens:
            raise ValueError(
                f"QuantExperts: hidden_states must be [tokens, channels] with {tokens} tokens, "
                f"got {list(hidden_states.shape)}"
            )
        if self._captures(hidden_states, top_k_index, top_k_weights):
            return self._mixture(hidden_states, top_k_index, top_k_weights)
        ids = top_k_index.reshape(-1)
        ids, order = ids.masked_fill(ids < 0, self.num_experts).sort(stable=True)
        # A copy for each use of a token, so that a gradient's sum over them has one order.
        spread = hidden_states[:, None].expand(tokens, k, hidden_states.shape[1])
        y = self._compute(
            spread.reshape(tokens * k, hidden_states.shape[1]).index_select(0, order), ids
        )
        y = y * top_k_weights.reshape(-1).index_select(0, order)[:, None]
        y = torch.zeros_like(y).index_copy(0, order, y)
        return y.view(tokens, k, y.shape[1]).sum(dim=1).to(hidden_states.dtype)

    def _forward_sorted(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The form without routing: rows of 0, of tokens that others have, are not computed."""
        if hidden_states.dim() != 2 or hidden_states.shape[0] % self.num_experts != 0:
            raise ValueError(
                f"QuantExperts: without top_k_index, hidden_states must be [rows, channels] with "
                f"the same number of rows for each of {self.num_experts} experts, "
                f"got {list(hidden_states.shape)}"
            )
        rows = hidden_states.shape[0] // self.num_experts
        ids = torch.arange(self.num_experts, device=hidden_states.device).repeat_interleave(rows)
        ids = ids.masked_fill((hidden_states == 0).all(dim=1), self.num_experts)
        ids, order = ids.sort(stable=True)
        y = self._compute(hidden_states.index_select(0, order), ids)
        return torch.zeros_like(y).index_copy(0, order, y).to(hidden_states.dtype)

    def _captures(self, x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> bool:
        """Whether the forward is the calls that a CUDA graph can hold: without a gradient."""
        k = next(iter(self.formats.values())).k
        if x.dtype not in FLOATS or x.shape[1] != k:
            return False  # the loop says what is wrong
        weights_of_one = sum(form.n * form.k for form in self.formats.values())
        if not takes(x, index, self.num_experts, weights_of_one):
            return False
        tensors = (x, weights, *(getattr(self, f"{name}_bias", None) for name in self.formats))
        if is_compiling():
            asked = (tensor.requires_grad for tensor in tensors if tensor is not None)
            return not (torch.is_grad_enabled() and any(asked))
        return not needs_derivative(*tensors)

    def _mixture(self, x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        dtype, x = x.dtype, _autocast(x)
        up, down = (self._projection(name, x.dtype) for name in self.formats)
        gate = self._gate() if "gate_up_proj" in self.formats else self.act_fn
        norm: Any = getattr(self, "post_expert_norm", None)
        return mixture(x, index, weights, up, down, gate, norm).to(dtype)

    def _compute(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """[S, H] of rows x sorted by their expert `ids`; 0 where the id is num_experts or more."""
        x = _autocast(x)
        bounds = expert_bounds(ids, self.num_experts)
        up_name, down_name = self.formats
        x = self._linear(up_name, x, bounds)
        x = self._apply_gate(x) if up_name == "gate_up_proj" else self.act_fn(x)
        x = self._linear(down_name, x, bounds)
        norm: Any = getattr(self, "post_expert_norm", None)
        return x if norm is None else norm(x)

    def _linear(self, name: str, x: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
        own = self._projection(name, x.dtype)
        return experts_linear(x, own.qweight, bounds, own.bias, own.perm, own.form)

    def _projection(self, name: str, dtype: torch.dtype) -> Projection:
        bias: torch.Tensor | None = getattr(self, f"{name}_bias", None)
        if bias is not None and bias.dtype != dtype:
            bias = bias.to(dtype)
        qweight, perm = getattr(self, f"{name}_qweight"), getattr(self, f"{name}_perm")
        return Projection(self.formats[name], qweight, bias, perm)

    def _gate(self) -> str | Callable[[torch.Tensor], torch.Tensor]:
        """The gate's name where moe.w4a16 has it, else the module's own function of rows."""
        own = getattr(self._source_type, "_apply_gate", None)
        plain = own is None or own.__name__ == "_default_apply_gate"  # transformers'
        return (fused_gate(self.act_fn) if plain else None) or self._apply_gate

    def _apply_gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        own: Callable[..., torch.Tensor] | None = getattr(self._source_type, "_apply_gate", None)
        if own is not None:
            return own(self, gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return self.act_fn(gate) * up

    # ---- state ----

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        def keeping_integers(tensor: torch.Tensor) -> torch.Tensor:
            result = fn(tensor)  # .type(dtype) would convert packed bytes and channels too
            keep = not tensor.is_floating_point() and result.dtype != tensor.dtype
            return tensor.to(result.device) if keep else result

        was_meta = {name for name in self.formats if self._format_buffer(name).is_meta}
        super()._apply(keeping_integers, recurse)
        self._own_packed_parameters()
        for name in self.formats:
            buffer = self._format_buffer(name)
            if name in was_meta and not buffer.is_meta:  # to_empty made it, without values
                written = self.formats[name].to_tensor(buffer.device)
                self._buffers[f"{name}_packed_format"] = written
        self.compute_dtype = fn(torch.empty(1, dtype=self.compute_dtype, device="cpu")).dtype
        return self

    def _format_buffer(self, name: str) -> torch.Tensor:
        buffer = self._buffers[f"{name}_packed_format"]
        assert buffer is not None  # of every projection
        return buffer

    def _own_packed_parameters(self) -> None:
        """Packed bytes are PackedParameters, whatever torch has put in their place."""
        for name in self.formats:
            key = f"{name}_qweight"
            self._parameters[key] = PackedParameter.of(getattr(self, key))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._own_packed_parameters()

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in self.formats:
            key = f"{prefix}{name}_qweight"
            if not keep_vars and type(destination[key]) is PackedParameter:
                destination[key] = destination[key].data  # a plain tensor, as of any parameter
        add_guards(self, destination, prefix, {name: f"{name}_qweight" for name in self.formats})

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        # Refused here, before nn.Module copies anything.
        state_dict = dict(state_dict)
        drop_guards(state_dict, prefix, self.formats)
        where = prefix.removesuffix(".") or "QuantExperts"
        for name, form in self.formats.items():
            given = state_dict.get(f"{prefix}{name}_packed_format")
            if given is not None:
                form.check(f"{where}: {name}", given)
            perm = state_dict.get(f"{prefix}{name}_perm")
            if isinstance(perm, torch.Tensor) and not perm.is_meta:
                for row in perm:
                    check_permutation(f"{where}: {name}_perm", row, form.k)
            qweight = state_dict.get(f"{prefix}{name}_qweight")
            if isinstance(qweight, torch.Tensor) and qweight.dtype != torch.uint8:
                raise ValueError(f"{where}: {name}_qweight must be uint8, got {qweight.dtype}")
            if has_values(qweight):
                form.check_finite(f"{where}: {name}_qweight", qweight)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self._own_packed_parameters()

    def extra_repr(self) -> str:
        parts = [f"num_experts={self.num_experts}", f"experts={self._source_type.__name__}"]
        for name, form in self.formats.items():
            scales = "bf16" if form.bf16_scales else "fp16"
            parts.append(
                f"{name}=[{form.n}, {form.k}] group_size={form.group_size} scales={scales} "
                f"{'fp4' if form.fp4 else f'zeros={form.zeros}'}"
            )
        return ", ".join(parts)


def _autocast(x: torch.Tensor) -> torch.Tensor:
    """x in autocast's dtype, where that is on."""
    device = x.device.type  # of "meta" torch knows no autocast
    if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
        return x
    return x if x.dtype == torch.float64 else x.to(torch.get_autocast_dtype(device))


def _projections(module: nn.Module) -> dict[str, tuple[int, int]] | None:
    if isinstance(module, QuantExperts):
        return {name: (form.n, form.k) for name, form in module.formats.items()}
    return experts_projections(module)


def _float_and_packed(projections: Iterable[str]) -> set[str]:
    """The names of the tensors that hold weights, in the float module and in the packed one."""
    parts = ("", "_qweight", "_perm", "_packed_format")
    return {f"{name}{part}" for name in projections for part in parts}


def _format_of(packed: PackedWeight) -> PackedFormat:
    return PackedFormat(
        packed.n, packed.k, packed.group_size, packed.bf16_scales, packed.has_zeros, packed.fp4
    )
