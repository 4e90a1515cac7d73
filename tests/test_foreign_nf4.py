"""bitsandbytes' nf4: refused by name, or dequantized as bitsandbytes does and quantized again."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import make_by_tools
import pytest
import torch
from foreign import same_weight, unpacked
from foreign_memory import LARGEST, peak_memory, write_large_nf4

import xgemm
from xgemm.formats.foreign.bitsandbytes import dequantized
from xgemm.formats.foreign.layer import ForeignLayer
from xgemm.formats.manifest import TensorSpec, dtype_name

safetensors = pytest.importorskip("safetensors.torch")
pytest.importorskip("accelerate")
pytest.importorskip("transformers")

MODEL = make_by_tools.FOLDER / "nf4"
HQQ = {"method": "hqq", "group_size": 32, "symmetric": False}
Q = "model.layers.0.self_attn.q_proj"
STATE = "weight.quant_state.bitsandbytes__nf4"


def layer_of(tensors: dict[str, torch.Tensor]) -> ForeignLayer:
    specs = {
        part: TensorSpec("model.safetensors", dtype_name(t.dtype), tuple(t.shape), "")
        for part, t in tensors.items()
    }
    return ForeignLayer(Path("its"), "layer", specs, lambda n: tensors[n.removeprefix("layer.")])


def stored(name: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """A layer of bitsandbytes, and what bitsandbytes dequantizes of it."""
    layers = safetensors.load_file(make_by_tools.FOLDER / "layers.safetensors")
    parts = {n.partition("/")[2]: t for n, t in layers.items() if n.partition("/")[0] == name}
    return parts, parts.pop("expected")


@pytest.mark.parametrize("name", make_by_tools.NF4)
def test_a_weight_is_dequantized_as_by_bitsandbytes(name: str) -> None:
    tensors, expected = stored(name)
    found = dequantized(layer_of(tensors))
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)
    if tensors["weight"].numel() % 2 == 0:  # bnb_4bit_quant_storage
        tensors["weight"] = tensors["weight"].view(-1).view(torch.bfloat16)[:, None]
        assert torch.equal(dequantized(layer_of(tensors)), expected)


@pytest.mark.parametrize("double", [False, True])
def test_bitsandbytes_here_dequantizes_alike(double: bool) -> None:
    try:
        tensors, expected = make_by_tools.nf4(torch.randn(24, 160), double)
    except make_by_tools.Absent as absent:
        pytest.skip(str(absent))
    assert torch.equal(dequantized(layer_of(tensors)), expected)


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    """Those that transformers dequantizes of the model, with bitsandbytes."""
    return safetensors.load_file(make_by_tools.FOLDER / "nf4-weights.safetensors")


def test_a_model_is_quantized_again_when_asked(weights: dict[str, torch.Tensor]) -> None:
    with pytest.raises(ValueError, match=r"got 'bitsandbytes' .*with requantize"):
        xgemm.load(MODEL)
    model: Any = xgemm.load(MODEL, requantize=HQQ)
    layers = {n: m for n, m in model.named_modules() if isinstance(m, xgemm.nn.QuantLinear)}
    assert {f"{name}.weight" for name in layers} == weights.keys()
    for name, layer in layers.items():
        expected = xgemm.quantize_weight(weights[f"{name}.weight"], **HQQ)
        assert same_weight(unpacked(layer), expected), name
    floats = safetensors.load_file(MODEL / "model.safetensors")
    assert torch.equal(model.lm_head.weight, floats["lm_head.weight"])
    assert model.dtype == torch.bfloat16


@pytest.mark.parametrize("to", ["xgemm", "awq"])
def test_converted_is_what_is_loaded(to: str, run: Any, tmp_path: Path) -> None:
    code, out, err = run(
        *("convert", MODEL, tmp_path / "to", "--to", to),
        *("--requantize", "rtn", "--asymmetric", "--json"),
    )
    assert code == 0, err
    assert json.loads(out)["from"] == "bitsandbytes"
    found: Any = xgemm.load(tmp_path / "to")
    recipe = {"method": "rtn", "group_size": 64, "symmetric": False}
    expected: Any = xgemm.load(MODEL, requantize=recipe)
    ids = torch.arange(40)[None]
    assert torch.equal(found(ids).logits, expected(ids).logits)


def test_a_snapshot_of_the_hub_is_read_through_its_links(tmp_path: Path) -> None:
    """Names that lead out of the directory, to blobs without an ending."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for i, file in enumerate(sorted(MODEL.iterdir())):
        shutil.copyfile(file, blobs / str(i))
        (snapshot / file.name).symlink_to(Path("../../blobs") / str(i))
    found: Any = xgemm.load(snapshot, requantize={})
    expected: Any = xgemm.load(MODEL, requantize={})
    ids = torch.arange(40)[None]
    assert torch.equal(found(ids).logits, expected(ids).logits)


def test_requantize_is_checked(tmp_path: Path) -> None:
    for values, message in (
        ({"bits": 4}, "load: requantize must have keys of method, group_size.* got 'bits'"),
        ({"method": "gptq"}, "'gptq' needs a model's calibration data"),
        ({"group_size": 48}, "group_size must be"),
    ):
        with pytest.raises(ValueError, match=message):
            xgemm.load(MODEL, requantize=values)
    with pytest.raises(TypeError, match="must be a mapping or None, got str"):
        xgemm.load(MODEL, requantize="rtn")  # type: ignore[arg-type]
    xgemm.hf.convert(MODEL, tmp_path / "ours", to="xgemm", requantize={})
    for call in (
        lambda: xgemm.load(tmp_path / "ours", requantize={}),
        lambda: xgemm.hf.convert(tmp_path / "ours", tmp_path / "x", to="awq", requantize={}),
    ):
        with pytest.raises(ValueError, match="requantize is for bitsandbytes"):
            call()
    xgemm.hf.convert(tmp_path / "ours", tmp_path / "gptq", to="gptq")
    with pytest.raises(ValueError, match="is for quant_method 'bitsandbytes', got 'gptq'"):
        xgemm.load(tmp_path / "gptq", requantize={})


def _state(**values: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(old: torch.Tensor) -> torch.Tensor:
        made = {**json.loads(bytes(old.tolist())), **values}
        return torch.tensor(list(json.dumps(made).encode()), dtype=torch.uint8)

    return change


DAMAGE: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor] | None, str]] = {
    "no absmax": ("weight.absmax", None, r"q_proj\.weight\.absmax is missing"),
    "no nested map": ("weight.nested_quant_map", None, r"nested_quant_map is missing"),
    "short weight": ("weight", lambda t: t[1:], r"must be uint8 .* \[2048, 1\], got .*\[2047, 1\]"),
    "absmax": ("weight.absmax", lambda t: t.float(), r"absmax must be uint8 \[64\], got float32"),
    "nan": ("weight.quant_map", lambda t: t * torch.nan, "must be finite, got NaN"),
    "no JSON": (STATE, lambda t: t[:-1], "must be JSON"),
    "list": (STATE, lambda t: torch.tensor([91, 93]).byte(), "must be a JSON object, got"),
    "shape": (STATE, _state(shape=[64]), r"shape must be \[N, K\], got \[64\]"),
    "other shape": (STATE, _state(shape=[32, 128]), r"must be \[64, 64\], .* got \[32, 128\]"),
    "block": (STATE, _state(blocksize=0), "blocksize must be a positive int, got 0"),
    "offset": (STATE, _state(nested_offset="x"), "nested_offset must be a finite number, got 'x'"),
    "dtype": (STATE, _state(dtype="int8"), "dtype must be one of float16, .* got 'int8'"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named(case: str, tmp_path: Path) -> None:
    part, change, message = DAMAGE[case]
    shutil.copytree(MODEL, tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    tensors = safetensors.load_file(file)
    old = tensors.pop(f"{Q}.{part}")
    if change is not None:
        tensors[f"{Q}.{part}"] = change(old).contiguous()
    safetensors.save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=message) as caught:
        xgemm.load(tmp_path / "model", requantize={})
    assert Q in str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"bnb_4bit_quant_type": "fp4"}, "bnb_4bit_quant_type must be 'nf4', got 'fp4'"),
        ({"load_in_4bit": False, "_load_in_4bit": False}, "load_in_4bit must be true: 8 bits"),
    ],
)
def test_other_kinds_are_refused(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    shutil.copytree(MODEL, tmp_path / "model")
    config = json.loads((MODEL / "config.json").read_text())
    config["quantization_config"].update(values)
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        xgemm.load(tmp_path / "model", requantize={})


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_while_quantizing_again_is_the_packed_model_and_one_layer(tmp_path: Path) -> None:
    """28 layers of 4.2 M and 1 M weights: 36 MB packed, 269 MB as the fp32 that is quantized."""
    floats = write_large_nf4(tmp_path / "its", blocks=4)
    peak, packed = peak_memory(
        "import xgemm, transformers, xgemm.hf;"
        " recipe = {'method': 'rtn', 'group_size': 64, 'clip': 'none'};"
        " xgemm.load(argv[0], requantize=recipe)",
        "result = sum(t.nbytes for t in xgemm.load(argv[1], requantize=recipe).parameters())",
        *(MODEL, tmp_path / "its"),
    )
    assert packed < 0.35 * floats
    assert peak < packed + 20 * LARGEST, (peak, packed)  # of fp32, five times the largest layer
    assert peak < 0.5 * 2 * floats
