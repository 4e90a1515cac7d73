"""A checkpoint names no code: it is refused before anything is fetched or run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import SECTION, edit

pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

from hub_kernels import record_kernels  # noqa: E402
from language_models import save_llama  # noqa: E402
from transformers import AutoModelForCausalLM, LlamaForCausalLM  # noqa: E402

import xgemm  # noqa: E402
import xgemm.hf  # noqa: E402
from xgemm.formats.manifest import CONFIG_FILE  # noqa: E402
from xgemm.formats.trust import refuse_foreign_names  # noqa: E402
from xgemm.hf.source import load_any, load_float  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

KERNEL = "owner/kernel"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three directories of one model: "float", "xgemm.save" and "save_pretrained"."""
    root = tmp_path_factory.mktemp("directories")
    save_llama(root / "float")
    model = LlamaForCausalLM.from_pretrained(root / "float").eval()
    xgemm.save(xgemm.quantize(model, group_size=32), root / "xgemm.save")
    model.save_pretrained(root / "save_pretrained")
    shutil.copytree(root / "float", root / "save_pretrained", dirs_exist_ok=True, ignore=_models)
    return root


def _models(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not name.startswith("tokenizer")]


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Makes a copy of one of them anew, under its name in tmp_path."""

    def make(kind: str) -> Path:
        shutil.rmtree(tmp_path / kind, ignore_errors=True)
        return shutil.copytree(root / kind, tmp_path / kind)

    return make


def change(directory: Path, **values: Any) -> None:
    edit(directory / CONFIG_FILE, lambda config: config.update(values))


NAMED = [
    {"_attn_implementation": KERNEL},
    {"attn_implementation": KERNEL},
    {"attn_implementation": {"": KERNEL}},
    {"_attn_implementation_internal": f"{KERNEL}:forward"},
    {"_experts_implementation": KERNEL},
    {"experts_implementation": "sonicmoe"},  # built in, but fetched
    {"attn_implementation": "flash_attention_3"},  # the same, where it is not installed
    {"text_config": {"_attn_implementation": KERNEL}},
    {"towers": [{"attn_implementation": KERNEL}]},
    {"attribute_map": {"harmless": "_attn_implementation_internal"}, "harmless": KERNEL},
    {"configuration_files": ["config.4.0.0.json"]},
    {"backbone": "owner/model"},
    {"architecture": "hf-hub:owner/model"},
    {"model_args": {"checkpoint_path": "weights.pt"}},
    {"transformers_weights": "../model.safetensors"},
    {"transformers_weights": "adapter_model.bin"},
]


@pytest.mark.parametrize("values", NAMED, ids=lambda values: json.dumps(values)[:60])
def test_a_config_that_names_code_or_other_files_is_refused(
    values: dict[str, Any],
    copy: Callable[[str], Path],
    run: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = record_kernels(monkeypatch)
    key = next(iter(values))
    for kind, load in (
        ("xgemm.save", lambda path: xgemm.load(path, verify=False)),
        ("save_pretrained", xgemm.load),
        ("float", load_float),
        ("float", lambda path: load_any(path, verify=False)),
    ):
        path = copy(kind)
        change(path, **values)
        with pytest.raises(ValueError, match=rf"load: .*config\.json: {key}") as error:
            load(path)
        assert "must" in str(error.value)
    code, _, message = run("inspect", path.parent / "save_pretrained")
    assert code == 1
    assert f"config.json: {key}" in message
    assert asked == []


def test_names_that_are_built_in_are_taken(copy: Callable[[str], Path]) -> None:
    path = copy("xgemm.save")
    change(path, _attn_implementation="eager", experts_implementation={"": "batched_mm"})
    assert xgemm.load(path, verify=False).config._attn_implementation == "eager"
    for values in ({"attn_implementation": None}, {"backbone": "resnet50"}, {"attribute_map": {}}):
        refuse_foreign_names(path / CONFIG_FILE, values)


@pytest.mark.parametrize("kind", ["xgemm.save", "save_pretrained"])
@pytest.mark.parametrize(
    "values",
    [
        {"_attn_implementation": KERNEL},
        {"attribute_map": {"harmless": "_attn_implementation_internal"}, "harmless": KERNEL},
    ],
)
def test_from_pretrained_fetches_no_kernel(
    values: dict[str, Any],
    kind: str,
    copy: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After import xgemm.hf, of what is quantized and of what is to be quantized."""
    asked = record_kernels(monkeypatch)
    path = copy(kind)
    change(path, **values)
    with pytest.raises(ValueError, match=r"attn_implementation must be built into transformers"):
        AutoModelForCausalLM.from_pretrained(path)
    path = copy("float")
    change(path, **values)
    with pytest.raises(ValueError, match=r"attn_implementation must be built into transformers"):
        AutoModelForCausalLM.from_pretrained(
            path, quantization_config=xgemm.hf.XgemmConfig(group_size=32)
        )
    assert asked == []


def test_a_kernel_by_another_name_is_seen_in_the_config_object(root: Path) -> None:
    """A guard behind the names: what counts is what the model would be made with."""
    from xgemm.formats.trust import refuse_foreign_implementations

    config = transformers.LlavaConfig()
    config.text_config._attn_implementation_internal = KERNEL
    with pytest.raises(ValueError, match=r"load: LlamaConfig: attn_implementation must be built"):
        refuse_foreign_implementations(config, "load")


PLANTED = "import pathlib\npathlib.Path({marker!r}).touch()\n"


def plant(directory: Path, marker: Path) -> None:
    """Code of the directory's own, under every name by which transformers runs it."""
    code = PLANTED.format(marker=str(marker))
    (directory / "evil.py").write_text(f"{code}class Evil: pass\n")
    (directory / "custom_generate").mkdir()
    (directory / "custom_generate" / "generate.py").write_text(f"{code}def generate(model): pass\n")
    names = ("AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoTokenizer")
    auto_map = dict.fromkeys(names, "evil.Evil")
    change(directory, auto_map=auto_map)
    for file in ("tokenizer_config.json", "generation_config.json"):
        auto = {"auto_map": {**auto_map, "AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
        (directory / file).touch()
        value = json.loads((directory / file).read_text() or "{}")
        (directory / file).write_text(json.dumps({**value, **auto}))

    class Run:
        def __reduce__(self) -> Any:
            return exec, (code,)

    torch.save({"model.norm.weight": Run()}, directory / "pytorch_model.bin")


@pytest.mark.parametrize("kind", ["float", "xgemm.save", "save_pretrained"])
def test_code_in_a_directory_is_not_run(
    kind: str,
    copy: Callable[[str], Path],
    tmp_path: Path,
    run: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody is asked either: a "y" that waits on stdin would be an answer."""
    asked = []
    monkeypatch.setattr("builtins.input", lambda *args: asked.append(args) or "y")
    path, marker = copy(kind), tmp_path / "ran"
    plant(path, marker)
    load_any(path, verify=False)
    commands = [
        ("generate", path, "a", "--max-new-tokens", 1, "--no-verify"),
        ("eval", path, "--max-tokens", 8, "--window", 4, "--no-verify"),
        ("inspect", path),
        ("quantize", path, tmp_path / "new", "--group-size", 32),
    ]
    for command in commands:
        run(*command)
    assert not marker.exists()
    assert asked == []


def test_quantize_runs_code_on_request_alone(
    copy: Callable[[str], Path], tmp_path: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    path, marker = copy("float"), tmp_path / "ran"
    code = PLANTED.format(marker=str(marker))
    (path / "evil_model.py").write_text(
        f"{code}from transformers import LlamaForCausalLM\nclass Evil(LlamaForCausalLM): pass\n"
    )
    change(path, architectures=["Evil"], auto_map={"AutoModelForCausalLM": "evil_model.Evil"})
    command = ("quantize", path, tmp_path / "new", "--group-size", 32)
    code, _, message = run(*command)
    assert (code, marker.exists()) == (1, False)
    assert "--trust-remote-code" in message
    code, _, message = run(*command, "--trust-remote-code")
    assert (code, marker.exists()) == (0, True), message


def test_an_adapter_in_a_directory_is_refused(copy: Callable[[str], Path], tmp_path: Path) -> None:
    """transformers would load the base model that it names, from elsewhere."""
    for kind, load in (("float", load_float), ("save_pretrained", xgemm.load)):
        path = copy(kind)
        (path / "adapter_config.json").write_text('{"base_model_name_or_path": "owner/model"}')
        with pytest.raises(ValueError, match=r"adapter_config\.json: the directory holds an adapt"):
            load(path)


def test_weights_from_outside_the_directory_are_refused(
    copy: Callable[[str], Path], root: Path
) -> None:
    outside = str(root / "float" / "model.safetensors")
    for kind, load in (
        ("float", load_float),
        ("save_pretrained", xgemm.load),
        ("xgemm.save", AutoModelForCausalLM.from_pretrained),
    ):
        path = copy(kind)
        (path / "model.safetensors").unlink()
        for name in (outside, "../float/model.safetensors"):
            index = {"metadata": {}, "weight_map": {"model.norm.weight": name}}
            (path / "model.safetensors.index.json").write_text(json.dumps(index))
            with pytest.raises(ValueError, match=r"is not (a|the name of a) (checkpoint )?file"):
                load(path)


def test_a_gguf_directory_names_no_code(
    tmp_path: Path, run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gguf")
    from test_gguf import write_gguf

    asked = []
    monkeypatch.setattr("builtins.input", lambda *args: asked.append(args) or "y")
    source, marker = tmp_path / "source", tmp_path / "ran"
    source.mkdir()
    path = write_gguf(source / "model.gguf")
    (source / CONFIG_FILE).write_text("{}")
    plant(source, marker)
    code, _, message = run("quantize", path, tmp_path / "new", "--group-size", 32)
    assert "trust_remote_code" in message
    assert (code, marker.exists(), asked) == (1, False, [])
    (source / "adapter_config.json").write_text('{"base_model_name_or_path": "owner/model"}')
    other = write_gguf(source / "other.gguf", extra="rope_freqs.weight")  # read by transformers
    code, _, message = run("quantize", other, tmp_path / "newer", "--group-size", 32)
    assert "holds an adapter" in message
    assert code == 1


def test_the_section_names_no_other_format(copy: Callable[[str], Path]) -> None:
    """A method of transformers' own in the section is refused, and not handed to transformers."""
    path = copy("xgemm.save")
    edit(path / CONFIG_FILE, lambda config: config[SECTION].update(quant_method="fp8"))
    with pytest.raises(ValueError, match=r"quant_method must be 'xgemm', .*got 'fp8'"):
        xgemm.load(path, verify=False)
