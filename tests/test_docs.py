"""The Python examples of README.md and docs/ run, and every op has its page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from language_models import save_llama

import xgemm

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "README.md", *(ROOT / "docs").rglob("*.md")))
# Pages whose examples need an extra.
NEEDS = {
    "README.md": ["transformers", "accelerate"],
    "checkpoints.md": ["transformers", "accelerate"],
    "generate.md": ["transformers"],
    "finetune.md": ["transformers", "peft"],
    "gptq-checkpoint.md": ["transformers", "accelerate"],
    "lora.md": ["transformers", "peft"],
    "quantize-and-generate.md": ["transformers"],
    "transformers.md": ["transformers", "accelerate"],
}
EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_run(page, tmp_path, monkeypatch):
    """The examples of a page, one after another, as a reader would type them."""
    examples = list(EXAMPLE.finditer(page.read_text()))
    if not examples:
        pytest.skip("the page has no Python example")
    for package in NEEDS.get(page.name, []):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    if "README" in page.name:  # its reader has a model
        save_llama(tmp_path / "my-model")
    torch.manual_seed(0)
    scope: dict[str, object] = {"__name__": "__main__"}
    for example in examples:
        line = page.read_text()[: example.start(1)].count("\n")
        exec(compile("\n" * line + example[1], str(page), "exec"), scope)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page):
    """Links, and paths of the checkout in the text."""
    text = page.read_text()
    links = {page.parent / link for link in re.findall(r"\]\(([^):#]+)\)", text)}
    paths = r"\b(?:benchmarks|csrc|docs|python|tests)/[\w./-]+\.(?:cpp|cu|cuh|h|md|png|py)\b"
    named = {ROOT / path for path in re.findall(paths, text)}
    assert [str(path) for path in sorted(links | named) if not path.exists()] == []


def schemas():
    return {
        schema.name.removeprefix("xgemm::") + (f".{schema.overload_name}").rstrip("."): schema
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("xgemm::")
    }


def test_there_are_schemas():
    assert {"mul", "mul.w4a16", "sgemm_into", "argmin"} <= set(schemas())


# Private ops are called by xgemm alone: python/xgemm/direct.py says what they are.
@pytest.mark.parametrize("name", sorted(n for n in schemas() if not n.startswith("_")))
def test_every_op_has_a_page(name):
    """It names each argument of the schema, what is returned, the gradients and the source."""
    packet = name.partition(".")[0]
    page = getattr(torch.ops.xgemm, packet).__doc__
    assert page == xgemm.ops.DOCS[packet]
    signature = re.search(rf"^{re.escape(name)}\((.*?)->", page, re.MULTILINE | re.DOTALL)
    assert signature is not None
    names = re.findall(r"(\w+)(?:=[^,)]*)?(?=[,)])", signature[1])
    assert names == [argument.name for argument in schemas()[name].arguments]
    assert "Errors: " in page
    without = {"explain", "explain_reduce", "pack_w4", "unpack_w4", "dequantize_w4"}
    assert packet in without or "Gradients: " in page
    sources = re.findall(r"csrc/[\w/.]+\w", page.partition("Source: ")[2])
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source


def test_the_readme_stays_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("family", ["dense", "fp32", "w4a16", "reductions"])
def test_a_family_has_one_page_that_can_be_read_at_once(family):
    page = ROOT / "docs" / "design" / f"{family}.md"
    assert len(page.read_text().splitlines()) <= 250
    assert f"({family}.md)" in (page.parent / "index.md").read_text()
