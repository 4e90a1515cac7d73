"""XgemmConfig: what transformers passes, keeps and saves as a model's quantization_config."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from transformers.utils.quantization_config import QuantizationConfigMixin

from xgemm.formats.manifest import QUANT_METHOD, RECIPE, format_of
from xgemm.formats.packed import LAYOUT_VERSION, check_bool, check_group_size
from xgemm.quantize.rtn import SCALE_DTYPES
from xgemm.quantize.weight import check_method, choose_clip

_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in SCALE_DTYPES}


class XgemmConfig(QuantizationConfigMixin):
    """How a model is quantized, for `from_pretrained(..., quantization_config=XgemmConfig(...))`.

    method, group_size, symmetric, skip, include, lm_head, clip, scale_dtype: as in
        `xgemm.quantize`.

    modules, experts: what is quantized, by the name of the module, as config.json holds it; set by
        xgemm when a model has been quantized or is saved. A recipe that a checkpoint does not state
        is None.
    """

    def __init__(
        self,
        method: str | None = "rtn",
        group_size: int | None = 128,
        symmetric: bool | None = True,
        skip: str | Iterable[str] | None = (),
        *,
        include: str | Iterable[str] | None = (),
        lm_head: bool | None = False,
        clip: str | None = None,
        scale_dtype: torch.dtype | str | None = None,
        modules: Mapping[str, Any] | None = None,
        experts: Mapping[str, Any] | None = None,
        **saved: Any,
    ) -> None:
        self.quant_method: Any = QUANT_METHOD
        self.method = method
        self.group_size = group_size
        self.symmetric = symmetric
        self.clip = clip
        if isinstance(scale_dtype, torch.dtype):
            scale_dtype = str(scale_dtype).removeprefix("torch.")
        self.scale_dtype = scale_dtype
        self.lm_head = lm_head
        self.skip = _patterns(skip)
        self.include = _patterns(include)
        self.modules = dict(modules or {})
        self.experts = dict(experts or {})
        self._saved = saved
        self.only_recipe = modules is None and experts is None  # of no model yet
        if self.only_recipe:
            if saved:
                names = ", ".join(sorted(saved))
                raise TypeError(f"XgemmConfig: there is no argument {names}")
            self.check_recipe()
            self.clip = choose_clip("XgemmConfig", self.method, self.clip)

    def check_recipe(self) -> None:
        """Refuse what `xgemm.quantize` would refuse, before a weight is read."""
        check_method("XgemmConfig", self.method)
        check_group_size("XgemmConfig: group_size", self.group_size)
        check_bool("XgemmConfig: symmetric", self.symmetric)
        check_bool("XgemmConfig: lm_head", self.lm_head)
        choose_clip("XgemmConfig", self.method, self.clip)
        if self.scale_dtype is not None and self.scale_dtype not in _DTYPES:
            raise ValueError(
                f"XgemmConfig: scale_dtype must be torch.float16, torch.bfloat16 or None, "
                f"got {self.scale_dtype}"
            )

    def get(self, name: str, default: Any = None) -> Any:
        """As of a dict: transformers asks so where the config of a model in memory is passed on."""
        return getattr(self, name, default)

    def recipe(self) -> dict[str, Any]:
        """How to quantize, or how the model was quantized: the values of RECIPE."""
        return {name: getattr(self, name) for name in RECIPE}

    def weight_options(self) -> dict[str, Any]:
        """The keyword arguments of `quantize_weight`."""
        return {
            "method": self.method,
            "group_size": self.group_size,
            "symmetric": self.symmetric,
            "clip": self.clip,
            "scale_dtype": None if self.scale_dtype is None else _DTYPES[self.scale_dtype],
        }

    @classmethod
    def from_dict(
        cls, config_dict: dict[str, Any], return_unused_kwargs: bool = False, **kwargs: Any
    ) -> Any:
        """From config.json's section, or a recipe. A section's unknown names are kept."""
        values = dict(config_dict)
        if "modules" in values or "experts" in values:
            values = {"modules": {}, **dict.fromkeys(RECIPE), **values}
        else:  # of to_dict
            values.pop("format", None)
            values.pop("layout_version", None)
        for name in ("quant_method", "save_id"):  # the second is of one save by xgemm.save
            values.pop(name, None)
        config = cls(**copy.deepcopy(values))
        return (config, kwargs) if return_unused_kwargs else config

    def to_dict(self) -> dict[str, Any]:
        """The section of config.json."""
        values = {
            "quant_method": QUANT_METHOD,
            "format": format_of(self.experts),
            "layout_version": LAYOUT_VERSION,
            **{name: value for name, value in self.recipe().items() if value is not None},
            **self._saved,
        }
        if not self.only_recipe:
            values |= {"modules": self.modules, "experts": self.experts}
        return copy.deepcopy(values)


def _patterns(names: str | Iterable[str] | None) -> list[str] | None:
    if names is None:
        return None
    return [names] if isinstance(names, str) else list(names)
