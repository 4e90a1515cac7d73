"""GGUF files: what is taken over as it is and what is dequantized, against transformers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import xgemm
from xgemm.nn import QuantLinear

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("one_thread")

HIDDEN, FEED_FORWARD, HEADS, KEY_HEADS, VOCABULARY = 64, 96, 4, 2, 260
KINDS = {
    "attn_q": "Q4_0", "attn_k": "Q4_1", "attn_v": "Q8_0", "attn_output": "F16",
    "ffn_gate": "Q4_0", "ffn_up": "Q4_1", "ffn_down": "Q4_1",
}  # fmt: skip
ROWS = {"attn_q": HIDDEN, "attn_k": HIDDEN // 2, "attn_v": HIDDEN // 2, "attn_output": HIDDEN,
        "ffn_gate": FEED_FORWARD, "ffn_up": FEED_FORWARD, "ffn_down": HIDDEN}  # fmt: skip
TAKEN = ["q_proj", "k_proj", "gate_proj", "up_proj", "down_proj"]


def write_gguf(path: Path, architecture: str = "llama", extra: str | None = None) -> Path:
    """A Llama of one layer with random weights of several kinds, and a tokenizer of bytes."""
    from tokenizers.pre_tokenizers import ByteLevel

    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(VOCABULARY)
    tokens = [*sorted(ByteLevel.alphabet()), "<end>", "ab", "cd", "abcd"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 256 + [3, 1, 1, 1])
    writer.add_token_merges(["a b", "c d", "ab cd"])
    writer.add_eos_token_id(256)
    writer.add_bos_token_id(256)

    def add(name: str, shape: tuple[int, ...], kind: str) -> None:
        values = rng.standard_normal(shape).astype(np.float32) / 8
        quantization = gguf.GGMLQuantizationType[kind]
        data = gguf.quants.quantize(values, quantization)
        writer.add_tensor(name, data, raw_dtype=quantization)

    add("token_embd.weight", (VOCABULARY, HIDDEN), "Q8_0")
    add("output_norm.weight", (HIDDEN,), "F32")
    add("output.weight", (VOCABULARY, HIDDEN), "Q4_0")
    for name, kind in KINDS.items():
        columns = FEED_FORWARD if name == "ffn_down" else HIDDEN
        add(f"blk.0.{name}.weight", (ROWS[name], columns), kind)
    for name in ("attn_norm", "ffn_norm"):
        add(f"blk.0.{name}.weight", (HIDDEN,), "F32")
    if extra is not None:
        add(extra, (HIDDEN,), "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def theirs(path) -> torch.nn.Module:
    return transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()


def test_q4_0_is_exact():
    from xgemm.hf.gguf import q4_0_weight

    rng = np.random.default_rng(1)
    values = rng.standard_normal((5, 96)).astype(np.float32)
    kind = gguf.GGMLQuantizationType.Q4_0
    blocks = gguf.quants.quantize(values, kind)
    weight = q4_0_weight(blocks)
    assert weight.zeros is None
    assert bool((weight.scales < 0).any())  # the code 0 is the weight of the largest magnitude
    expected = gguf.quants.dequantize(blocks, kind)
    np.testing.assert_array_equal(weight.dequantize(torch.float32).numpy(), expected)
    packed = xgemm.unpack(xgemm.pack(weight))
    assert torch.equal(packed.codes, weight.codes)
    assert torch.equal(packed.scales, weight.scales)
    with pytest.raises(ValueError, match="q4_0_weight: blocks must be uint8"):
        q4_0_weight(np.zeros((2, 20), np.uint8))


def test_llama_is_what_transformers_reads(path, theirs):
    from xgemm.hf.gguf_model import load_gguf

    heard: list[tuple[int, int]] = []
    ours, taken = load_gguf(path, lambda done, total, name: heard.append((done, total)))
    assert [name.rpartition(".")[2] for name in taken] == TAKEN
    assert heard[-1] == (12, 12)
    assert not ours.training
    for name, parameter in theirs.named_parameters():
        expected = parameter.detach()
        module = ours.get_submodule(name.rpartition(".")[0])
        if not isinstance(module, QuantLinear):
            assert torch.equal(module.get_parameter(name.rpartition(".")[2]), expected), name
            continue
        found = module.dequantize(torch.float32)
        # Q4_0 is exact; of Q4_1 the zero point, below 16 here, is rounded to fp16.
        bound = 0.0 if module.to_packed().has_zeros is False else 2.0**-7 * expected.abs().max()
        assert float((found - expected).detach().abs().max()) <= bound, name
    tokens = torch.arange(10)[None]
    with torch.inference_mode():
        difference = (ours(tokens).logits - theirs(tokens).logits).abs().max()
    assert float(difference) < 0.02 * float(theirs(tokens).logits.detach().abs().max())


def test_layers_that_skip_names_are_dequantized(path, theirs):
    from xgemm.hf.gguf_model import load_gguf

    ours, taken = load_gguf(path, skip=["*.mlp.*"])
    assert [name.rpartition(".")[2] for name in taken] == ["q_proj", "k_proj"]
    up = ours.model.layers[0].mlp.up_proj
    assert torch.equal(up.weight, theirs.model.layers[0].mlp.up_proj.weight)


def test_a_file_with_other_tensors_is_left_to_transformers(tmp_path, theirs):
    from xgemm.hf.gguf import GgufLlama
    from xgemm.hf.gguf_model import load_gguf

    path = write_gguf(tmp_path / "other.gguf", extra="rope_freqs.weight")
    assert GgufLlama(path).unknown == ["rope_freqs.weight"]
    ours, taken = load_gguf(path)
    assert taken == []
    assert torch.equal(ours.model.embed_tokens.weight, theirs.model.embed_tokens.weight)


def test_what_is_no_llama_is_named(tmp_path):
    from xgemm.hf.gguf import GgufLlama
    from xgemm.hf.gguf_header import architecture_of

    path = write_gguf(tmp_path / "other.gguf", architecture="falcon")
    assert architecture_of(path) == "falcon"
    with pytest.raises(ValueError, match=r"general\.architecture must be llama, got 'falcon'"):
        GgufLlama(path)
    (tmp_path / "no.gguf").write_bytes(b"PK\x03\x04" * 8)
    with pytest.raises(ValueError, match="a GGUF file begins with GGUF"):
        architecture_of(tmp_path / "no.gguf")


def test_quantize_says_what_was_taken_over(run, path, tmp_path, theirs):
    target = tmp_path / "target"
    code, out, err = run("quantize", path, target, "--group-size", 32, "--json")
    assert code == 0, err
    facts = json.loads(out)
    assert [name.rpartition(".")[2] for name in facts["taken_over"]] == TAKEN
    quantized = {name.rpartition(".")[2] for name in facts["quantized"]}
    assert {"v_proj", "o_proj"} <= quantized
    model = xgemm.load(target)
    assert isinstance(model.model.layers[0].self_attn.v_proj, QuantLinear)
    tokens = torch.arange(10)[None]
    with torch.inference_mode():
        difference = (model(tokens).logits - theirs(tokens).logits).abs().max()
    assert float(difference) < 0.2 * float(theirs(tokens).logits.detach().abs().max())
    tokenizer = transformers.AutoTokenizer.from_pretrained(target)
    assert tokenizer.decode(tokenizer("abcd")["input_ids"]) == "abcd"

    code, out, err = run("quantize", path, tmp_path / "again", "--group-size", 32)
    assert code == 0, err
    assert "of the file's linears 5 were taken over as they are, without requantizing" in out


FIELD = len("general.architecture")


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (8, 2**60, "must have at most 65535 bytes"),  # tensors: data is read as a name
        (16, 2**60, "must have at most 65535 bytes"),  # fields: a tensor is read as one
        (24, 2**40, "must have at most 65535 bytes, got 1099511627776"),  # a key's length
        (24 + 8 + FIELD, 77, "'general.architecture' has a value of the unknown type 77"),
    ],
)
def test_a_header_that_counts_too_far_is_refused_at_once(path, tmp_path, where, value, message):
    """The readers of gguf and of transformers take a count of 2^60 as it stands."""
    from xgemm.hf.gguf_header import architecture_of
    from xgemm.hf.gguf_model import load_gguf

    data = bytearray(path.read_bytes())
    size = 4 if value < 2**32 else 8
    data[where : where + size] = value.to_bytes(size, "little")
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(data)
    for read in (architecture_of, load_gguf):
        with pytest.raises(ValueError, match=rf"damaged\.gguf: .*({message})"):
            read(damaged)


def test_an_array_of_any_length_is_refused_at_once(path, tmp_path):
    from xgemm.hf.gguf_model import load_gguf

    data = bytearray(path.read_bytes())
    key = data.index(b"tokenizer.ggml.token_type")  # an array of int32
    count = key + len(b"tokenizer.ggml.token_type") + 4 + 4
    data[count : count + 8] = (2**58).to_bytes(8, "little")
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(data)
    with pytest.raises(ValueError, match=r"damaged\.gguf: 'tokenizer\.ggml\.token_type' needs"):
        load_gguf(damaged)


def test_a_truncated_file_is_refused_by_name(path, tmp_path):
    from xgemm.hf.gguf_model import load_gguf

    data = path.read_bytes()
    damaged = tmp_path / "damaged.gguf"
    for size in (0, 3, 23, 200, len(data) // 2, len(data) - 100):
        damaged.write_bytes(data[:size])
        with pytest.raises(ValueError, match=r"damaged\.gguf: "):
            load_gguf(damaged)


def test_what_is_no_file_is_refused(tmp_path):
    from xgemm.hf.gguf import GgufLlama

    os.mkfifo(tmp_path / "fifo.gguf")
    with pytest.raises(ValueError, match=r"fifo\.gguf must be a regular file, got a FIFO"):
        GgufLlama(tmp_path / "fifo.gguf")
