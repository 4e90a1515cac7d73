"""benchmarks/compare_sass.py: which kernels of two builds have the same machine code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

DUMP = """
Fatbin elf code:
================
arch = sm_90a
	code for sm_90a
		Function : _ZN5xgemm4rows6kernelEi
	.headerflags	@"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;       /* 0x00000a00ff017b82 */
                                                                /* 0x000ff00000000800 */
        /*0010*/                   CALL.REL `(_ZN5xgemm4rows4callEv) ;  /* 0x0000000000007918 */
		Function : _ZN5xgemm4rows5otherEi
        /*0000*/                   EXIT ;                       /* 0x000000000000794d */
arch = sm_80
	code for sm_80
		Function : _ZN5xgemm4rows5otherEi
        /*0000*/                   EXIT ;                       /* 0x000000000000794d */
"""
RENAMED = DUMP.replace("4rows", "6skinny").replace("  CALL", "      CALL")


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import compare_sass

    yield compare_sass
    for name in ("compare_sass", "kernel_resources"):
        sys.modules.pop(name, None)


def test_names_do_not_count(compare):
    before, after = (compare.codes_of(text.splitlines()) for text in (DUMP, RENAMED))
    assert sum(map(len, before.values())) == 3
    assert not compare.missing_from(before, after)
    assert not compare.missing_from(after, before)


@pytest.mark.parametrize(
    ("old", "new"),
    [("LDC R1", "LDC R2"), ("0x000ff00000000800", "0x000ff00000000801"), ("sm_80", "sm_90")],
)
def test_code_and_architecture_do(compare, old, new):
    before, after = (
        compare.codes_of(text.splitlines()) for text in (DUMP, RENAMED.replace(old, new))
    )
    assert len(compare.missing_from(before, after)) == 1
    assert len(compare.missing_from(after, before)) == 1


def test_the_exit_code_tells(compare, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(compare, "missing_tools", list)
    paths = [tmp_path / "before.json", tmp_path / "after.json"]
    for path, text in zip(paths, (DUMP, RENAMED.replace("EXIT", "NOP", 1)), strict=True):
        path.write_text(json.dumps(compare.codes_of(text.splitlines())))
    for after, code in ((paths[0], 0), (paths[1], 1)):
        monkeypatch.setattr(sys, "argv", ["compare_sass.py", str(paths[0]), str(after)])
        assert compare.main() == code
    said = capsys.readouterr().out
    assert "3 kernels before, 3 after, 3 with the same code" in said
    for line in (
        "only before: sm_90a xgemm::rows::other",
        "only after: sm_90a xgemm::skinny::other",
    ):
        assert line in said
