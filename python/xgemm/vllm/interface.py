"""What xgemm expects of vLLM's interface, compared with the vLLM at hand."""

from __future__ import annotations

import dataclasses
import inspect

# Fields of vLLM's description of a linear. One that is not known here could ask for something that
# the kernel does not do, such as an order of channels.
CONFIG_FIELDS = {
    *("full_weight_shape", "partition_weight_shape", "weight_type", "act_type", "group_size"),
    *("zero_points", "out_type"),
}
KERNEL_METHODS = {
    "get_min_capability": [],
    "can_implement": ["c"],
    "process_weights_after_loading": ["self", "layer"],
    "apply_weights": ["self", "layer", "x", "bias"],
    "_transform_param": ["self", "layer", "name", "fn"],
}
# The same of a layer of experts, and of what it asks its method.
EXPERTS_FIELDS = {
    *("num_experts", "experts_per_token", "hidden_dim", "intermediate_size", "num_local_experts"),
    *("num_logical_experts", "activation", "device", "routing_method", "moe_parallel_config"),
    *("in_dtype", "router_logits_dtype", "hidden_dim_unpadded", "intermediate_pad"),
    *("intermediate_size_per_partition_unpadded", "moe_backend", "max_num_tokens", "has_bias"),
    *("elastic_ep_max_dp_size", "is_lora_enabled", "has_hash_routing", "shared_expert_prefix"),
    *("require_decomposed_backend", "skip_final_all_reduce", "_defer_moe_finalize"),
    *("defer_moe_finalize_max_num_tokens", "swiglu_limit", "swiglu_alpha", "swiglu_beta"),
    *("activation_situ_beta", "activation_situ_linear_beta", "max_capture_size"),
    *("intermediate_size_per_partition", "tp_shard_with_padding", "rocm_aiter_fmoe_enabled"),
    *("aiter_fmoe_shared_expert_enabled", "use_mxfp4_w4a4_dsv4"),
}
EXPERTS_METHODS = {
    "FusedMoEMethodBase.__init__": ["self", "moe"],
    "FusedMoEMethodBase.apply": [
        *("self", "layer", "x", "topk_weights", "topk_ids", "shared_experts"),
        "shared_experts_input",
    ],
    "FusedMoEMethodBase.get_fused_moe_quant_config": ["self", "layer"],
    "FusedMoEMethodBase.maybe_roundup_sizes": [
        *("self", "hidden_size", "intermediate_size_per_partition", "act_dtype"),
        "moe_parallel_config",
    ],
    "RoutedExperts._get_quant_method": ["self", "prefix", "quant_config", "moe_config"],
}


def check_interface() -> None:
    """Raise TypeError, ImportError or AttributeError where vLLM's interface is another."""
    from vllm.model_executor.kernels.linear import MPLinearKernel, MPLinearLayerConfig

    fields = {field.name for field in dataclasses.fields(MPLinearLayerConfig)}
    if unknown := fields - CONFIG_FIELDS:
        raise TypeError(f"MPLinearLayerConfig has a field {min(unknown)!r}")
    if missing := CONFIG_FIELDS - {"out_type"} - fields:
        raise TypeError(f"MPLinearLayerConfig has no field {min(missing)!r}")
    for name, expected in KERNEL_METHODS.items():
        found = list(inspect.signature(getattr(MPLinearKernel, name)).parameters)
        if found != expected:
            raise TypeError(f"MPLinearKernel.{name} takes {found}, expected {expected}")
    if unimplemented := MPLinearKernel.__abstractmethods__ - set(KERNEL_METHODS):
        raise TypeError(f"MPLinearKernel asks for {min(unimplemented)!r}")


def check_experts() -> None:
    """The same of vLLM's experts."""
    from vllm.model_executor.layers import fused_moe

    fields = {field.name for field in dataclasses.fields(fused_moe.FusedMoEConfig)}
    if changed := fields ^ EXPERTS_FIELDS:
        one = min(changed)
        raise TypeError(f"FusedMoEConfig has {'a' if one in fields else 'no'} field {one!r}")
    for name, expected in EXPERTS_METHODS.items():
        of, method = name.split(".")
        found = list(inspect.signature(getattr(getattr(fused_moe, of), method)).parameters)
        if found != expected:
            raise TypeError(f"{name} takes {found}, expected {expected}")
    known = {"create_weights", "apply", "get_fused_moe_quant_config"}
    if unimplemented := fused_moe.FusedMoEMethodBase.__abstractmethods__ - known:
        raise TypeError(f"FusedMoEMethodBase asks for {min(unimplemented)!r}")
