"""save and load: everything comes back; damaged, mixed and hostile checkpoints are refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import xgemm
from xgemm.formats import atomic, checkpoint
from xgemm.formats.manifest import CONFIG_FILE, INDEX_FILE, MANIFEST_FILE
from xgemm.nn import QuantLinear

safetensors_torch = pytest.importorskip("safetensors.torch")


class Net(nn.Module):
    def __init__(self, seed: int = 0, tie: bool = True) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(50, 48)
        self.up = nn.Linear(48, 200)
        self.down = nn.Linear(200, 48, bias=False)
        self.norm = nn.BatchNorm1d(48)
        self.head = nn.Linear(48, 50, bias=False)
        if tie:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.down(torch.relu(self.up(self.embed(tokens))))))


TOKENS = torch.arange(50)


def quantized(seed: int = 0, **options: Any) -> Net:
    model = Net(seed).eval()
    xgemm.quantize(model, **{"group_size": 32, **options})
    return model


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    xgemm.save(quantized(), tmp_path / "out")
    return tmp_path / "out"


def same(a: nn.Module, b: nn.Module) -> None:
    with torch.inference_mode():
        assert torch.equal(a(TOKENS), b(TOKENS))


def load_into_new(path: Path, **options: Any) -> nn.Module:
    return xgemm.load(path, model=Net(seed=9).eval(), **options)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("max_shard_bytes", [1 << 30, 6000, 1])
def test_fills_a_module(tmp_path: Path, symmetric: bool, max_shard_bytes: int) -> None:
    model = quantized(symmetric=symmetric)
    xgemm.save(model, tmp_path / "out", max_shard_bytes=max_shard_bytes)
    other = load_into_new(tmp_path / "out")
    assert isinstance(other.up, QuantLinear)
    assert isinstance(other.down, QuantLinear)
    assert other.head.weight is other.embed.weight  # tied, and stored once
    assert other.embed.weight.requires_grad
    assert not other.up.training
    same(model, other)
    shards = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    if max_shard_bytes == 1 << 30:
        assert shards == ["model.safetensors"]
        return
    index = json.loads((tmp_path / "out" / INDEX_FILE).read_text())
    assert sorted(set(index["weight_map"].values())) == shards
    assert shards[0] == f"model-00001-of-{len(shards):05d}.safetensors"
    tensors = {}
    for shard in shards:
        part = safetensors_torch.load_file(tmp_path / "out" / shard)
        size = sum(t.numel() * t.element_size() for t in part.values())
        assert size <= max_shard_bytes or len(part) == 1
        assert all(index["weight_map"][name] == shard for name in part)
        tensors.update(part)
    assert index["metadata"]["total_size"] == sum(
        t.numel() * t.element_size() for t in tensors.values()
    )


def test_fills_a_module_on_the_meta_device(saved: Path) -> None:
    with torch.device("meta"):
        model = Net().eval()
    same(xgemm.load(saved, model=model), quantized())


def test_fills_a_quantized_module_of_other_options(saved: Path) -> None:
    model = quantized(seed=3, group_size=64, symmetric=False)
    same(xgemm.load(saved, model=model), quantized())


def test_dtype_is_the_models_or_the_asked_one(saved: Path) -> None:
    model = xgemm.load(saved, model=Net().half().eval())
    assert model.up.bias.dtype == torch.float16
    assert model.norm.weight.dtype == torch.float16
    assert model.up.qweight.dtype == torch.uint8
    model = xgemm.load(saved, model=Net().eval(), dtype=torch.bfloat16)
    assert model.up.bias.dtype == torch.bfloat16
    assert model.head.weight.dtype == torch.bfloat16
    assert torch.equal(model.up.qweight, quantized().up.qweight)


def test_act_order_bf16_scales_and_activation_come_back(tmp_path: Path) -> None:
    q = xgemm.quantize_weight(
        torch.randn(70, 96), group_size=32, symmetric=False, scale_dtype=torch.bfloat16
    )
    g_idx = (torch.randperm(96) // 32).int()
    q = xgemm.QuantizedWeight(q.codes, q.scales, q.zeros, g_idx, 32)
    layer = QuantLinear.from_packed(xgemm.pack(q), torch.randn(70), "silu")
    xgemm.save(nn.Sequential(layer), tmp_path / "out")
    other = xgemm.load(tmp_path / "out", model=nn.Sequential(nn.Linear(96, 70)))[0]
    x = torch.randn(3, 96)
    assert torch.equal(other(x), layer(x))
    assert other.get_extra_state() == layer.get_extra_state()
    assert other.activation == "silu"


def test_a_layer_with_two_names_comes_back_as_one(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    model.append(model[0])
    xgemm.quantize(model, group_size=32)
    xgemm.save(model, tmp_path / "out")
    fresh = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    fresh.append(fresh[0])
    xgemm.load(tmp_path / "out", model=fresh)
    assert fresh[0] is fresh[2]
    x = torch.randn(2, 64)
    assert torch.equal(fresh(x), model(x))


def test_saving_over_the_directory_it_was_loaded_from(saved: Path) -> None:
    model = load_into_new(saved)
    (saved / "tokenizer.json").write_text("{}")
    (saved / "assets").mkdir()
    (saved / "assets" / "note").write_text("mine")
    xgemm.save(model, saved, max_shard_bytes=6000)
    same(load_into_new(saved), quantized())
    assert (saved / "tokenizer.json").read_text() == "{}"
    assert (saved / "assets" / "note").read_text() == "mine"
    assert not (saved / "model.safetensors").exists()
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_every_file_may_be_read_by_whom_the_umask_lets(saved: Path) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in saved.iterdir()}
    assert set(modes.values()) == {modes["config.json"]}, modes


def test_a_directory_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match="neither empty nor an xgemm checkpoint"):
        xgemm.save(quantized(), tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    with pytest.raises(NotADirectoryError, match="is a file"):
        xgemm.save(quantized(), tmp_path / "thesis.tex")


def test_what_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"0.weight has no data"):
        xgemm.save(nn.Sequential(nn.Linear(8, 8, device="meta")), tmp_path / "out")
    with pytest.raises(TypeError, match="max_shard_bytes must be an int, got bool"):
        xgemm.save(Net(), tmp_path / "out", max_shard_bytes=True)
    assert list(tmp_path.iterdir()) == []


# ---- interrupted ----


def die_at(point: int, exchange: bool) -> Callable[[], int]:
    """SIGKILL before the point-th step that reaches the disk; returns a count of those steps."""
    calls = 0

    def dying(function: Callable) -> Callable:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == point:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    for module, name in (
        (checkpoint, "_write_json"),
        (checkpoint, "_to_cpu"),
        (atomic, "sync"),
        (atomic, "_swap_in"),
        (os, "rename"),
        (shutil, "rmtree"),
    ):
        setattr(module, name, dying(getattr(module, name)))
    if not exchange:
        atomic._exchange = lambda first, second: False
    return lambda: calls


def kill_saves(path: Path, exchange: bool) -> None:
    """Kills a save over `path` at each of its steps, each in a fork; prints what each one left."""
    torch.set_num_threads(1)  # no thread that a fork would lose
    old, new = quantized(seed=0), quantized(seed=1)
    results = []
    while not results or results[-1]["signal"] == signal.SIGKILL:
        xgemm.save(old, path)
        before = [other.name for other in path.parent.iterdir()]
        child = os.fork()
        if child == 0:
            die_at(len(results) + 1, exchange)
            xgemm.save(new, path, max_shard_bytes=20000)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        left = len(list(path.parent.iterdir())) - path.exists()
        model = load_into_new(path)
        with torch.inference_mode():
            equal = [torch.equal(model(TOKENS), other(TOKENS)) for other in (old, new)]
        found = "old" if equal[0] else "new" if equal[1] else "neither"
        results.append({"signal": status, "before": before, "left": left, "found": found})
    print(json.dumps(results))


@pytest.mark.parametrize("exchange", [True, False])
def test_a_killed_save_leaves_a_whole_checkpoint(tmp_path: Path, exchange: bool) -> None:
    script = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"import pathlib, test_checkpoint\n"
        f"test_checkpoint.kill_saves(pathlib.Path({str(tmp_path / 'out')!r}), {exchange})\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert len(results) > 20  # files, tensors, syncs, the swap, the cleaning
    assert results[-1] == {"signal": 0, "before": ["out"], "left": 0, "found": "new"}
    found = [result["found"] for result in results]
    switch = found.index("new")
    assert found == ["old"] * switch + ["new"] * (len(found) - switch)
    assert switch > len(found) // 2
    assert any(result["left"] for result in results)  # which the next save cleaned up:
    assert all(result["before"] == ["out"] for result in results)


def test_an_exception_leaves_the_old_checkpoint(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic, "sync", full)
    with pytest.raises(OSError, match="No space left"):
        xgemm.save(quantized(seed=1), saved)
    same(load_into_new(saved), quantized())
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_a_save_under_way_is_not_cleaned_up(saved: Path) -> None:
    with atomic.replacing(saved, "0" * 32) as staging:
        xgemm.save(quantized(seed=1), saved)
        assert staging.is_dir()
        shutil.copytree(saved, staging, dirs_exist_ok=True)
    same(load_into_new(saved), quantized(seed=1))


# ---- damaged ----


def weights(path: Path) -> Path:
    return path / "model.safetensors"


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


def edit(path: Path, change: Callable[[dict], None]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def set_in(*keys: str, to: Any) -> Callable[[dict], None]:
    def change(value: dict) -> None:
        for key in keys[:-1]:
            value = value[key]
        value[keys[-1]] = to

    return change


SECTION = "quantization_config"
HOSTILE = [
    ((SECTION, "layout_version"), 2, "layout_version must be 1 .*, got 2"),
    ((SECTION, "layout_version"), True, "layout_version must be an int, got bool"),
    ((SECTION, "layout_version"), None, "layout_version must be an int, got NoneType"),
    ((SECTION, "quant_method"), "gptq", "quant_method must be 'xgemm', got 'gptq'"),
    ((SECTION, "format"), "other", "format must be 'packed-w4', got 'other'"),
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
    with pytest.raises(ValueError, match=r"up must be an nn.Linear or a QuantLinear, got Id"):
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


# ---- transformers ----


@pytest.fixture
def llama() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=128,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_transformers_directory(
    llama: nn.Module, tmp_path: Path, dtype: torch.dtype | None
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "tokenizer.json").write_text("{}")
    llama.config._name_or_path = str(source)
    llama.generation_config.max_new_tokens = 7
    xgemm.quantize(llama, group_size=32)
    assert len(llama.xgemm_report.quantized) == 14
    xgemm.save(llama, tmp_path / "out")
    config = json.loads((tmp_path / "out" / CONFIG_FILE).read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config[SECTION]["quant_method"] == "xgemm"
    assert config[SECTION]["layout_version"] == 1
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"

    other = xgemm.load(tmp_path / "out", dtype=dtype)
    assert type(other) is type(llama)
    assert not other.training
    assert not any(p.is_meta for p in (*other.parameters(), *other.buffers()))
    assert other.lm_head.weight is other.model.embed_tokens.weight
    assert other.generation_config.max_new_tokens == 7
    tokens = torch.arange(20)[None]
    with torch.inference_mode():
        expected = (llama if dtype is None else llama.to(dtype))(tokens).logits
        got = other(tokens).logits
    assert got.dtype == (dtype or torch.float32)
    if dtype is None:
        assert torch.equal(got, expected)
    else:
        assert float((got - expected).float().norm() / expected.float().norm()) < 0.02
    xgemm.save(other, tmp_path / "again")  # and what was loaded is saved again
    assert type(xgemm.load(tmp_path / "again")) is type(llama)


def test_code_in_a_directory_is_never_run(llama: nn.Module, tmp_path: Path) -> None:
    xgemm.quantize(llama, group_size=32)
    path = tmp_path / "out"
    xgemm.save(llama, path)
    marker = tmp_path / "ran"
    (path / "evil.py").write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n")
    for change in (
        {"architectures": ["Evil"], "model_type": "evil"},
        {"architectures": ["Evil"]},
        {"architectures": ["AutoModel"]},
        {"architectures": [3]},
        {"architectures": []},
    ):
        edit(
            path / CONFIG_FILE,
            lambda value, change=change: value.update(
                change, auto_map={"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}
            ),
        )
        with pytest.raises(ValueError, match=r"transformers has no architecture"):
            xgemm.load(path)
    assert not marker.exists()
