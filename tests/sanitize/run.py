"""The CPU half under sanitizers: `python tests/sanitize/run.py`, after a build.

Two builds of csrc/cpu, from the build's own commands: one for AddressSanitizer and UBSan, with
csrc/ops, and one for ThreadSanitizer. Random calls without torch run on both, tests and a fuzzer on
a copy of the package with the first. Whatever a sanitizer reports ends it.

XGEMM_SANITIZE_SECONDS  how long each of the four random runs takes (6)
XGEMM_FUZZ_SEED         where their random numbers begin (0)
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import ninja

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "sanitize"
CXX = os.environ.get("CXX", "g++")
SECONDS = os.environ.get("XGEMM_SANITIZE_SECONDS", "6")
SEED = os.environ.get("XGEMM_FUZZ_SEED", "0")

MEMORY, THREADS = "address,undefined", "thread"
# What these find, AddressSanitizer finds as well, where the memory is then used.
NOT_CHECKED = "object-size,null,pointer-overflow"
FLAGS = f"-g1 -fno-omit-frame-pointer -fno-sanitize-recover=all -fno-sanitize={NOT_CHECKED}"
# The same kernels for one instruction set each, of which a process runs one: the others are only
# linked.
BUILDS = re.compile(r"csrc/cpu/(?:reduce/kernels|sgemm/gemv)_(generic|avx2|avx512)\.cpp")
# What a sanitizer must say of each mistake, in the build that sees it.
MISTAKES = {
    "read": (MEMORY, "heap-buffer-overflow"),
    "masked-read": (MEMORY, "SEGV"),
    "overflow": (MEMORY, "signed integer overflow"),
    "race": (THREADS, "data race"),
}
TESTS = ("mul", "sgemm", "w4a16", "reduce", "into", "pack", "errors", "storage")
# Those that compile, start other processes, look at Python alone, or need gigabytes.
SLOW = (
    "test_compile or test_opcheck or test_kernels_of_other_cpus"
    " or test_more_than_2_to_the_31_elements"
)


def environment(**more: str) -> dict[str, str]:
    return {
        **os.environ,
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TSAN_OPTIONS": "halt_on_error=1",
        **more,
    }


def compile_commands() -> dict[Path, str]:
    """Flags of each file of the CPU half, as build/build.ninja has them."""
    command = [Path(ninja.BIN_DIR, "ninja"), "-f", "build/build.ninja", "-t", "compdb", "cxx"]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    flags = {}
    for entry in json.loads(text):
        source = Path(entry["file"])
        if source.parts[1] not in ("common", "cpu", "ops"):
            continue
        words = shlex.split(entry["command"])
        words = words[words.index("-std=c++20") : words.index("-MD")]
        # Later flags win; without its CUDA half csrc / ops needs nothing of csrc / cuda.
        flags[source] = shlex.join(word for word in words if word != "-DXGEMM_WITH_CUDA=1")
    return flags


def is_run(source: Path, sanitizers: str) -> bool:
    """Whether the kernels in it are run here under these sanitizers."""
    build = BUILDS.match(source.as_posix())
    if build is None:
        return True
    flags = Path("/proc/cpuinfo").read_text().split()
    best = "avx512" if {"avx512f", "avx512bw", "avx512vl"} <= set(flags) else "avx2"
    return build[1] == best or (build[1] == "generic" and sanitizers == MEMORY)


def flags_of(source: Path, sanitizers: str) -> str:
    if not is_run(source, sanitizers):
        return "-O0"
    level = "-O0" if source.parts[1] == "ops" else "-O1"
    return f"-fsanitize={sanitizers} {level} {FLAGS}"


def plan() -> str:
    """The text of a build.ninja: a library and two programs."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    torch = Path(spec.submodule_search_locations[0])
    lines = [
        f"builddir = {BUILD}",
        "rule cxx",
        f"  command = {CXX} $flags -MD -MF $out.d -c $in -o $out",
    ]
    lines += ["  depfile = $out.d", "  deps = gcc", "  description = CXX $in"]
    lines += ["rule link", f"  command = {CXX} $flags $in -o $out $libraries"]
    own = "-std=c++20 -Wall -Wextra -Icsrc -Itests"
    sources = {
        **compile_commands(),
        **{path.relative_to(ROOT): own for path in sorted(Path(__file__).parent.glob("*.cpp"))},
    }
    for sanitizers in (MEMORY, THREADS):
        objects: dict[str, list[str]] = {"library": [], "program": []}
        # Of functions that several objects hold, the linker takes the first.
        order = sorted(sources, key=lambda source: not is_run(source, sanitizers))
        for source in order:
            if sanitizers == THREADS and source.parts[1] == "ops":
                continue
            target = f"{BUILD}/{sanitizers}/{source}.o"
            lines.append(f"build {target}: cxx {source}")
            lines.append(f"  flags = {sources[source]} {flags_of(source, sanitizers)}")
            if source.parts[0] == "csrc":
                objects["library"].append(target)
            if source.parts[1] != "ops":
                objects["program"].append(target)
        lines.append(f"build {program(sanitizers)}: link {' '.join(objects['program'])}")
        lines.append(f"  flags = -fsanitize={sanitizers}")
        if sanitizers == MEMORY:
            lines.append(f"build {BUILD}/_C.abi3.so: link {' '.join(objects['library'])}")
            lines.append(f"  flags = -shared -fsanitize={sanitizers}")
            lines.append(f"  libraries = -L{torch / 'lib'} -Wl,--no-as-needed -ltorch -ltorch_cpu")
    return "\n".join(lines) + "\n"


def program(sanitizers: str) -> Path:
    return BUILD / sanitizers / "kernels"


def build() -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / "build.ninja").write_text(plan())
    jobs = os.environ.get("MAX_JOBS") or str(len(os.sched_getaffinity(0)))
    command = [Path(ninja.BIN_DIR, "ninja"), "--quiet", "-f", BUILD / "build.ninja", "-j", jobs]
    subprocess.run(command, cwd=ROOT, check=True)
    package = BUILD / "python" / "xgemm"
    shutil.rmtree(package, ignore_errors=True)
    ignored = shutil.ignore_patterns("_C*.so", "__pycache__", "._*")
    shutil.copytree(ROOT / "python" / "xgemm", package, ignore=ignored)
    shutil.copy(BUILD / "_C.abi3.so", package)


# -- -- running -- --


def run_program(sanitizers: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program(sanitizers), *arguments],
        env=environment(**more),
        check=False,
        capture_output=True,
        text=True,
    )


def show_that_mistakes_are_seen() -> None:
    for name, (sanitizers, words) in MISTAKES.items():
        done = run_program(sanitizers, "mistake", name)
        if done.returncode == 0 or words not in done.stderr:
            sys.exit(
                f"sanitize: {name}: expected {words!r}, got exit code {done.returncode} and "
                f"{done.stderr!r}"
            )


def run_kernels(sanitizers: str, **more: str) -> None:
    done = run_program(sanitizers, SECONDS, SEED, **more)
    lines = done.stdout.splitlines()
    if done.returncode != 0 or done.stderr:
        last = "\n".join(lines[-3:])
        sys.exit(
            f"sanitize: -fsanitize={sanitizers}: exit code {done.returncode}\n{last}\n{done.stderr}"
        )
    print(f"sanitize: -fsanitize={sanitizers}: {lines[-1]}", flush=True)


def run_python(*command: str) -> None:
    """In Python, which is no program of ours: the runtime comes before all other libraries."""
    runtimes = [
        subprocess.run(
            [CXX, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libstdc++.so.6")
    ]
    more = {
        "LD_PRELOAD": " ".join(runtimes),
        "PYTHONPATH": str(BUILD / "python"),
        "XGEMM_FUZZ_SECONDS": SECONDS,
    }
    code = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment(**more), check=False
    ).returncode
    if code != 0:
        sys.exit(f"sanitize: {' '.join(command)}: exit code {code}")


def main() -> None:
    started = time.monotonic()
    build()
    print(f"sanitize: built in {time.monotonic() - started:.0f} s", flush=True)
    show_that_mistakes_are_seen()
    # Two at once: what Python runs, and the rest.
    with ThreadPoolExecutor(2) as pool:
        for done in as_completed([pool.submit(run_tests), pool.submit(run_random_calls)]):
            done.result()
    print(f"sanitize: {time.monotonic() - started:.0f} s", flush=True)


def run_tests() -> None:
    found = "import sys, xgemm._library as x; sys.exit(sys.argv[1] not in str(x.LIBRARY_PATH))"
    run_python("-c", found, str(BUILD))
    files = [f"tests/test_{name}.py" for name in TESTS]
    chosen = ("-m", "not gpu", "-k", f"not ({SLOW})", *files)
    run_python("-m", "pytest", "-q", "--capture=no", *chosen)


def run_random_calls() -> None:
    run_kernels(MEMORY)
    run_kernels(MEMORY, XGEMM_CPU_ISA="generic")
    run_kernels(THREADS)
    run_python("tests/fuzz_arguments.py")


if __name__ == "__main__":
    main()
