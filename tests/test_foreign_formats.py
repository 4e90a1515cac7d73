"""Other tools' formats, tensor by tensor, against the tools' own packing code where it is here."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import make_by_tools
import pytest
import torch
from foreign import (
    AWQ_COLUMNS,
    awq_config,
    awq_tensors,
    compressed_config,
    compressed_tensors,
    gptq_config,
    gptq_tensors,
    hqq_config,
    hqq_tensors,
    marlin_tensors,
    random_weight,
    same_weight,
    torchao_config,
    torchao_tensors,
    words,
    zeros_of,
)
from safetensors.torch import load_file

import xgemm
from xgemm.formats.foreign import foreign_format
from xgemm.formats.foreign.awq import AwqWriter
from xgemm.formats.foreign.gptq import GptqWriter
from xgemm.formats.foreign.layer import ForeignLayer
from xgemm.formats.foreign.nibbles import pack_nibbles, unpack_nibbles
from xgemm.formats.manifest import TensorSpec, dtype_name
from xgemm.formats.quantized import QuantizedWeight


def read(config: dict[str, Any], tensors: dict[str, torch.Tensor], name: str = "layer") -> Any:
    """The canonical weight of one layer, as Shards reads it."""
    specs = {
        part: TensorSpec("model.safetensors", dtype_name(t.dtype), tuple(t.shape), "")
        for part, t in tensors.items()
    }
    layer = ForeignLayer(
        Path("its"), name, specs, lambda full: tensors[full.removeprefix(f"{name}.")]
    )
    form = foreign_format(Path("config.json"), config)
    return form.read(layer)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 64])
def test_nibbles_against_a_loop(count: int) -> None:
    numbers = torch.randint(0, 16, (3, count), dtype=torch.uint8)
    expected = words(numbers)
    assert torch.equal(pack_nibbles(numbers), expected)
    assert torch.equal(unpack_nibbles(expected, count), numbers)


# ---- the tools' own code ----


def test_the_loop_packs_as_compressed_tensors() -> None:
    helpers = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    numbers = torch.randint(0, 16, (40, 50), dtype=torch.uint8)
    signed = numbers.to(torch.int8) - 8
    assert torch.equal(words(numbers), helpers.pack_to_int32(signed, 4))
    assert torch.equal(words(numbers.t()).t(), helpers.pack_to_int32(signed, 4, packed_dim=0))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group_size", [32, 128, -1])
def test_what_compressed_tensors_compresses(group_size: int, symmetric: bool) -> None:
    """Its compressor's tensors are read to the codes whose product it decompresses."""
    base = pytest.importorskip("compressed_tensors.compressors.pack_quantized.base")
    quantization = pytest.importorskip("compressed_tensors.quantization")
    q = random_weight(48, 256, group_size, symmetric, seed=group_size)
    strategy = "channel" if group_size == -1 else "group"
    size = None if group_size == -1 else group_size
    scheme = quantization.QuantizationScheme(
        targets=["Linear"],
        weights=quantization.QuantizationArgs(
            num_bits=4, symmetric=symmetric, strategy=strategy, group_size=size
        ),
    )
    state = {"weight": q.dequantize(torch.float32), "weight_scale": q.scales.t().float()}
    if q.zeros is not None:
        state["weight_zero_point"] = (q.zeros.t() - 8).to(torch.int8)
    tensors = base.PackedQuantizationCompressor.compress(state, scheme)
    config = compressed_config(symmetric=symmetric, strategy=strategy, group_size=size)
    found = read(config, {name: t.contiguous() for name, t in tensors.items()})
    assert same_weight(found, q)
    theirs = base.PackedQuantizationCompressor.decompress(tensors, scheme)["weight"]
    assert torch.equal(found.dequantize(torch.float32), theirs)


def live(make: Any, *arguments: Any) -> Any:
    """What a tool makes here; skipped where the tool is not installed."""
    try:
        return make(*arguments)
    except make_by_tools.Absent as absent:
        pytest.skip(str(absent))


@functools.cache
def stored_layers() -> dict[str, dict[str, torch.Tensor]]:
    """What make_by_tools.py stored, layer by layer."""
    layers: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in load_file(make_by_tools.FOLDER / "layers.safetensors").items():
        layer, _, part = name.partition("/")
        layers.setdefault(layer, {})[part] = tensor
    return layers


def assert_alike(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype, name
        assert torch.equal(ours[name], tensor), name


def test_what_autoawq_packed() -> None:
    q, theirs = make_by_tools.awq_weight(), stored_layers()["autoawq"]
    assert same_weight(read(awq_config(), theirs), q)
    for ours in (awq_tensors(q), AwqWriter(True).tensors("layer", q)):
        assert_alike(ours, theirs)


def test_what_autoawq_packed_for_marlin() -> None:
    q, theirs = make_by_tools.marlin_weight(), stored_layers()["autoawq-marlin"]
    assert_alike(marlin_tensors(q, ("qweight", "scales")), theirs)
    config = {"quant_method": "awq", "version": "marlin", "bits": 4, "group_size": 32}
    workspace = torch.zeros(16, dtype=torch.int32)
    assert same_weight(read(config, {**theirs, "workspace": workspace}), q)


@pytest.mark.parametrize("act_order", [False, True])
def test_what_gptqmodel_packed(act_order: bool) -> None:
    q = make_by_tools.gptq_weight(act_order)
    theirs = stored_layers()["gptqmodel-act-order" if act_order else "gptqmodel"]
    assert same_weight(read(gptq_config(2, sym=False, desc_act=act_order), theirs), q)
    for ours in (gptq_tensors(q, version=2), GptqWriter(True).tensors("layer", q)):
        assert_alike(ours, theirs)


@pytest.mark.parametrize("name", ["hqq", "hqq-as-float"])
def test_what_hqq_quantized(name: str) -> None:
    theirs = dict(stored_layers()[name])
    expected = theirs.pop("expected")
    assert torch.equal(read(hqq_config(), theirs).dequantize(torch.float32), expected)


def test_what_torchao_flattened() -> None:
    q, theirs = make_by_tools.torchao_weight(), stored_layers()["torchao"]
    assert theirs.keys() == torchao_tensors(q).keys()
    assert torch.equal(read(torchao_config(), theirs).codes, q.codes)


@pytest.mark.parametrize("group_size", [32, 256])
def test_autoawq_packs_for_marlin_alike(group_size: int) -> None:
    q = random_weight(128, 256, group_size, symmetric=True)
    assert_alike(marlin_tensors(q, ("qweight", "scales")), live(make_by_tools.autoawq_marlin, q))


@pytest.mark.parametrize("act_order", [False, True])
def test_gptqmodel_packs_it_alike(act_order: bool) -> None:
    q = random_weight(64, 96, act_order=act_order)
    theirs = live(make_by_tools.gptqmodel, q)
    for ours in (gptq_tensors(q, version=2), GptqWriter(True).tensors("layer", q)):
        assert ours.keys() == theirs.keys()
        assert_alike(ours, theirs)


def test_autoawq_packs_it_alike() -> None:
    q = random_weight(64, 96)
    assert_alike(awq_tensors(q), live(make_by_tools.autoawq, q))


def test_what_hqq_quantizes() -> None:
    """HQQLinear's own state is read to the weight that it dequantizes, bit for bit."""
    for dtype, as_float in ((torch.float16, False), (torch.bfloat16, True)):
        state, expected = live(make_by_tools.hqq, dtype, as_float)
        found = read(hqq_config(), state)
        assert found.scales.dtype == dtype
        assert torch.equal(found.dequantize(torch.float32), expected)


def test_torchao_saves_the_tensors_by_these_names() -> None:
    """Its Int4Tensor, and what it makes of one for a safetensors file."""
    q = make_by_tools.torchao_weight()
    tensors = live(make_by_tools.torchao, q)
    assert tensors.keys() == torchao_tensors(q).keys()
    assert torch.equal(read(torchao_config(), tensors).codes, q.codes)


# ---- reading ----

SHAPES = [(64, 96, 32), (8, 128, 64), (72, 160, 128), (40, 100, 32), (16, 40, -1)]


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("n", "k", "group_size"), SHAPES)
def test_gptq(n: int, k: int, group_size: int, symmetric: bool, act_order: bool) -> None:
    q = random_weight(n, k, group_size, symmetric, act_order)
    values = {"group_size": group_size, "sym": symmetric, "desc_act": act_order}
    for version in (1, 2):
        assert same_weight(read(gptq_config(version, **values), gptq_tensors(q, version)), q)


def test_gptq_version_1_holds_zero_points_of_0_and_1() -> None:
    zeros = torch.tensor([[0, 1, 0, 15, 0, 0, 0, 0]], dtype=torch.float16)
    q = QuantizedWeight(
        torch.zeros(8, 32, dtype=torch.uint8), torch.ones(1, 8).half(), zeros, None, 32
    )
    assert torch.equal(read(gptq_config(sym=False), gptq_tensors(q)).zeros, zeros)


def test_gptq_without_g_idx_and_with_zero_points_that_are_called_symmetric() -> None:
    q = random_weight(64, 96)
    tensors = gptq_tensors(q)
    del tensors["g_idx"]
    found = read(gptq_config(), tensors)  # "sym": True
    assert same_weight(found, q)
    assert found.zeros is not None
    assert read(gptq_config(), gptq_tensors(random_weight(64, 96, symmetric=True))).zeros is None


def test_gptq_dynamic_changes_the_scheme_of_layers() -> None:
    rules = {
        "-:.*lm_head": {},
        r"+:.*\.layers\.0\.": {"group_size": 64},
        r".*\.mlp\.": {"group_size": -1, "sym": False},
    }
    config = gptq_config(dynamic=rules)
    for name, size in (
        ("model.layers.0.mlp.up_proj", 64),
        ("model.layers.1.mlp.up_proj", -1),
        ("model.layers.1.self_attn.q_proj", 32),
    ):
        q = random_weight(64, 128, size)
        assert same_weight(read(config, gptq_tensors(q), name), q), name


@pytest.mark.parametrize(("n", "k", "group_size"), [s for s in SHAPES if s[1] % s[2] == 0])
def test_awq(n: int, k: int, group_size: int) -> None:
    q = random_weight(n, k, group_size)
    assert same_weight(read(awq_config(group_size=group_size), awq_tensors(q)), q)


def test_awq_of_older_names() -> None:
    q = random_weight(64, 128, 64)
    config = {"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "version": "GEMM"}
    assert same_weight(read(config, awq_tensors(q)), q)


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("n", "k", "group_size"), SHAPES)
def test_compressed(n: int, k: int, group_size: int, symmetric: bool, act_order: bool) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        q = random_weight(n, k, group_size, symmetric, act_order, dtype)
        strategy = "channel" if group_size == -1 else "group"
        config = compressed_config(symmetric=symmetric, strategy=strategy, group_size=group_size)
        assert same_weight(read(config, compressed_tensors(q)), q)


def test_compressed_of_older_versions_and_of_one_scale() -> None:
    q = random_weight(24, 64)
    tensors = compressed_tensors(q)
    tensors["weight_zero_point"] = (zeros_of(q).t() - 8).to(torch.int8)  # not packed before 0.9
    assert same_weight(read(compressed_config(symmetric=False), tensors), q)
    tensors = compressed_tensors(random_weight(24, 64, -1, symmetric=True))
    for shape in ((), (1,), (1, 1)):
        tensors["weight_scale"] = torch.full(shape, 0.5)
        found = read(compressed_config(strategy="tensor", group_size=None), tensors)
        assert torch.equal(found.scales, torch.full((1, 24), 0.5).half())


def test_compressed_groups_by_name_expression_and_class() -> None:
    config = compressed_config()
    weights = config["config_groups"]["group_0"]["weights"]
    for name, target, size in (
        ("one", "model.q_proj", 64),
        ("two", r"re:.*\.mlp\..*", 128),
    ):
        scheme = {"targets": [target], "weights": {**weights, "group_size": size}}
        config["config_groups"] = {**config["config_groups"], name: scheme}
    for name, size in (("model.q_proj", 64), ("model.mlp.up_proj", 128), ("model.k_proj", 32)):
        q = random_weight(16, 256, size, symmetric=True)
        assert same_weight(read(config, compressed_tensors(q), name), q), name


def test_activations_that_are_quantized_are_named() -> None:
    config = compressed_config()
    config["config_groups"]["group_0"]["input_activations"] = {"num_bits": 8}
    with pytest.warns(UserWarning, match="the activations are not quantized here"):
        foreign_format(Path("config.json"), config)


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize(
    ("k", "size", "expected"), [(512, 256, 128), (96, 96, -1), (384, 192, 64), (500, 160, 32)]
)
def test_other_group_sizes_are_the_same_weight(
    k: int, size: int, expected: int, act_order: bool
) -> None:
    q = random_weight(16, k, size, act_order=act_order)
    found = read(gptq_config(2, group_size=size, sym=False), gptq_tensors(q, version=2))
    assert found.group_size == expected
    assert torch.equal(found.dequantize(), q.dequantize())
    assert torch.equal(xgemm.unpack(xgemm.pack(found)).dequantize(), q.dequantize())


def test_group_sizes_that_do_not_fit_are_refused() -> None:
    q = random_weight(16, 96, 48)
    with pytest.raises(ValueError, match="its: layer: group_size must be -1 or a multiple of 32"):
        read(gptq_config(2, group_size=48, sym=False), gptq_tensors(q, version=2))


def test_fp32_scales_are_taken_where_they_fit() -> None:
    q = random_weight(16, 64, dtype=torch.bfloat16)
    for factor, dtype in ((1.0, torch.float16), (2.0**30, torch.bfloat16)):
        scales = q.scales.float() * factor
        tensors = {**compressed_tensors(q), "weight_scale": scales.t().contiguous()}
        found = read(compressed_config(symmetric=False), tensors)
        assert found.scales.dtype == dtype
        assert torch.equal(found.scales.float(), scales)


def test_fp32_scales_are_rounded_once_where_nothing_holds_them() -> None:
    """As llm-compressor writes them for a model of fp32."""
    q = random_weight(16, 64)
    for factor, dtype in ((1 + 2**-13, torch.float16), (2.0**-20 * (1 + 2**-13), torch.bfloat16)):
        scales = q.scales.float() * factor
        tensors = {**compressed_tensors(q), "weight_scale": scales.t().contiguous()}
        with pytest.warns(UserWarning, match="its: scales of float32 are rounded"):
            found = read(compressed_config(symmetric=False), tensors)
        assert found.scales.dtype == dtype
        assert torch.equal(found.scales, scales.to(dtype))
    tensors["weight_scale"] = torch.full_like(tensors["weight_scale"], 3.4e38)
    with pytest.raises(
        ValueError, match=r"weight_scale must be within bfloat16's range, got 3\.4e"
    ):
        read(compressed_config(symmetric=False), tensors)


def test_awq_columns_are_those_of_the_kernels() -> None:
    """Nibble i of a word is column AWQ_COLUMNS[i]: read by hand from one word."""
    word = sum(column << (4 * i) for i, column in enumerate(AWQ_COLUMNS))
    tensors = {
        "qweight": torch.tensor([[word]]).repeat(32, 1).to(torch.int32),
        "qzeros": torch.zeros(1, 1, dtype=torch.int32),
        "scales": torch.ones(1, 8).half(),
    }
    found = read(awq_config(), tensors)
    assert found.codes[:, 0].tolist() == list(range(8))


@pytest.mark.parametrize(("n", "k", "group_size"), [(48, 128, 64), (8, 96, 32), (6, 40, -1)])
def test_hqq(n: int, k: int, group_size: int) -> None:
    q = random_weight(n, k, group_size)
    q.zeros.add_(torch.rand(q.zeros.shape))  # real ones
    for dtype in (torch.float16, torch.bfloat16):
        scaled = QuantizedWeight(q.codes, q.scales.to(dtype), q.zeros, None, group_size)
        tensors = hqq_tensors(scaled)
        assert same_weight(read(hqq_config(), tensors), scaled)
        tensors["W_q"] = tensors["W_q"].view(dtype)  # view_as_float
        assert same_weight(read(hqq_config(), tensors), scaled)


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("axis", 0, "layer.axis must be 1 here, got 0"),
        ("nbits", 8, "layer.nbits must be 4 here, got 8"),
        ("quant_zero", 1, "layer.quant_zero must be 0 here, got 1"),
        ("group_size", 48, r"layer.shape must be .* group_size 48 .* got \[8, 64\]"),
    ],
)
def test_hqq_of_other_kinds_is_refused(part: str, value: int, message: str) -> None:
    tensors = hqq_tensors(random_weight(8, 64))
    tensors[part] = torch.tensor(value, dtype=torch.int32)
    with pytest.raises(ValueError, match=message):
        read(hqq_config(), tensors)


@pytest.mark.parametrize(("n", "k", "group_size"), [(64, 128, 32), (128, 256, 128), (192, 48, -1)])
def test_marlin(n: int, k: int, group_size: int) -> None:
    q = random_weight(n, k, group_size, symmetric=True)
    theirs = {"bits": 4, "group_size": group_size, "sym": True}
    for config, names in (
        ({"quant_method": "marlin", "group_size": group_size}, ("B", "s")),
        ({"quant_method": "gptq", "is_marlin_format": True, **theirs}, ("B", "s")),
        ({"quant_method": "gptq", "checkpoint_format": "marlin", **theirs}, ("B", "s")),
        ({"quant_method": "awq", "version": "marlin", **theirs}, ("qweight", "scales")),
    ):
        assert same_weight(read(config, marlin_tensors(q, names)), q)


def test_marlin_of_other_shapes_is_refused() -> None:
    tensors = marlin_tensors(random_weight(64, 64, symmetric=True))
    config = {"quant_method": "marlin", "group_size": 32}
    with pytest.raises(ValueError, match=r"B must have a multiple of 128 columns, got 127"):
        read(config, {**tensors, "B": tensors["B"][:, 1:]})
    with pytest.raises(ValueError, match=r"s must be .* \[2, 64\], got float16 \[1, 64\]"):
        read(config, {**tensors, "s": tensors["s"][1:]})


def test_hqq_of_other_kinds_is_refused_by_the_config() -> None:
    for name, value in (("nbits", 8), ("axis", 0)):
        config = hqq_config()
        config["quant_config"]["weight_quant_params"][name] = value
        with pytest.raises(ValueError, match=rf"params: {name} must be \d, got {value}"):
            foreign_format(Path("config.json"), config)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("n", "k", "group_size"), [(48, 128, 64), (8, 96, 32), (5, 64, -1)])
def test_torchao(n: int, k: int, group_size: int, dtype: torch.dtype) -> None:
    """Against w = q * scale + zero_point in float64, number by number."""
    q = random_weight(n, k, group_size, dtype=dtype)
    q.zeros.add_(torch.rand(q.zeros.shape) - 0.5)
    tensors = torchao_tensors(q)
    found = read(torchao_config(), tensors)
    assert torch.equal(found.codes, q.codes)
    assert torch.equal(found.scales, q.scales)
    group = found.group_of_channel()
    scale = tensors["_weight_scale"].double()[group].t()
    added = tensors["_weight_zero_point"].double()[group].t()
    expected = (q.codes.double() - 8) * scale + added
    error = (found.dequantize(torch.float64) - expected).abs()
    assert bool((error <= 2.0**-11 * 1.01 * (8 * scale - added).abs()).all())


def test_torchao_groups_that_are_constants() -> None:
    """torchao bounds a range by 1e-6, so that a constant group has a scale of nearly nothing."""
    q = random_weight(4, 64)
    tensors = torchao_tensors(q)
    values = torch.tensor([0.0, 0.25, -3.0, 1000.0]).half()
    tensors["_weight_scale"][1] = 1e-6 / 15
    tensors["_weight_zero_point"][1] = values
    found = read(torchao_config(), tensors).dequantize(torch.float64)[:, 32:]
    error = (found - values.double()[:, None]).abs()
    assert bool((error <= 8 * 2.0**-23 + 1.3e-4 * values.double().abs()[:, None]).all())


def test_torchao_of_other_kinds_is_refused() -> None:
    foreign_format(Path("config.json"), torchao_config(int4_packing_format={"_data": "PLAIN"}))
    config = torchao_config(int4_packing_format="tile_packed_to_4d")
    with pytest.raises(ValueError, match=r"int4_packing_format must be plain.*got 'tile_packed_t"):
        foreign_format(Path("config.json"), config)
    config = torchao_config()
    config["quant_type"]["default"]["_type"] = "Int8WeightOnlyConfig"
    with pytest.raises(ValueError, match="_type must be 'Int4WeightOnlyConfig', got 'Int8W"):
        foreign_format(Path("config.json"), config)
    tensors = torchao_tensors(random_weight(16, 64))
    for part, value, message in (
        ("_weight_act_pre_scale", torch.ones(64), "scales activations, which is not read"),
        ("_weight_scale", torch.ones(3, 16).half(), "number of rows that divides K=64, got 3"),
    ):
        with pytest.raises(ValueError, match=message):
            read(torchao_config(), {**tensors, part: value})
