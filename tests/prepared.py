"""Processes of their own for tests, which need not import torch: forks of one that has.

torch takes seconds to import, and transformers as long again: more than what most tests
ask of such a process. xgemm is not imported yet, so that the environment still decides about it.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

METHOD = "forkserver"
CONTEXT = multiprocessing.get_context(METHOD)
CONTEXT.set_forkserver_preload(
    ["torch", "torch.distributed.tensor", "transformers.models.llama.modeling_llama"]
)


def run_script(
    script: str,
    *arguments: object,
    env: Mapping[str, str] = os.environ,
    check: bool = False,
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    """As `python -c script arguments`: the exit status, and what it wrote."""
    command = ["-c", *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, "stdout"), Path(folder, "stderr")]
        process = CONTEXT.Process(
            target=_run, args=(script, command, dict(env), os.getcwd(), *files)
        )
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(command, timeout)
        written = [file.read_text() if file.exists() else "" for file in files]
    done = subprocess.CompletedProcess(command, process.exitcode, *written)
    if check:
        done.check_returncode()
    return done


def _run(
    script: str, command: list[str], env: dict[str, str], folder: str, stdout: Path, stderr: Path
) -> None:
    for number, path in enumerate((stdout, stderr), start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), number)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    sys.argv = command
    sys.path[:0] = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    exec(compile(script, "<script>", "exec"), {"__name__": "__main__"})
