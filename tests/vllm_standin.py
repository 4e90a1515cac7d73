"""Stand-ins for the parts of vLLM that xgemm.vllm uses, with the signatures of the real ones.

They do on a CPU, for one tensor-parallel rank at a time, what vLLM's loader does to a layer: which
rank and how many ranks there are is `world`. tests/vllm_interface.json says what the signatures
are; tools/vllm_interface.py reads that from a wheel of vLLM.
"""

from __future__ import annotations

import enum
import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

world = SimpleNamespace(rank=0, size=1)


class PlatformEnum(enum.Enum):
    CUDA = enum.auto()
    ROCM = enum.auto()
    TPU = enum.auto()
    XPU = enum.auto()
    CPU = enum.auto()
    OOT = enum.auto()
    UNSPECIFIED = enum.auto()


@dataclass
class MPLinearLayerConfig:
    full_weight_shape: tuple[int, int]
    partition_weight_shape: tuple[int, int]
    weight_type: str
    act_type: torch.dtype
    group_size: int
    zero_points: bool
    out_type: torch.dtype | None = None


class MPLinearKernel(ABC):
    @classmethod
    @abstractmethod
    def get_min_capability(cls) -> int: ...

    @classmethod
    @abstractmethod
    def can_implement(cls, c: MPLinearLayerConfig) -> tuple[bool, str | None]: ...

    def __init__(
        self,
        c: MPLinearLayerConfig,
        w_q_param_name: str,
        w_s_param_name: str,
        w_zp_param_name: str | None = None,
    ) -> None:
        self.config = c
        self.w_q_name, self.w_s_name = w_q_param_name, w_s_param_name
        self.w_zp_name = w_zp_param_name

    @abstractmethod
    def process_weights_after_loading(self, layer: Any) -> None: ...

    @abstractmethod
    def apply_weights(self, layer: Any, x: Any, bias: Any = None) -> torch.Tensor: ...

    def _transform_param(self, layer: Any, name: str | None, fn: Any) -> None:
        if name is None or getattr(layer, name, None) is None:
            return
        given = getattr(layer, name)
        retagged = type(given).__new__(type(given), given.data)
        retagged.__dict__.update(given.__dict__)
        setattr(layer, name, torch.nn.Parameter(fn(retagged).data, requires_grad=False))


class BasevLLMParameter(torch.nn.Parameter):
    def __new__(cls, data: torch.Tensor, **_: Any) -> Any:
        return super().__new__(cls, data, requires_grad=False)

    def __init__(self, data: torch.Tensor, weight_loader: Any) -> None:
        self.weight_loader = weight_loader
        self.tp_rank, self.tp_size = world.rank, world.size


class RowvLLMParameter(BasevLLMParameter):
    def load_row_parallel_weight(self, loaded_weight: torch.Tensor) -> None:
        size = self.data.shape[self.input_dim]
        self.data.copy_(loaded_weight.narrow(self.input_dim, self.tp_rank * size, size))


class PackedvLLMParameter(RowvLLMParameter):
    def __init__(
        self,
        packed_factor: int,
        packed_dim: int,
        marlin_tile_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.packed_factor, self.packed_dim = packed_factor, packed_dim
        self.input_dim, self.output_dim = kwargs.pop("input_dim"), kwargs.pop("output_dim")
        super().__init__(**kwargs)

    def load_columns(self, loaded: torch.Tensor, offset: int, size: int, rank: int) -> None:
        """Rank `rank`'s share of one linear, into columns [offset, offset + size) of this one's."""
        if self.packed_dim == self.output_dim:
            offset, size = offset // self.packed_factor, -(-size // self.packed_factor)
        source = loaded.narrow(self.output_dim, rank * size, size)
        self.data.narrow(self.output_dim, offset, size).copy_(source)


def permute_param_layout_(param: Any, input_dim: int, output_dim: int, **kwargs: int) -> Any:
    order = [0, 0]
    order[input_dim], order[output_dim] = param.input_dim, param.output_dim
    if "packed_dim" in kwargs and param.packed_dim != order[kwargs["packed_dim"]]:
        raise ValueError("permute_param_layout_ does not repack")
    param.data = param.data.permute(*order)
    param.input_dim, param.output_dim = input_dim, output_dim
    return param


class QuantizeMethodBase(ABC):
    @abstractmethod
    def create_weights(self, layer: Any, *weight_args: Any, **extra_weight_attrs: Any) -> None: ...

    @abstractmethod
    def apply(self, layer: Any, *args: Any, **kwargs: Any) -> torch.Tensor: ...

    def process_weights_after_loading(self, layer: Any) -> None:
        return


class LinearMethodBase(QuantizeMethodBase):
    @abstractmethod
    def create_weights(
        self,
        layer: Any,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None: ...

    @abstractmethod
    def apply(self, layer: Any, x: Any, bias: Any = None) -> torch.Tensor: ...


class UnquantizedLinearMethod: ...


class LinearBase(torch.nn.Module):
    """A linear of `columns` joined along the output, split over the ranks along one dimension."""

    def __init__(
        self, k: int, columns: list[int], config: Any, prefix: str, split: str = "columns"
    ) -> None:
        super().__init__()
        self.split = split
        self.columns = [n // world.size if split == "columns" else n for n in columns]
        self.quant_method = config.get_quant_method(self, prefix)
        self.quant_method.create_weights(
            self,
            k // world.size if split == "channels" else k,
            self.columns,
            k,
            sum(columns),
            torch.bfloat16,
            weight_loader=self.load,
        )

    def load(self, param: Any, loaded: torch.Tensor, shard_id: Any = None) -> None:
        if self.split == "channels":
            param.load_row_parallel_weight(loaded)
            return
        index = {"q": 0, "k": 1, "v": 2, None: 0}.get(shard_id, shard_id)
        offset = sum(self.columns[:index])
        param.load_columns(loaded, offset, self.columns[index], world.rank)

    def load_state(self, state: dict[str, torch.Tensor], shard_id: Any = None) -> None:
        for name, value in state.items():
            param = getattr(self, name)
            param.weight_loader(param, value, *([] if shard_id is None else [shard_id]))

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return self.quant_method.apply(self, x, bias)


class ParallelLMHead(LinearBase): ...


class QuantizationConfig(ABC):
    def __init__(self) -> None:
        self.packed_modules_mapping: dict[str, list[str]] = {}

    @abstractmethod
    def get_name(self) -> str: ...

    @abstractmethod
    def get_supported_act_dtypes(self) -> list[torch.dtype]: ...

    @classmethod
    @abstractmethod
    def get_min_capability(cls) -> int: ...

    @staticmethod
    @abstractmethod
    def get_config_filenames() -> list[str]: ...

    @classmethod
    @abstractmethod
    def from_config(cls, config: dict[str, Any]) -> QuantizationConfig: ...

    @abstractmethod
    def get_quant_method(self, layer: Any, prefix: str) -> Any: ...

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: dict[str, Any], user_quant: str | None, hf_config: Any = None
    ) -> str | None:
        return None

    def maybe_update_config(
        self, model_name: str, hf_config: Any = None, revision: str | None = None
    ) -> None:
        return

    def apply_vllm_mapper(self, hf_to_vllm_mapper: Any) -> None:
        return

    @staticmethod
    def get_checkpoint_weight_mapper() -> Any:
        return WeightsMapper()


@dataclass
class WeightsMapper:
    orig_to_new_renaming: list = field(default_factory=list)
    orig_to_new_regex: dict = field(default_factory=dict)
    orig_to_new_substr: dict = field(default_factory=dict)
    orig_to_new_stacked: dict = field(default_factory=dict)
    orig_to_new_prefix: dict = field(default_factory=dict)
    orig_to_new_suffix: dict = field(default_factory=dict)


methods: dict[str, type] = {}
metadata: dict[str, Any] = {}  # of the tensors in a model's files, by name
loads_by_parameter: list[str] = []


def get_safetensors_params_metadata(model: str, *, revision: str | None = None) -> dict[str, Any]:
    return metadata


def register_quantization_config(quantization: str) -> Any:
    return lambda cls: methods.setdefault(quantization, cls)


def register_weight_loader_v2_supported_method(cls: type) -> type:
    loads_by_parameter.append(cls.__name__)
    return cls


def init_logger(name: str) -> Any:
    """vLLM's loggers say a thing once; these say it each time."""
    logger: Any = logging.getLogger(name)
    logger.info_once = logger.info
    return logger


def modules(kernels: list[str]) -> dict[str, ModuleType]:
    """The stand-ins by the names of vLLM's modules; CUDA's kernels are classes of these names."""
    executor = "vllm.model_executor"
    own = sys.modules[__name__]
    possible = {PlatformEnum.CUDA: [type(name, (), {}) for name in kernels]}
    import vllm_experts_standin as experts  # which is made of this module's classes

    experts.op_registry_oot.clear()
    contents: dict[str, dict[str, Any]] = {
        "vllm": {"envs": SimpleNamespace(VLLM_BATCH_INVARIANT=False, VLLM_DISABLED_KERNELS=[])},
        "vllm.platforms": {"PlatformEnum": PlatformEnum},
        "vllm.scalar_type": {"scalar_types": SimpleNamespace(uint4="uint4", uint4b8="uint4b8")},
        f"{executor}.kernels.linear": {"_POSSIBLE_KERNELS": possible},
        "vllm.logger": {"init_logger": init_logger},
        f"{executor}.custom_op": {"op_registry_oot": experts.op_registry_oot},
        f"{executor}.layers.fused_moe": vars(experts),
        f"{executor}.layers.fused_moe.activation": vars(experts),
        f"{executor}.layers.linear": {},
        f"{executor}.layers.quantization": {},
        f"{executor}.layers.quantization.base_config": {},
        f"{executor}.layers.vocab_parallel_embedding": {},
        f"{executor}.models.utils": {},
        f"{executor}.parameter": {},
        "vllm.transformers_utils.config": {},
    }
    made = {}
    for name, values in contents.items():
        module = ModuleType(name)
        module.__dict__.update({**vars(own), **values, "__name__": name})
        made[name] = module
        for parent in (name.rsplit(".", i)[0] for i in range(1, name.count(".") + 1)):
            made.setdefault(parent, ModuleType(parent))
    return made


def install(monkeypatch: pytest.MonkeyPatch, kernels: list[str]) -> dict[str, ModuleType]:
    """The stand-ins in vLLM's place, and none of xgemm.vllm imported yet."""
    made = modules(kernels)
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    methods.clear()
    experts = made["vllm.model_executor.layers.fused_moe"].RoutedExperts  # which xgemm changes
    monkeypatch.setattr(experts, "_get_quant_method", experts._get_quant_method)
    for name in [name for name in sys.modules if name.startswith("xgemm.vllm")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delenv("XGEMM_VLLM", raising=False)
    return made


@contextmanager
def rank_of(rank: int, size: int) -> Iterator[None]:
    before = vars(world).copy()
    world.rank, world.size = rank, size
    yield
    vars(world).update(before)
