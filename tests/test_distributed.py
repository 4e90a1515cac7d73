"""QuantLinear under DDP, FSDP2 and DTensor: two processes on the CPU, over gloo."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from prepared import METHOD
from torch import nn

import xgemm
from xgemm.nn import QuantLinear

WORLD = 2


def build(seed: int) -> nn.Sequential:
    """Linear -> ReLU -> Linear, quantized; hidden 200 is four rows of 64, the last one short."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(96, 200), nn.ReLU(), nn.Linear(200, 40))
    xgemm.quantize(model, group_size=32, symmetric=False)
    return model


def batch() -> torch.Tensor:
    return torch.randn(6, 96, generator=torch.Generator().manual_seed(5))


def check_ddp(rank: int) -> None:
    from torch.nn.parallel import DistributedDataParallel

    model = build(seed=rank)  # rank 0's weights are broadcast
    wrapped = DistributedDataParallel(model)
    expected = build(seed=0)
    assert torch.equal(model[0].qweight, expected[0].qweight)
    x = batch()
    assert torch.equal(wrapped(x), expected(x))

    wrapped(x[rank * 3 : rank * 3 + 3]).sum().backward()
    expected(x).sum().backward()
    for mine, whole in zip(model.parameters(), expected.parameters(), strict=True):
        assert (mine.grad is None) == (mine.dtype == torch.uint8)
        if mine.grad is not None:  # averaged over the ranks
            torch.testing.assert_close(mine.grad * WORLD, whole.grad)


def check_fsdp2(rank: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    expected = build(seed=0)
    model = build(seed=0)
    mesh = init_device_mesh("cpu", (WORLD,))
    for layer in model:
        if isinstance(layer, QuantLinear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    qweight = model[0].qweight
    assert isinstance(qweight, DTensor)
    assert qweight.dtype == torch.uint8
    assert qweight.to_local().shape[0] == 2  # of the 4 rows

    x = batch()
    torch.testing.assert_close(model(x), expected(x), rtol=0, atol=0)
    model(x).sum().backward()
    expected(x).sum().backward()
    for mine, whole in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(mine.full_tensor(), whole)
        assert (mine.grad is None) == (mine.dtype == torch.uint8)
        if mine.grad is not None:
            torch.testing.assert_close(mine.grad.full_tensor(), whole.grad)
    with torch.no_grad():
        torch.testing.assert_close(model(x), expected(x), rtol=0, atol=0)
    assert model[0].weight.shape == (200, 96)  # sharded again, gathered where it is used
    assert torch.equal(model[0].weight, expected[0].weight)


def check_fsdp2_states(rank: int) -> None:
    """From the meta device and a full state, cast while gathering."""
    from torch.distributed.checkpoint import state_dict as states
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    expected = build(seed=0)
    model = build(seed=1).to("meta")
    mesh = init_device_mesh("cpu", (WORLD,))
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    model.to_empty(device="cpu")
    for layer in model:
        if isinstance(layer, QuantLinear):
            layer.reset_parameters()
    full = states.StateDictOptions(full_state_dict=True)
    states.set_model_state_dict(model, expected.state_dict(), options=full)
    gathered = states.get_model_state_dict(model, options=full)
    for name, tensor in expected.state_dict().items():
        assert torch.equal(gathered[name], tensor), name
    expected.bfloat16()
    assert torch.equal(model(batch()), expected(batch().bfloat16()))


def check_dtensor(rank: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    layer = build(seed=0)[0]
    mesh = init_device_mesh("cpu", (WORLD,))
    sharded = distribute_tensor(layer.qweight.detach(), mesh, [Shard(0)])
    local = sharded.to_local()
    first = rank * 128
    n = min(128, 200 - first)  # 128 columns, then the 72 that are left
    assert local.shape[0] == 2
    packed = layer.to_packed()
    whole = xgemm.linear(batch(), packed)
    part = torch.ops.xgemm.mul.w4a16(batch(), local, n, 96, 32, zeros=True)
    assert torch.equal(part, whole[:, first : first + n])
    # And the shard is a weight by itself.
    codes = xgemm.unpack(xgemm.PackedWeight(local, n, 96, 32, has_zeros=True)).codes
    assert torch.equal(codes, xgemm.unpack(packed).codes[first : first + n])
    assert torch.equal(sharded.full_tensor(), layer.qweight)


CHECKS = {
    "ddp": check_ddp,
    "fsdp2": check_fsdp2,
    "fsdp2_states": check_fsdp2_states,
    "dtensor": check_dtensor,
}


def run(rank: int, rendezvous: str, results: str) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=WORLD)
    for name, check in CHECKS.items():
        try:
            check(rank)
            outcome = "passed"
        except Exception:
            outcome = traceback.format_exc()
        Path(results, f"{name}-{rank}").write_text(outcome)
        dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What each check came to on each rank: one pair of processes, as they are slow to start."""
    path = tmp_path_factory.mktemp("distributed")
    arguments = f"file://{path}/rendezvous", str(path)
    mp.start_processes(run, args=arguments, nprocs=WORLD, start_method=METHOD)
    return path


@pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo")
@pytest.mark.parametrize("check", CHECKS)
def test_two_processes(check: str, results: Path) -> None:
    for rank in range(WORLD):
        assert (results / f"{check}-{rank}").read_text() == "passed"
