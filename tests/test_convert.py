"""convert: other tools' checkpoints and xgemm's into one another, the same weights bit for bit."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

from foreign import (  # noqa: E402
    awq_config,
    awq_tensors,
    compressed_config,
    compressed_tensors,
    gptq_config,
    gptq_tensors,
    hqq_config,
    hqq_tensors,
    same_weight,
    unpacked,
    write_directory,
)
from foreign_memory import LARGEST, peak_memory, write_large  # noqa: E402
from hf_models import assert_same, llama, mixtral, output, quantized_names  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

import xgemm  # noqa: E402
from xgemm.hf.conversion import METHODS, convert  # noqa: E402
from xgemm.nn import QuantExperts, QuantLinear  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def v2(q: Any) -> Any:
    return gptq_tensors(q, version=2)


SOURCES: dict[str, tuple[dict, Any, dict]] = {
    "gptq": (gptq_config(2, sym=False), v2, {}),
    "gptq-symmetric": (gptq_config(), gptq_tensors, {"symmetric": True}),
    "gptq-act-order": (
        gptq_config(2, desc_act=True, sym=False),
        v2,
        {"act_order": True, "same_order": True},
    ),
    "awq": (awq_config(), awq_tensors, {}),
    "compressed-tensors": (compressed_config(symmetric=False), compressed_tensors, {}),
    "compressed-channel": (
        compressed_config(strategy="channel", group_size=None),
        compressed_tensors,
        {"symmetric": True, "group_size": -1, "dtype": torch.bfloat16},
    ),
}
MODELS = {"llama": llama, "mixtral": mixtral}


def tensors_of(path: Path) -> dict[str, torch.Tensor]:
    found = {}
    for file in path.glob("*.safetensors"):
        found.update(load_file(file))
    return found


def same_tensors(a: Path, b: Path) -> bool:
    one, other = tensors_of(a), tensors_of(b)
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


WAYS = [
    (case, to)
    for case, (config, _, _) in SOURCES.items()
    for to in METHODS
    if to != config["quant_method"] and not (to == "awq" and "act-order" in case)
]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("case", "to"), WAYS)
def test_there_and_back(case: str, model: str, to: str, tmp_path: Path) -> None:
    config, tensors, options = SOURCES[case]
    method = config["quant_method"]
    layers, reference = write_directory(
        tmp_path / "its", MODELS[model](), config, tensors, shards=2, **options
    )
    done = convert(tmp_path / "its", tmp_path / "other", to, max_shard_bytes=40_000)
    assert (done.layers, done.source, done.to) == (len(layers), method, to)
    assert len(list((tmp_path / "other").glob("model-*.safetensors"))) > 2
    theirs, ours = xgemm.load(tmp_path / "its"), xgemm.load(tmp_path / "other")
    assert quantized_names(theirs) == quantized_names(ours)
    expected = transformers.AutoModelForCausalLM.from_pretrained(reference)
    assert torch.allclose(output(ours), output(expected), atol=1e-5)
    convert(tmp_path / "other", tmp_path / "back", method)
    assert len(list((tmp_path / "back").iterdir())) == 2
    back = xgemm.load(tmp_path / "back")
    if to == "awq" and options.get("symmetric"):  # AWQ writes the zero point 8 out
        for name in quantized_names(theirs):
            for one, other in zip(weights(theirs, name), weights(back, name), strict=True):
                assert same_weight(one, other)
    else:
        assert same_tensors(tmp_path / "its", tmp_path / "back")
        assert_same(back, theirs)


def weights(model: Any, name: str) -> list[Any]:
    """The canonical weights of a packed module."""
    module = model.get_submodule(name)
    if isinstance(module, QuantExperts):
        packed = [p for leaf in module.formats for p in module.to_packed(leaf)]
        return [xgemm.unpack(p) for p in packed]
    return [unpacked(module)]


def test_what_a_format_cannot_hold_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    model = llama()
    xgemm.quantize(model, group_size=32, symmetric=False)
    layer = model.model.layers[0].mlp.up_proj
    weight = unpacked(layer)
    weight.zeros[0, 0] = 7.5
    model.model.layers[0].mlp.up_proj = QuantLinear.from_packed(xgemm.pack(weight))
    xgemm.save(model, tmp_path / "ours")
    for to in ("gptq", "awq", "compressed-tensors"):
        with pytest.raises(
            ValueError, match=rf"up_proj: zero points must be whole .* {to}, got 7\.5"
        ):
            convert(tmp_path / "ours", tmp_path / "other", to)
        assert not (tmp_path / "other").exists()


def test_act_order_and_several_group_sizes_are_refused_for_awq(tmp_path: Path) -> None:
    config, tensors, options = SOURCES["gptq-act-order"]
    write_directory(tmp_path / "its", llama(), config, tensors, **options)
    with pytest.raises(ValueError, match="is in act-order, which awq has no tensor for"):
        convert(tmp_path / "its", tmp_path / "other", "awq")
    model = llama()
    xgemm.quantize(model, group_size=32, include=["*.q_proj"], skip=["*mlp*"])
    xgemm.quantize(model, group_size=64)
    xgemm.save(model, tmp_path / "two")
    with pytest.raises(ValueError, match="awq has one group_size for all layers"):
        convert(tmp_path / "two", tmp_path / "other", "awq")
    for to in ("gptq", "compressed-tensors"):  # which have a scheme for each layer
        convert(tmp_path / "two", tmp_path / to, to)
        back: Any = xgemm.load(tmp_path / to)
        for name in quantized_names(model):
            assert same_weight(weights(model, name)[0], weights(back, name)[0])


def test_arguments(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    xgemm.save(xgemm.quantize(llama(), group_size=32), ours)
    for to, message in (
        ("gguf", "to must be one of gptq, awq, compressed-tensors, xgemm, got 'gguf'"),
        ("xgemm", "is in the format xgemm already"),
    ):
        with pytest.raises(ValueError, match=message):
            convert(ours, tmp_path / "other", to)
    with pytest.raises(FileExistsError, match="DST must be new or empty"):
        convert(ours, ours, "gptq")
    with pytest.raises(ValueError, match="max_shard_bytes must be"):
        convert(ours, tmp_path / "other", "gptq", max_shard_bytes=0)
    llama().save_pretrained(tmp_path / "float")
    with pytest.raises(ValueError, match="is float: xgemm quantize makes 4 bits of it"):
        convert(tmp_path / "float", tmp_path / "other", "gptq")
    (ours / "model.safetensors").write_bytes((ours / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        convert(ours, tmp_path / "other", "gptq")
    assert not (tmp_path / "other").exists()


def test_paths_that_are_none_are_refused_by_argument(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^convert: source 'a\\x00b' is not a path"):
        convert("a\0b", tmp_path / "other", "gptq")
    with pytest.raises(TypeError, match=r"^convert: destination must be a str or Path, got int"):
        convert(tmp_path, 1, "gptq")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^convert: to must be one of") as error:
        convert(tmp_path, tmp_path / "other", "\x1b" * 10_000)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 500


def test_a_destination_that_cannot_be_written_is_named_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = tmp_path / "ours"
    xgemm.save(xgemm.quantize(llama(), group_size=32), ours)
    (tmp_path / "loop").symlink_to("loop")
    for place in (tmp_path / "loop", Path("/dev/full/out")):
        with pytest.raises(OSError, match=f"^convert: {place} cannot be written: "):
            convert(ours, place, "gptq")

    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("xgemm.formats.shard_writer.ShardWriter.finish", full)
    with pytest.raises(
        OSError, match=r"^convert: .*other cannot be written: No space left"
    ) as error:
        convert(ours, tmp_path / "other", "gptq")
    assert error.value.errno == errno.ENOSPC
    assert not (tmp_path / "other").exists()


def test_mixed_layers_and_what_save_pretrained_wrote(tmp_path: Path) -> None:
    """Float layers stay float, and are named as such."""
    model = mixtral()
    xgemm.quantize(model, group_size=32, skip=["*layers.0.self_attn.q_proj"])
    model.save_pretrained(tmp_path / "ours")
    xgemm.save(model, tmp_path / "saved")
    for to in ("gptq", "awq", "compressed-tensors"):
        for source in ("ours", "saved"):
            convert(tmp_path / source, tmp_path / f"{to}-{source}", to)
        assert same_tensors(tmp_path / f"{to}-ours", tmp_path / f"{to}-saved")
        again: Any = xgemm.load(tmp_path / f"{to}-ours")
        assert quantized_names(again) == quantized_names(model)
        assert torch.allclose(output(again), output(model), atol=1e-5)
        config = json.loads((tmp_path / f"{to}-ours" / "config.json").read_text())
        section = config["quantization_config"]
        if to == "gptq":
            assert r"-:^model\.layers\.0\.self_attn\.q_proj$" in section["dynamic"]
        else:
            floats = section["ignore" if to == "compressed-tensors" else "modules_to_not_convert"]
            assert "model.layers.0.self_attn.q_proj" in floats


@pytest.mark.parametrize("symmetric", [True, False])
def test_transformers_reads_what_is_written_as_compressed_tensors(
    symmetric: bool, tmp_path: Path
) -> None:
    """By the package compressed-tensors, which decompresses each layer."""
    pytest.importorskip("compressed_tensors")
    case = "gptq-symmetric" if symmetric else "gptq"
    config, tensors, options = SOURCES[case]
    layers, _ = write_directory(tmp_path / "its", llama(), config, tensors, **options)
    convert(tmp_path / "its", tmp_path / "other", "compressed-tensors")
    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "other",
        quantization_config=transformers.CompressedTensorsConfig(dequantize=True),
        dtype=torch.float16,
    )
    for name, weight in layers.items():
        found = theirs.get_submodule(name).weight
        assert torch.equal(found, weight.dequantize(torch.float16)), name


def test_the_command_says_what_it_did_and_copies_the_rest(run: Any, tmp_path: Path) -> None:
    pytest.importorskip("typer")
    config, tensors, options = SOURCES["awq"]
    layers, _ = write_directory(tmp_path / "its", llama(), config, tensors, **options)
    (tmp_path / "its" / "tokenizer.json").write_text("{}")
    (tmp_path / "its" / "generation_config.json").write_text('{"max_length": 7}')
    code, out, _ = run("convert", tmp_path / "its", tmp_path / "to", "--to", "gptq", "--json")
    facts = json.loads(out)
    assert (code, facts["from"], facts["to"], facts["layers"]) == (0, "awq", "gptq", len(layers))
    assert facts["bytes"] == sum(t.nbytes for t in tensors_of(tmp_path / "to").values())
    assert sorted(facts["copied"]) == ["generation_config.json", "tokenizer.json"]
    assert (tmp_path / "to" / "generation_config.json").read_text() == '{"max_length": 7}'
    code, out, _ = run("convert", tmp_path / "to", tmp_path / "packed", "--to", "xgemm")
    assert code == 0
    assert "14 layers of 4 bits" in out
    code, _, err = run("convert", tmp_path / "to", tmp_path / "packed", "--to", "xgemm")
    assert (code, "DST must be new or empty" in err) == (1, True)
    assert run("convert", tmp_path / "to", tmp_path / "other")[0] == 2  # --to is missing


def test_a_config_without_a_dtype_gets_that_of_the_float_weights(tmp_path: Path) -> None:
    """transformers would take that of the first tensor in the files: of fp16 scales."""
    xgemm.save(xgemm.quantize(llama().to(torch.bfloat16), group_size=32), tmp_path / "ours")
    path = tmp_path / "ours" / "config.json"
    config = json.loads(path.read_text())
    config.pop("dtype", None)
    path.write_text(json.dumps(config))
    convert(tmp_path / "ours", tmp_path / "its", "gptq")
    path = tmp_path / "its" / "config.json"
    config = json.loads(path.read_text())
    assert config.pop("dtype") == "bfloat16"
    path.write_text(json.dumps(config))
    model: Any = xgemm.load(tmp_path / "its")
    assert {model.model.embed_tokens.weight.dtype, model.dtype} == {torch.bfloat16}


def small(kind: str) -> Any:
    """A model with biases and a tied head, of joined linears, of Conv1D, and of fused experts."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "vocab_size": 128}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    if kind == "qwen2":
        config = transformers.Qwen2Config(**sizes, **heads, tie_word_embeddings=True)
    elif kind == "phi3":
        config = transformers.Phi3Config(**sizes, **heads, pad_token_id=0)
    elif kind == "gpt2":
        config = transformers.GPT2Config(n_embd=64, n_layer=1, n_head=2, vocab_size=128)
    else:
        config = transformers.GptOssConfig(**sizes, **heads, num_local_experts=4, head_dim=32)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("kind", ["qwen2", "phi3", "gpt2"])
def test_other_architectures(kind: str, tmp_path: Path) -> None:
    model = xgemm.quantize(small(kind), group_size=32)
    xgemm.save(model, tmp_path / "ours")
    for to in ("gptq", "compressed-tensors"):
        convert(tmp_path / "ours", tmp_path / to, to)
        assert torch.equal(output(xgemm.load(tmp_path / to)), output(model))
        convert(tmp_path / to, tmp_path / f"{to}-packed", "xgemm")
        assert_same(xgemm.load(tmp_path / f"{to}-packed"), model)


def test_experts_in_one_tensor_have_no_layers_of_their_own(tmp_path: Path) -> None:
    xgemm.save(xgemm.quantize(small("gpt_oss"), group_size=32), tmp_path / "ours")
    with pytest.raises(ValueError, match=r"experts\.gate_up_proj holds all experts in one tensor"):
        convert(tmp_path / "ours", tmp_path / "its", "gptq")


def test_formats_that_are_only_read(tmp_path: Path) -> None:
    """HQQ's whole zero points, which these are not in general, go into every format."""
    write_directory(tmp_path / "its", llama(), hqq_config(), hqq_tensors)
    expected: Any = xgemm.load(tmp_path / "its")
    for to in METHODS:
        convert(tmp_path / "its", tmp_path / to, to)
        assert_same(xgemm.load(tmp_path / to), expected)
    with pytest.raises(ValueError, match=r"to must be one of .* got 'hqq'"):
        convert(tmp_path / "its", tmp_path / "other", "hqq")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_while_converting_is_that_of_one_file_and_one_layer(tmp_path: Path) -> None:
    """5 blocks, 48 MB, to AWQ and to xgemm, in files of 8 MB."""
    write_large(tmp_path / "small", blocks=1)
    write_large(tmp_path / "large", blocks=5)
    peak, written = peak_memory(
        "from xgemm.hf import convert; convert(argv[0], argv[2] + '-small', 'xgemm')",
        "result = min(convert(argv[1], argv[2] + to, to, max_shard_bytes=8 << 20).nbytes"
        " for to in ('awq', 'xgemm'))",
        *(tmp_path / "small", tmp_path / "large", tmp_path / "to"),
    )
    assert written > 45e6
    assert peak < 2 * (8 << 20) + 3 * LARGEST, peak
