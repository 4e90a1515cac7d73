"""A resumable run that is killed (SIGKILL) goes on where it was, to the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("safetensors")

TESTS = Path(__file__).resolve().parent

# Each process is a fork that kills itself: at a layer in the middle of a block, while a finished
# block is written, and between its rename and what follows. The last one is left to finish.
SCRIPT = """
import os, signal, sys, warnings
from pathlib import Path

import torch

torch.set_num_threads(1)
warnings.simplefilter("ignore")
import hf_models
import xgemm
from xgemm.quantize.calibrate import resume

method, folder = sys.argv[1], Path(sys.argv[2])
ids = torch.randint(3, 120, (4, 24), generator=torch.Generator().manual_seed(0))


def quantized(progress=None, **arguments):
    return xgemm.quantize(
        hf_models.llama(), method=method, group_size=32, calibration=list(ids.split(2)),
        progress=progress, **arguments
    )


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def at_layer(count):
    def progress(done, total, name):
        if done == count:
            die()

    quantized(progress, resume=folder)


def at_sync(count):
    calls, sync = [], resume.sync

    def counted(path):
        calls.append(path)
        if len(calls) == count:
            die()
        sync(path)

    resume.sync = counted
    quantized(resume=folder)


# Of 14 layers in 2 blocks: 3 are in the first block, 10 in the second.
for kill, argument in ((at_layer, 3), (at_sync, 1), (at_sync, 2), (at_layer, 10), (at_sync, 1)):
    child = os.fork()
    if child == 0:
        kill(argument)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (kill, argument)
    print(kill.__name__, argument, *sorted(p.name for p in folder.glob("stage-*")))
resumed, whole = quantized(resume=folder), quantized()
one, other = resumed.state_dict(), whole.state_dict()
assert one.keys() == other.keys()
assert all(torch.equal(one[name], other[name]) for name in one)
assert resumed.xgemm_report.as_dict() == whole.xgemm_report.as_dict()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_a_killed_run_goes_on_to_the_same_bits(method: str, tmp_path: Path) -> None:
    assert signal.SIGKILL
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, method, str(tmp_path / "run")],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    # What was finished when each process was killed: nothing before the first block was stored.
    stages = [len(line.split()) - 2 for line in done.stdout.splitlines()]
    assert stages[0] == stages[1] == 0
    assert 1 <= stages[3] <= stages[4]
