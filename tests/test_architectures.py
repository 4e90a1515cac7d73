"""A quantized model of every architecture is the model that its dequantized weights make.

Each test runs for each entry of tests/architectures.py and carries its name.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import architecture_table
import pytest
import torch
from architecture import Architecture
from architectures import ARCHITECTURES
from torch import nn

import xgemm
from xgemm.nn import QuantExperts, QuantLinear

pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("one_thread")

# RTN, groups of 32 normal weights: a uniform error within half a step, which is max|w| / 15.
QUANTIZATION_ERROR = 0.12
# float32 sums in another order; activations pass two to four blocks.
ROUNDING = 2e-5
NEW_TOKENS = 6
WRITERS = ("xgemm.save", "save_pretrained")
READERS = ("xgemm.load", "from_pretrained")


@dataclass
class Pair:
    """A quantized model, and the float model with the weights that it stands for."""

    architecture: Architecture
    quantized: Any
    reference: Any
    inputs: dict[str, torch.Tensor]


@pytest.fixture(scope="module", params=ARCHITECTURES, ids=lambda entry: entry.name)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    architecture = request.param
    reference = architecture.make_tiny()
    quantized = xgemm.quantize(copy.deepcopy(reference), group_size=32)
    fill_dequantized(reference, quantized)
    yield Pair(architecture, quantized, reference, architecture.inputs())
    torch.set_num_threads(threads)


def fill_dequantized(reference: nn.Module, quantized: nn.Module) -> None:
    """Put the weights of `quantized` into the float `reference`; they must be near its own."""
    for name, module in quantized.named_modules():
        if isinstance(module, QuantLinear):
            replace(reference, f"{name}.weight", module.dequantize(torch.float32))
        elif isinstance(module, QuantExperts):
            for projection in module.formats:
                weight = module.dequantize(projection, torch.float32)
                replace(reference, f"{name}.{projection}", weight)


def replace(model: nn.Module, name: str, weight: torch.Tensor) -> None:
    owner = model.get_submodule(name.rpartition(".")[0])
    parameter = model.get_parameter(name)
    if isinstance(owner, transformers.pytorch_utils.Conv1D):
        weight = weight.t()
    assert parameter.shape == weight.shape, name
    assert relative(weight, parameter) < QUANTIZATION_ERROR, name
    with torch.no_grad():
        parameter.copy_(weight)


def relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


def forward(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The model's main output: logits, or what its base model gives."""
    with torch.inference_mode():
        output = model(**inputs)
    for name in ("logits", "logits_per_image", "last_hidden_state"):
        if name in output:
            return output[name]
    raise AssertionError(f"no main output among {list(output)}")


def test_forward(pair: Pair) -> None:
    got = forward(pair.quantized, pair.inputs)
    expected = forward(pair.reference, pair.inputs)
    assert got.dtype == expected.dtype
    assert relative(got, expected) < ROUNDING


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-3), (torch.float16, 0.1)])
def test_forward_on_a_gpu(pair: Pair, dtype: torch.dtype, bound: float) -> None:
    """Beside the float model in float32 on the CPU; in float16 a router may choose otherwise."""
    expected = forward(pair.reference, pair.inputs)
    quantized = copy.deepcopy(pair.quantized).to(device="cuda", dtype=dtype)
    inputs = {
        name: value.to("cuda", dtype if value.is_floating_point() else None)
        for name, value in pair.inputs.items()
    }
    assert relative(forward(quantized, inputs).float().cpu(), expected) < bound


def test_report(pair: Pair) -> None:
    """It names every linear layer and every module of experts, and its share is the true one."""
    report = pair.quantized.xgemm_report
    named = {*report.quantized, *report.left}
    packed: dict[int, int] = {}
    for name, module in pair.reference.named_modules():
        weights = [p for p in module.parameters(recurse=False) if p.ndim == 3]
        if isinstance(module, nn.Linear | transformers.pytorch_utils.Conv1D):
            weights = [module.weight]
        elif not hasattr(module, "num_experts"):
            continue  # a convolution, or position embeddings
        assert not weights or name in named, name
        if name in report.quantized:
            packed.update((id(p), p.numel()) for p in weights)
    total = sum(p.numel() for p in pair.reference.parameters())
    assert report.parameters == total
    assert report.share_quantized == pytest.approx(sum(packed.values()) / total)
    assert packed_modules(pair.quantized).keys() == set(report.quantized)


def test_generate(pair: Pair) -> None:
    """Greedily: the same tokens, unless the reference itself was undecided."""
    if not pair.architecture.generates:
        assert not hasattr(pair.reference, "generation_config") or not pair.reference.can_generate()
        return
    got, expected = generate(pair.quantized, pair.inputs), generate(pair.reference, pair.inputs)
    assert len(got.logits) == len(expected.logits) == NEW_TOKENS
    for row in range(got.sequences.shape[0]):
        for step, (mine, theirs) in enumerate(zip(got.logits, expected.logits, strict=True)):
            assert relative(mine[row], theirs[row]) < 10 * ROUNDING, (row, step)
            if int(mine[row].argmax()) != int(theirs[row].argmax()):
                best, second = theirs[row].topk(2).values.tolist()
                assert best - second < 1e-3, (row, step)
                break  # from here on the two texts differ


def generate(model: Any, inputs: dict[str, torch.Tensor]) -> Any:
    return model.generate(
        **inputs,
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        output_logits=True,
        return_dict_in_generate=True,
    )


@pytest.mark.parametrize("writer", WRITERS)
def test_save_and_load(pair: Pair, writer: str, tmp_path: Path) -> None:
    """What either way writes, both ways read: bit for bit the same numbers."""
    import xgemm.hf

    if writer == "xgemm.save":
        xgemm.save(pair.quantized, tmp_path)
    else:
        pair.quantized.save_pretrained(tmp_path)
    expected = forward(pair.quantized, pair.inputs)
    for reader in READERS:
        loaded = load(reader, type(pair.quantized), tmp_path)
        assert type(loaded) is type(pair.quantized), reader
        assert packed_modules(loaded) == packed_modules(pair.quantized), reader
        assert torch.equal(forward(loaded, pair.inputs), expected), reader


def test_quantize_while_loading(pair: Pair, tmp_path: Path) -> None:
    """`from_pretrained` of the float directory gives what `xgemm.quantize` gives."""
    from xgemm.hf import XgemmConfig

    pair.architecture.make_tiny().save_pretrained(tmp_path)
    loaded = type(pair.quantized).from_pretrained(
        tmp_path, quantization_config=XgemmConfig(group_size=32), local_files_only=True
    )
    assert packed_modules(loaded) == packed_modules(pair.quantized)
    assert torch.equal(forward(loaded.eval(), pair.inputs), forward(pair.quantized, pair.inputs))


def load(reader: str, model_class: type, path: Path) -> nn.Module:
    if reader == "xgemm.load":
        return xgemm.load(path)
    return model_class.from_pretrained(path, local_files_only=True).eval()


@pytest.mark.slow
def test_the_page_is_what_the_script_prints() -> None:
    """docs/guide/architectures.md; python tests/architecture_table.py --write makes it anew."""
    assert architecture_table.PAGE.read_text() == architecture_table.page()


def packed_modules(model: nn.Module) -> dict[str, str]:
    return {
        name: type(module).__name__
        for name, module in model.named_modules()
        if isinstance(module, QuantLinear | QuantExperts)
    }
