"""The choices for other GPUs, on whatever GPU is here: those before Hopper, and smaller ones.

XGEMM_CUDA_CAPABILITY=80 holds for a whole process, so the families' tests run again in others; so
does XGEMM_CUDA_SMS.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).parent
SRC = TESTS.parent / "python"

EXPLAIN = """
import json

import xgemm

for op, dtype in (("mul", "bfloat16"), ("mul.w4a16", "bfloat16"), ("mul", "float32")):
    said = xgemm.explain(op, 100, 512, 512, dtype=dtype, device="cuda", candidates=False)
    print(json.dumps(said["choice"]))
"""

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def run_as_sm80(*arguments: str) -> str:
    return run_with({"XGEMM_CUDA_CAPABILITY": "80", "XGEMM_RANDOM_PROBLEMS": "2000"}, *arguments)


def run_with(variables: dict[str, str], *arguments: str) -> str:
    environment = {
        **os.environ,
        **variables,
        "PYTHONPATH": os.pathsep.join([str(SRC), str(TESTS), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_no_kernel_of_hopper_is_chosen() -> None:
    choices = [json.loads(line) for line in run_as_sm80("-c", EXPLAIN).splitlines()]
    assert [choice["kernel"] for choice in choices] == ["sm80", "sm80", "fp32"]


def test_choices_are_made_for_fewer_multiprocessors() -> None:
    explain = EXPLAIN.replace("100, 512, 512", "100, 8192, 8192")
    said = run_with({"XGEMM_CUDA_SMS": "8"}, "-c", explain)
    packed = json.loads(said.splitlines()[1])
    assert 1 <= packed["ctas"] <= 8, said


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        ("test_mul_random.py", "on_cuda"),
        ("test_w4a16_cuda.py", "random or rows or layers or depend or finite"),
        ("test_fp32_cuda.py", "layouts or batches or finite or graph"),
        ("test_reduce_cuda.py", "random or shapes"),
    ],
)
def test_families(file: str, tests: str) -> None:
    options = ("-q", "-m", "gpu", "-k", tests, "-p", "no:cacheprovider")
    assert " passed" in run_as_sm80("-m", "pytest", *options, str(TESTS / file))
