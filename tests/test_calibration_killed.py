"""A resumable run that is killed (SIGKILL) goes on where it was, to the same bits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from prepared import run_script

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
from xgemm.quantize.calibrate.block import Block

folder = Path(sys.argv[1])
ids = torch.randint(3, 120, (4, 24), generator=torch.Generator().manual_seed(0))


def quantized(**arguments):
    return xgemm.quantize(
        hf_models.llama(), method="gptq", group_size=32, calibration=list(ids.split(2)), **arguments
    )


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def at_call(count, owner, name):
    calls, function = [], getattr(owner, name)

    def counted(*arguments, **named):
        calls.append(name)
        if len(calls) == count:
            die()
        return function(*arguments, **named)

    setattr(owner, name, counted)
    quantized(resume=folder)


whole = quantized()  # transformers imports much in the first call, which forks then have
layer, stored = (Block, "set"), (resume, "sync")
for kill in ((3, *layer), (1, *stored), (2, *stored), (5, *layer), (1, *stored)):
    child = os.fork()
    if child == 0:
        at_call(*kill)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, kill
    print(len(list(folder.glob("stage-*"))))
resumed = quantized(resume=folder)
one, other = resumed.state_dict(), whole.state_dict()
assert one.keys() == other.keys()
assert all(torch.equal(one[name], other[name]) for name in one)
assert resumed.xgemm_report.as_dict() == whole.xgemm_report.as_dict()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_killed_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = run_script(SCRIPT, tmp_path / "run", env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr[-2000:]
    # The blocks that were stored when each process was killed.
    assert done.stdout.split() == ["0", "0", "1", "1", "1"]
