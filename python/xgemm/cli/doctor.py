"""`xgemm doctor`: what is here, whether it fits together, and whether each op is right."""

from __future__ import annotations

import ctypes
import platform
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import torch

import xgemm
from xgemm import _library
from xgemm.cli.output import log, out, print_json, table
from xgemm.cli.selftest import TestResult, run_self_test

OK, WARNING, FAILURE = "ok", "warning", "failure"
COLOUR = {OK: "green", WARNING: "yellow", FAILURE: "red"}
GET_NVCC = (
    "install a CUDA toolkit, 12.6 or newer (Debian: NVIDIA's package cuda-toolkit-13-0; conda:"
    " cuda-nvcc and cuda-cudart-dev), set CUDA_HOME to it and build again (make build), or install"
    " a wheel that holds the CUDA half"
)
CPU_FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile")


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    subject: str
    status: str
    detail: str
    remedy: str = ""


def run(as_json: bool) -> int:
    """Prints the report; 1 where something failed, else 0."""
    findings = [*_versions(), *_library_findings(), _cpu(), *_cuda()]
    devices = ["cpu"]
    if torch.cuda.is_available() and _library.build_info().get("cuda"):
        devices.append("cuda")
    results: list[TestResult] = []
    for device in devices:
        log.print(f"testing the ops on {device}")
        results += run_self_test(device)
    failed = [result for result in results if result.passed is False]
    missing = [result for result in results if result.passed is None]
    broken = bool(failed) or any(finding.status == FAILURE for finding in findings)
    if as_json:
        print_json(
            {
                "findings": [asdict(finding) for finding in findings],
                "self_test": [asdict(result) for result in results],
                "passed": not broken,
            }
        )
    else:
        _print(findings, results)
        verdict = f"{len(failed)} of {len(results)} self-tests failed" if failed else (
            f"all {len(results) - len(missing)} self-tests passed"
        )  # fmt: skip
        if missing:
            verdict += f"; {len(missing)} not run: the op has no kernel for the device yet"
        out.print(verdict, style="red" if failed else "green")
    return 1 if broken else 0


def _print(findings: list[Finding], results: list[TestResult]) -> None:
    for finding in findings:
        mark = f"[{COLOUR[finding.status]}]{finding.status:8}[/]"
        out.print(f"{mark} {finding.subject}: {finding.detail}")
        if finding.remedy:
            out.print(f"         [bold]remedy[/]: {finding.remedy}")
    rows = []
    for result in results:
        share = "-" if result.error_of_bound is None else f"{result.error_of_bound:.3f}"
        verdict = {
            True: "[green]pass[/]",
            False: f"[red]FAIL[/] {result.message}",
            None: f"[yellow]not run[/] {result.message}",
        }[result.passed]
        rows.append([result.name, result.device, f"{result.milliseconds:.3f}", share, verdict])
    out.print(table("self-test", ["op", "device", "ms", "error / bound", "verdict"], rows))


def _versions() -> list[Finding]:
    found = []
    for name in ("transformers", "safetensors", "gguf", "matplotlib", "triton"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"{name} -")
    system = f"{platform.system()} {platform.machine()}"
    return [
        Finding("xgemm", OK, f"{xgemm.__version__}, Python {sys.version.split()[0]}, {system}"),
        Finding("torch", OK, f"{torch.__version__}, {torch.get_num_threads()} threads"),
        Finding("optional", OK, ", ".join(found)),
    ]


def _library_findings() -> list[Finding]:
    info = _library.build_info()
    size = _library.LIBRARY_PATH.stat().st_size / 2**20
    if not info:
        remedy = "build again (make build), or reinstall xgemm"
        return [Finding("library", WARNING, f"{size:.1f} MiB, no record of its build", remedy)]
    detail = (
        f"{size:.1f} MiB, commit {info.get('git_commit') or 'unknown'}, headers of torch"
        f" {info.get('torch')}, runs on torch {info.get('torch_target')} and newer,"
        f" {info.get('compiler')}"
    )
    findings = [Finding("library", OK, detail)]
    if info.get("cuda"):
        archs = ", ".join(info.get("cuda_archs", []))
        findings.append(Finding("CUDA half", OK, f"CUDA {info['cuda']}, architectures {archs}"))
        findings.append(_cuda_kernels())
    else:
        findings.append(
            Finding("CUDA half", WARNING, "not in this library: it runs on the CPU only", GET_NVCC)
        )
    return findings


def _cuda_kernels() -> Finding:
    """Which ops have a CUDA kernel; those that explain run on the host, for any problem."""
    names = [name for name in sorted(_schemas()) if not name.startswith("explain")]
    missing = [name for name in names if not _has_cuda_kernel(name)]
    detail = ", ".join(name for name in names if name not in missing)
    if missing:
        return Finding("CUDA kernels", WARNING, f"{detail}; none yet: {', '.join(missing)}")
    return Finding("CUDA kernels", OK, detail)


def _schemas() -> list[str]:
    """ "mul", "mul.w4a16" ..."""
    return [
        f"{schema.name.removeprefix('xgemm::')}.{schema.overload_name}".rstrip(".")
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("xgemm::")
    ]


def _has_cuda_kernel(name: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"xgemm::{name}", "CUDA"))


def _cpu() -> Finding:
    model, flags = _cpuinfo()
    present = [flag for flag in CPU_FLAGS if flag in flags]
    detail = (
        f"{model or platform.processor() or 'unknown'}; {' '.join(present) or 'no features read'}"
    )
    if {"avx2", "fma", "f16c"} <= flags:
        return Finding("CPU", OK, detail)
    remedy = "none: the generic kernels run, slower, with the same results"
    return Finding("CPU", WARNING, f"{detail}; the fast kernels need avx2, fma and f16c", remedy)


def _cpuinfo() -> tuple[str, set[str]]:
    """The processor's name and features, as Linux states them."""
    fields: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                key, _, value = line.partition(":")
                fields.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    return fields.get("model name", ""), set(fields.get("flags", "").split())


def driver_cuda_version() -> tuple[int, int] | None:
    """The newest CUDA that the installed driver supports, or None where there is no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int(0)
    if driver.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return None
    return version.value // 1000, version.value % 1000 // 10


def _cuda() -> list[Finding]:
    driver = driver_cuda_version()
    if driver is None:
        return [Finding("GPU", OK, "no NVIDIA driver here: the CPU kernels run")]
    findings = [_driver_finding(driver, _library.build_info().get("cuda"))]
    if torch.version.cuda is None:
        remedy = "install a torch built for CUDA to use the GPU"
        findings.append(Finding("GPU", WARNING, "this torch has no CUDA", remedy))
    elif not torch.cuda.is_available():
        remedy = "check nvidia-smi, and that the driver is new enough for this torch"
        findings.append(Finding("GPU", WARNING, "torch sees none", remedy))
    else:
        findings += [_gpu(index) for index in range(torch.cuda.device_count())]
    return findings


def _driver_finding(driver: tuple[int, int], built: Any) -> Finding:
    detail = f"supports CUDA up to {driver[0]}.{driver[1]}"
    if built is None:
        return Finding("driver", OK, detail)
    detail += f", the library was built with {built}"
    if driver[0] >= int(str(built).partition(".")[0]):  # minor versions are compatible
        return Finding("driver", OK, detail)
    remedy = "install a newer driver (CUDA 13 needs 580), or build with a toolkit of its CUDA"
    return Finding("driver", FAILURE, detail, remedy)


def _gpu(index: int) -> Finding:
    major, minor = torch.cuda.get_device_capability(index)
    memory = torch.cuda.get_device_properties(index).total_memory / 2**30
    name = torch.cuda.get_device_name(index)
    detail = f"{name}, compute capability {major}.{minor}, {memory:.0f} GiB"
    if (major, minor) < (8, 0):
        return Finding(
            f"GPU {index}", WARNING, detail, "xgemm's kernels need 8.0 (Ampere) or newer"
        )
    return Finding(f"GPU {index}", OK, detail)
