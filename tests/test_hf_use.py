"""A quantized transformers model in use: generate, pipeline, Trainer, accelerate, casts."""

from __future__ import annotations

import copy
import gc
import json
import logging
import weakref
from pathlib import Path

import pytest
import torch

pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

from helpers import in_act_order  # noqa: E402
from hf_models import TOKENS, assert_same, llama, mixtral, output, quantized_names  # noqa: E402
from torch import nn  # noqa: E402
from transformers import (  # noqa: E402
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    CompileConfig,
    Trainer,
    TrainingArguments,
    pipeline,
)

import xgemm  # noqa: E402
import xgemm.hf  # noqa: E402
from xgemm.nn import QuantLinear  # noqa: E402


def quantized(**options) -> transformers.LlamaForCausalLM:
    return xgemm.hf.attach(xgemm.quantize(llama(**options), group_size=32))


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    """A model and its tokenizer: words w1 to w127."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    path = tmp_path_factory.mktemp("saved")
    quantized().save_pretrained(path)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(128)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="w0", unk_token="w0", eos_token="w127"
    )
    tokenizer.save_pretrained(path)
    return path


def test_text_generation_pipeline(directory: Path) -> None:
    generate = pipeline("text-generation", model=str(directory))
    assert isinstance(generate.model.model.layers[0].mlp.up_proj, QuantLinear)
    [answer] = generate("w1 w2 w3", max_new_tokens=5, do_sample=False)
    tokens = generate.model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=5, do_sample=False)
    expected = generate.tokenizer.decode(tokens[0])
    assert answer["generated_text"].replace(" ", "") == expected.replace(" ", "")


def test_feature_extraction_pipeline(directory: Path) -> None:
    extract = pipeline("feature-extraction", model=str(directory))
    features = torch.tensor(extract("w1 w2 w3"))
    expected = output(AutoModel.from_pretrained(directory), torch.tensor([[1, 2, 3]]))
    assert torch.allclose(features, expected, atol=1e-6)


# ---- what the model says of itself, casts ----


def test_what_the_model_says_of_itself(directory: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(directory)
    quantizer = model.hf_quantizer
    assert quantizer.is_serializable()
    assert quantizer.is_trainable
    assert quantizer.is_compileable
    packed = sum(m.qweight.numel() for m in model.modules() if isinstance(m, QuantLinear))
    rest = sum(p.numel() * 4 for p in model.parameters() if p.is_floating_point())
    buffers = sum(b.numel() * b.element_size() for b in model.buffers())
    assert model.get_memory_footprint(return_buffers=False) == packed + rest
    assert model.get_memory_footprint() == packed + rest + buffers


@pytest.mark.parametrize(
    ("cast", "dtype"),
    [
        (lambda model: model.to(torch.bfloat16), torch.bfloat16),
        (lambda model: model.bfloat16(), torch.bfloat16),
        (lambda model: model.half(), torch.float16),
        (lambda model: model.half().float(), torch.float32),
    ],
    ids=["to", "bfloat16", "half", "float"],
)
def test_casts(directory: Path, cast, dtype: torch.dtype) -> None:
    """Everything but the packed bytes; transformers alone would refuse half and float."""
    model = AutoModelForCausalLM.from_pretrained(directory)
    expected = output(model)
    bytes_before = model.model.layers[0].mlp.up_proj.qweight.clone()
    assert cast(model) is model
    layer = model.model.layers[0].mlp.up_proj
    assert (model.dtype, layer.compute_dtype) == (dtype, dtype)
    assert torch.equal(layer.qweight, bytes_before)
    got = output(model)
    assert got.dtype == dtype
    assert float((got - expected).norm() / expected.norm()) < 0.02


@pytest.mark.parametrize("name", ["half", "float"])
def test_a_model_that_nothing_else_holds_is_cast(directory: Path, name: str) -> None:
    """from_pretrained(...).half(): the model must live as long as its method."""
    model = getattr(AutoModelForCausalLM.from_pretrained(directory), name)()
    assert model.dtype == getattr(torch, name)


def test_transformers_still_refuses_to_cast_models_of_others() -> None:
    model = llama()
    model.is_quantized = True
    with pytest.raises(ValueError, match="not supported for quantized model"):
        model.half()
    del model.is_quantized
    assert model.half().dtype == torch.float16


def test_a_deleted_model_is_gone_at_once(directory: Path) -> None:
    """Nothing in it refers back to it: its memory would stay until Python looks for cycles."""
    model = AutoModelForCausalLM.from_pretrained(directory)
    alive = weakref.ref(model.model.layers[0].mlp.up_proj.qweight)
    copied = copy.deepcopy(model)
    gc.disable()
    try:
        del model
        assert alive() is None
    finally:
        gc.enable()
    assert copied.half().dtype == torch.float16


def test_requires_grad_leaves_packed_weights_out(directory: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(directory)
    model.requires_grad_(True)
    assert not model.model.layers[0].mlp.up_proj.qweight.requires_grad
    assert model.lm_head.weight.requires_grad


def test_dequantize(directory: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(directory)
    expected = output(model)
    names = quantized_names(model)
    model.save_pretrained(tmp_path / "before")  # which makes config.dtype a string
    plain = model.dequantize()
    assert plain is model
    assert not any(isinstance(m, QuantLinear) for m in model.modules())
    assert all(type(model.get_submodule(name)) is nn.Linear for name in names)
    assert torch.allclose(output(model), expected, atol=1e-5)
    assert not getattr(model, "is_quantized", False)
    assert not hasattr(model.model, "hf_quantizer")
    assert not hasattr(model.config, "quantization_config")
    model.save_pretrained(tmp_path)  # a float directory like any other
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert quantized_names(loaded) == []
    assert_same(loaded, model)
    assert model.half().lm_head.weight.dtype == torch.float16


@pytest.mark.parametrize("tie", [False, True])
def test_resize_token_embeddings(tie: bool, tmp_path: Path) -> None:
    model = quantized(tie=tie)
    expected = output(model)
    model.resize_token_embeddings(140, mean_resizing=False)
    assert torch.allclose(output(model)[..., :128], expected, atol=1e-6)
    model.save_pretrained(tmp_path)
    assert_same(AutoModelForCausalLM.from_pretrained(tmp_path), model)


def test_from_config_makes_a_float_model(directory: Path, tmp_path: Path) -> None:
    """Random weights are not quantized; and their directory is refused, not read as another's."""
    config = transformers.AutoConfig.from_pretrained(directory)
    model = AutoModelForCausalLM.from_config(config)
    assert quantized_names(model) == []
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"the checkpoint lacks model\.layers\.0\."):
        AutoModelForCausalLM.from_pretrained(tmp_path)


# ---- accelerate ----


def test_cpu_offload_and_dispatch(directory: Path, tmp_path: Path) -> None:
    from accelerate import cpu_offload, disk_offload, dispatch_model

    expected = AutoModelForCausalLM.from_pretrained(directory)
    parts = {
        "model.embed_tokens": "cpu",
        "model.layers.0": "cpu",
        "model.layers.1": "disk",
        "model.norm": "cpu",
        "model.rotary_emb": "cpu",
        "lm_head": "cpu",
    }
    for offload in (
        lambda m: cpu_offload(m, execution_device=torch.device("cpu")),
        lambda m: disk_offload(m, tmp_path / "disk", execution_device=torch.device("cpu")),
        lambda m: dispatch_model(
            m, parts, main_device="cpu", offload_dir=tmp_path / "part", force_hooks=True
        ),
    ):
        model = AutoModelForCausalLM.from_pretrained(directory)
        offload(model)
        assert model.model.layers[1].mlp.up_proj.qweight.is_meta
        assert_same(model, expected)


def test_disk_offload_of_experts_in_act_order(tmp_path: Path) -> None:
    """Also from a folder of before, which has no guards."""
    from accelerate import disk_offload

    model = mixtral()
    for layer in model.model.layers:
        layer.mlp.experts = in_act_order(layer.mlp.experts)
    xgemm.save(model, tmp_path / "saved")
    folder = tmp_path / "disk"
    for without_guards in (False, True):
        if without_guards:
            index = json.loads((folder / "index.json").read_text())
            kept = {name: entry for name, entry in index.items() if 0 not in entry["shape"]}
            assert len(kept) == len(index) - 4
            (folder / "index.json").write_text(json.dumps(kept))
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
        disk_offload(loaded, folder, execution_device=torch.device("cpu"))
        assert loaded.model.layers[1].mlp.experts.down_proj_qweight.is_meta
        assert_same(loaded, model)


# ---- Trainer ----


def examples(count: int = 8) -> list[dict]:
    torch.manual_seed(3)
    rows = torch.randint(1, 127, (count, 12))
    return [{"input_ids": row, "labels": int(row[0]) % 2} for row in rows]


def arguments(path: Path, **options) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(path),
        per_device_train_batch_size=4,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        save_steps=1,
        learning_rate=1e-2,
        **options,
    )


def classifier(directory: Path):
    torch.manual_seed(1)
    model = AutoModelForSequenceClassification.from_pretrained(directory, num_labels=2)
    model.model.requires_grad_(False)
    return model


def test_trainer_trains_a_head_and_resumes(directory: Path, tmp_path: Path, caplog) -> None:
    model = classifier(directory)
    packed = {n: p.clone() for n, p in model.named_parameters() if n.endswith("qweight")}
    head = model.score.weight.detach().clone()
    Trainer(model, arguments(tmp_path / "a", max_steps=2), train_dataset=examples()).train()
    assert not torch.equal(model.score.weight, head)
    assert all(torch.equal(model.get_parameter(name), value) for name, value in packed.items())

    # The first of two steps, and the second in another process's model.
    resumed = classifier(directory)
    trainer = Trainer(resumed, arguments(tmp_path / "a", max_steps=2), train_dataset=examples())
    with caplog.at_level(logging.WARNING):
        trainer.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-1"))
    assert torch.equal(resumed.score.weight, model.score.weight)
    assert not [r.message for r in caplog.records if "keys in the checkpoint" in r.message]

    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "a" / "checkpoint-2")
    assert_same(loaded, model)
    assert quantized_names(loaded) == quantized_names(model)


def test_trainer_refuses_a_model_of_which_nothing_is_frozen(
    directory: Path, tmp_path: Path
) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(directory, num_labels=2)
    with pytest.raises(ValueError, match="fine-tuning on purely quantized models"):
        Trainer(model, arguments(tmp_path, max_steps=1), train_dataset=examples())


# ---- generate ----


def test_generate_with_a_static_cache_compiles_for_no_length_anew(directory: Path) -> None:
    """One graph for all prompts; one more when the cache's size, too, turns out to vary."""
    from torch._dynamo.utils import counters

    model = AutoModelForCausalLM.from_pretrained(directory)
    compiled = CompileConfig(fullgraph=True, backend="eager", mode=None)
    compiled._compile_all_devices = True
    options = {"do_sample": False, "pad_token_id": 0}
    torch._dynamo.reset()
    counters.clear()
    graphs = []
    for prompt_length, max_length in ((4, 12), (7, 12), (9, 11), (9, 14), (9, 17)):
        options["max_length"] = max_length
        prompt = TOKENS[:, :prompt_length]
        expected = model.generate(prompt, **options)
        got = model.generate(
            prompt, cache_implementation="static", compile_config=compiled, **options
        )
        assert torch.equal(got, expected)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs == [1, 1, 1, 2, 2]
    assert not counters["graph_break"]
    torch._dynamo.reset()
