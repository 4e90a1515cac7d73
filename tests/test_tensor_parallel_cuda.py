"""Packed layers split over two processes on one GPU, or on two where there are as many.

NCCL does not take two processes on one GPU in every version: gloo, which copies through the host,
carries what passes between them then. The test's output (-s) says which it was.
"""

from __future__ import annotations

import faulthandler
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from test_tensor_parallel import FORMATS, inputs, layer
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from xgemm.distributed import ColwiseParallel, RowwiseParallel, parallelize

WORLD = 2


def connect(rank: int, path: Path, backend: str) -> None:
    """Joins the ranks; a file says that they could talk."""
    method = f"file://{path}/rendezvous-{backend}"
    dist.init_process_group(backend, init_method=method, rank=rank, world_size=WORLD)
    dist.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
    (path / f"connected-{backend}").touch()


def make(form: tuple[Any, ...], dtype: torch.dtype) -> nn.Sequential:
    pair = (layer(1792, 96, form), nn.SiLU(), layer(128, 1792, form))
    return nn.Sequential(*pair).cuda().to(dtype)


def run(rank: int, path: Path, backend: str) -> None:
    faulthandler.enable()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.cuda.set_device(rank % torch.cuda.device_count())
    connect(rank, path, backend)
    mesh = DeviceMesh("cuda", list(range(WORLD)))
    for form in FORMATS:
        for dtype, tolerance in ((torch.float32, 1e-4), (torch.float16, 4e-3)):
            whole, split = make(form, dtype), make(form, dtype)
            styles = {"0": ColwiseParallel(), "2": RowwiseParallel()}
            parallelize(split, mesh, styles)
            x, own = (inputs(96).cuda().to(dtype).requires_grad_() for _ in "ab")
            expected, found = whole(x), split(own)
            scale = expected.detach().abs().max().item()
            torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * scale)
            expected.sum().backward()
            found.sum().backward()
            scale = x.grad.abs().max().item()
            torch.testing.assert_close(own.grad, x.grad, rtol=0, atol=4 * tolerance * scale)
        whole, split = make(form, torch.float32), make(form, torch.float32)
        styles = {
            "0": ColwiseParallel(input_layouts=Shard(0), output_layouts=Replicate()),
            "2": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0)),
        }
        parallelize(split, mesh, styles)
        x = inputs(96).cuda()
        expected = whole(x).chunk(WORLD)[rank]
        found = split(x.chunk(WORLD)[rank])
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.gpu
@pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")
def test_two_processes_on_a_gpu(tmp_path: Path) -> None:
    for backend in ("nccl", "gloo"):  # each in processes of its own: a refusal may end them
        try:
            mp.spawn(run, args=(tmp_path, backend), nprocs=WORLD, join=True)
        except (ProcessExitedException, ProcessRaisedException):
            if backend == "gloo" or (tmp_path / f"connected-{backend}").exists():
                raise
        else:
            print(f"over {backend}, {torch.cuda.device_count()} GPU(s)")
            return
