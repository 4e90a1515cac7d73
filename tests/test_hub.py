"""The folder for the Hugging Face Hub: what `kernels` finds in it, and what kernelize makes of it.

kernelize runs on the CPU here, by the variant for CPU-only torch; which variant a torch with CUDA
takes is asked of `kernels` itself, without a GPU.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from prepared import run_script
from torch import nn
from torch.testing import assert_close

import xgemm
from xgemm._library import LIBRARY_PATH
from xgemm.nn import QuantLinear

kernels = pytest.importorskip("kernels")

WRITE = runpy.run_path(str(Path(__file__).parents[1] / "hub" / "write.py"), run_name="write")
INFO = {
    "version": "1.2.3",
    "git_commit": "0123456789ab-dirty",
    "cuda": "13.0",
    "cuda_archs": ["80+90+PTX", "90a"],
    "torch_target": "2.10",
}
CUDA_VARIANT = "torch-stable-abi210-cu130-x86_64-linux"
CPU_VARIANT = "torch-stable-abi210-cpu-x86_64-linux"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    WRITE["write"](folder, LIBRARY_PATH.parent, INFO)
    return folder


def test_the_folder_has_what_the_hub_expects(folder: Path) -> None:
    from kernels._rust import Metadata

    written = {path.name: path for path in (folder / "build").iterdir()}
    assert set(written) == {CUDA_VARIANT, CPU_VARIANT}
    for variant in written.values():
        names = {path.name for path in variant.iterdir()}
        assert names == {"metadata.json", "__init__.py", "layers.py", "xgemm"}
        library = variant / "xgemm" / LIBRARY_PATH.name
        assert library.stat().st_size == LIBRARY_PATH.stat().st_size
        assert not (variant / "xgemm" / "cli").exists()
    found = Metadata.read_from_file(written[CUDA_VARIANT] / "metadata.json")
    assert found.name.python_name == "xgemm"
    assert found.id == "_xgemm_cuda_0123456789ab_dirty"
    assert found.id.isidentifier()
    assert found.backend.archs == ["8.0", "9.0", "8.0+PTX", "9.0a"]
    assert Metadata.read_from_file(written[CPU_VARIANT] / "metadata.json").backend.archs is None
    assert (folder / "README.md").read_text().startswith("---\nlicense: apache-2.0\n")


@pytest.mark.parametrize(
    ("cuda", "torch_version", "expected"),
    [
        ("13.0", "2.10", CUDA_VARIANT),
        ("13.2", "2.13", CUDA_VARIANT),
        ("13.0", "2.9", None),
        ("12.8", "2.11", None),
        (None, "2.13", CPU_VARIANT),
    ],
)
def test_the_variant_that_a_machine_takes(
    folder: Path, cuda: str | None, torch_version: str, expected: str | None
) -> None:
    from kernels import backends, variants
    from packaging.version import Version

    backend = backends.CPU() if cuda is None else backends.CUDA(version=Version(cuda))
    accepted, _ = variants._resolve_variant_for_system(
        variants=variants.get_variants_local(folder / "build"),
        selected_backend=backend,
        cpu="x86_64",
        os="linux",
        torch_version=Version(torch_version),
        torch_cxx11_abi=True,
        tvm_ffi_version=None,
    )
    assert [variant.variant_str for variant in accepted] == ([expected] if expected else [])


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (12, 0)])
def test_every_gpu_from_ampere_on_may_load_it(capability: tuple[int, int]) -> None:
    from kernels.archs import _supports_cuda_capability

    archs = WRITE["cuda_archs"](INFO["cuda_archs"])
    assert _supports_cuda_capability(archs, capability)
    assert not _supports_cuda_capability(archs, (7, 5))


class HostLinear(nn.Linear):
    """A layer of a model, whose forward kernelize replaces."""


class HostQuantLinear(nn.Module):
    """A packed weight in a model that knows no kernels: it dequantizes."""

    def __init__(self, packed: xgemm.PackedWeight) -> None:
        super().__init__()
        self.packed = packed
        self.qweight = nn.Parameter(packed.qweight, requires_grad=False)
        self.perm, self.bias = packed.perm, nn.Parameter(torch.randn(packed.n))
        self.in_features, self.out_features = packed.k, packed.n
        self.group_size, self.bf16_scales = packed.group_size, packed.bf16_scales
        self.has_zeros = packed.has_zeros

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.packed.dequantize(), self.bias)


def kernelized(model: nn.Module, folder: Path, mode: Any = None) -> nn.Module:
    for cls in (HostLinear, HostQuantLinear, QuantLinear):
        name = cls.__name__.removeprefix("Host")
        kernels.replace_kernel_forward_from_hub(cls, name)
    mapping = {
        name: {"cpu": kernels.LocalLayerRepository(folder, layer_name=name)}
        for name in ("Linear", "QuantLinear")
    }
    try:
        with kernels.use_kernel_mapping(mapping):
            mode = mode or kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE
            return kernels.kernelize(model, mode=mode, device="cpu", use_fallback=False)
    finally:
        for cls in (HostLinear, HostQuantLinear, QuantLinear):
            del cls.kernel_layer_name, cls.kernel_condition


def calls(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, set[str]]:
    """The output, and the names of xgemm's ops that ran."""
    with torch.profiler.profile() as profile:
        y = model(x)
    names = {event.name for event in profile.events()}
    return y, {name for name in names if name.startswith("xgemm::")}


def test_kernelize_a_linear(folder: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(HostLinear(40, 24), nn.ReLU(), HostLinear(24, 8, bias=False))
    x = torch.randn(2, 5, 40, requires_grad=True)
    expected = model(x)
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    found, ops = calls(kernelized(model, folder), x)
    assert ops == {"xgemm::mul"}
    assert_close(found, expected)
    assert_close(torch.autograd.grad(found.sum(), x)[0], gradient)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_close(compiled(x), expected)


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
def test_kernelize_a_packed_linear(folder: Path, symmetric: bool, act_order: bool) -> None:
    torch.manual_seed(0)
    q = xgemm.quantize_weight(torch.randn(70, 128), "rtn", 64, symmetric)
    g_idx = (torch.randperm(128) // 64).int() if act_order else None
    packed = xgemm.pack(xgemm.QuantizedWeight(q.codes, q.scales, q.zeros, g_idx, 64))
    host = HostQuantLinear(packed)
    x = torch.randn(3, 128, requires_grad=True)
    expected = host(x)
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    found, ops = calls(kernelized(host, folder), x)
    assert ops == {"xgemm::mul"}
    assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert_close(torch.autograd.grad(found.sum(), x)[0], gradient, rtol=1e-4, atol=1e-4)


def test_kernelize_the_layer_of_an_installed_xgemm(folder: Path) -> None:
    layer = QuantLinear.from_linear(nn.Linear(64, 48))
    x = torch.randn(3, 64)
    expected = layer(x)
    assert torch.equal(kernelized(layer, folder, kernels.Mode.INFERENCE)(x), expected)


def test_an_installed_xgemm_is_used_as_it_is(folder: Path) -> None:
    kernel = kernels.get_local_kernel(folder)
    assert kernel.xgemm is xgemm
    loaded = [path for path in torch.ops.loaded_libraries if path.startswith(str(folder))]
    assert loaded == []


def run(script: str, *arguments: object) -> str:
    done = run_script(script, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


ALONE = """
import sys
from pathlib import Path

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name == "xgemm":
            raise ModuleNotFoundError(name=name)

folder = Path(sys.argv[1])
hidden = NotInstalled()
sys.meta_path.insert(0, hidden)
import torch, kernels, importlib.util
real, importlib.util.find_spec = importlib.util.find_spec, lambda name, package=None: (
    None if name == "xgemm" and name not in sys.modules else real(name, package))
kernel = kernels.get_local_kernel(folder)
import xgemm
assert kernel.xgemm is xgemm and xgemm.__file__.startswith(str(folder)), xgemm.__file__
layer = xgemm.nn.QuantLinear.from_linear(torch.nn.Linear(64, 48))
x = torch.randn(3, 64, requires_grad=True)
y = kernel.layers.QuantLinear.forward(layer, x)
y.sum().backward()
torch.testing.assert_close(x.grad, layer.dequantize().sum(0).expand(3, 64))
sys.meta_path.remove(hidden)
import xgemm.formats.checkpoint
assert xgemm.formats.checkpoint.__file__.startswith(str(folder))
print("alone")
"""


def test_without_an_installed_xgemm_the_folders_own_is_loaded(folder: Path) -> None:
    assert run(ALONE, folder) == "alone\n"


TWICE = """
import sys, torch
torch.ops.load_library(sys.argv[1])
try:
    import xgemm
except ImportError as error:
    print(error)
"""


def test_two_libraries_in_a_process_are_refused_and_do_not_crash(folder: Path) -> None:
    library = folder / "build" / CPU_VARIANT / "xgemm" / LIBRARY_PATH.name
    said = run(TWICE, library)
    assert said.startswith("xgemm: this process holds the operators of another xgemm already")
