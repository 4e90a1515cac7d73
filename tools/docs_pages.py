"""Pages of the documentation site that are made from the code: mkdocs calls this while it builds.

- reference/: the ops' and the package's docstrings, with the ops' schemas;
- ladders/: for each ladder, its rungs' sources beside the differences to the rung before;
- live/: pages of `xgemm layout --html`, which layouts.md lists, the first one open;
- repository/: files of the checkout that a page links to, outside of docs/.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import torch
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import xgemm
from xgemm.cli.layout_names import NAMES
from xgemm.ladder.rungs import LADDERS, Ladder
from xgemm.ladder.source import diff_to_previous, read_rung
from xgemm.layouts.page import grid_page

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+)((?:#[^)\s]*)?\))")
LANGUAGES = {".py": "python", ".md": "", ".yml": "yaml"}
# The page of each explorer: its title and the arguments of `xgemm layout`.
LIVE = {
    "ldmatrix-128": ("ldmatrix.x4 on rows of 128 bytes", "ldmatrix 4 128 0 none"),
    "ldmatrix-64": ("ldmatrix.x4 on rows of 64 bytes", "ldmatrix 4 64 0 none"),
    "smem-sgemm-3": ("how rung 3 of sgemm reads B", "smem|lane % 16 * 32|16"),
    "smem-sgemm-6": ("how rung 6 of sgemm reads B", "smem|lane % 8 * 16|16"),
    "swizzle-128": ("the 128-byte swizzle", "swizzle 128"),
    "mma-a": ("A of mma.m16n8k16", "mma m16n8k16 a"),
    "mma-b": ("B of mma.m16n8k16", "mma m16n8k16 b"),
    "mma-c": ("C of mma.m16n8k16", "mma m16n8k16 c"),
    "wgmma-d": ("D of wgmma", "mma wgmma d"),
    "tma-edge": ("a TMA box over the edge of a matrix", "tma 100x64 8x64 96,0"),
    "w4": ("the packed layout to the nibble", "w4 4096 4096 128"),
    "order-hilbert": ("tiles along a Hilbert curve", "order hilbert 8x8 10"),
    "order-grouped": ("tiles in groups of four rows", "order grouped 8x8 10 4"),
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    def add(path: str, content: str) -> None:
        files.append(File.generated(config, path, content=content))

    add("index.md", _read_me())
    add("reference/index.md", _python_reference())
    add("reference/ops.md", _ops_reference())
    for ladder in LADDERS.values():
        add(f"ladders/{ladder.name}-rungs.md", _rungs(ladder))
    for name, (_, arguments) in LIVE.items():
        add(f"live/{name}.html", _live(arguments))
    for path in sorted(_linked_from(files)):
        add(_repository_page(path), _repository_text(path))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links that leave docs/ lead to the pages of repository/; layouts.md lists live pages."""
    source = page.file.src_uri
    if source == "layouts.md":
        markdown += _live_list()
    folder = (ROOT / "docs" / source).parent
    up = "../" * source.count("/")

    def moved(found: re.Match[str]) -> str:
        path = _outside(folder, found[2])
        if path is None:
            return found[0]
        return f"{found[1]}{up}{_repository_page(path)}{found[3]}"

    return LINK.sub(moved, markdown)


def _outside(folder: Path, link: str) -> Path | None:
    """The file of the checkout that a link of docs/ leads to, if it lies outside of docs/."""
    path = (folder / link).resolve()
    if path.is_relative_to(ROOT / "docs") or not path.is_relative_to(ROOT):
        return None
    return path.relative_to(ROOT) if path.is_file() else None


def _linked_from(files: Files) -> set[Path]:
    found = set()
    for file in files.documentation_pages():
        folder = (ROOT / "docs" / file.src_uri).parent
        for link in LINK.finditer(file.content_string):
            path = _outside(folder, link[2])
            if path is not None:
                found.add(path)
    return found


def _repository_page(path: Path) -> str:
    plain = path.as_posix()
    return f"repository/{plain if path.suffix == '.md' else plain + '.md'}"


def _repository_text(path: Path) -> str:
    text = (ROOT / path).read_text()
    if path.suffix == ".md":  # its own links are the checkout's
        return re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", text)
    language = LANGUAGES.get(path.suffix, "cpp")
    return f"# {path.as_posix()}\n\n```{language}\n{text}```\n"


def _read_me() -> str:
    text = (ROOT / "README.md").read_text()
    text = re.sub(r"\]\(docs/", "](", text)
    inside = "guide/|design/|measurements/|ladders/|tutorials/|plots/|glossary|layouts"
    elsewhere = re.compile(rf"\]\((?!https?:|{inside})([^)#]+)(#[^)]*)?\)")
    return elsewhere.sub(r"](../\1)", text)


def _python_reference() -> str:
    parts = ["# Python\n", "The operators have [a page of their own](ops.md).\n"]
    for name in xgemm.__all__:
        thing = getattr(xgemm, name)
        if not callable(thing):
            continue
        signature = "" if inspect.isclass(thing) else str(inspect.signature(thing))
        parts.append(
            f"## {name}\n\n```text\nxgemm.{name}{signature}\n\n{inspect.getdoc(thing)}\n```\n"
        )
    return "\n".join(parts)


def _ops_reference() -> str:
    schemas: dict[str, list[str]] = {}
    for schema in torch._C._jit_get_all_schemas():
        library, _, name = schema.name.partition("::")
        if library == "xgemm":
            schemas.setdefault(name, []).append(str(schema))
    parts = ["# Operators\n", "`torch.ops.xgemm.<name>`; `help()` of each prints the same page.\n"]
    for name, text in sorted(xgemm.ops.DOCS.items()):
        known = "\n".join(sorted(schemas.get(name, [])))
        parts.append(f"## {name}\n\n```text\n{known}\n```\n\n```text\n{text.strip()}\n```\n")
    return "\n".join(parts)


def _rungs(ladder: Ladder) -> str:
    parts = [
        f"# {ladder.name}: every rung\n",
        f"`xgemm ladder {ladder.name} --show N` prints one.\n",
    ]
    for number in range(ladder.rungs):
        rung = read_rung(ladder.name, number)
        parts.append(f"## {number}: {rung.title}\n")
        parts.append(f"```cpp\n{rung.text}```\n")
        difference = diff_to_previous(ladder.name, number)
        if difference:
            parts.append(f'??? note "what differs from rung {number - 1}"\n')
            parts.append("    ```diff\n" + _indented(difference) + "    ```\n")
    return "\n".join(parts)


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def _parts(arguments: str) -> list[str]:
    return arguments.split("|") if "|" in arguments else arguments.split()


def _live(arguments: str) -> str:
    name, *rest = _parts(arguments)
    drawn = NAMES[name][0](*rest)
    assert drawn.grid is not None
    return drawn.page or grid_page(drawn.grid)


def _live_list() -> str:
    parts = [
        "\n## Live\n",
        "Each page works alone: move the mouse over a cell, or change the swizzle.\n",
        f'<iframe src="live/{next(iter(LIVE))}.html" width="100%" height="420"></iframe>\n',
    ]
    for name, (title, arguments) in LIVE.items():
        command = " ".join(f'"{part}"' if " " in part else part for part in _parts(arguments))
        parts.append(f"- [{title}](live/{name}.html): `xgemm layout {command} --html {name}.html`")
    return "\n".join(parts) + "\n"
