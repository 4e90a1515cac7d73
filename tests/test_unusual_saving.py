"""Quantized models that were changed before they are saved, and loaded as something else."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from architecture import tokens
from architectures import ARCHITECTURES

import xgemm
from xgemm.nn import QuantLinear

pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("one_thread")

BY_NAME = {architecture.name: architecture for architecture in ARCHITECTURES}


def make(name: str) -> Any:
    return xgemm.quantize(BY_NAME[name].make_tiny(), group_size=32)


def logits(model: Any, **inputs: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model.eval()(**(inputs or {"input_ids": tokens()})).logits


def drop_a_layer(model: Any) -> None:
    model.model.layers = model.model.layers[:1]
    model.config.num_hidden_layers = 1


def put_a_float_layer_back(model: Any) -> None:
    mlp = model.model.layers[0].mlp
    mlp.up_proj = mlp.up_proj.to_linear()


def add_tokens(model: Any) -> None:
    model.resize_token_embeddings(160, mean_resizing=False)


def quantize_the_rest(model: Any) -> None:
    xgemm.quantize(model, group_size=64, include=["lm_head"])
    assert model.lm_head.group_size == 64


@pytest.mark.filterwarnings("ignore:quantize. 4 bits hold:UserWarning")
@pytest.mark.parametrize("save", [xgemm.save, "save_pretrained"], ids=["ours", "theirs"])
@pytest.mark.parametrize(
    "change", [drop_a_layer, put_a_float_layer_back, add_tokens, quantize_the_rest]
)
def test_a_model_changed_after_it_was_quantized(
    tmp_path: Path, change: Callable[[Any], None], save: Any
) -> None:
    """What is saved is the model as it is, not as it was quantized."""
    model = make("Llama")
    change(model)
    (model.save_pretrained if save == "save_pretrained" else lambda to: save(model, to))(tmp_path)
    expected = logits(model)
    for loaded in (
        xgemm.load(tmp_path),
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path, local_files_only=True),
    ):
        assert torch.equal(logits(loaded), expected)


@pytest.mark.parametrize("options", [{"max_shard_size": "100KB"}, {"variant": "w4"}])
def test_options_of_save_pretrained(tmp_path: Path, options: dict[str, str]) -> None:
    model = make("Llama")
    model.save_pretrained(tmp_path, **options)
    variant = options.get("variant")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, variant=variant, local_files_only=True
    )
    assert torch.equal(logits(loaded), logits(model))
    assert len(list(tmp_path.glob("*.safetensors"))) > (1 if variant is None else 0)


def test_parts_of_a_checkpoint(tmp_path: Path) -> None:
    """The base of a language model, the encoder of T5, and a new head on the base."""
    llama, t5 = make("Llama"), make("T5")
    llama.save_pretrained(tmp_path / "llama")
    t5.save_pretrained(tmp_path / "t5")
    base = transformers.AutoModel.from_pretrained(tmp_path / "llama")
    encoder = transformers.T5EncoderModel.from_pretrained(tmp_path / "t5")
    labelled = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "llama", num_labels=3
    )
    with torch.inference_mode():
        expected = llama.model(tokens()).last_hidden_state
        assert torch.equal(base.eval()(tokens()).last_hidden_state, expected)
        assert torch.equal(labelled.eval().model(tokens()).last_hidden_state, expected)
        states = [part.eval()(tokens()).last_hidden_state for part in (encoder, t5.encoder)]
        assert torch.equal(*states)
    assert type(labelled.score) is torch.nn.Linear


def test_a_model_made_of_two(tmp_path: Path) -> None:
    """Encoder and decoder have configs of their own within one directory."""
    encoder = BY_NAME["Sentence encoder (BERT)"].make_tiny()
    config = copy.deepcopy(encoder.config)
    config.is_decoder = config.add_cross_attention = True
    decoder = transformers.BertLMHeadModel(config)
    model = transformers.EncoderDecoderModel(encoder=encoder, decoder=decoder)
    xgemm.quantize(model, group_size=32)
    model.save_pretrained(tmp_path)
    loaded = transformers.EncoderDecoderModel.from_pretrained(tmp_path)
    inputs = {"input_ids": tokens(), "decoder_input_ids": tokens(seed=4)}
    assert torch.equal(logits(loaded, **inputs), logits(model, **inputs))
    assert any(isinstance(module, QuantLinear) for module in loaded.decoder.modules())


def test_a_transformers_model_within_a_module(tmp_path: Path) -> None:
    class Labeller(torch.nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            self.encoder: Any = BY_NAME["Sentence encoder (BERT)"].make_tiny(seed)
            self.head = torch.nn.Linear(96, 3)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.encoder(ids).last_hidden_state[:, 0])

    model = xgemm.quantize(Labeller(0), group_size=32)
    assert "head" in model.xgemm_report.quantized
    xgemm.save(model, tmp_path / "whole")
    model.encoder.save_pretrained(tmp_path / "encoder")
    other = xgemm.load(tmp_path / "whole", model=Labeller(5))
    encoder = transformers.AutoModel.from_pretrained(tmp_path / "encoder").eval()
    with torch.inference_mode():
        assert torch.equal(other(tokens()), model(tokens()))
        expected = model.encoder(tokens()).last_hidden_state
        assert torch.equal(encoder(tokens()).last_hidden_state, expected)


@pytest.mark.parametrize(
    "wrap",
    [lambda model: torch.compile(model, backend="eager"), torch.nn.DataParallel],
    ids=["compile", "DataParallel"],
)
def test_a_wrapped_model_is_saved_as_the_model(tmp_path: Path, wrap: Callable[..., Any]) -> None:
    model, other = make("Llama"), wrap(BY_NAME["Llama"].make_tiny(5))
    xgemm.save(wrap(model), tmp_path)
    assert torch.equal(logits(xgemm.load(tmp_path)), logits(model))
    assert xgemm.load(tmp_path, model=other) is other
    inner = other.module if isinstance(other, torch.nn.DataParallel) else other._orig_mod
    assert torch.equal(logits(inner), logits(model))


def test_an_adapted_model_is_loaded_into_another(tmp_path: Path) -> None:
    """No config describes peft's model: the error says how to load it."""
    peft = pytest.importorskip("peft")

    def adapted(name: str, seed: int) -> Any:
        config = peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
        return peft.get_peft_model(BY_NAME[name].make_tiny(seed), config)

    model = xgemm.quantize(adapted("Llama", 0), group_size=32)
    xgemm.save(model, tmp_path)
    with pytest.raises(ValueError, match=r"no architecture 'PeftModel': pass .* as model="):
        xgemm.load(tmp_path)
    other = xgemm.load(tmp_path, model=adapted("Llama", 5))
    assert torch.equal(logits(other), logits(model))


def test_save_pretrained_over_a_save(tmp_path: Path) -> None:
    xgemm.save(make("Llama"), tmp_path)
    model = make("Llama")
    model.model.norm.weight.data.mul_(2)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"save_pretrained wrote it, remove xgemm_manifest.json"):
        xgemm.load(tmp_path)
    (tmp_path / "xgemm_manifest.json").unlink()
    assert torch.equal(logits(xgemm.load(tmp_path)), logits(model))


def test_the_config_of_a_model_is_passed_on(tmp_path: Path) -> None:
    """To its own directory; and to another's, which is refused, as it cannot be loaded so."""
    from_pretrained = transformers.AutoModelForCausalLM.from_pretrained
    model = make("Llama")
    model.save_pretrained(tmp_path / "packed")
    BY_NAME["Llama"].make_tiny().save_pretrained(tmp_path / "float")
    loaded = from_pretrained(tmp_path / "packed", config=model.config)
    again = from_pretrained(tmp_path / "packed", config=loaded.config)
    assert torch.equal(logits(again), logits(model))
    with pytest.raises(ValueError, match=r"lacks .*qweight.*holds no packed weight.*take quant"):
        from_pretrained(tmp_path / "float", config=model.config)


def test_a_recipe_in_a_config_does_not_make_a_float_model(tmp_path: Path) -> None:
    """As an object and as a dict: it would be loaded in float, and called quantized."""
    import xgemm.hf

    recipe = xgemm.hf.XgemmConfig(group_size=32)
    BY_NAME["Llama"].make_tiny().save_pretrained(tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    for section in (recipe, recipe.to_dict()):
        config.quantization_config = section
        with pytest.raises(ValueError, match=r"holds a recipe.*pass it as quantization_config="):
            transformers.AutoModelForCausalLM.from_pretrained(tmp_path, config=config)


def test_what_is_pushed_to_the_hub_is_a_model_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Hub itself is not asked: what would be uploaded to it is kept."""
    from transformers.utils import hub

    class Card:
        def save(self, path: str) -> None:
            Path(path).write_text("a card")

    class Api:
        def create_repo(self, repo_id: str, **_: Any) -> Any:
            return type("Repository", (), {"repo_id": repo_id})

    def upload(self: Any, folder: str, repo_id: str, *_: Any, **__: Any) -> None:
        shutil.copytree(folder, tmp_path / repo_id)

    monkeypatch.setattr(hub, "hf_api", Api)
    monkeypatch.setattr(hub, "create_and_tag_model_card", lambda *_, **__: Card())
    monkeypatch.setattr(hub.PushToHubMixin, "_upload_modified_files", upload)
    model = make("Llama")
    model.push_to_hub("somebody/a-model")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "somebody" / "a-model")
    assert isinstance(loaded.model.layers[0].mlp.up_proj, QuantLinear)
    assert torch.equal(logits(loaded), logits(model))
