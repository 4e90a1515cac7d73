"""Fixtures and rules that every test file shares."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

# Threads that wait for work sleep, as several processes share the cores. Before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Compiling inductor's headers ahead takes longer than the few small kernels of the tests do.
os.environ.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")
# So does finding out which vector instructions inductor's own kernels may use.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")

import hypothesis
import pytest
import sampling
import torch
from extensions import TESTING

# The machine that runs the tests may be slow or shared, so an example has no deadline; and what
# passes once passes again: examples are drawn from a fixed seed.
hypothesis.settings.register_profile("xgemm", deadline=None, derandomize=True)
hypothesis.settings.load_profile("xgemm")


def pytest_configure() -> None:
    """Of several processes each has one thread: more of them would wait for one another's cores."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not sampling.ALL:
        sample(config, items)
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device, and torch sees none")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


def sample(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out cases of tests that are marked `sampled`."""
    tests: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("sampled"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    dropped: set[pytest.Item] = set()
    for name, cases in tests.items():
        dropped |= set(cases) - set(sampling.fewest(name, cases, values_of))
    config.hook.pytest_deselected(items=[item for item in items if item in dropped])
    items[:] = [item for item in items if item not in dropped]


def values_of(case: pytest.Function) -> list[object]:
    parameters = case.callspec.params if hasattr(case, "callspec") else {}
    return [(key, repr(value)) for key, value in parameters.items()]


@pytest.fixture(autouse=True)
def compilers() -> Iterator[None]:
    """peft's BOFT sets CC and CXX to gcc for good: a build in a later test would link by it."""
    before = {name: os.environ.get(name) for name in ("CC", "CXX")}
    yield
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """torch's own threads, who wait awake, off: for many small operations between other work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def cpp() -> ModuleType:
    """The device-free C++ (index maps, tables, heuristics), through pybind11: tests/cpp."""
    return TESTING.load()


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Runs the command xgemm in this process: (exit code, stdout, stderr)."""
    from xgemm import cli

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["xgemm", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else 1
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint of the small model in tests/checkpoints.py."""
    pytest.importorskip("safetensors.torch")
    import checkpoints

    import xgemm

    xgemm.save(checkpoints.quantized(), tmp_path / "out")
    return tmp_path / "out"
