"""The CPU kernels of each instruction set against float64, and what explain says of them.

The instruction set is read once in a process, so each is tried in a process of its own.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest
from prepared import run_script

HERE = Path(__file__).resolve().parent
SRC = HERE.parent / "python"

# Ragged shapes that meet every way of computing a product: dot, add rows, small, short, blocked.
CHECK = """
import random
import torch
import xgemm

rng = random.Random(20)
generator = torch.Generator().manual_seed(20)
DTYPES = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}

def operand(rows, cols, dtype, layout):
    def draw(r, c):
        return torch.randn(r, c, generator=generator).to(dtype)
    if layout == "transposed":
        return draw(cols, rows).t()
    if layout == "strided":
        return draw(2 * rows, 3 * cols)[::2, ::3]
    return draw(rows, cols)

def check(m, n, k, dtype, layouts, activation):
    a, b = operand(m, k, dtype, layouts[0]), operand(k, n, dtype, layouts[1])
    bias = torch.randn(n, generator=generator).to(dtype)
    want = a.double() @ b.double() + bias.double()
    # Each of the k products and k sums rounds to fp32, relative to the sum of magnitudes.
    bound = (a.double().abs() @ b.double().abs() + bias.double().abs()) * (k + 2) * 2.0**-23
    if activation == "relu":
        want = want.relu()
    bound = bound + want.abs() * DTYPES[dtype] + (2.0**-25 if dtype == torch.float16 else 0.0)
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(torch.ops.xgemm.mul.default(a, b, bias, activation=activation))
    error = (results[0].double() - want).abs()
    case = (m, n, k, dtype, layouts, activation)
    assert bool((error <= bound).all()), (case, error.max().item())
    same = all(torch.equal(results[0], other) for other in results[1:])
    assert same, ("threads change the bits", case)

shapes = [(1, 17, 129), (3, 129, 63), (7, 63, 513), (33, 40, 1030), (193, 257, 100),
          (401, 130, 513), (13, 301, 500), (5, 5, 5), (16, 16, 16), (64, 63, 65),
          (129, 1, 17), (300, 6, 50)]
layouts = ["plain", "transposed", "strided"]
for m, n, k in shapes:
    for dtype in DTYPES:
        pairs = [(first, second) for first in layouts for second in layouts]
        # Every pair where that is quick.
        for pair in pairs if m * n * k < 500_000 else rng.sample(pairs, 3):
            check(m, n, k, dtype, pair, rng.choice(["none", "relu"]))
# k is split. Columns of 33 rows are too few to gather rows for.
for m, n, k in [(1, 1, 4096), (3, 17, 5003), (16, 33, 4500), (64, 64, 4099)]:
    for dtype in DTYPES:
        for pair in [(first, second) for first in layouts for second in layouts]:
            check(m, n, k, dtype, pair, "relu")
# A matrix of more than 16 MiB is fetched ahead, and taken by panels.
for m in (3, 47, 195):
    check(m, 2101, 2100, torch.float32, ("plain", "transposed"), "none")
check(7, 4099, 2100, torch.bfloat16, ("plain", "transposed"), "none")
# Rows of a weight that fall on one set of the L1 cache, and threads along n, each with its panels.
check(48, 75, 1024, torch.float32, ("plain", "transposed"), "relu")
check(200, 421, 521, torch.float32, ("plain", "plain"), "none")
print("checked")
"""

INFINITIES = """
import torch
import xgemm
from helpers import random_weight

for group in (32, 64, 128, -1):
    p = xgemm.pack(random_weight(70, 200, group, "integer"))
    x = torch.randn(5, 200)
    x[0, 3], x[3, 199], x[3, 70] = float("inf"), -float("inf"), float("inf")
    want, y = x.double() @ p.dequantize().double().T, xgemm.linear(x, p).double()
    assert torch.equal(y.isnan(), want.isnan()), group
    assert torch.equal(y[want.isinf()], want[want.isinf()]), group
print("checked")
"""

# 4-bit products of every way, against the bound that all devices keep.
PRODUCTS_4_BIT = """
import itertools
import torch
import xgemm
from xgemm import reference
from helpers import random_weight

torch.manual_seed(7)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
shapes = [(17, 5), (70, 200), (129, 385)]
for group, (n, k), zeros in itertools.product((32, 64, 128, -1), shapes, ("none", "real")):
    q = random_weight(n, k, group, zeros)
    p = xgemm.pack(q)
    for m, dtype in itertools.product((1, 2, 7, 66), DTYPES):
        x = torch.randn(m, k)
        x *= torch.exp2(torch.randint(-6, 7, (m, k)))  # large beside small in every group
        x, bias = x.to(dtype), torch.randn(n).to(dtype)
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(xgemm.linear(x, p, bias, activation="relu"))
        case = (group, n, k, zeros, m, dtype)
        want = reference.w4a16(x, q, bias, "relu")
        ratio = reference.error_ratio(results[0], want, reference.w4a16_bound(x, q, bias, "relu"))
        assert ratio <= 1, (case, ratio)
        assert all(torch.equal(results[0], other) for other in results[1:]), case
print("checked")
"""

# What the digits of a row must not lose: one channel at a time is a product of fp32, exact but for
# one rounding, however small beside the other groups.
DIGITS = """
import torch
import xgemm
from helpers import random_weight

q = random_weight(40, 256, 32, "integer")
p = xgemm.pack(q)
w = p.dequantize().double()
BOUNDS = {torch.float32: 2.0**-21, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
for dtype, bound in BOUNDS.items():
    for scale in (1.0, 2.0**-8, 2.0**12) if dtype == torch.float16 else (1.0, 2.0**-100, 2.0**90):
        x = torch.diag(torch.randn(256).sign() * (1 + torch.rand(256))).mul(scale).to(dtype)
        y, want = xgemm.linear(x, p).double(), x.double() @ w.T
        # Of the largest: code - zero may cancel.
        error = (y - want).abs() / want.abs().amax(1, keepdim=True)
        assert bool((error <= bound).all()), (dtype, scale, error.max())
print("checked")
"""

# An outlier that weights of zero take away leaves the others as exact as they are without it.
OUTLIERS = """
import torch
import xgemm

torch.manual_seed(3)
codes = torch.randint(0, 16, (96, 256), dtype=torch.uint8)
codes[:, ::128] = 8  # the zero point
for group in (32, 128, -1):
    scales = torch.rand(1 if group == -1 else 256 // group, 96).add(0.5).half()
    p = xgemm.pack(xgemm.QuantizedWeight(codes, scales, None, None, group))
    w = p.dequantize(torch.float32).double()
    for dtype, m in ((torch.float16, 1), (torch.float16, 20), (torch.bfloat16, 5)):
        for outlier in (1e2, 1e3, 3e4):
            x = torch.randn(m, 256)
            x[-1, ::128] = outlier
            x = x.to(dtype)
            want = x.double() @ w.T
            y = xgemm.linear(x, p)
            error = (y.double() - want).pow(2).mean(1).sqrt() / want.pow(2).mean(1).sqrt()
            # Half a unit in the last place is 2^-1 eps at most; fp32 sums of 3e4 lose 2^-9.
            limit = 0.6 * torch.finfo(dtype).eps + 2.0**-24 * 4 * outlier
            assert bool((error <= limit).all()), (group, dtype, m, outlier, error.max(), limit)
            rows = [xgemm.linear(row, p, batch_invariant=True) for row in x.split(1)]
            assert torch.equal(torch.cat(rows), xgemm.linear(x, p, batch_invariant=True))
print("checked")
"""

# What the instructions for bf16 would lose: they take subnormals for 0, and flush what is below
# 2^-126. 2500 channels are more than one block of k.
SMALL_BF16 = """
import torch
import xgemm
from xgemm import reference

generator = torch.Generator().manual_seed(5)

def powers(rows, cols, low, high):
    exponents = torch.randint(low, high + 1, (rows, cols), generator=generator)
    signs = torch.randint(0, 2, (rows, cols), generator=generator) * 2 - 1
    significands = 1 + torch.randint(0, 128, (rows, cols), generator=generator) / 128
    return (significands * signs * torch.exp2(exponents.double())).bfloat16()

def check(a, b, what):
    for layout in (lambda x: x, lambda x: x.t().contiguous().t()):
        result = torch.ops.xgemm.mul.default(layout(a), layout(b))
        want, bound = reference.mul(a, b), reference.mul_bound(a, b)
        assert reference.error_ratio(result, want, bound) <= 1, what

for m, n, k in ((40, 50, 70), (33, 10, 2500)):
    for low_a, high_a, low_b, high_b in (
        (-133, -120, 100, 127), (100, 120, -140, -126),  # subnormal operands, normal products
        (-70, -60, -70, -60), (-60, -50, -60, -50),  # products about 2^-126, and above
        (-133, 20, -133, 20), (-54, -50, -54, -50),  # everything, and about the limit
        (-126, -126, 23, 24),
    ):
        a, b = powers(m, k, low_a, high_a), powers(k, n, low_b, high_b)
        check(a, b, (m, n, k, low_a, high_a, low_b, high_b))
    # Pairs that cancel to something subnormal.
    a, b = powers(m, k, -45, -40), powers(k, n, -60, -55)
    a[:, 1::2] = -a[:, ::2]
    b[1::2] = b[::2] * (1 + 2.0**-7)
    check(a, b, (m, n, k, "cancel"))
# The first block of k gives a subnormal sum; in the last, rows of zeros meet normal numbers.
a, b = powers(40, 2500, 0, 3), powers(2500, 40, 0, 3)
a[:5, :], a[:5, 7] = 0, 2.0**-65
b[7] = 2.0**-65
check(a, b, "sticky")
assert (torch.ops.xgemm.mul.default(a, b)[:5] != 0).all()
print("checked")
"""

NON_FINITE_BF16 = """
import torch
import xgemm

torch.manual_seed(9)
for m, n, k in ((40, 50, 70), (20, 33, 2100)):
    for value in (float("nan"), float("inf"), -float("inf")):
        a, b = torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16()
        a[3, k - 1], b[1, n - 1], b[5, 2] = value, value, value
        a[7, 1] = 0  # times infinity
        want = (a.double() @ b.double()).bfloat16()
        for layout in (lambda x: x, lambda x: x.t().contiguous().t()):
            y = torch.ops.xgemm.mul.default(layout(a), layout(b))
            assert torch.equal(y.isnan(), want.isnan()), (m, n, k, value)
            assert torch.equal(y.isinf(), want.isinf()), (m, n, k, value)
            assert torch.equal(y[want.isinf()], want[want.isinf()]), (m, n, k, value)
print("checked")
"""

CHECK_MXFP4 = """
import torch, xgemm
from helpers import random_mxfp4
from moe import check, mixture
from xgemm import reference

torch.set_num_threads(2)
q = random_mxfp4(70, 200, (0, 253))
for dtype in (torch.float32, torch.bfloat16):
    found = xgemm.pack(q).dequantize(dtype)
    assert torch.equal(found, reference.dequantize(q).to(dtype))
    check(mixture(1, 2, 3, 70, 200, dtype, fp4=True, bias=True))
    check(mixture(50, 2, 3, 70, 200, dtype, fp4=True))
print("checked")
"""

# A sandbox that refuses arch_prctl (158), by which a process asks for AMX's state.
REFUSED = """
import ctypes, struct
code = [(0x20, 0, 0, 0), (0x15, 0, 1, 158), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(filters)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # no new privileges
assert libc.prctl(22, 2, program) == 0, ctypes.get_errno()
import torch, xgemm
print(torch.ops.xgemm.explain("mul", 64, 64, 64, dtype="bfloat16").partition(":")[0])
a = torch.randn(64, 64).bfloat16()
want = a.double() @ a.double()
assert torch.allclose(torch.ops.xgemm.mul.default(a, a).double(), want, 1e-2, 0.1)
"""

EXPLAIN = """
import torch
import xgemm

torch.set_num_threads(2)
sizes = [(288, 384, 1024), (512, 512, 1024), (1, 512, 512), (16, 16, 16)]
sizes += [(100, 4096, 512), (8, 8, 5000), (8, 8, 0)]
for m, n, k in sizes:
    print(torch.ops.xgemm.explain("mul", m, n, k))
"""

EXPLAIN_BF16 = """
import torch
import xgemm

torch.set_num_threads(2)
for m, n, k in [(512, 512, 1024), (1, 512, 512), (16, 4096, 512), (8, 8, 8)]:
    print(torch.ops.xgemm.explain("mul", m, n, k, dtype="bfloat16"))
"""


def run_with(isa: str, script: str) -> str:
    """Standard output of the script in a process whose CPU kernels are those of `isa`."""
    environment = {
        **os.environ,
        "XGEMM_CPU_ISA": isa,
        "PYTHONPATH": os.pathsep.join([str(SRC), str(HERE), os.environ.get("PYTHONPATH", "")]),
    }
    done = run_script(script, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def cpu_runs_avx2() -> bool:
    flags = Path("/proc/cpuinfo").read_text().split()
    return {"avx2", "fma", "f16c"} <= set(flags)


def cpu_runs_avx512() -> bool:
    flags = Path("/proc/cpuinfo").read_text().split()
    return cpu_runs_avx2() and {"avx512f", "avx512bw", "avx512vl"} <= set(flags)


def cpu_runs_vnni() -> bool:
    return cpu_runs_avx512() and "avx512_vnni" in Path("/proc/cpuinfo").read_text().split()


def cpu_runs_bf16() -> bool:
    return cpu_runs_vnni() and "avx512_bf16" in Path("/proc/cpuinfo").read_text().split()


def runs_amx() -> bool:
    """By the CPU, and by what Linux gives this process."""
    flags = Path("/proc/cpuinfo").read_text().split()
    if not (cpu_runs_bf16() and {"amx_tile", "amx_bf16"} <= set(flags)):
        return False
    return ctypes.CDLL(None).syscall(158, 0x1023, 18) == 0  # arch_prctl(ARCH_REQ_XCOMP_PERM)


ISAS = [
    "generic",
    pytest.param("avx2", marks=pytest.mark.skipif(not cpu_runs_avx2(), reason="CPU lacks AVX2")),
    pytest.param(
        "avx512", marks=pytest.mark.skipif(not cpu_runs_avx512(), reason="CPU lacks AVX-512")
    ),
]
ISAS_BF16 = [
    pytest.param(
        "avx512bf16", marks=pytest.mark.skipif(not cpu_runs_bf16(), reason="CPU lacks AVX512_BF16")
    ),
    pytest.param("amx", marks=pytest.mark.skipif(not runs_amx(), reason="no AMX here")),
]
ISAS_4_BIT = [
    *ISAS,
    pytest.param(
        "avx512vnni",
        marks=pytest.mark.skipif(not cpu_runs_vnni(), reason="CPU lacks AVX-512 VNNI"),
    ),
    ISAS_BF16[1],  # amx
]


@pytest.mark.parametrize("isa", [*ISAS, *ISAS_BF16])
def test_ragged_products_match_float64(isa: str) -> None:
    assert run_with(isa, CHECK) == "checked\n"


@pytest.mark.parametrize("isa", ISAS)
def test_mxfp4(isa: str) -> None:
    assert run_with(isa, CHECK_MXFP4) == "checked\n"


@pytest.mark.parametrize("isa", ISAS_BF16)
def test_strange_numbers_of_bf16(isa: str) -> None:
    assert run_with(isa, SMALL_BF16 + NON_FINITE_BF16) == "checked\nchecked\n"


@pytest.mark.skipif(not runs_amx(), reason="no AMX here")
def test_without_permission_for_amx_fp32_kernels_run() -> None:
    """Intel's dot products of bf16 are slower."""
    assert run_with("amx", REFUSED) == "cpu dense, avx512\n"


@pytest.mark.parametrize("isa", ISAS_BF16)
def test_explain_names_the_kernel_of_bf16(isa: str) -> None:
    square, row, linear, small = run_with(isa, EXPLAIN_BF16).splitlines()
    for line in (square, linear):
        assert line.startswith(f"cpu dense, {isa}: bf16 tiles (both operands are packed")
        assert line.endswith("threads 2x1")
    assert row.startswith("cpu dense, avx512: add rows (")
    assert small.startswith("cpu dense, avx512: small (")


@pytest.mark.parametrize("isa", ISAS_4_BIT)
@pytest.mark.parametrize(
    "script", [PRODUCTS_4_BIT, DIGITS, OUTLIERS], ids=["products", "one channel", "outliers"]
)
def test_4_bit_products_match_float64(isa: str, script: str) -> None:
    assert run_with(isa, script) == "checked\n"


@pytest.mark.parametrize("isa", ISAS_4_BIT)
def test_infinities_of_4_bit_products(isa: str) -> None:
    assert run_with(isa, INFINITIES) == "checked\n"


@pytest.mark.parametrize("isa", ISAS)
def test_explain_names_the_kernel(isa: str) -> None:
    blocked, apart, row, small, short, split, empty = run_with(isa, EXPLAIN).splitlines()
    tile = {"generic": "4x8", "avx2": "6x16", "avx512": "14x32"}[isa]
    for line in (blocked, apart, row, small, short, split, empty):
        assert line.startswith(f"cpu dense, {isa}: ")
    assert ": blocked (packed blocks of A for each thread, of B for all of them)" in blocked
    assert ": blocked (packed blocks of A and of B for each thread)" in apart
    for line in (blocked, apart):
        steps = "512 (2" if isa == "avx512" else "256 (4"
        assert f"{tile} micro-kernel, KC {steps} blocks)" in line
    assert ("threads 1x2" if isa == "avx512" else "threads 2x1") in blocked
    assert "threads 2x1" in apart
    assert ": add rows (" in row
    assert ": small (" in small
    assert f"{tile} micro-kernel, threads 1x1" in small
    assert ": short (" in short
    assert "threads 1x2" in short
    assert ": split-K (" in split
    assert "parts of k, threads 1x2" in split
    assert ": no sum (k or alpha is 0" in empty


EXPLAIN_4_BIT = """
import xgemm

for m in (4, 5):
    for invariant in (False, True):
        choice = xgemm.explain(
            "mul.w4a16", m, 64, 128, dtype="float32", group_size=32, batch_invariant=invariant
        )["choice"]
        print(choice["isa"], choice["kernel"], choice["reason"], sep="; ")
"""


@pytest.mark.parametrize("isa", [ISAS_BF16[1]])
def test_explain_names_the_kernel_of_4_bit(isa: str) -> None:
    few, invariant, rows, many_invariant = run_with(isa, EXPLAIN_4_BIT).splitlines()
    for line in (few, invariant, many_invariant):
        assert line.startswith("amx; 8-bit dot products; ")
    assert rows == "amx; tiles of bf16; the CPU has amx and m >= 5"
