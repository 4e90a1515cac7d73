"""xgemm inside vLLM, driven by stand-ins that have vLLM's signatures (vllm_interface.json)."""

from __future__ import annotations

import dataclasses
import inspect
import json
import logging
import re
import runpy
import sys
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import vllm_experts_standin as experts_standin
import vllm_standin as standin

import xgemm
from xgemm.formats.describe import quantization_config
from xgemm.formats.quantized import QuantizedWeight
from xgemm.nn import QuantLinear

INTERFACE = json.loads((Path(__file__).parent / "vllm_interface.json").read_text())
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "serve_vllm.py"
DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The stand-ins in vLLM's place, and none of xgemm.vllm imported yet."""
    made = standin.install(monkeypatch, INTERFACE["cuda_kernels"])
    return made["vllm.model_executor.kernels.linear"]


def cuda_kernels(linear: Any) -> list[Any]:
    return linear._POSSIBLE_KERNELS[standin.PlatformEnum.CUDA]


def register() -> None:
    from xgemm.vllm import register

    register()


@pytest.mark.parametrize("name", INTERFACE["names"])
def test_stand_ins_have_the_signatures_of_vllm(name):
    found: Any = standin if hasattr(standin, name.partition(".")[0]) else experts_standin
    for part in name.split("."):
        found = inspect.getattr_static(found, part)
    expected = INTERFACE["names"][name]
    if dataclasses.is_dataclass(found):
        assert [field.name for field in dataclasses.fields(found)] == expected
    elif inspect.isclass(found):
        assert [member.name for member in found] == expected
    else:
        function = getattr(found, "__func__", found)
        parameters = inspect.signature(function).parameters.values()
        written = [
            {p.VAR_KEYWORD: f"**{p.name}", p.VAR_POSITIONAL: f"*{p.name}"}.get(
                p.kind, p.name if p.default is p.empty else f"{p.name}={p.default}"
            )
            for p in parameters
        ]
        assert written == expected


def test_the_entry_point_is_installed():
    found = [e.value for e in entry_points(group="vllm.general_plugins") if e.name == "xgemm"]
    assert set(found) == {"xgemm.vllm:register"}


def test_the_kernel_comes_before_vllms_own_once(vllm):
    register()
    register()
    names = [kernel.__name__ for kernel in cuda_kernels(vllm)]
    assert names == ["XgemmLinearKernel", *INTERFACE["cuda_kernels"]]
    assert set(standin.methods) == {"xgemm", "xgemm_gptq"}


def test_a_switch_leaves_vllm_as_it_is(vllm, monkeypatch):
    monkeypatch.setenv("XGEMM_VLLM", "0")
    register()
    assert len(cuda_kernels(vllm)) == len(INTERFACE["cuda_kernels"])
    assert not standin.methods


def with_another_field(linear: Any) -> None:
    fields = [
        ("has_g_idx", bool),
        *((f.name, f.type) for f in dataclasses.fields(linear.MPLinearLayerConfig)),
    ]
    linear.MPLinearLayerConfig = dataclasses.make_dataclass("MPLinearLayerConfig", fields)


def with_another_method(linear: Any) -> None:
    class Other(standin.MPLinearKernel):
        def apply_weights(self, layer: Any, x: Any) -> torch.Tensor:
            raise NotImplementedError

    linear.MPLinearKernel = Other


def without_kernels(linear: Any) -> None:
    del linear.MPLinearKernel


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (with_another_field, "MPLinearLayerConfig has a field 'has_g_idx'"),
        (
            with_another_method,
            "MPLinearKernel.apply_weights takes ['self', 'layer', 'x'], expected",
        ),
        (without_kernels, "cannot import name 'MPLinearKernel'"),
    ],
)
def test_another_vllm_keeps_its_kernels_and_one_warning_says_why(vllm, caplog, change, reason):
    change(vllm)
    with caplog.at_level(logging.WARNING, logger="xgemm"):
        register()
    (message,) = caplog.messages
    assert reason in message
    assert f"torch {torch.__version__}" in message
    assert len(cuda_kernels(vllm)) == len(INTERFACE["cuda_kernels"])


def test_a_build_without_cuda_leaves_vllm_its_kernels(vllm, caplog, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr("xgemm._library.build_info", lambda: {"cuda": None})
    register()
    assert caplog.messages == [
        f"xgemm is built without CUDA (torch {torch.__version__} has CUDA 13.0): vLLM goes on with "
        f"its own kernels"
    ]
    assert len(cuda_kernels(vllm)) == len(INTERFACE["cuda_kernels"])
    assert not standin.methods


# ---- the kernel ----


def config(**changes: Any) -> standin.MPLinearLayerConfig:
    plain = {
        "full_weight_shape": (256, 64), "partition_weight_shape": (256, 64),
        "weight_type": "uint4b8", "act_type": torch.bfloat16, "group_size": 128,
        "zero_points": False,
    }  # fmt: skip
    return standin.MPLinearLayerConfig(**{**plain, **changes})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"weight_type": "uint8b128"},
            "weights of type uint4b8 without zero points, got uint8b128",
        ),
        ({"zero_points": True}, "weights of type uint4 with zero points, got uint4b8"),
        ({"act_type": torch.float32}, "fp16 and bf16 activations, got torch.float32"),
        ({"out_type": torch.float16}, "output has the activations' dtype, not torch.float16"),
        ({"group_size": 16}, "a group size of (32, 64, 128, -1), got 16"),
    ],
)
def test_what_is_not_taken_is_named(vllm, changes, reason):
    register()
    kernel = cuda_kernels(vllm)[0]
    assert kernel.can_implement(config()) == (True, None)
    taken, why = kernel.can_implement(config(**changes))
    assert not taken
    assert reason in why


def words(codes: torch.Tensor, dim: int) -> torch.Tensor:
    """Eight codes to an int32 along `dim`, lowest nibble first."""
    parts = codes.long().unfold(dim, 8, 8)
    packed = (parts << torch.arange(0, 32, 4)).sum(-1)
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


def random_weight(
    n: int, k: int, group_size: int, zeros: bool, dtype: torch.dtype
) -> QuantizedWeight:
    g = torch.Generator().manual_seed(n + k + group_size)
    groups = 1 if group_size == -1 else -(-k // group_size)
    return QuantizedWeight(
        torch.randint(16, (n, k), generator=g, dtype=torch.uint8),
        (torch.rand(groups, n, generator=g) * 0.1 + 0.01).to(dtype),
        torch.randint(16, (groups, n), generator=g).to(torch.float16) if zeros else None,
        None,
        group_size,
    )


@DTYPES
@pytest.mark.parametrize("zeros", [False, True], ids=["symmetric", "zeros"])
@pytest.mark.parametrize(
    ("n", "k", "group_size"), [(192, 256, 128), (1000, 448, 64), (72, 96, 32), (40, 136, -1)]
)
@pytest.mark.parametrize("layout", ["compressed-tensors", "gptq"])
def test_the_kernel_multiplies_what_vllm_loads(vllm, layout, n, k, group_size, zeros, dtype):
    if layout == "gptq" and zeros:
        layout = "awq"
    register()
    q = random_weight(n, k, group_size, zeros, dtype)
    layer = torch.nn.Module()
    by_output = layout == "compressed-tensors"
    dims = {"input_dim": int(by_output), "output_dim": int(not by_output)}

    def parameter(data: torch.Tensor, packed_dim: int) -> Any:
        return standin.PackedvLLMParameter(
            data=data, packed_factor=8, packed_dim=packed_dim, weight_loader=None, **dims
        )

    codes = words(q.codes, 1)
    layer.w = parameter(codes if by_output else codes.t().contiguous(), dims["input_dim"])
    layer.s = parameter((q.scales.t() if by_output else q.scales).contiguous(), dims["output_dim"])
    if q.zeros is not None:
        points = words(q.zeros, 1)  # [groups, n / 8]
        layer.z = parameter((points.t() if by_output else points).contiguous(), dims["output_dim"])
    shape = (k, n)
    kernel = cuda_kernels(vllm)[0](
        config(
            full_weight_shape=shape, partition_weight_shape=shape, act_type=dtype,
            group_size=group_size, zero_points=zeros, weight_type="uint4" if zeros else "uint4b8",
        ),
        "w", "s", "z",
    )  # fmt: skip
    kernel.process_weights_after_loading(layer)
    packed = xgemm.pack(q)
    assert torch.equal(layer.w, packed.qweight)
    assert layer.s.numel() == 0  # what is packed is not kept twice
    x, bias = torch.randn(2, 3, k, dtype=dtype), torch.randn(n, dtype=dtype)
    expected = x.double() @ q.dequantize(torch.float64).t() + bias.double()
    torch.testing.assert_close(
        kernel.apply_weights(layer, x, bias).double(), expected, rtol=2e-2, atol=0.2
    )
    assert torch.equal(kernel.apply_weights(layer, x, bias), xgemm.linear(x, packed, bias))
    assert torch.equal(kernel.apply_weights(layer, x), xgemm.linear(x, packed))


def test_the_kernel_is_batch_invariant_where_vllm_asks_for_it(vllm):
    """GPTQ and AWQ come to the kernel then, too; vLLM bypasses it in compressed-tensors alone."""
    sys.modules["vllm"].envs.VLLM_BATCH_INVARIANT = True
    register()
    layer, q = torch.nn.Module(), random_weight(192, K, 128, False, torch.bfloat16)
    layer.w = standin.PackedvLLMParameter(
        data=words(q.codes, 1).t().contiguous(), packed_factor=8, packed_dim=0, weight_loader=None,
        input_dim=0, output_dim=1,
    )  # fmt: skip
    layer.s = standin.PackedvLLMParameter(
        data=q.scales, packed_factor=1, packed_dim=0, weight_loader=None, input_dim=0, output_dim=1
    )
    kernel = cuda_kernels(vllm)[0](config(partition_weight_shape=(K, 192)), "w", "s")
    kernel.process_weights_after_loading(layer)
    x = torch.randn(40, K, dtype=torch.bfloat16)
    rows = torch.cat([kernel.apply_weights(layer, row[None]) for row in x])
    assert torch.equal(kernel.apply_weights(layer, x), rows)


# ---- xgemm's own directories ----

K, COLUMNS = 512, {"q": 256, "k": 128, "v": 128}


class Model(torch.nn.Module):
    """The linears of a block, as transformers names them."""

    def __init__(self, group_size: int = 128, zeros: bool = False) -> None:
        super().__init__()
        self.attn = torch.nn.Module()
        for name, n in COLUMNS.items():
            self.attn.add_module(f"{name}_proj", packed_linear(n, K, group_size, zeros))
        self.attn.add_module("o_proj", packed_linear(192, K, group_size, zeros))

    def state(self, name: str) -> dict[str, torch.Tensor]:
        state = self.attn.get_submodule(name).state_dict()
        return {key: value for key, value in state.items() if key != "weight"}


def packed_linear(
    n: int, k: int, group_size: int, zeros: bool, order: int | None = None
) -> QuantLinear:
    q = random_weight(n, k, group_size, zeros, torch.bfloat16)
    if order is not None:
        shuffled = torch.randperm(k, generator=torch.Generator().manual_seed(order))
        groups = (torch.arange(k) // group_size)[shuffled].to(torch.int32)
        q = dataclasses.replace(q, g_idx=groups)
    return QuantLinear.from_packed(xgemm.pack(q), None, dtype=torch.bfloat16)


def method_of(model: torch.nn.Module) -> Any:
    register()
    made = standin.methods["xgemm"].from_config({**quantization_config(model), "save_id": "0" * 32})
    made.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    return made


def joined(model: Model, x: torch.Tensor) -> torch.Tensor:
    return torch.cat([model.attn.get_submodule(f"{name}_proj")(x) for name in COLUMNS], dim=-1)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(("group_size", "zeros"), [(128, False), (32, True), (-1, True)])
def test_a_joined_layer_is_its_linears_side_by_side(vllm, group_size, zeros, size):
    model = Model(group_size, zeros)
    x = torch.randn(5, K, dtype=torch.bfloat16)
    expected = [
        linear(x).chunk(size, dim=-1)
        for linear in (model.attn.q_proj, model.attn.k_proj, model.attn.v_proj)
    ]
    for rank in range(size):
        with standin.rank_of(rank, size):
            layer = standin.LinearBase(K, list(COLUMNS.values()), method_of(model), "attn.qkv_proj")
            for shard in COLUMNS:
                layer.load_state(model.state(f"{shard}_proj"), shard)
        layer.quant_method.process_weights_after_loading(layer)
        assert [name for name, _ in layer.named_parameters()] == ["qweight"]
        assert len(layer.xgemm_parts) == 1
        torch.testing.assert_close(layer(x), torch.cat([part[rank] for part in expected], dim=-1))


@pytest.mark.parametrize("ranks", [4, 8, 16], ids="{} ranks".format)
@pytest.mark.parametrize(
    ("group_size", "zeros"), [(128, False), (64, True), (32, True), (-1, True)]
)
def test_ranks_that_split_the_channels_add_up(vllm, group_size, zeros, ranks):
    """128, 64 or 32 channels each: those within a unit of 128 are repacked, in groups that fit."""
    model = Model(group_size, zeros)
    x = torch.randn(5, K, dtype=torch.bfloat16)
    total = torch.zeros(5, 192, dtype=torch.float64)
    for rank in range(ranks):
        with standin.rank_of(rank, ranks):
            layer = standin.LinearBase(K, [192], method_of(model), "attn.o_proj", "channels")
            layer.load_state(model.state("o_proj"))
        layer.quant_method.process_weights_after_loading(layer)
        if ranks == 4:
            assert layer.qweight.numel() <= model.attn.o_proj.qweight.numel() // 4 + 3 * 256
        total += layer(x.chunk(ranks, dim=1)[rank]).double()
    expected = x.double() @ model.attn.o_proj.dequantize(torch.float64).t()
    torch.testing.assert_close(total, expected, rtol=2e-2, atol=0.3)


@pytest.mark.parametrize(("orders", "products"), [((1, 1, 1), 1), ((1, 2, 2), 2), ((1, 2, 3), 3)])
def test_orders_of_channels_are_kept(vllm, orders, products):
    model = Model()
    for name, order in zip(COLUMNS, orders, strict=True):
        linear = packed_linear(COLUMNS[name], K, 128, True, order)
        model.attn.add_module(f"{name}_proj", linear)
    layer = standin.LinearBase(K, list(COLUMNS.values()), method_of(model), "attn.qkv_proj")
    for shard in COLUMNS:
        layer.load_state(model.state(f"{shard}_proj"), shard)
    layer.quant_method.process_weights_after_loading(layer)
    assert len(layer.xgemm_parts) == products
    x, bias = torch.randn(3, K, dtype=torch.bfloat16), torch.randn(512, dtype=torch.bfloat16)
    torch.testing.assert_close(layer(x), joined(model, x))
    if products == 3:
        torch.compiler.reset()
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(x), layer(x))
    torch.testing.assert_close(layer(x, bias), joined(model, x) + bias, rtol=2e-2, atol=0.1)


def test_batch_invariance_is_asked_for(vllm):
    sys.modules["vllm"].envs.VLLM_BATCH_INVARIANT = True
    model = Model()
    layer = standin.LinearBase(K, [192], method_of(model), "attn.o_proj")
    layer.load_state(model.state("o_proj"))
    layer.quant_method.process_weights_after_loading(layer)
    x = torch.randn(40, K, dtype=torch.bfloat16)
    rows = torch.cat([layer(row[None]) for row in x])
    assert torch.equal(layer(x), rows)


def test_float_layers_stay_with_vllm(vllm):
    method = method_of(Model())
    layer = object.__new__(standin.LinearBase)
    assert isinstance(method.get_quant_method(layer, "attn.other"), standin.UnquantizedLinearMethod)
    head = object.__new__(standin.ParallelLMHead)
    assert method.get_quant_method(head, "lm_head").__class__ is standin.UnquantizedLinearMethod
    assert method.get_quant_method(torch.nn.Embedding(2, 2), "embed") is None


def test_guards_are_dropped_and_nothing_else(vllm):
    mapper = method_of(Model()).get_checkpoint_weight_mapper()

    def dropped(name: str) -> bool:
        return any(pattern.search(name) for pattern in mapper.orig_to_new_regex)

    assert dropped("attn.q_proj.weight")
    assert dropped("attn.q_proj.import_xgemm.hf_before_from_pretrained")
    for name in (
        "attn.q_proj.qweight",
        "attn.norm.weight",
        "x.attn.q_proj.weight",
        "attn.q_proj.bias",
    ):
        assert not dropped(name)


def float_part(model: Model) -> None:
    model.attn.k_proj = torch.nn.Linear(K, 128)


def other_groups(model: Model) -> None:
    model.attn.k_proj = packed_linear(128, K, 32, False)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (float_part, "all of them must be packed, attn.k_proj is not"),
        (
            other_groups,
            "vLLM joins attn.q_proj and attn.k_proj into attn.qkv_proj, but their formats",
        ),
    ],
)
def test_linears_that_cannot_be_joined_are_named(vllm, change, reason):
    model = Model()
    change(model)
    with refused(reason):
        standin.LinearBase(K, list(COLUMNS.values()), method_of(model), "attn.qkv_proj")


def refused(text: str) -> Any:
    return pytest.raises(ValueError, match=re.escape(text))


def test_shards_that_do_not_fit_are_named(vllm):
    text = "attn.o_proj: a GPU's input channels must be a multiple of 32, got 170 of 512"
    with standin.rank_of(0, 3), refused(text):
        standin.LinearBase(K, [192], method_of(Model()), "attn.o_proj", "channels")
    with standin.rank_of(0, 4), refused("multiples of 64, got [64, 32, 32] of 512"):
        standin.LinearBase(K, list(COLUMNS.values()), method_of(Model()), "attn.qkv_proj")
    model = Model()
    model.attn.o_proj = packed_linear(192, K, 128, False, order=1)
    with standin.rank_of(0, 2), refused("act-order"):
        standin.LinearBase(K, [192], method_of(model), "attn.o_proj", "channels")


def test_a_file_that_differs_from_its_config_is_refused(vllm):
    model = Model()
    layer = standin.LinearBase(K, [192], method_of(model), "attn.o_proj")
    state = model.state("o_proj")
    state["packed_format"] = model.attn.q_proj.packed_format
    with refused("xgemm: attn.o_proj: n is 192 here, got 256"):
        layer.load_state(state)


def test_vllms_own_experts_go_on(vllm):
    """The plugin adds a kernel and a method; a float experts layer is left to vLLM."""

    def contents() -> dict[tuple[str, str], Any]:
        found = {}
        for name, module in sys.modules.items():
            if name.startswith("vllm"):
                found.update({(name, key): value for key, value in vars(module).items()})
        return found

    before, kernels = contents(), list(cuda_kernels(vllm))
    method = method_of(Model())
    assert contents() == before  # nothing of vLLM's is replaced, fused_moe least of all
    assert cuda_kernels(vllm)[1:] == kernels
    assert (
        method.get_quant_method(object.__new__(experts_standin.RoutedExperts), "mlp.experts")
        is None
    )


def test_the_example_serves(monkeypatch, capsys):
    """examples/serve_vllm.py, on an engine that answers each prompt with its own length."""
    vllm = ModuleType("vllm")
    vllm.__spec__ = ModuleSpec("vllm", None)

    class LLM:
        def __init__(self, model: str) -> None:
            assert model == "some-model"

        def generate(self, prompts: list[str], sampling: Any) -> list[SimpleNamespace]:
            assert sampling.max_tokens == 3
            answers = [SimpleNamespace(text=str(len(p)), token_ids=[1, 2]) for p in prompts]
            return [
                SimpleNamespace(prompt=p, outputs=[a])
                for p, a in zip(prompts, answers, strict=True)
            ]

    vllm.LLM, vllm.SamplingParams = LLM, SimpleNamespace
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    command = ["serve_vllm.py", "some-model", "four", "sixsix", "--max-tokens", "3"]
    monkeypatch.setattr(sys, "argv", command)
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    shown = capsys.readouterr()
    assert shown.out == "'four': '4'\n'sixsix': '6'\n"
    assert shown.err.startswith("4 tokens, ")


def test_the_example_without_vllm_says_what_is_missing(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["serve_vllm.py", "some-model", "prompt"])
    with pytest.raises(SystemExit, match="vLLM is not installed: pip install vllm"):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
