"""Compares the machine code of all kernels of two builds of the library, whatever their names are.

    python benchmarks/compare_sass.py BEFORE AFTER [--write FILE]

BEFORE and AFTER are libraries, or files that --write made of a library. Kernels are matched by
their code: a kernel that was moved or renamed is the same if every instruction and every encoding
is. What stands on one side only is listed by name. The exit code is 1 where there is any.

Needs cuobjdump and nvdisasm (kernel_resources.py says where from), and c++filt.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from kernel_resources import demangle, missing_tools, short_name

# What a name does to the text around it: symbols, and the columns that they are padded to.
SYMBOL = re.compile(r"[\w$.]*_Z[\w$.]+")
SPACES = re.compile(r"[ \t]+")

Codes = dict[str, list[str]]  # of "architecture digest": the kernels' mangled names


def codes_of(lines: Iterable[str]) -> Codes:
    """Of what `cuobjdump -sass` prints."""
    found: Codes = {}
    arch = name = ""
    digest = hashlib.sha256()

    def end() -> None:
        if name:
            found.setdefault(f"{arch} {digest.hexdigest()}", []).append(name)

    for line in lines:
        if match := re.match(r"arch = (\w+)", line):
            end()
            arch, name = match[1], ""
        elif match := re.match(r"\s*Function : (\S+)", line):
            end()
            name, digest = match[1], hashlib.sha256()
        elif name and line.lstrip().startswith("/*"):
            digest.update(SPACES.sub(" ", SYMBOL.sub("_Z", line)).encode())
    end()
    return found


def codes(path: Path) -> Codes:
    if path.suffix == ".json":
        read: Codes = json.loads(path.read_text())
        return read
    command = ["cuobjdump", "-sass", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dump:
        assert dump.stdout is not None
        found = codes_of(dump.stdout)
    if dump.returncode != 0 or not found:
        raise SystemExit(f"cuobjdump: expected the code of kernels in {path}, found none")
    return found


def missing_from(some: Codes, others: Codes) -> list[str]:
    """The kernels of `some` whose code `others` do not have as often."""
    missing = []
    for key, names in sorted(some.items()):
        count = len(names) - len(others.get(key, []))
        if count > 0:
            arch = key.partition(" ")[0]
            missing += [f"{arch} {short_name(name)}" for name in demangle(names)[:count]]
    return missing


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--write", type=Path, help="keep what AFTER has in a file (.json)")
    options = parser.parse_args()
    for tool in missing_tools():
        parser.error(f"{tool} must be in PATH: it comes with the CUDA toolkit or binutils")
    before, after = codes(options.before), codes(options.after)
    if options.write:
        options.write.write_text(json.dumps(after))
    gone, new = missing_from(before, after), missing_from(after, before)
    for side, names in (("before", gone), ("after", new)):
        for name in names:
            print(f"only {side}: {name}")
    count, other = (sum(map(len, found.values())) for found in (before, after))
    print(f"{count} kernels before, {other} after, {other - len(new)} with the same code")
    return 1 if gone or new else 0


if __name__ == "__main__":
    sys.exit(main())
