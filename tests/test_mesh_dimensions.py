"""Packed layers on a mesh of two dimensions, data parallel outside and tensor parallel inside."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import Checks, outcome, run_on
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import xgemm
from xgemm.distributed import parallelize

PLAN = {"0": "colwise", "2": "rowwise"}


def pair() -> nn.Sequential:
    """Linears of an MLP, between float ones."""
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(96, 448), nn.SiLU(), nn.Linear(448, 96))
    xgemm.quantize(mlp, group_size=64)
    return nn.Sequential(nn.LayerNorm(96), mlp, nn.Linear(96, 8))


def check_two_dimensions(path: Path) -> None:
    """Data parallel outside, tensor parallel inside: DDP's gradients are the whole batch's."""
    from torch.nn.parallel import DistributedDataParallel

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    expected, model = pair(), pair()
    with pytest.raises(ValueError, match=r"one dimension, got 2: .* as mesh\[.tp.\]"):
        parallelize(model[1], mesh, PLAN)
    parallelize(model[1], mesh["tp"], PLAN)
    assert model[1][0].out_features in (192, 256)
    wrapped = DistributedDataParallel(model, process_group=mesh["dp"].get_group())
    x = torch.randn(8, 96, generator=torch.Generator().manual_seed(1))
    expected(x).square().mean().backward()
    wrapped(x.chunk(2)[mesh["dp"].get_local_rank()]).square().mean().backward()
    for index in (0, 2):  # float layers, whole on each rank
        for mine, other in zip(
            model[index].parameters(), expected[index].parameters(), strict=True
        ):
            torch.testing.assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-5)


def check_fsdp_of_shares(path: Path) -> None:
    """fully_shard over the outer dimension of a model that is split over the inner one."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    expected, model = pair(), pair()
    parallelize(model[1], mesh["tp"], PLAN)
    fully_shard(model, mesh=mesh["dp"])
    x = torch.randn(8, 96, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(x), expected(x), rtol=1e-4, atol=1e-4)


CHECKS: Checks = {
    "two_dimensions": check_two_dimensions,
    "fsdp_of_shares": check_fsdp_of_shares,
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mesh")
    run_on(4, CHECKS, path)
    return path


@pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo")
@pytest.mark.parametrize("check", CHECKS)
def test_ranks(check: str, results: Path) -> None:
    assert outcome(results, check, 4) == ["passed"] * 4
