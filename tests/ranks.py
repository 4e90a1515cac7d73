"""Checks that several processes run together: over gloo on the CPU, or each on its own GPU."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from prepared import METHOD
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

Checks = dict[str, Callable[[Path], None]]


def device() -> str:
    """Where this process computes: its own GPU in a group over NCCL, else the CPU."""
    on_gpus = dist.is_initialized() and dist.get_backend() == "nccl"
    return f"cuda:{dist.get_rank()}" if on_gpus else "cpu"


def mesh_of_all() -> DeviceMesh:
    """All ranks in one dimension, on the devices that they compute on."""
    return init_device_mesh(device().partition(":")[0], (dist.get_world_size(),))


def run_on(ranks: int, checks: Checks, path: Path, backend: str = "gloo") -> None:
    """Each check on each rank, one after the other; `outcome` says what came of it.

    backend: "gloo", on the CPU; "nccl", a GPU for each rank.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ranks, port, checks, path, backend
    mp.start_processes(_run, args=arguments, nprocs=ranks, start_method=METHOD)


def outcome(path: Path, check: str, ranks: int) -> list[str]:
    """ "passed", or the traceback, of each rank; "" where an earlier check failed."""
    files = [path / f"{check}-{rank}" for rank in range(ranks)]
    return [file.read_text() if file.exists() else "" for file in files]


def _run(rank: int, ranks: int, port: int, checks: Checks, path: Path, backend: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo",
    )  # fmt: skip
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend)
    for name, check in checks.items():
        try:
            check(path)
        except BaseException:
            (path / f"{name}-{rank}").write_text(traceback.format_exc())
            return  # out of step with the others, which fail, too, when they wait for this one
        (path / f"{name}-{rank}").write_text("passed")
    dist.barrier()
    dist.destroy_process_group()
