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
