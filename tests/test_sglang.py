"""xgemm inside SGLang, driven by stand-ins with SGLang's signatures (sglang_interface.json)."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import json
import logging
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from test_vllm import DTYPES, random_weight, words

import xgemm

INTERFACE = json.loads((Path(__file__).parent / "sglang_interface.json").read_text())
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


class HookType(enum.Enum):
    BEFORE = 0
    AFTER = 1
    AROUND = 2
    REPLACE = 3


class HookRegistry:
    """Applies a hook when it is registered."""

    @classmethod
    def register(
        cls, target: str, hook: Any, hook_type: HookType = HookType.AFTER, *, source: Any = None
    ) -> None:
        assert hook_type == HookType.AROUND
        path, _, method = target.rpartition(".")
        module, _, name = path.rpartition(".")
        owner = getattr(sys.modules[module], name)
        setattr(owner, method, _around(getattr(owner, method), hook))


def _around(original: Callable[..., Any], hook: Any) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(*args: Any, **options: Any) -> Any:
        return hook(original, *args, **options)

    return wrapper


@dataclasses.dataclass
class MarlinLinearLayerConfig:
    full_weight_shape: tuple[int, int]
    partition_weight_shape: tuple[int, int]
    weight_type: Any
    act_type: torch.dtype
    group_size: int
    zero_points: bool
    has_g_idx: bool


def linear(name: str, apply: str, optional: bool) -> type:
    """A class of SGLang's that remembers that its own methods were called."""

    def process_weights_after_loading(self: Any, layer: Any) -> None:
        layer.marlin = True

    def with_default(self: Any, layer: Any, x: Any, bias: Any = None) -> Any:
        return "marlin"

    def without(self: Any, layer: Any, x: Any, bias: Any) -> Any:
        return "marlin"

    methods = {
        "process_weights_after_loading": process_weights_after_loading,
        apply: with_default if optional else without,
    }
    return type(name, (), methods)


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The stand-ins in SGLang's place, and none of xgemm.sglang imported yet."""
    found = SimpleNamespace(
        ct=linear("CompressedTensorsWNA16", "apply_weights", False),
        gptq=linear("GPTQMarlinLinearKernel", "apply", True),
        awq=linear("AWQMarlinLinearKernel", "apply", True),
        HookRegistry=HookRegistry,
        HookType=HookType,
        MarlinLinearLayerConfig=MarlinLinearLayerConfig,
    )
    quantization, kernels = "srt.layers.quantization", "srt.hardware_backend.gpu.quantization"
    schemes = f"{quantization}.compressed_tensors.schemes.compressed_tensors_wNa16"
    for name, values in {
        "srt.plugins.hook_registry": {"HookRegistry": HookRegistry, "HookType": HookType},
        f"{quantization}.marlin_utils": {"MarlinLinearLayerConfig": MarlinLinearLayerConfig},
        schemes: {"CompressedTensorsWNA16": found.ct},
        f"{kernels}.gptq_kernels": {"GPTQMarlinLinearKernel": found.gptq},
        f"{kernels}.awq_kernels": {"AWQMarlinLinearKernel": found.awq},
    }.items():
        full = f"sglang.{name}"
        for parent in (full.rsplit(".", i)[0] for i in range(1, full.count(".") + 1)):
            monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
        module = ModuleType(full)
        module.__dict__.update(values)
        monkeypatch.setitem(sys.modules, full, module)
        found.__dict__[name.rsplit(".", 1)[-1]] = module
    for name in [name for name in sys.modules if name.startswith("xgemm.sglang")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delenv("XGEMM_SGLANG", raising=False)
    return found


def register() -> None:
    from xgemm.sglang import register

    register()


@pytest.mark.parametrize("name", INTERFACE["names"])
def test_stand_ins_have_the_signatures_of_sglang(name: str, sglang: SimpleNamespace) -> None:
    classes = {c.__name__: c for c in (sglang.ct, sglang.gptq, sglang.awq)}
    owner, _, method = name.partition(".")
    found: Any = classes.get(owner) or globals()[owner]
    if not method:
        is_enum = issubclass(found, enum.Enum)
        members = [m.name for m in (found if is_enum else dataclasses.fields(found))]
        assert members == INTERFACE["names"][name]
        return
    found = inspect.getattr_static(found, method)
    parameters = inspect.signature(getattr(found, "__func__", found)).parameters
    written = [
        p.name if p.default is p.empty else f"{p.name}={p.default}" for p in parameters.values()
    ]
    assert written == INTERFACE["names"][name]


def test_the_entry_point_is_declared() -> None:
    declared = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert (
        '[project.entry-points."sglang.srt.plugins"]\nxgemm = "xgemm.sglang:register"' in declared
    )
    found = [e.value for e in entry_points(group="sglang.srt.plugins") if e.name == "xgemm"]
    assert set(found) <= {"xgemm.sglang:register"}


def filled(sglang: Any, layout: str, q: Any, has_g_idx: bool = False, bits: int = 4) -> Any:
    """(SGLang's object, a layer as SGLang has loaded it)."""
    k, n = q.codes.shape[1], q.codes.shape[0]
    layer = torch.nn.Module()
    tensors = {}
    if layout == "ct":
        tensors = {"weight_packed": words(q.codes, 1), "weight_scale": q.scales.t().contiguous()}
        if q.zeros is not None:
            tensors["weight_zero_point"] = words(q.zeros, 1).t().contiguous()
    elif layout == "gptq":
        tensors = {"qweight": words(q.codes, 1).t().contiguous(), "scales": q.scales}
        tensors["qzeros"] = torch.zeros(q.scales.shape[0], n // 8, dtype=torch.int32)
        tensors["g_idx"] = torch.zeros(k, dtype=torch.int32)
    else:
        tensors = {"qweight": awq_words(q.codes.t()), "scales": q.scales}
        tensors["qzeros"] = awq_words(q.zeros)
    for name, tensor in tensors.items():
        layer.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))
    kernel = getattr(sglang, layout)()
    kind = SimpleNamespace(size_bits=bits)
    kernel.kernel_config = MarlinLinearLayerConfig(
        (k, n), (k, n), kind, q.scales.dtype, q.group_size, q.zeros is not None, has_g_idx
    )
    kernel.quant_config = SimpleNamespace(quant_type=kind, group_size=q.group_size)
    return kernel, layer


def awq_words(codes: torch.Tensor) -> torch.Tensor:
    ordered = codes.reshape(codes.shape[0], -1, 8)[..., AWQ_ORDER].flatten(1)
    return words(ordered, 1)


@DTYPES
@pytest.mark.parametrize(
    ("n", "k", "group_size"), [(192, 256, 128), (1000, 448, 64), (40, 136, -1)]
)
@pytest.mark.parametrize("layout", ["ct", "ct zeros", "gptq", "awq"])
def test_linears_multiply_what_sglang_loads(sglang, layout, n, k, group_size, dtype):
    register()
    register()
    name = layout.split()[0]
    q = random_weight(n, k, group_size, layout in ("ct zeros", "awq"), dtype)
    kernel, layer = filled(sglang, name, q)
    kernel.process_weights_after_loading(layer)
    assert not hasattr(layer, "marlin")
    packed = xgemm.pack(q)
    held = [p for p in layer.parameters() if p.numel()]
    assert len(held) == 1  # what is packed is not kept twice
    assert torch.equal(held[0], packed.qweight)
    x, bias = torch.randn(2, 3, k, dtype=dtype), torch.randn(n, dtype=dtype)
    apply = kernel.apply_weights if name == "ct" else kernel.apply
    assert torch.equal(apply(layer, x, bias), xgemm.linear(x, packed, bias))
    assert torch.equal(apply(layer, x, None), xgemm.linear(x, packed))


@pytest.mark.parametrize(
    ("layout", "options"),
    [("gptq", {"has_g_idx": True}), ("ct", {"bits": 8}), ("awq", {"bits": 8})],
)
def test_what_is_not_taken_stays_with_sglang(sglang, layout, options):
    register()
    q = random_weight(64, 128, 32, layout == "awq", torch.float16)
    kernel, layer = filled(sglang, layout, q, **options)
    kernel.process_weights_after_loading(layer)
    assert layer.marlin
    apply = kernel.apply_weights if layout == "ct" else kernel.apply
    assert apply(layer, torch.randn(1, 128), None) == "marlin"


def test_other_dtypes_and_groups_stay_with_sglang(sglang):
    register()
    for group_size, dtype in ((32, torch.float32), (16, torch.float16)):
        q = random_weight(64, 128, group_size, False, dtype)
        kernel, layer = filled(sglang, "gptq", q)
        kernel.process_weights_after_loading(layer)
        assert layer.marlin


def test_a_switch_leaves_sglang_as_it_is(sglang, monkeypatch):
    monkeypatch.setenv("XGEMM_SGLANG", "0")
    before = sglang.gptq.apply
    register()
    assert sglang.gptq.apply is before


def another_field(sglang: Any) -> None:
    fields = [(f.name, f.type) for f in dataclasses.fields(MarlinLinearLayerConfig)]
    made = dataclasses.make_dataclass("MarlinLinearLayerConfig", [("extra", int), *fields])
    sglang.marlin_utils.MarlinLinearLayerConfig = made


def another_method(sglang: Any) -> None:
    sglang.awq.apply = lambda self, layer, x: x


def no_registry(sglang: Any) -> None:
    del sglang.hook_registry.HookRegistry


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (another_field, "MarlinLinearLayerConfig has a field 'extra'"),
        (another_method, "AWQMarlinLinearKernel.apply takes ['layer', 'x'], expected"),
        (no_registry, "cannot import name 'HookRegistry'"),
    ],
)
def test_another_sglang_gets_one_warning_and_keeps_its_kernels(sglang, caplog, change, reason):
    change(sglang)
    before = sglang.gptq.apply
    with caplog.at_level(logging.WARNING):
        register()
        register()
    warnings = [r.getMessage() for r in caplog.records if r.name == "xgemm"]
    assert len(warnings) == 1
    assert reason in warnings[0]
    assert f"torch {torch.__version__}" in warnings[0]
    assert sglang.gptq.apply is before
