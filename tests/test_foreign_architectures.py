"""Other tools' checkpoints of other models than Llamas: biases, tied heads, float layers."""

from __future__ import annotations

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
    is_linear,
    write_directory,
)
from hf_models import output, quantized_names  # noqa: E402

import xgemm  # noqa: E402
import xgemm.hf  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 128}
HEADS = {"intermediate_size": 96, "num_key_value_heads": 1}
CONFIGS = {
    "qwen2": lambda: transformers.Qwen2Config(**SIZES, **HEADS),  # biases of q, k and v
    "gemma": lambda: transformers.GemmaConfig(**SIZES, **HEADS, head_dim=32),  # a tied head
    "opt": lambda: transformers.OPTConfig(**SIZES, ffn_dim=96, word_embed_proj_dim=64),
}
FORMATS: dict[str, tuple[dict[str, Any], Any, bool]] = {
    "gptq": (gptq_config(dynamic={r"-:.*layers\.1\.": {}}), gptq_tensors, True),
    "awq": (awq_config(modules_to_not_convert=["layers.1."]), awq_tensors, False),
    "compressed-tensors": (
        compressed_config(("lm_head", r"re:.*layers\.1\..*")),
        compressed_tensors,
        True,
    ),
}


def chosen(name: str) -> bool:
    return "layers.0." in name and (is_linear(name) or name.endswith(("out_proj", "fc1", "fc2")))


@pytest.mark.parametrize("method", FORMATS)
@pytest.mark.parametrize("kind", CONFIGS)
def test_it_computes_what_its_dequantized_weights_do(
    kind: str, method: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[kind]()).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.1)
    config, tensors_of, symmetric = FORMATS[method]
    its = tmp_path / "its"
    layers, reference = write_directory(
        its, model, config, tensors_of, chosen=chosen, symmetric=symmetric
    )
    expected = output(transformers.AutoModelForCausalLM.from_pretrained(reference))
    found: Any = xgemm.load(its)
    assert set(quantized_names(found)) == layers.keys()
    assert float((output(found) - expected).norm() / expected.norm()) < 1e-4
    for to in sorted({"xgemm", "awq", "compressed-tensors"} - {method}):
        xgemm.hf.convert(its, tmp_path / to, to=to)
        assert torch.equal(output(xgemm.load(tmp_path / to)), output(found)), to
