"""Times the CPU kernels beside the best libraries: a table, JSON and a plot of GFLOP/s.

    python benchmarks/bench_cpu.py [--cases squares,ragged,linears,half,bf16,w4a16,reduce]
        [--threads 1,2] [--sizes 64,128] [--realtime] [--output cpu.json] [--plot cpu.png]

Peers: torch (MKL; mkldnn where it takes that), oneDNN through torch's fused linear, OpenBLAS
(PyPI: scipy-openblas32) and BLIS (Debian: libblis4-pthread) where they are installed, and for 4-bit
weights torch's int4 op beside its fp32 linear. They take turns within each repeat; the ratios of
one run are what counts. OpenBLAS and BLIS are called through ctypes with arguments converted
before, and write into memory that is allocated before: their calls cost about half a microsecond
less than an op's. Each result is checked against float64 before a time is taken.

`--realtime`, as root, is for a machine that others use, too: each sample is taken at real-time
priority, and before a library whose threads are not those of the last one there is a pause, until
those sleep.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

import xgemm
from xgemm.bench import timing
from xgemm.bench.check import checked
from xgemm.bench.plot import load_pyplot, plain_ticks, spaced
from xgemm.bench.timing import Call

OURS = "xgemm"
RAGGED = (777, 1000, 1023, 1100)
SQUARES = (8, 16, 32, 64, 100, 128, 200, 256, 384, 512, 777, 1024, 1500, 2048, 3000, 4096)
LINEARS = ((1000, 777), (576, 576), (1536, 576), (4096, 4096), (11008, 4096))  # N, K
LINEAR_ROWS = (1, 2, 4, 8, 16, 32, 64, 256)
W4_LAYERS = ((576, 576), (1536, 576), (1000, 777), (4096, 4096), (11008, 4096))
W4_ROWS = (1, 4, 16, 64)
REDUCTIONS = ((1000,), (64, 64), (1 << 18,), (1 << 22,), (1024, 1024), (4096, 4096))
BF16_SQUARES = (64, 128, 256, 512, 1024, 2048)
BF16_ROWS = (1, 4, 16, 64, 256, 1024)
W4_GROUPS = (32, 128)
CASES = ("squares", "ragged", "linears", "half", "bf16", "w4a16", "reduce")
NO_TRANS, TRANS, ROW_MAJOR = 111, 112, 101  # of CBLAS
FMA_STEPS = 2_000_000


@dataclass(frozen=True)
class Timed:
    """A case: what it is, the seconds of each library, and the work that a rate is made of."""

    case: str
    size: str
    threads: int
    seconds: dict[str, float]
    flops: float
    bytes: float

    def ratio(self, peer: str) -> float:
        return self.seconds[peer] / self.seconds[OURS]

    def best(self) -> float:
        """The best peer's time over ours."""
        return min(self.ratio(peer) for peer in self.seconds if peer != OURS)


class Blas:
    """A BLAS of its own, by ctypes: sgemm of row-major operands."""

    def __init__(self, name: str, path: str, symbol: str, set_threads: str) -> None:
        self.name = name
        library = ctypes.CDLL(path)
        self._sgemm = getattr(library, symbol)
        self._sgemm.restype = None
        self.set_threads: Callable[[int], object] = getattr(library, set_threads)

    def call(self, a: torch.Tensor, b: torch.Tensor, transposed: bool) -> Call:
        """a [M, K] times b [K, N], or b [N, K] where it is `transposed`."""
        m, k = a.shape
        n = b.shape[0] if transposed else b.shape[1]
        out = torch.empty(m, n)
        integer, real, pointer = ctypes.c_int, ctypes.c_float, ctypes.c_void_p
        arguments = (
            *(integer(ROW_MAJOR), integer(NO_TRANS), integer(TRANS if transposed else NO_TRANS)),
            *(integer(m), integer(n), integer(k), real(1.0)),
            *(pointer(a.data_ptr()), integer(k), pointer(b.data_ptr()), integer(b.shape[1])),
            *(real(0.0), pointer(out.data_ptr()), integer(n)),
        )

        def multiply() -> torch.Tensor:
            self._sgemm(*arguments)
            return out

        return multiply


def find_blas() -> list[Blas]:
    """What is installed beside torch."""
    found = []
    for variable in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        os.environ.pop(variable, None)  # they would choose another machine's kernels
    # A thread without work waits in a loop for 2^20 clocks instead of 2^26 and more: in another
    # library's turn, at real-time priority, it would keep that one's thread from running.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
    try:
        import scipy_openblas32  # type: ignore[import-not-found,import-untyped,unused-ignore]

        folder = Path(scipy_openblas32.get_lib_dir())
        library = str(folder / f"lib{scipy_openblas32.get_library()}.so")
        found.append(
            Blas("OpenBLAS", library, "scipy_cblas_sgemm", "scipy_openblas_set_num_threads")
        )
    except ImportError:
        pass
    for name in ("libblis.so.4", os.environ.get("BLIS_LIBRARY", "")):
        try:
            if name:
                found.append(Blas("BLIS", name, "cblas_sgemm", "bli_thread_set_num_threads"))
                break
        except OSError:
            continue
    return found


def onednn_linear(x: torch.Tensor, w: torch.Tensor) -> Call:
    """x w^T by oneDNN, where this torch has it."""
    linear = torch.ops.mkldnn._linear_pointwise.default
    return partial(linear, x, w, None, "none", [], "")


def product_error(result: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest error against float64, as a share of its bound."""
    want = a.double() @ b.double()
    unit = torch.finfo(result.dtype).eps
    bound = (a.double().abs() @ b.double().abs()) * (a.shape[1] + 2) * 2.0**-23
    bound += want.abs() * unit + 2.0**-24
    return float(((result.double() - want).abs() / bound).max())


def squares(sizes: tuple[int, ...], blas: list[Blas]) -> Iterator[tuple[str, str, Calls]]:
    for s in sizes or SQUARES:
        a, b = torch.randn(s, s), torch.randn(s, s)
        w = b.t().contiguous()
        ours = partial(torch.ops.xgemm.mul.default, a, b)
        if s <= 1500:
            checked(f"{s}^3", product_error(ours(), a, b))
        calls: dict[str, Call] = {OURS: ours, "torch": partial(torch.mm, a, b)}
        calls["oneDNN"] = onednn_linear(a, w)
        calls.update({library.name: library.call(a, b, False) for library in blas})
        yield "squares", f"{s}x{s}x{s}", Calls(calls, 2.0 * s**3, 12.0 * s * s)


def ragged(sizes: tuple[int, ...], blas: list[Blas]) -> Iterator[tuple[str, str, Calls]]:
    """Squares of odd sizes: plain, an operand transposed, rows an odd number of floats apart."""
    for s in sizes or RAGGED:
        plain = [torch.randn(s, s) for _ in range(2)]
        apart = [torch.randn(s, s + 3)[:, :s] for _ in range(2)]
        for name, a, b in (
            ("", plain[0], plain[1]),
            (" A^T", plain[0].t(), plain[1]),
            (" B^T", plain[0], plain[1].t()),
            (" apart", apart[0], apart[1]),
        ):
            ours = partial(torch.ops.xgemm.mul.default, a, b)
            checked(f"{s}^3{name}", product_error(ours(), a, b))
            calls: dict[str, Call] = {OURS: ours, "torch": partial(torch.mm, a, b)}
            if not name:
                calls.update({library.name: library.call(a, b, False) for library in blas})
            yield "ragged", f"{s}x{s}x{s}{name}", Calls(calls, 2.0 * s**3, 12.0 * s * s)


def linears(sizes: tuple[int, ...], blas: list[Blas]) -> Iterator[tuple[str, str, Calls]]:
    for n, k in LINEARS:
        w = torch.randn(n, k)
        for m in sizes or LINEAR_ROWS:
            x = torch.randn(m, k)
            ours = partial(torch.ops.xgemm.mul.default, x, w.t())
            checked(f"{m}x{n}x{k}", product_error(ours(), x, w.t()))
            calls: dict[str, Call] = {
                OURS: ours,
                "torch": partial(torch.nn.functional.linear, x, w),
                "oneDNN": onednn_linear(x, w),
            }
            calls.update({library.name: library.call(x, w, True) for library in blas})
            size = 4.0 * (n * k + m * k + m * n)
            yield "linears", f"{m}x{n}x{k}", Calls(calls, 2.0 * m * n * k, size)


def half(sizes: tuple[int, ...], _blas: list[Blas]) -> Iterator[tuple[str, str, Calls]]:
    """fp16 and bf16 linears, beside our own fp32 one."""
    n = k = 4096
    for dtype in (torch.float16, torch.bfloat16):
        w = torch.randn(n, k).to(dtype)
        for m in sizes or (1, 16, 64, 256):
            x = torch.randn(m, k).to(dtype)
            ours = partial(torch.ops.xgemm.mul.default, x, w.t())
            checked(f"{dtype} {m}x{n}x{k}", product_error(ours(), x, w.t()))
            calls: dict[str, Call] = {
                OURS: ours,
                "torch": partial(torch.nn.functional.linear, x, w),
                "xgemm fp32": partial(torch.ops.xgemm.mul.default, x.float(), w.float().t()),
            }
            name = f"{'fp16' if dtype == torch.float16 else 'bf16'} {m}x{n}x{k}"
            yield "half", name, Calls(calls, 2.0 * m * n * k, 2.0 * n * k)


def bf16(sizes: tuple[int, ...], _blas: list[Blas]) -> Iterator[tuple[str, str, Calls]]:
    """Squares, and linears of `sizes` rows, beside torch's bf16."""
    for s in BF16_SQUARES:
        a, b = torch.randn(s, s).bfloat16(), torch.randn(s, s).bfloat16()
        ours = partial(torch.ops.xgemm.mul.default, a, b)
        checked(f"bf16 {s}^3", product_error(ours(), a, b))
        calls: dict[str, Call] = {OURS: ours, "torch": partial(torch.mm, a, b)}
        yield "bf16", f"{s}x{s}x{s}", Calls(calls, 2.0 * s**3, 6.0 * s * s)
    for n, k in LINEARS:
        w = torch.randn(n, k).bfloat16()
        for m in sizes or BF16_ROWS:
            x = torch.randn(m, k).bfloat16()
            ours = partial(torch.ops.xgemm.mul.default, x, w.t())
            checked(f"bf16 {m}x{n}x{k}", product_error(ours(), x, w.t()))
            calls = {OURS: ours, "torch": partial(torch.nn.functional.linear, x, w)}
            size = 2.0 * (n * k + m * k + m * n)
            yield "bf16", f"{m}x{n}x{k} linear", Calls(calls, 2.0 * m * n * k, size)


def w4a16(sizes: tuple[int, ...], _blas: list[Blas]) -> Iterator[tuple[str, str, Calls]]:
    """Groups with zero points; torch's int4 op takes bf16 alone."""
    for (n, k), group in product(W4_LAYERS, W4_GROUPS):
        w = torch.randn(n, k) * 0.02
        packed = xgemm.pack(xgemm.quantize_weight(w, group_size=group, symmetric=False))
        dense = packed.dequantize().float()
        torch_int4 = int4_layer(n, k, group)
        for m, dtype in product(sizes or W4_ROWS, (torch.bfloat16, torch.float32)):
            x = torch.randn(m, k).to(dtype)
            x32 = x.float()
            # The error of the product with the dequantized weight, in fp32.
            checked(f"{m}x{n}x{k}", product_error(xgemm.linear(x32, packed), x32, dense.t()) / 16)
            calls: dict[str, Call] = {
                OURS: partial(xgemm.linear, x, packed),
                "torch fp32": partial(torch.nn.functional.linear, x32, dense),
                "xgemm fp32": partial(torch.ops.xgemm.mul.default, x32, dense.t()),
            }
            if torch_int4 is not None and dtype == torch.bfloat16:
                calls["torch int4"] = partial(torch_int4, x)
            name = f"{'bf16' if dtype == torch.bfloat16 else 'fp32'} {m}x{n}x{k} g={group}"
            yield "w4a16", name, Calls(calls, 2.0 * m * n * k, packed.qweight.nbytes)


def int4_layer(n: int, k: int, group: int) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """torch's int4 op over random codes; None for a size that it refuses."""
    if k % group != 0 or n % 16 != 0:
        return None
    codes = torch.randint(0, 16, (n, k), dtype=torch.int32)
    weight = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 2)
    scales = torch.rand(k // group, n, 2, dtype=torch.bfloat16)

    def linear(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, weight, group, scales)
        return result

    return linear


def reduce(_sizes: tuple[int, ...], _blas: list[Blas]) -> Iterator[tuple[str, str, Calls]]:
    for shape in REDUCTIONS:
        x = torch.randn(shape)
        for op in ("sum", "amax"):
            for dims in ([0], [1], [0, 1])[: 2 * len(shape) - 1]:
                ours = partial(getattr(torch.ops.xgemm, op).default, x, dims)
                theirs = partial(getattr(torch, op), x, dims)
                calls: dict[str, Call] = {OURS: ours, "torch": theirs}
                size = f"{op} {'x'.join(map(str, shape))} dim {','.join(map(str, dims))}"
                yield "reduce", size, Calls(calls, 0.0, 4.0 * x.numel())


@dataclass(frozen=True)
class Calls:
    calls: dict[str, Call]
    flops: float
    bytes: float


SOURCES = {
    "squares": squares, "ragged": ragged, "linears": linears, "half": half, "bf16": bf16,
    "w4a16": w4a16, "reduce": reduce,
}  # fmt: skip


def peak_gflops() -> float | None:
    """GFLOP/s of one core, measured by fma_peak.cpp; None without a compiler."""
    compiler = shutil.which("g++")
    if compiler is None or platform.machine() != "x86_64":
        return None
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "fma_peak.so")
        source = Path(__file__).with_name("fma_peak.cpp")
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", source, "-o", library], check=True)
        loaded = ctypes.CDLL(str(library))
        flags = Path("/proc/cpuinfo").read_text().split()
        best = 0.0
        for name, flag in (("fma_avx2", "fma"), ("fma_avx512", "avx512f")):
            if flag not in flags:
                continue
            loop = getattr(loaded, name)
            loop.restype, loop.argtypes = ctypes.c_double, [ctypes.c_int64]
            for _ in range(5):
                start = time.perf_counter()
                done = loop(FMA_STEPS)
                best = max(best, done / (time.perf_counter() - start) / 1e9)
    return best or None


class RealTime:
    """Samples at real-time priority; in between others have their time, before the kernel takes
    it for them."""

    PRIORITY = 50
    BURST_SECONDS, REST_SECONDS = 0.3, 0.1
    SLEEP_SECONDS = 0.04  # until the threads of torch, OpenBLAS and BLIS no longer wait in a loop
    WARM_SECONDS = 0.02  # until clocks and caches are again as they are without a pause

    def __init__(self, threads: int) -> None:
        self._pause = self.SLEEP_SECONDS if threads > 1 else 0.0
        self._pool, self._rested = "", time.perf_counter()

    @contextmanager
    def turn(self, name: str, call: Call) -> Iterator[None]:
        pool = name if name in ("OpenBLAS", "BLIS") else "torch"
        warm = 0.0
        if pool != self._pool and self._pause > 0:
            time.sleep(self._pause)
            warm = self.WARM_SECONDS
        elif time.perf_counter() - self._rested > self.BURST_SECONDS:
            time.sleep(self.REST_SECONDS)
            self._rested = time.perf_counter()
            warm = self.WARM_SECONDS
        self._pool = pool
        self._schedule(os.SCHED_FIFO, self.PRIORITY)
        try:
            start = time.perf_counter()
            call()  # wakes the threads
            while time.perf_counter() - start < warm:
                call()
            yield
        finally:
            self._schedule(os.SCHED_OTHER, 0)

    @staticmethod
    def _schedule(policy: int, priority: int) -> None:
        for thread in os.listdir("/proc/self/task"):
            with suppress(ProcessLookupError):
                os.sched_setscheduler(int(thread), policy, os.sched_param(priority))


def set_threads(threads: int, blas: list[Blas]) -> None:
    torch.set_num_threads(threads)
    for library in blas:
        library.set_threads(threads)


def print_table(records: list[Timed]) -> None:
    peers = list(dict.fromkeys(name for record in records for name in record.seconds))
    print("| case | size | threads | " + " | ".join(f"{p}, us" for p in peers), end="")
    print(" | GFLOP/s | GB/s | best peer over xgemm |")
    print("|---" * (6 + len(peers)) + "|")
    for record in records:
        ours = record.seconds[OURS]
        times = [f"{record.seconds[p] * 1e6:.1f}" if p in record.seconds else "" for p in peers]
        rates = (f"{record.flops / ours / 1e9:.1f}", f"{record.bytes / ours / 1e9:.1f}")
        cells = [record.case, record.size, str(record.threads), *times, *rates]
        print("| " + " | ".join(cells) + f" | {record.best():.2f} |")


def print_means(records: list[Timed]) -> None:
    for case, threads in dict.fromkeys((r.case, r.threads) for r in records):
        chosen = [r for r in records if (r.case, r.threads) == (case, threads)]
        logs = [math.log(r.best()) for r in chosen]
        least = min(chosen, key=Timed.best)
        mean = math.exp(sum(logs) / len(logs))
        print(
            f"{case}, {threads} threads: geometric mean {mean:.3f}x of the best peer,"
            f" least {least.best():.3f}x ({least.size})"
        )


def plot(records: list[Timed], peak: float | None, path: Path) -> None:
    """GFLOP/s of squares against their size, one panel for each number of threads."""
    pyplot = load_pyplot()
    chosen = [r for r in records if r.case == "squares"]
    counts = list(dict.fromkeys(r.threads for r in chosen))
    figure, axes = pyplot.subplots(1, len(counts), figsize=(6 * len(counts), 4.5), squeeze=False)
    for axis, threads in zip(axes.flat, counts, strict=True):
        rows = [r for r in chosen if r.threads == threads]
        sizes = [int(r.size.partition("x")[0]) for r in rows]
        for name in rows[0].seconds:
            rates = [r.flops / r.seconds[name] / 1e9 for r in rows]
            axis.plot(sizes, rates, marker="o", markersize=3, label=name)
        if peak is not None:
            axis.axhline(peak * threads, color="black", linestyle=":", label="peak")
        axis.set_xscale("log", base=2)
        plain_ticks(axis.xaxis, spaced(sorted(sizes), min(sizes), max(sizes), 10))
        axis.set_title(f"M = N = K, fp32, {threads} threads")
        axis.set_ylabel("GFLOP/s")
        axis.legend(fontsize=8)
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",")) if text else ()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--sizes", type=numbers, default=(), help="of squares; rows of the others")
    parser.add_argument("--threads", type=numbers, default=(1, 2))
    parser.add_argument("--repeats", type=int, default=timing.REPEATS)
    parser.add_argument("--realtime", action="store_true", help="samples at real-time priority")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--device", default="cpu", choices=["cpu"])
    return parser.parse_args()


def main() -> None:
    options = parse()
    torch.manual_seed(0)
    blas = find_blas()
    peak = peak_gflops()
    head = {
        "cpu": cpu_name(),
        "isa": torch.ops.xgemm.explain("mul", 64, 64, 64).partition(":")[0],
        "torch": torch.__version__,
        "peak_gflops_a_thread": peak,
    }
    print(json.dumps(head))
    records: list[Timed] = []
    with torch.inference_mode():
        for case in options.cases.split(","):
            for name, size, timed in SOURCES[case](options.sizes, blas):
                for threads in options.threads:
                    set_threads(threads, blas)
                    turns = {"turn": RealTime(threads).turn} if options.realtime else {}
                    seconds = timing.time_cpu(timed.calls, options.repeats, **turns)
                    record = Timed(name, size, threads, seconds, timed.flops, timed.bytes)
                    records.append(record)
    for case in dict.fromkeys(record.case for record in records):
        print_table([record for record in records if record.case == case])
    print_means(records)
    if options.output is not None:
        report: dict[str, Any] = {**head, "records": [asdict(record) for record in records]}
        options.output.write_text(json.dumps(report, indent=1) + "\n")
    if options.plot is not None:
        plot(records, peak, options.plot)


if __name__ == "__main__":
    main()
