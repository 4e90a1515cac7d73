"""What benchmarks/kernel_resources.py makes of a compiler's output, and of the built library."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from xgemm._library import build_info

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "kernel_resources.py"


@pytest.fixture(scope="module")
def resources() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kernel_resources", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


USAGE = """
Fatbin elf code:
================
arch = sm_90a
Resource usage:
 Common:
  GLOBAL:0
 Function _ZN1fEv:
  REG:168 STACK:32 SHARED:1024 LOCAL:0 CONSTANT[0]:1152 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function _ZN1gEv:
  REG:40 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:1152 TEXTURE:0 SURFACE:0 SAMPLER:0
"""


def test_usage_of_each_function(resources):
    (arch, name, usage), other = resources.parse_usage(USAGE)
    assert (arch, name) == ("sm_90a", "_ZN1fEv")
    assert (usage["REG"], usage["STACK"], usage["SHARED"]) == (168, 32, 1024)
    assert other[1] == "_ZN1gEv"


@pytest.mark.parametrize(
    ("demangled", "expected"),
    [
        (
            "void xgemm::cuda::gemm::sm90::run<__half, xgemm::cuda::gemm::Tile<(int)128, (int)2>,"
            " (bool)1>(xgemm::cuda::gemm::Params)",
            "gemm::sm90::run<__half, gemm::Tile<128, 2>, 1>",
        ),
        ("xgemm::cuda::(anonymous namespace)::pack(int, float (*)[3])", "pack"),
    ],
)
def test_names_are_cut_to_what_tells_kernels_apart(resources, demangled, expected):
    assert resources.short_name(demangled) == expected


def sass(*instructions: str) -> str:
    """A listing, an instruction at each multiple of 0x10; {i} is the address of instruction i."""
    addresses = [f"0x{16 * i:x}" for i in range(len(instructions))]
    return "".join(
        f"        /*{16 * i:04x}*/                   {text.format(*addresses)} ;   /* 0x0 */\n"
        for i, text in enumerate(instructions)
    )


def test_a_spill_in_the_loop_of_the_arithmetic_is_told_apart(resources):
    outside = sass("STL [R1], R2", "HGMMA.64 R4", "@P0 BRA {1}", "LDL R2, [R1]", "EXIT")
    assert resources.count_spills(outside) == (2, 0)
    inside = sass("STL [R1], R2", "HGMMA.64 R4", "LDL R2, [R1]", "@P0 BRA {1}", "EXIT")
    assert resources.count_spills(inside) == (2, 1)


def test_the_loop_over_tiles_is_not_the_main_loop(resources):
    main = ["HMMA R4"] * 2 + ["@P0 BRA {1}"]
    tiles = sass("LDL R2, [R1]", *main, "HMMA R4", "STL [R1], R2", "@P1 BRA {0}", "EXIT")
    assert resources.count_spills(tiles) == (2, 0)


def test_a_main_loop_may_hold_a_wait_that_counts(resources):
    wait = ["IADD3 R1", "FFMA R9, R9, R9, R9", "@P2 BRA {4}"]
    main = sass(*["FFMA R4, R5, R6, R4"] * 4, *wait, "LDL R5, [R1]", "@P0 BRA {0}", "EXIT")
    assert resources.count_spills(main) == (1, 1)


def test_a_loop_beside_the_arithmetic_is_not_the_main_loop(resources):
    copy = sass("LDL R2, [R1]", "@P0 BRA {0}", "HMMA R4", "@P1 BRA {2}", "EXIT")
    assert resources.count_spills(copy) == (1, 0)


def test_a_slow_path_that_jumps_back_is_no_loop(resources):
    """A barrier's wait, tried again at the end of the code, returns to where it was left."""
    waits = sass("@P0 BRA {5}", "LDL R2, [R1]", "HGMMA.64 R4", "@P1 BRA {2}", "EXIT", "BRA {1}")
    assert resources.count_spills(waits) == (1, 0)


def test_without_tensor_cores_the_fp32_arithmetic_counts(resources):
    plain = sass("FFMA R4, R5, R6, R4", "LDL R5, [R1]", "@P0 BRA {0}", "EXIT")
    assert resources.count_spills(plain) == (1, 1)


def test_code_after_an_unconditional_jump_is_not_reached(resources):
    dead = sass("HMMA R4", "BRA {3}", "LDL R2, [R1]", "@P0 BRA {0}", "EXIT")
    assert resources.count_spills(dead) == (1, 0)


def test_a_loop_with_little_arithmetic_is_an_epilogue(resources):
    main = ["FFMA R4, R5, R6, R4"] * 4 + ["@P0 BRA {0}"]
    epilogue = ["LDL R5, [R1]", "FFMA R4, R5, R6, R4", "@P0 BRA {5}", "EXIT"]
    assert resources.count_spills(sass(*main, *epilogue)) == (1, 0)


@pytest.mark.skipif(not build_info().get("cuda"), reason="needs a library with CUDA kernels")
def test_no_main_loop_of_the_library_spills(resources):
    if missing := resources.missing_tools():
        pytest.skip(f"needs {', '.join(missing)}")
    kernels = resources.kernels(resources.LIBRARY)
    assert [kernel.name for kernel in kernels if kernel.main_loop_spills] == []
