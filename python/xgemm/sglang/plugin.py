"""register: hooks SGLang's int4 linears in this process, or says in one warning why it cannot."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import inspect
import logging
import os
from typing import Any

import torch

from xgemm.sglang.linears import AWQ, COMPRESSED_TENSORS, GPTQ, HookedLinear

logger = logging.getLogger("xgemm")

SWITCH = "XGEMM_SGLANG"
CONFIG_FIELDS = {
    *("full_weight_shape", "partition_weight_shape", "weight_type", "act_type", "group_size"),
    *("zero_points", "has_g_idx"),
}
_SCHEMES = "sglang.srt.layers.quantization.compressed_tensors.schemes"
_KERNELS = "sglang.srt.hardware_backend.gpu.quantization"
# SGLang's classes that load and apply int4 linears: how, and the method that applies.
TARGETS: dict[str, tuple[HookedLinear, str]] = {
    f"{_SCHEMES}.compressed_tensors_wNa16.CompressedTensorsWNA16": (
        COMPRESSED_TENSORS,
        "apply_weights",
    ),
    f"{_KERNELS}.gptq_kernels.GPTQMarlinLinearKernel": (GPTQ, "apply"),
    f"{_KERNELS}.awq_kernels.AWQMarlinLinearKernel": (AWQ, "apply"),
}
LOAD = "process_weights_after_loading"

_registered = False


def register() -> None:
    """Hook SGLang's int4 linears. A second call changes nothing.

    With `XGEMM_SGLANG=0` in the environment nothing is done. An SGLang whose interface differs from
    the one that xgemm was written for gets one warning with the versions, and keeps its kernels.
    """
    global _registered
    if _registered or os.environ.get(SWITCH, "1") == "0":
        return
    _registered = True
    try:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        _check_interface()
    except (ImportError, AttributeError, TypeError) as error:
        logger.warning(
            "SGLang %s with torch %s is not what xgemm's plugin was written for (%s): SGLang goes "
            "on with its own kernels",
            _version("sglang"),
            torch.__version__,
            error,
        )
        return
    for target, (linear, apply) in TARGETS.items():
        HookRegistry.register(f"{target}.{LOAD}", linear.load, HookType.AROUND)
        HookRegistry.register(f"{target}.{apply}", linear.apply, HookType.AROUND)


def _check_interface() -> None:
    for target, (_, apply) in TARGETS.items():
        module, _, name = target.rpartition(".")
        found: Any = getattr(importlib.import_module(module), name)
        for method, expected in ((LOAD, ["layer"]), (apply, ["layer", "x", "bias"])):
            takes = list(inspect.signature(getattr(found, method)).parameters)[1:]
            if takes != expected:
                raise TypeError(f"{name}.{method} takes {takes}, expected {expected}")
    utils = importlib.import_module("sglang.srt.layers.quantization.marlin_utils")
    fields = {field.name for field in dataclasses.fields(utils.MarlinLinearLayerConfig)}
    if fields != CONFIG_FIELDS:
        other = min(fields ^ CONFIG_FIELDS)
        has = "has a" if other in fields else "has no"
        raise TypeError(f"MarlinLinearLayerConfig {has} field {other!r}")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "(of unknown version)"
