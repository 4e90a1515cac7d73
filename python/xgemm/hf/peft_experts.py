"""peft refuses LoRA over packed experts, which it would pass over, or spread over their bytes."""

from __future__ import annotations

import functools
from importlib.util import find_spec
from typing import Any

from torch import nn

from xgemm.nn import QuantExperts


@functools.cache
def refuse_packed_experts() -> None:
    """Have peft check each new LoRA adapter against the packed experts of the model, from now on.

    peft looks for `target_parameters` among a module's own parameters. Packed experts have none
    of the names: the adapter would be made without them, and a saved one loaded without them. By
    the name of the packed bytes it would add its float product to those.
    """
    if find_spec("peft") is None:
        return
    from peft.tuners.lora import LoraModel

    check = LoraModel._check_new_adapter_config

    @functools.wraps(check)
    def check_with_experts(self: Any, config: Any) -> None:
        check(self, config)
        _check_targets(self.model, getattr(config, "target_parameters", None) or ())

    LoraModel._check_new_adapter_config = check_with_experts


def _check_targets(model: nn.Module, targets: Any) -> None:
    for path, module in model.named_modules():
        if not isinstance(module, QuantExperts):
            continue
        for name in (*module.formats, *(f"{name}_qweight" for name in module.formats)):
            full = f"{path}.{name}"
            if any(full == target or full.endswith(f".{target}") for target in targets):
                raise ValueError(
                    f"LoraConfig: target_parameters includes {full}, and LoRA over packed experts "
                    "is not supported: name the layers to adapt in target_modules (peft takes "
                    "'all-linear' to include experts), or leave the experts float by "
                    "xgemm.quantize's skip"
                )
