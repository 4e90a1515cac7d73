"""Checks of training and keeping packed models over two processes (test_two_ranks.py runs them)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Checks, device, mesh_of_all
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import xgemm
from xgemm.distributed import parallelize

SIZES = dict(
    hidden_size=256, intermediate_size=448, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=64, vocab_size=130,
)  # fmt: skip


# Before, torch's FSDP2 asks a gradient of every parameter that it shards.
SHARDS_INTEGERS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)


def shard(module: nn.Module, mesh: DeviceMesh) -> Any:
    """fully_shard; an older torch leaves the packed weights whole."""
    if SHARDS_INTEGERS:
        return fully_shard(module, mesh=mesh)
    packed = {p for p in module.parameters() if not p.is_floating_point()}
    return fully_shard(module, mesh=mesh, ignored_params=packed)


def some_tokens() -> torch.Tensor:
    return torch.arange(4 * 6, device=device()).view(4, 6) % 130


def llama(**more: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**SIZES, **more})
    return xgemm.quantize(transformers.LlamaForCausalLM(config), group_size=64).to(device())


def with_lora() -> Any:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(llama(), LoraConfig(r=4, target_modules=["q_proj", "down_proj"]))
    random = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # zeros give the other factor no gradient
            parameter.data.copy_(torch.randn(parameter.shape, generator=random) * 0.1)
    return model


def step(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """A step of SGD on the adapters; the loss before it."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.5)
    loss = model(tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def check_lora(path: Path) -> None:
    """Sharded bytes, sharded adapters: the step is that of one process with the whole batch."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    expected, model = with_lora(), with_lora()
    mesh = mesh_of_all()
    for layer in model.base_model.model.model.layers:
        shard(layer, mesh)
    shard(model, mesh)
    if SHARDS_INTEGERS:
        qweight = model.base_model.model.model.layers[0].mlp.up_proj.qweight
        assert isinstance(qweight, DTensor)
        assert qweight.to_local().shape[0] == 4 - rank  # of 7 rows
    losses = []
    for _ in range(2):
        own = step(model, some_tokens().chunk(ranks)[rank])
        dist.all_reduce(own)
        losses.append((own / ranks, step(expected, some_tokens())))
    for found, loss in losses:
        torch.testing.assert_close(found, loss, rtol=1e-4, atol=1e-5)
    trained = 0
    for (name, mine), other in zip(model.named_parameters(), expected.parameters(), strict=True):
        if mine.requires_grad:
            trained += 1
            torch.testing.assert_close(whole(mine), other, rtol=1e-3, atol=1e-5, msg=name)
    assert trained == 8
    before = with_lora().state_dict()
    changed = [n for n, p in expected.named_parameters() if not torch.equal(p, before[n])]
    assert len(changed) == trained  # and the packed bytes are as they were


def check_checkpoint(path: Path) -> None:
    """torch.distributed.checkpoint of a sharded model, read into another one, bit by bit."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

    mesh = mesh_of_all()
    original = llama()
    model = shard(llama(), mesh)
    dcp.save(get_model_state_dict(model), checkpoint_id=str(path / "dcp"))
    other = llama()
    for layer in other.model.layers:
        layer.mlp.up_proj.qweight.data.zero_()
    other = shard(other, mesh)
    state = get_model_state_dict(other)
    dcp.load(state, checkpoint_id=str(path / "dcp"))
    set_model_state_dict(other, state)
    for (name, mine), expected in zip(
        other.state_dict().items(), original.state_dict().values(), strict=True
    ):
        assert torch.equal(whole(mine), expected), name
    with torch.no_grad():
        torch.testing.assert_close(other(some_tokens()).logits, original(some_tokens()).logits)


def check_transformers_fsdp(path: Path) -> None:
    """from_pretrained with fsdp_size: packed bytes are read and kept as shards."""
    import transformers
    from transformers.distributed import DistributedConfig

    cls = transformers.AutoModelForCausalLM
    config = DistributedConfig(fsdp_size=dist.get_world_size())
    if not SHARDS_INTEGERS:
        with pytest.raises(RuntimeError, match="floating point"):
            cls.from_pretrained(path / "untied", distributed_config=config)
        return
    model = cls.from_pretrained(path / "untied", distributed_config=config)
    qweight = model.model.layers[0].mlp.up_proj.qweight
    assert isinstance(qweight, DTensor)
    assert qweight.to_local().shape[0] < qweight.shape[0]
    with torch.no_grad():
        torch.testing.assert_close(model(some_tokens()).logits, llama()(some_tokens()).logits)


def check_fused(path: Path) -> None:
    """Siblings are joined before the model is split, or after."""
    mesh = mesh_of_all()
    expected = llama()(some_tokens()).logits
    after = xgemm.fuse(parallelize(llama(), mesh))
    with torch.no_grad():
        torch.testing.assert_close(after(some_tokens()).logits, expected, rtol=1e-4, atol=1e-4)
    before = parallelize(xgemm.fuse(llama()), mesh)
    with torch.no_grad():
        torch.testing.assert_close(before(some_tokens()).logits, expected, rtol=1e-4, atol=1e-4)


def check_tied_head(path: Path) -> None:
    """A float head that is the embedding: both stay whole, and one."""
    mesh = mesh_of_all()
    model = llama(tie_word_embeddings=True)
    expected = model(some_tokens()).logits
    parallelize(model, mesh)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    with torch.no_grad():
        torch.testing.assert_close(model(some_tokens()).logits, expected, rtol=1e-4, atol=1e-4)


CHECKS: Checks = {
    "lora": check_lora,
    "checkpoint": check_checkpoint,
    "transformers_fsdp": check_transformers_fsdp,
    "fused": check_fused,
    "tied_head": check_tied_head,
}
