"""load: damaged, mixed and hostile checkpoints are refused by file and tensor."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import SECTION, Net, edit, load_into_new, quantized, weights
from torch import nn

import xgemm
from xgemm.formats.manifest import CONFIG_FILE, INDEX_FILE, MANIFEST_FILE
from xgemm.nn import QuantLinear

safetensors_torch = pytest.importorskip("safetensors.torch")


def offset_of(path: Path, tensor: str) -> int:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return 8 + length + json.loads(data[8 : 8 + length])[tensor]["data_offsets"][0]


@pytest.mark.parametrize("tensor", ["up.qweight", "down.qweight", "up.bias", "norm.running_mean"])
def test_an_altered_byte_is_refused_by_file_and_tensor(saved: Path, tensor: str) -> None:
    file = weights(saved)
    data = bytearray(file.read_bytes())
    data[offset_of(file, tensor) + 1] ^= 0x40
    file.write_bytes(data)
    model = Net(seed=9).eval()
    with pytest.raises(ValueError, match=rf"model.safetensors: {tensor} is not what was saved"):
        xgemm.load(saved, model=model)
    assert type(model.up) is nn.Linear  # refused before anything was changed
    load_into_new(saved, verify=False)


@pytest.mark.parametrize("verify", [True, False])
def test_a_truncated_file_is_refused_by_file_and_tensor(saved: Path, verify: bool) -> None:
    file = weights(saved)
    data = file.read_bytes()
    cut = offset_of(file, "up.qweight") + 100
    file.write_bytes(data[:cut])
    message = rf"model.safetensors has {cut} bytes, expected {len(data)}: truncated at tensor up.q"
    with pytest.raises(ValueError, match=message):
        load_into_new(saved, verify=verify)
    file.write_bytes(data[:5])
    with pytest.raises(ValueError, match=r"model.safetensors has 5 bytes"):
        load_into_new(saved, verify=verify)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"model.safetensors is missing; it holds "):
        load_into_new(saved, verify=verify)


def test_a_damaged_header_is_refused(saved: Path) -> None:
    data = bytearray(weights(saved).read_bytes())
    data[10] ^= 0xFF
    weights(saved).write_bytes(data)
    with pytest.raises(ValueError, match=r"model.safetensors: "):
        load_into_new(saved)


@pytest.mark.parametrize(
    "file", [CONFIG_FILE, MANIFEST_FILE, INDEX_FILE, "model-00002-of-00003.safetensors"]
)
@pytest.mark.parametrize("verify", [True, False])
def test_files_of_two_saves_are_refused(tmp_path: Path, file: str, verify: bool) -> None:
    for name in ("a", "b"):
        xgemm.save(quantized(), tmp_path / name, max_shard_bytes=12000)
    assert len(list((tmp_path / "a").glob("*.safetensors"))) == 3
    shutil.copy2(tmp_path / "b" / file, tmp_path / "a" / file)
    with pytest.raises(ValueError, match=r"is of another save than xgemm_manifest.json"):
        load_into_new(tmp_path / "a", verify=verify)


def set_in(*keys: str, to: Any) -> Callable[[dict], None]:
    def change(value: dict) -> None:
        for key in keys[:-1]:
            value = value[key]
        value[keys[-1]] = to

    return change


HOSTILE = [
    ((SECTION, "layout_version"), 2, "layout_version must be 1 .*, got 2"),
    ((SECTION, "layout_version"), True, "layout_version must be an int, got bool"),
    ((SECTION, "layout_version"), None, "layout_version must be an int, got NoneType"),
    ((SECTION, "quant_method"), "gptq", "quant_method must be 'xgemm', got 'gptq'"),
    ((SECTION, "format"), "other", "format must be 'packed-w4' or 'packed-w4-fp4', got 'other'"),
    ((SECTION, "modules"), [], "modules must be of type dict"),
    ((SECTION,), 3, "quantization_config must be of type dict, got 3"),
    ((SECTION, "modules", "up"), 3, "up must be an object, got int"),
    ((SECTION, "modules", "up", "n"), True, "up: n must be an int, got bool True"),
    ((SECTION, "modules", "up", "n"), "200", "up: n must be an int, got str '200'"),
    ((SECTION, "modules", "up", "n"), 200.0, "up: n must be an int, got float"),
    ((SECTION, "modules", "up", "n"), -1, "up: n must be within 0..2147483647, got -1"),
    ((SECTION, "modules", "up", "k"), 2**31, "up: k must be within .* got 2147483648"),
    ((SECTION, "modules", "up", "k"), 10**400, "up: k must be within"),
    ((SECTION, "modules", "up", "n"), 2**31 - 1, r"up is \[200, 48\] in the model, \[2147483647"),
    ((SECTION, "modules", "up", "group_size"), 0, "up: group_size must be one of"),
    ((SECTION, "modules", "up", "group_size"), True, "up: group_size must be an int, got bool"),
    ((SECTION, "modules", "up", "zeros"), 1, "up: zeros must be a bool, got int 1"),
    ((SECTION, "modules", "up", "bias"), False, "up has no bias in the checkpoint"),
    ((SECTION, "modules", "up", "activation"), "exec", "up: activation must be one of"),
    ((SECTION, "modules", "up", "zeros"), True, r"up.qweight must be \[4, 5120\], got \[4, "),
    ((SECTION, "modules", "embed"), None, "embed must be an object, got NoneType"),
]


@pytest.mark.parametrize(("keys", "value", "message"), HOSTILE)
def test_a_hostile_config_is_refused(saved: Path, keys: tuple, value: Any, message: str) -> None:
    edit(saved / CONFIG_FILE, set_in(*keys, to=value))
    with pytest.raises((TypeError, ValueError), match="load: .*" + message):
        load_into_new(saved, verify=False)


def test_a_changed_config_is_refused(saved: Path) -> None:
    edit(saved / CONFIG_FILE, set_in(SECTION, "modules", "up", "bf16_scales", to=True))
    with pytest.raises(ValueError, match=r"config.json: quantization_config is not what was saved"):
        load_into_new(saved)


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("files", "../../etc/passwd"), 3, "'../../etc/passwd' is not the name of a checkpoint"),
        (("files", "model.safetensors"), True, "size of model.safetensors must be an int"),
        (("tensors", "up.qweight", "file"), "x", "up.qweight: 'x' is not among"),
        (("tensors", "up.qweight", "shape"), [-1], "up.qweight: shape must be within"),
        (("tensors", "up.qweight", "shape"), [4, 4], r"up.qweight is uint8 .* says uint8 \[4, 4\]"),
        (("tensors", "up.qweight", "sha256"), "0", "up.qweight: sha256 must match"),
        (("tied", "head.weight"), "nothing", "'head.weight' is tied to 'nothing'"),
        (("save_id",), 5, "save_id must be of type str, got 5"),
    ],
)
def test_a_hostile_manifest_is_refused(saved: Path, keys: tuple, value: Any, message: str) -> None:
    edit(saved / MANIFEST_FILE, set_in(*keys, to=value))
    with pytest.raises((TypeError, ValueError), match="load: .*" + message):
        load_into_new(saved)


@pytest.mark.parametrize("file", [CONFIG_FILE, MANIFEST_FILE])
def test_json_that_is_none_is_refused(saved: Path, file: str) -> None:
    text = (saved / file).read_text()
    for bad in (text[: len(text) // 2], "[]", "", "[" * 100000):
        (saved / file).write_text(bad)
        with pytest.raises(ValueError, match=re.escape(file)):
            load_into_new(saved)
    (saved / file).unlink()
    with pytest.raises(FileNotFoundError, match=f"{file} is missing: not an xgemm checkpoint"):
        load_into_new(saved)


def test_a_perm_that_is_none_is_refused(tmp_path: Path) -> None:
    q = xgemm.quantize_weight(torch.randn(64, 96), group_size=32)
    g_idx = (torch.randperm(96) // 32).int()
    q = xgemm.QuantizedWeight(q.codes, q.scales, q.zeros, g_idx, 32)
    layer = QuantLinear.from_packed(xgemm.pack(q))
    layer.perm[0] = 96
    xgemm.save(nn.Sequential(layer), tmp_path / "out")
    with pytest.raises(ValueError, match=r"0.perm must hold each of 0..95 once"):
        xgemm.load(tmp_path / "out", model=nn.Sequential(nn.Linear(96, 64, bias=False)))


def test_another_architecture_is_refused_by_name(saved: Path) -> None:
    model = Net()
    model.extra = nn.Linear(4, 4, bias=False)
    with pytest.raises(ValueError, match=r"the checkpoint lacks extra.weight"):
        xgemm.load(saved, model=model)
    model = Net()
    del model.norm
    with pytest.raises(ValueError, match=r"the model has no norm.bias, norm.num_batches_tracked"):
        xgemm.load(saved, model=model)
    model = Net()
    model.down = nn.Linear(200, 49, bias=False)
    with pytest.raises(ValueError, match=r"down is \[49, 200\] in the model, \[48, 200\] in the"):
        xgemm.load(saved, model=model)
    model = Net()
    model.up = nn.Identity()
    with pytest.raises(
        ValueError, match=r"up must be an nn.Linear, a Conv1D or a QuantLinear, got Id"
    ):
        xgemm.load(saved, model=model)
    model = Net()
    del model.up
    with pytest.raises(ValueError, match="the model has no module 'up'"):
        xgemm.load(saved, model=model)
    with pytest.raises(ValueError, match="describes no transformers model: pass the module"):
        xgemm.load(saved)


def test_without_safetensors_it_says_how_to_get_it(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("safetensors")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=r"load needs safetensors: pip install safetensors"):
        load_into_new(saved)
    with pytest.raises(ImportError, match=r"save needs safetensors"):
        xgemm.save(quantized(), saved)
