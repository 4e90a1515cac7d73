"""The documentation site: it builds without a warning, and holds what is made from the code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from xgemm.ladder.rungs import LADDERS

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="mkdocs-material is not installed: pip install .[docs]")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr  # strict: a broken link is an error
    return folder


def test_each_ladder_has_its_rungs_sources(site: Path):
    for name, ladder in LADDERS.items():
        page = (site / "ladders" / f"{name}-rungs.html").read_text()
        assert page.count("<h2") == ladder.rungs


def test_operators_and_live_pages_are_there(site: Path):
    assert "xgemm::mul(Tensor a, Tensor b" in (site / "reference" / "ops.html").read_text()
    layouts = (site / "layouts.html").read_text()
    pages = [page.name for page in (site / "live").glob("*.html")]
    assert len(pages) >= 10
    assert all(f'href="live/{page}"' in layouts for page in pages)
    assert "xgemm layout swizzle 128 --html" in layouts
    assert 'xgemm layout smem "lane % 16 * 32" 16 --html' in layouts
    assert '<iframe src="live/ldmatrix-128.html"' in layouts


def test_it_can_be_searched_without_a_network(site: Path):
    found = json.loads((site / "search" / "search_index.json").read_text())
    assert any("hopper" in entry["title"] for entry in found["docs"])
    assert "fonts.googleapis.com" not in (site / "index.html").read_text()
