"""Two processes: shares read from files, and no other bytes of them; and training_checks.py.

One group of processes for both, as they are slow to start.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import training_checks
from ranks import Checks, device, mesh_of_all, outcome, run_on
from test_tensor_parallel import FORMATS, inputs, layer, nbytes
from torch import nn

import xgemm
from xgemm.distributed import parallelize

pytest.importorskip("transformers")
WORLD = 2
PLAN_OF_PAIRS = {"pairs.*.up": "colwise", "pairs.*.down": "rowwise"}
SIZES = dict(
    hidden_size=256, intermediate_size=448, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=64, vocab_size=130,
)  # fmt: skip


class Pairs(nn.Module):
    """A pair of layers of each format, and a float one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(96)
        self.pairs = nn.ModuleList()
        for form in FORMATS:
            pair = nn.Module()
            pair.up, pair.down = layer(448, 96, form), layer(96, 448, form)
            self.pairs.append(pair)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for pair in self.pairs:
            x = self.norm(pair.down(pair.up(x).relu()))
        return x


def float_pairs() -> nn.Module:
    """The same architecture before it is quantized."""
    model = Pairs()
    for pair in model.pairs:
        pair.up, pair.down = nn.Linear(96, 448), nn.Linear(448, 96)
    return model


def llama(**more: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**SIZES, "tie_word_embeddings": True, **more})
    model = xgemm.quantize(transformers.LlamaForCausalLM(config).eval(), group_size=32)
    return model.to(device())


def mixtral() -> Any:
    import transformers

    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        **{**SIZES, "num_local_experts": 5, "num_experts_per_tok": 2}, tie_word_embeddings=False
    )
    model = xgemm.quantize(transformers.MixtralForCausalLM(config).eval(), group_size=64)
    return model.to(device())


def some_tokens() -> torch.Tensor:
    return torch.arange(12, device=device()).view(2, 6)


@contextmanager
def packed_bytes_read() -> Iterator[list[int]]:
    """How many bytes of qweights are read from files, whoever opens them."""
    import safetensors
    import transformers.core_model_loading as core
    import transformers.modeling_utils as modeling

    from xgemm.hf import loading, shares

    real, count = safetensors.safe_open, [0]

    def counted(name: str, tensor: torch.Tensor) -> torch.Tensor:
        count[0] += tensor.nbytes if name.endswith("qweight") else 0
        return tensor

    class Slice:
        def __init__(self, name: str, part: Any) -> None:
            self.name, self.part = name, part

        def __getitem__(self, key: Any) -> torch.Tensor:
            return counted(self.name, self.part[key])

        def __getattr__(self, name: str) -> Any:
            return getattr(self.part, name)

    class File:
        def __init__(self, *args: Any, **options: Any) -> None:
            self.file = real(*args, **options)

        def __enter__(self) -> File:
            self.file.__enter__()
            return self

        def __exit__(self, *error: Any) -> None:
            self.file.__exit__(*error)

        def get_tensor(self, name: str) -> torch.Tensor:
            return counted(name, self.file.get_tensor(name))

        def get_slice(self, name: str) -> Slice:
            return Slice(name, self.file.get_slice(name))

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    users = [m for m in (safetensors, modeling, core, loading, shares) if hasattr(m, "safe_open")]
    for module in users:
        module.safe_open = File
    try:
        yield count
    finally:
        for module in users:
            module.safe_open = real


def whole_bytes(model: nn.Module) -> int:
    return sum(t.nbytes for name, t in model.named_parameters() if name.endswith("qweight"))


def check_pairs(path: Path) -> None:
    """What is loaded is, bit by bit, what parallelize leaves of the whole model."""
    mesh = mesh_of_all()
    whole = Pairs().to(device())
    expected = parallelize(Pairs().to(device()), mesh, PLAN_OF_PAIRS)
    with packed_bytes_read() as count:
        options: Any = dict(mesh=mesh, plan=PLAN_OF_PAIRS, device=device())
        found = xgemm.load(path / "pairs", float_pairs(), **options)
    assert count[0] < whole_bytes(whole) * 0.7  # a middle unit of 128 channels is read by both
    state, other = expected.state_dict(), found.state_dict()
    assert state.keys() == other.keys()
    for name, tensor in state.items():
        assert torch.equal(other[name], tensor), name
    assert nbytes(found) == nbytes(expected)
    x = inputs(96).to(device())
    torch.testing.assert_close(found(x), whole(x), rtol=1e-4, atol=1e-3)
    text = "is split over 2 ranks: save the whole model"
    with pytest.raises(ValueError, match=text):
        xgemm.save(found, path / "share")


def check_llama(path: Path) -> None:
    mesh = mesh_of_all()
    whole = llama()
    with packed_bytes_read() as count:
        found = xgemm.load(path / "llama", mesh=mesh, device=device())
    assert count[0] < whole_bytes(whole) * 0.6
    assert found.lm_head.weight is found.model.embed_tokens.weight
    same(found, whole)
    half = xgemm.load(path / "llama", mesh=mesh, dtype=torch.bfloat16, device=device())
    assert half.model.layers[0].mlp.up_proj.compute_dtype == torch.bfloat16
    assert half(some_tokens()).logits.dtype == torch.bfloat16


def check_experts(path: Path) -> None:
    """Five experts over two ranks; both ways of loading."""
    mesh = mesh_of_all()
    whole = mixtral()
    with packed_bytes_read() as count:
        found = xgemm.load(path / "mixtral", mesh=mesh, device=device())
    assert count[0] < whole_bytes(whole) * 0.65
    assert found.model.layers[0].mlp.experts.num_experts == 2 + mesh.get_local_rank()
    same(found, whole)
    same(pretrained(path / "mixtral"), whole)


def check_tp_plan(path: Path) -> None:
    """transformers' tp_plan="auto" over packed layers; embeddings are split by transformers."""
    whole = llama()
    with packed_bytes_read() as count:
        found = pretrained(path / "llama-hf")
    assert count[0] < whole_bytes(whole) * 0.6
    assert found.model.layers[1].mlp.down_proj.in_features == 192 + 64 * dist.get_rank()
    same(found, whole)
    with pytest.raises(ValueError, match=r"save_pretrained: .*q_proj is split over 2 ranks"):
        found.save_pretrained(path / f"share-{dist.get_rank()}")


def check_recipes(path: Path) -> None:
    """What cannot be split while it loads is refused by name."""
    import transformers

    with pytest.raises(ValueError, match="tp_plan: a model that is quantized cannot be split over"):
        pretrained(path / "float", quantization_config=xgemm.hf.XgemmConfig(group_size=32))
    with pytest.raises(ValueError, match="num_key_value_heads must give each of 2 ranks"):
        pretrained(path / "one-head")
    mesh = mesh_of_all()
    with pytest.raises(ValueError, match="was written by save_pretrained: from_pretrained of"):
        xgemm.load(path / "llama-hf", mesh=mesh)
    with pytest.raises(ValueError, match="load: plan is for a mesh, got none"):
        xgemm.load(path / "llama", plan={})
    with pytest.raises(TypeError, match="load: mesh must be a DeviceMesh, got int"):
        xgemm.load(path / "llama", mesh=2)
    text = "load: .*: plan: layers fits no module of the model"
    with pytest.raises(ValueError, match=text):
        xgemm.load(path / "llama", mesh=mesh, plan={"layers": "colwise"})
    assert isinstance(
        transformers.AutoModelForCausalLM.from_pretrained(path / "llama-hf"), nn.Module
    )


def pretrained(path: Path, **options: Any) -> Any:
    import transformers
    from transformers.distributed import DistributedConfig

    config = DistributedConfig(tp_plan="auto")
    cls = transformers.AutoModelForCausalLM
    return cls.from_pretrained(path, distributed_config=config, **options)


def same(found: Any, whole: Any) -> None:
    with torch.no_grad():
        logits, expected = found(some_tokens()).logits, whole(some_tokens()).logits
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    options = dict(max_new_tokens=4, do_sample=False, pad_token_id=0)
    mask = torch.ones_like(some_tokens())
    tokens = found.generate(some_tokens(), attention_mask=mask, **options)
    assert torch.equal(tokens, whole.generate(some_tokens(), attention_mask=mask, **options))


CHECKS: Checks = {
    **training_checks.CHECKS,
    "pairs": check_pairs,
    "llama": check_llama,
    "experts": check_experts,
    "tp_plan": check_tp_plan,
    "recipes": check_recipes,
}


def run_checks(path: Path, backend: str) -> Path:
    """Each check on two ranks, of models that are written into `path` before."""
    pytest.importorskip("peft")
    import transformers

    xgemm.save(Pairs(), path / "pairs")
    xgemm.save(llama(), path / "llama")
    xgemm.save(mixtral(), path / "mixtral")
    llama().save_pretrained(path / "llama-hf")
    training_checks.llama().save_pretrained(path / "untied")
    llama(num_key_value_heads=1).save_pretrained(path / "one-head")
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).save_pretrained(path / "float")
    run_on(WORLD, CHECKS, path, backend)
    return path


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_checks(tmp_path_factory.mktemp("two_ranks"), "gloo")


@pytest.fixture(scope="module")
def results_on_gpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_checks(tmp_path_factory.mktemp("two_gpus"), "nccl")


@pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo")
@pytest.mark.parametrize("check", CHECKS)
def test_ranks(check: str, results: Path) -> None:
    assert outcome(results, check, WORLD) == ["passed"] * WORLD


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < WORLD, reason="needs two GPUs")
@pytest.mark.parametrize("check", CHECKS)
def test_gpus(check: str, results_on_gpus: Path) -> None:
    """The same over NCCL, each rank on a GPU of its own."""
    assert outcome(results_on_gpus, check, WORLD) == ["passed"] * WORLD
