"""QuantLinear in models of transformers that read weights by themselves; sentence-transformers."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import xgemm
from xgemm.nn import QuantLinear

pytest.importorskip("transformers")

from architectures import ARCHITECTURES

BY_NAME = {a.name: a for a in ARCHITECTURES}


def dequantized(model: nn.Module) -> nn.Module:
    """A copy with a float layer in each QuantLinear's place."""
    model = copy.deepcopy(model)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, QuantLinear):
            model.set_submodule(name, layer.to_linear())
    return model


def output(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.inference_mode():
        return model(**inputs)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["T5", "Mamba", "Mamba 2"])
def test_a_model_that_reads_weights_by_itself(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    architecture = BY_NAME[name]
    model = architecture.make_tiny().to(dtype)
    xgemm.quantize(model, group_size=32)
    reads = []
    getter = QuantLinear.weight.fget

    def count(self: QuantLinear) -> torch.Tensor:
        reads.append(self)
        return getter(self)

    monkeypatch.setattr(QuantLinear, "weight", property(count))
    inputs = architecture.inputs()
    got, expected = output(model, inputs), output(dequantized(model), inputs)
    assert got.dtype == expected.dtype
    error = (got - expected).float().norm() / expected.float().norm()
    assert error <= (1e-5 if dtype == torch.float32 else 0.05)
    if name != "Mamba 2":
        assert reads


def sentences(directory: Path) -> Any:
    """A tiny BERT with mean pooling, made as a user makes a model of modules."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    from sentence_transformers import models
    from transformers import BertTokenizerFast

    (directory / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcd"]))
    BY_NAME["Sentence encoder (BERT)"].make_tiny().save_pretrained(directory)
    BertTokenizerFast(vocab_file=str(directory / "vocab.txt")).save_pretrained(directory)
    encoder = models.Transformer(str(directory), max_seq_length=16)
    return sentence_transformers.SentenceTransformer(
        modules=[encoder, models.Pooling(96)], device="cpu"
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_sentence_transformer_is_saved_and_loaded(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    texts = ["a b", "c d a", "b"]
    model = sentences(tmp_path)
    before = model.encode(texts)
    xgemm.quantize(model, group_size=32)
    expected = model.encode(texts)
    assert 0 < abs(expected - before).max() < 0.5
    model.save(str(tmp_path / "saved"))
    loaded = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert type(loaded[0].auto_model.encoder.layer[0].attention.self.query) is QuantLinear
    assert (loaded.encode(texts) == expected).all()
    assert loaded.similarity(loaded.encode(texts), expected).shape == (3, 3)


def compute_dtypes(model: nn.Module) -> set[torch.dtype]:
    return {m.compute_dtype for m in model.modules() if hasattr(m, "compute_dtype")}


@pytest.mark.parametrize("name", ["T5", "Mixtral"])
def test_a_loaded_model_computes_in_the_dtype_that_was_saved(name: str, tmp_path: Path) -> None:
    """T5 casts to the dtype of a layer's weight: another one there would spread."""
    architecture = BY_NAME[name]
    model = architecture.make_tiny().bfloat16()
    xgemm.quantize(model, group_size=32)
    xgemm.save(model, tmp_path / "out")
    for options, dtype in (
        ({}, torch.bfloat16),
        ({"dtype": torch.float16}, torch.float16),
        ({"model": architecture.make_tiny()}, torch.float32),
        ({"model": architecture.make_tiny(), "dtype": torch.float16}, torch.float16),
        ({"model": architecture.make_tiny().to("meta")}, torch.bfloat16),
    ):
        loaded = xgemm.load(tmp_path / "out", **options)
        assert compute_dtypes(loaded) == {dtype}, options
    loaded = xgemm.load(tmp_path / "out")
    inputs = architecture.inputs()
    if name == "Mixtral":  # .bfloat16() has rounded the rotary tables, which no checkpoint holds
        model.model.rotary_emb = loaded.model.rotary_emb
    assert torch.equal(output(loaded, inputs), output(model, inputs))
