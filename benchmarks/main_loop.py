"""Reads from the machine code what the main loop of each fp32 kernel of a library is made of.

    python benchmarks/main_loop.py [LIBRARY] [--match REGEX] [--arch sm_90] [--json]

The main loop is the one that does most of the arithmetic, as unrolled by the compiler. Counted are
its instructions, FFMAs among them, those FFMAs with an operand kept for reuse (.reuse), those that
read three registers of one bank (of two: even and odd), and its loads, those of 128 bits apart.
LDGSTS (cp.async) counts as a load from global memory. Without LIBRARY it is the ladders', of which
those of sgemm are listed. Needs what kernel_resources.py needs.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from kernel_resources import (
    LIBRARY,
    demangle,
    main_loops,
    missing_tools,
    parse_instructions,
    parse_usage,
    run,
    short_name,
)

FFMA = re.compile(r"\bFFMA\b")
# What is read: of constants, RZ and uniform registers nothing lies in a bank.
SOURCES = re.compile(r"\bFFMA\S*\s+R\d+,\s*(\S+),\s*(\S+),\s*([^\s;]+)")
SHARED, GLOBAL = re.compile(r"\bLDS\b"), re.compile(r"\bLDG(STS)?\b")


@dataclass(frozen=True)
class MainLoop:
    kernel: str
    instructions: int
    ffma: int
    reuse: int  # FFMAs with a source that is marked .reuse
    one_bank: int  # FFMAs that read three registers of one bank
    shared_loads: int
    shared_128: int
    global_loads: int
    global_128: int


def bank_conflicts(texts: Iterable[str]) -> int:
    """FFMAs that have to read three registers of one bank, even or odd.

    A register that the instruction before had in the same place, with .reuse, is not read again.
    """
    count, kept = 0, ("", "", "")
    for text in texts:
        found = SOURCES.search(text)
        if found is None:
            kept = ("", "", "")
            continue
        registers = [re.match(r"-?R(\d+)", source) for source in found.groups()]
        read = [
            int(register[1]) % 2
            for register, before in zip(registers, kept, strict=True)
            if register is not None and register[0].lstrip("-") != before
        ]
        count += len(read) == 3 and len(set(read)) == 1
        kept = tuple(
            source.lstrip("-").removesuffix(".reuse") if source.endswith(".reuse") else ""
            for source in found.groups()
        )
    return count


def describe(kernel: str, body: Iterable[str]) -> MainLoop:
    texts = list(body)
    ffma = [text for text in texts if FFMA.search(text)]
    shared, global_ = ([t for t in texts if kind.search(t)] for kind in (SHARED, GLOBAL))
    return MainLoop(
        kernel=kernel,
        instructions=len(texts),
        ffma=len(ffma),
        reuse=sum(".reuse" in text for text in ffma),
        one_bank=bank_conflicts(texts),
        shared_loads=len(shared),
        shared_128=sum(".128" in text for text in shared),
        global_loads=len(global_),
        global_128=sum(".128" in text for text in global_),
    )


def read(library: Path, match: str, arch: str) -> list[MainLoop]:
    """Of the kernels whose name `match` finds, the main loop: of several as large the first."""
    usages = parse_usage(run(["cuobjdump", "--dump-resource-usage", str(library)]))
    mangled = [name for found_arch, name, _ in usages if found_arch == arch]
    names = dict(zip(mangled, map(short_name, demangle(mangled)), strict=True))
    chosen = [name for name in mangled if re.search(match, names[name])]
    if not chosen:
        return []
    sass = run(["cuobjdump", "-sass", "-arch", arch, "-fun", ",".join(chosen), str(library)])
    found = []
    for part in re.split(r"^\s*Function : ", sass, flags=re.MULTILINE)[1:]:
        mangled_name, _, code = part.partition("\n")
        for body in main_loops(parse_instructions(code))[:1]:
            found.append(describe(names[mangled_name.strip()], body))
    return sorted(found, key=lambda loop: loop.kernel)


def print_table(found: Iterable[MainLoop]) -> None:
    print(
        "| kernel | instructions | FFMA | share | with .reuse | of one bank |"
        " LDS, of 128 bits | LDG, of 128 bits |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for x in found:
        print(
            f"| {x.kernel} | {x.instructions} | {x.ffma} | {x.ffma / x.instructions:.0%}"
            f" | {x.reuse} | {x.one_bank} | {x.shared_loads}, {x.shared_128}"
            f" | {x.global_loads}, {x.global_128} |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    ladders = LIBRARY.with_name("_ladder.abi3.so")
    parser.add_argument("library", nargs="?", type=Path, default=ladders)
    parser.add_argument(
        "--match", default="sgemm::rung", help="kernels whose name this regex finds"
    )
    parser.add_argument("--arch", default="sm_90", help="whose machine code is read")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    for tool in missing_tools():
        parser.error(f"{tool} must be in PATH: it comes with the CUDA toolkit or binutils")
    if not options.library.is_file():
        parser.error(f"the library must be built first, got {options.library}")
    found = read(options.library, options.match, options.arch)
    if not found:
        parser.error(f"--match: expected a kernel of {options.arch} with a loop of arithmetic")
    if options.json:
        print(json.dumps([asdict(loop) for loop in found], indent=2))
    else:
        print_table(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
