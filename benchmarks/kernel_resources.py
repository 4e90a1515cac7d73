"""Lists what each CUDA kernel of the built library takes: registers, stack, shared memory, spills.

    python benchmarks/kernel_resources.py [LIBRARY] [--match REGEX] [--json]

Needs cuobjdump and nvdisasm, of the CUDA toolkit or of PyPI (nvidia-cuda-cuobjdump and
nvidia-cuda-nvdisasm), and c++filt. Spills are the instructions of the
machine code that touch local memory; those inside the loop that does most of the tensor-core (or
fp32) arithmetic are counted apart. The exit code is 1 where a main loop spills.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

LIBRARY = Path(__file__).resolve().parents[1] / "python" / "xgemm" / "_C.abi3.so"

LOCAL_ACCESS = re.compile(r"\b(LDL|STL)\b")
TENSOR_CORE = re.compile(r"\b(HGMMA|HMMA|QGMMA|IMMA|QMMA)\b")
PLAIN_ARITHMETIC = re.compile(r"\b(FFMA|HFMA2|DFMA)\b")
INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", re.MULTILINE)


@dataclass(frozen=True)
class Kernel:
    arch: str
    name: str  # demangled, without the library's namespace and the parameters
    registers: int
    stack: int  # bytes a thread: arrays indexed at run time, and spills
    shared: int  # bytes a CTA, without the dynamic ones
    spills: int = 0  # instructions that touch local memory
    main_loop_spills: int = 0  # those of them inside the loops that do the arithmetic


def run(command: list[str], text: str | None = None) -> str:
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def missing_tools() -> list[str]:
    """Of the programs that are needed; those of PyPI's packages are added to PATH first."""
    packages = importlib.util.find_spec("nvidia")
    for folder in packages.submodule_search_locations or () if packages else ():
        for tool in Path(folder).glob("cu*/bin/cuobjdump"):
            os.environ["PATH"] += f"{os.pathsep}{tool.parent}"
    return [tool for tool in ("cuobjdump", "nvdisasm", "c++filt") if shutil.which(tool) is None]


def demangle(names: list[str]) -> list[str]:
    return run(["c++filt"], "\n".join(names)).splitlines()


def short_name(demangled: str) -> str:
    """Without the return type, the library's namespace, casts, and the parameters."""
    name = demangled.removeprefix("void ")
    depth = 0
    for at, letter in enumerate(name):  # the parameters start at the first '(' outside <...>
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0 and not name.startswith("(anonymous namespace)", at):
            name = name[:at]
            break
    name = re.sub(r"xgemm::cuda::|\(anonymous namespace\)::|\((?:int|bool)\)", "", name)
    return re.sub(r"\s+>", ">", name)


def parse_usage(text: str) -> list[tuple[str, str, dict[str, int]]]:
    """(arch, mangled name, usage) of each kernel in what --dump-resource-usage prints."""
    found: list[tuple[str, str, dict[str, int]]] = []
    arch, name = "", ""
    for line in text.splitlines():
        if match := re.match(r"arch = (\w+)", line):
            arch = match[1]
        elif match := re.match(r"\s*Function (\S+):", line):
            name = match[1]
        elif name and "REG:" in line:
            usage = {key: int(value) for key, value in re.findall(r"([A-Z]+):(\d+)", line)}
            found.append((arch, name, usage))
            name = ""
    return found


@dataclass
class Block:
    """A run of instructions that is entered at its start and left at its end."""

    first: int  # address
    last: int
    successors: list[int]  # their first addresses


def basic_blocks(instructions: list[tuple[int, str]]) -> dict[int, Block]:
    targets = {}
    for address, text in instructions:
        if match := re.search(r"\bBRA\b.*?(0x[0-9a-f]+)", text):
            targets[address] = int(match[1], 16)
    starts = set(targets.values())
    blocks: dict[int, Block] = {}
    block = None
    for (address, text), (after, _) in zip(
        instructions, [*instructions[1:], (-1, "")], strict=True
    ):
        if block is None or address in starts:
            block = blocks[address] = Block(address, address, [])
        block.last = address
        always = not text.lstrip().startswith("@")
        ends = always and re.match(r"\s*(EXIT|RET)\b", text) is not None
        jumps = re.fullmatch(r"\s*BRA 0x[0-9a-f]+\s*", text) is not None
        if address in targets or ends or after in starts:
            block.successors = [targets[address]] if address in targets else []
            if not ends and not jumps and after >= 0:
                block.successors.append(after)
            block = None
    return blocks


def dominators(blocks: dict[int, Block]) -> dict[int, set[int]]:
    """For each block that can be reached, the blocks that every path from the entry passes."""
    entry = min(blocks)
    found = {entry: {entry}}
    waiting = [entry]
    while waiting:
        at = waiting.pop(0)
        for after in blocks[at].successors:
            known = found.get(after)
            through = (found[at] if known is None else known & found[at]) | {after}
            if through != known:
                found[after] = through
                waiting.append(after)
    return found


def loops(blocks: dict[int, Block]) -> list[set[int]]:
    """The blocks of each natural loop: a wait's slow path that jumps back into one is none."""
    dominated_by = dominators(blocks)
    before: dict[int, list[int]] = {}
    for at in dominated_by:
        for after in blocks[at].successors:
            before.setdefault(after, []).append(at)
    bodies: dict[int, set[int]] = {}
    for at, through in dominated_by.items():
        for head in blocks[at].successors:
            if head not in through:
                continue
            body = bodies.setdefault(head, {head})
            waiting = [at]
            while waiting:
                block = waiting.pop()
                if block not in body:
                    body.add(block)
                    waiting += before.get(block, [])
    return list(bodies.values())


def parse_instructions(sass: str) -> list[tuple[int, str]]:
    """(address, text) of each instruction of a kernel."""
    instructions = [(int(address, 16), text) for address, text in INSTRUCTION.findall(sass)]
    if not instructions:
        raise ValueError("cuobjdump -sass: expected instructions, got none")
    return instructions


def main_loops(instructions: list[tuple[int, str]]) -> list[list[str]]:
    """The instructions of each loop that does the arithmetic: of the tensor cores, or else fp32.

    What a loop does itself counts, not what loops inside it do: an epilogue's has arithmetic of
    its own, too, and the loop over tiles what was peeled off the main loop.
    """
    on_tensor_cores = any(TENSOR_CORE.search(text) for _, text in instructions)
    kind = TENSOR_CORE if on_tensor_cores else PLAIN_ARITHMETIC
    blocks = basic_blocks(instructions)
    bodies = loops(blocks)
    own = [body.difference(*(other for other in bodies if other < body)) for body in bodies]
    texts = [
        [
            text
            for address, text in instructions
            if any(blocks[first].first <= address <= blocks[first].last for first in body)
        ]
        for body in own
    ]
    work = [sum(kind.search(text) is not None for text in body) for body in texts]
    return [body for body, count in zip(texts, work, strict=True) if count >= 0.9 * max(work) > 0]


def count_spills(sass: str) -> tuple[int, int]:
    """Accesses of local memory in a kernel's machine code, and those inside its main loops."""
    instructions = parse_instructions(sass)

    def accesses(texts: Iterable[str]) -> int:
        return sum(LOCAL_ACCESS.search(text) is not None for text in texts)

    everywhere = accesses(text for _, text in instructions)
    return everywhere, sum(accesses(body) for body in main_loops(instructions))


def kernels(library: Path) -> list[Kernel]:
    usages = parse_usage(run(["cuobjdump", "--dump-resource-usage", str(library)]))
    names = demangle([name for _, name, _ in usages])
    found = []
    for (arch, mangled, usage), demangled in zip(usages, names, strict=True):
        spills = main_loop = 0
        if usage["STACK"] > 0 or usage["LOCAL"] > 0:  # else there is nothing to spill to
            sass = run(["cuobjdump", "-sass", "-arch", arch, "-fun", mangled, str(library)])
            spills, main_loop = count_spills(sass)
        name = short_name(demangled)
        made = Kernel(arch, name, usage["REG"], usage["STACK"], usage["SHARED"], spills, main_loop)
        found.append(made)
    return sorted(found, key=lambda kernel: (kernel.arch, kernel.name))


def print_table(found: Iterable[Kernel]) -> None:
    print("| arch | registers | stack | static shared | spills | in the main loop | kernel |")
    print("|---|---|---|---|---|---|---|")
    for k in found:
        flag = " (!)" if k.main_loop_spills else ""
        cells = (k.arch, k.registers, k.stack, k.shared, k.spills, f"{k.main_loop_spills}{flag}")
        print("|", " | ".join(map(str, cells)), f"| {k.name} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("library", nargs="?", type=Path, default=LIBRARY)
    parser.add_argument("--match", default="", help="only kernels whose name this regex finds")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    for tool in missing_tools():
        parser.error(f"{tool} must be in PATH: it comes with the CUDA toolkit or binutils")
    if not options.library.is_file():
        parser.error(f"the library must be built first, got {options.library}")
    found = [k for k in kernels(options.library) if re.search(options.match, k.name)]
    if options.json:
        print(json.dumps([asdict(kernel) for kernel in found], indent=2))
    else:
        print_table(found)
    bad = [kernel for kernel in found if kernel.main_loop_spills]
    spilling = sum(kernel.spills > 0 for kernel in found)
    summary = f"{len(found)} kernels, {spilling} touch local memory, {len(bad)} in their main loop"
    print(summary, file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
