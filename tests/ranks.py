"""Checks that several processes run together, over gloo on the CPU."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

Checks = dict[str, Callable[[Path], None]]


def run_on(ranks: int, checks: Checks, path: Path) -> None:
    """Each check on each rank, one after the other; `outcome` says what came of it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(_run, args=(ranks, port, checks, path), nprocs=ranks, join=True)


def outcome(path: Path, check: str, ranks: int) -> list[str]:
    """ "passed", or the traceback, of each rank; "" where an earlier check failed."""
    files = [path / f"{check}-{rank}" for rank in range(ranks)]
    return [file.read_text() if file.exists() else "" for file in files]


def _run(rank: int, ranks: int, port: int, checks: Checks, path: Path) -> None:
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo",
    )  # fmt: skip
    dist.init_process_group("gloo")
    for name, check in checks.items():
        try:
            check(path)
        except BaseException:
            (path / f"{name}-{rank}").write_text(traceback.format_exc())
            return  # out of step with the others, which fail, too, when they wait for this one
        (path / f"{name}-{rank}").write_text("passed")
    dist.barrier()
    dist.destroy_process_group()
