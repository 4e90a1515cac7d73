"""peft over quantized models as transformers saves and loads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

peft = pytest.importorskip("peft")

import transformers  # noqa: E402
from adapters import GROUP_SIZE, adapted, llama, logits, lora, loss, tokens  # noqa: E402
from torch import nn  # noqa: E402
from torch.testing import assert_close  # noqa: E402

import xgemm  # noqa: E402
import xgemm.hf  # noqa: E402
from xgemm.nn import QuantLinear  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def quantize(model: Any) -> Any:
    return xgemm.quantize(model, group_size=GROUP_SIZE)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    quantize(llama()).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def load(directory: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(directory).eval()


def test_base_and_adapter_are_found_by_the_adapters_directory(
    directory: Path, tmp_path: Path
) -> None:
    model = adapted(load(directory), lora())
    model.save_pretrained(tmp_path / "adapter")
    loaded = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter")
    assert torch.equal(logits(loaded), logits(model))
    layer = loaded.base_model.model.model.layers[0].self_attn.q_proj
    assert type(layer.base_layer) is QuantLinear


def test_transformers_own_adapter_calls(directory: Path, tmp_path: Path) -> None:
    model = adapted(load(directory), lora())
    model.save_pretrained(tmp_path / "adapter")
    base = load(directory)
    plain = logits(base)
    base.load_adapter(tmp_path / "adapter")
    assert torch.equal(logits(base), logits(model))
    base.disable_adapters()
    assert torch.equal(logits(base), plain)


def test_a_merged_model_is_saved_as_a_quantized_one(directory: Path, tmp_path: Path) -> None:
    merged = xgemm.hf.merge_and_unload(adapted(load(directory), lora()), requantize=True)
    assert merged.config.quantization_config.quant_method == "xgemm"
    merged.save_pretrained(tmp_path / "merged")
    loaded = load(tmp_path / "merged")
    assert type(loaded.model.layers[0].self_attn.q_proj) is QuantLinear
    assert torch.equal(logits(loaded), logits(merged))


def test_a_model_merged_into_floats_is_quantized_no_more(directory: Path, tmp_path: Path) -> None:
    model = adapted(load(directory), lora())
    expected = logits(model)
    merged = xgemm.hf.merge_and_unload(model, requantize=False)
    assert not any(isinstance(module, QuantLinear) for module in merged.modules())
    assert not hasattr(merged.config, "quantization_config")
    merged.save_pretrained(tmp_path / "merged")
    loaded = load(tmp_path / "merged")
    assert type(loaded.model.layers[0].self_attn.q_proj) is nn.Linear
    assert_close(logits(loaded), expected, rtol=1e-4, atol=1e-5)
    again = quantize(loaded)
    assert type(again.model.layers[0].self_attn.q_proj) is QuantLinear


def test_trainer_trains_an_adapter(directory: Path, tmp_path: Path) -> None:
    model = xgemm.hf.prepare_for_training(load(directory), gradient_checkpointing=False)
    torch.manual_seed(0)
    model = peft.get_peft_model(model, lora())
    before = loss(model).item()
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"),
        max_steps=4,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        gradient_checkpointing=True,
        save_strategy="steps",
        save_steps=4,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    rows = [{"input_ids": row, "labels": row} for row in tokens(8)]
    transformers.Trainer(model=model, args=arguments, train_dataset=rows).train()
    model.eval()
    after = loss(model).item()
    assert after < before
    loaded = peft.PeftModel.from_pretrained(load(directory), tmp_path / "out" / "checkpoint-4")
    assert loss(loaded).item() == pytest.approx(after, abs=1e-5)


def test_quantize_after_peft_takes_the_base_layers_alone() -> None:
    model = adapted(llama(), lora(modules_to_save=["lm_head"]))
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    before = {n: p.clone() for n, p in model.named_parameters() if n in names}
    quantized = quantize(model)
    layer = quantized.base_model.model.model.layers[0].mlp.up_proj
    assert type(layer.base_layer) is QuantLinear
    assert [name for name, p in quantized.named_parameters() if p.requires_grad] == names
    after = dict(quantized.named_parameters())
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert type(layer.lora_A["default"]) is nn.Linear
