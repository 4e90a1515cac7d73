"""Banks, swizzles, orders of tiles and the algebra of layouts, against facts and definitions."""

from __future__ import annotations

import itertools
import json
import random
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from xgemm.cli.app import app
from xgemm.layouts import algebra
from xgemm.layouts.algebra import Layout, parse
from xgemm.layouts.banks import access, addresses_of, ldmatrix_addresses, swizzled
from xgemm.layouts.fragments import FRAGMENTS, find_fragment, ldmatrix_owners
from xgemm.layouts.order import panels_by_wave, stripes, tiles_in_order
from xgemm.layouts.tma import Box


@pytest.mark.parametrize(("row_bytes", "extra"), [(32, 4), (64, 12), (128, 28)])
def test_ldmatrix_waits_for_banks_unless_rows_are_padded_or_swizzled(row_bytes: int, extra: int):
    assert access(ldmatrix_addresses(4, row_bytes), 16).extra == extra
    assert access(ldmatrix_addresses(4, row_bytes, padding=16), 16).extra == 0
    assert access(ldmatrix_addresses(4, row_bytes, swizzle=str(row_bytes)), 16).extra == 0


@pytest.mark.parametrize(
    ("pattern", "width", "wavefronts"),
    [
        ("lane * 4", 4, 1),
        ("0", 4, 1),  # broadcast
        *((f"lane * {4 * n}", 4, n) for n in (2, 4, 8, 16, 32)),
        ("lane * 12", 4, 1),  # an odd number of words
        ("lane * 8", 8, 2),
        ("lane * 16", 16, 4),
        ("lane % 16 * 32", 16, 8),  # rung 3 of sgemm reads B so: 2-way
        ("lane % 8 * 16", 16, 4),  # and rung 6 so
    ],
)
def test_turns_of_a_load(pattern: str, width: int, wavefronts: int):
    assert access(addresses_of(pattern), width).wavefronts == wavefronts


def test_a_swizzle_is_a_permutation_and_its_own_inverse():
    for name, row in (("none", 16), ("32", 32), ("64", 64), ("128", 128)):
        places = [swizzled(address, name) for address in range(0, 4096, 16)]
        assert sorted(places) == list(range(0, 4096, 16))
        assert [swizzled(place, name) for place in places] == list(range(0, 4096, 16))
        assert all(
            a // max(row, 128) == p // max(row, 128)
            for a, p in zip(range(0, 4096, 16), places, strict=True)
        )


@pytest.mark.parametrize(("order", "panels"), [("row-major", 65), ("grouped", 49), ("hilbert", 49)])
def test_panels_that_waves_of_ten_read_of_8x8_tiles(order: str, panels: int):
    tiles = tiles_in_order(order, 8, 8, group=4)
    assert sorted(tiles) == [(row, column) for row in range(8) for column in range(8)]
    assert sum(panels_by_wave(tiles, 10)) == panels


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 5), (8, 2), (16, 16)])
def test_the_hilbert_curve_visits_each_tile_once(rows: int, columns: int):
    tiles = tiles_in_order("hilbert", rows, columns)
    assert sorted(tiles) == [(row, column) for row in range(rows) for column in range(columns)]
    if rows == columns:
        steps = itertools.pairwise(tiles)
        assert all(abs(a - c) + abs(b - d) == 1 for (a, b), (c, d) in steps)


def test_ldmatrix_gives_mma_its_operands():
    """A by x4 of its 16 rows, then their next 8 k; B, which lies by rows of n, by x2.trans."""
    loaded = ldmatrix_owners("x4")
    for row, found in enumerate(find_fragment("m16n8k16", "a").owners()):
        for k, owner in enumerate(found):
            assert owner == loaded[k // 8 * 16 + row][k % 8]
    loaded = ldmatrix_owners("x2.trans")
    for column, found in enumerate(find_fragment("m16n8k16", "b").owners()):
        for k, owner in enumerate(found):
            assert owner == loaded[k][column]
    with pytest.raises(ValueError, match=r"ldmatrix is one of x1, .*, got 'x3'"):
        ldmatrix_owners("x3")


def test_where_stripes_begin():
    assert stripes(n=768, k=256, ctas=5) == [(0, 0), (1, 1), (2, 2), (3, 3), (0, 5)]


def test_the_example_of_composition():
    text = "(6,2):(8,2) o (4,3):(3,1)"
    assert str(algebra.evaluate(text)) == "((2,2),3):((24,2),8)"


def random_layout(rng: random.Random) -> Layout:
    """Compact, in a random order of strides."""
    shape = [rng.choice((1, 2, 2, 3, 4, 6)) for _ in range(rng.randint(1, 4))]
    strides, reached = [0] * len(shape), 1
    for mode in rng.sample(range(len(shape)), len(shape)):
        strides[mode] = reached
        reached *= shape[mode]
    return Layout(tuple(shape), tuple(strides))


def test_composition_is_one_function_after_the_other():
    rng = random.Random(1)
    composed = 0
    for _ in range(2000):
        a, b = random_layout(rng), random_layout(rng)
        if b.cosize > a.size:
            continue
        try:
            both = algebra.composition(a, b)
        except ValueError:
            continue
        composed += 1
        assert [both(i) for i in range(b.size)] == [a(b(i)) for i in range(b.size)], (a, b)
    assert composed > 300


def test_layouts_that_do_not_compose_are_both_named():
    with pytest.raises(ValueError, match=r"\(6,2\):\(8,2\) and 4:4 do not compose: 4 and 6"):
        algebra.composition(parse("(6,2):(8,2)"), parse("4:4"))


def test_coalesce_and_inverse_keep_their_promises():
    rng = random.Random(2)
    for _ in range(300):
        a = random_layout(rng)
        short = algebra.coalesce(a)
        assert [short(i) for i in range(a.size)] == [a(i) for i in range(a.size)]
        back = algebra.inverse(a)
        assert back.size == a.size
        assert [a(back(i)) for i in range(back.size)] == list(range(a.size))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("complement 4:1 24", "6:4"),
        ("complement 6:4 24", "4:1"),
        ("complement (4,6):(1,4) 24", "1:0"),
        ("complement 4:2 24", "(2,3):(1,8)"),
        ("coalesce (2,(1,6)):(1,(6,2))", "12:1"),
        ("(4,2,3):(2,1,8) / 4:2", "((2,2),(2,3)):((4,1),(2,8))"),
        ("(2,2):(4,1) x 6:1", "((2,2),(2,3)):((4,1),(2,8))"),
        ("inverse (4,8):(8,1)", "(8,4):(4,1)"),
    ],
)
def test_known_results(text: str, expected: str):
    assert str(algebra.evaluate(text)) == expected


@pytest.mark.parametrize("text", ["(2,3:(1,2)", "(2,3):(1)", "2", "(2,0):(1,2)", "a:b", "2:1 3"])
def test_what_is_no_layout_is_refused(text: str):
    with pytest.raises(ValueError, match="layout: "):
        parse(text)


@pytest.mark.parametrize(("instruction", "operand"), FRAGMENTS)
def test_each_element_of_a_fragment_has_one_place(instruction: str, operand: str):
    fragment = find_fragment(instruction, operand)
    owners = [owner for row in fragment.owners() for owner in row]
    threads = 128 if instruction == "wgmma" else 32
    each = fragment.rows * fragment.columns // threads
    assert sorted((owner.thread, owner.index) for owner in owners) == [
        (thread, index) for thread in range(threads) for index in range(each)
    ]


def test_fragments_are_as_the_ptx_manual_has_them():
    """The formulas of the manual's sections on m16n8k16, m8n8k32 and wgmma, by lane and index."""
    a, b, c = (find_fragment("m16n8k16", operand) for operand in "abc")
    narrow, d = find_fragment("m8n8k32", "a"), find_fragment("wgmma", "d")
    for lane in range(32):
        group, member = lane // 4, lane % 4
        for i in range(8):
            row = group + (8 if i in (2, 3, 6, 7) else 0)
            owner = a.owner(row, member * 2 + i % 2 + (8 if i >= 4 else 0))
            assert (owner.thread, owner.index) == (lane, i)
            assert narrow.owner(group, member * 8 + i).index == i
            assert narrow.owner(group, member * 8 + i).thread == lane
        for i in range(4):
            owner = b.owner(group, member * 2 + i % 2 + (8 if i >= 2 else 0))  # row n, column k
            assert (owner.thread, owner.index) == (lane, i)
            owner = c.owner(group + (8 if i >= 2 else 0), member * 2 + i % 2)
            assert (owner.thread, owner.index) == (lane, i)
    for thread in range(128):
        for i in range(8):
            row = thread // 32 * 16 + thread % 32 // 4 + i // 2 % 2 * 8
            owner = d.owner(row, i // 4 * 8 + thread % 4 * 2 + i % 2)
            assert (owner.thread, owner.index) == (thread, i)


def test_a_box_of_tma_fills_its_bytes_and_has_zeros_outside():
    box = Box(100, 64, 8, 64, 96, 0)
    pieces = box.pieces()
    assert sorted(pieces) == list(range(0, box.bytes, 16))
    assert sum(found is None for found in pieces.values()) == 4 * 8
    assert pieces[swizzled(3 * 128 + 16, "128")] == (99, 8)
    assert Box(100, 64, 8, 64, -4, 0).pieces()[0] is None


def command(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["layout", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(
    ("arguments", "key", "value"),
    [
        (["smem", "lane * 8", "4"], "wavefronts", 2),
        (["ldmatrix", "4", "64"], "extra", 12),
        (["ldmatrix", "4", "64", "0", "64"], "extra", 0),
        (["swizzle", "128", "1024"], "swizzle", "128"),
        (["order", "grouped", "8x8", "10", "4"], "panels", 49),
        (["stripes", "768x256", "5"], "begin", [[0, 0], [1, 1], [2, 2], [3, 3], [0, 5]]),
        (["algebra", "(6,2):(8,2) o (4,3):(3,1)"], "result", "((2,2),3):((24,2),8)"),
        (["mma", "m16n8k16", "a"], "elements_a_thread", 8),
        (["mma", "wgmma", "d"], "threads", 128),
        (["tma", "100x64", "8x64", "96,0"], "pieces_of_zeros", 32),
        (["w4", "4096", "4096", "128", "5", "70"], "nibble", 1760),
        (["64", "128"], "n", 64),
    ],
)
def test_the_command_prints_text_and_json(arguments: list[str], key: str, value: object):
    assert json.loads(command(*arguments, "--json"))[key] == value
    assert command(*arguments).strip()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["other"], "smem, ldmatrix, swizzle, mma, tma, w4, order, stripes, algebra"),
        (["mma", "m16n8k16", "d"], "m16n8k16 a, m16n8k16 b, m16n8k16 c"),
        (["tma", "100x64", "8x72", "0,0"], "at most 128 bytes, got 144"),
        (["tma", "100x60", "8x64", "0,0"], "multiple of 16 bytes, got 120"),
        (["w4", "64", "64", "128", "64"], "must be below 64 and 64, got 64 and 0"),
        (["swizzle", "128", "--svg", "/nowhere/x.svg"], "its directory does not exist"),
        (["64", "64", "--svg", "x.svg"], "need a name"),
        (["smem", "lane * x", "4"], "only `lane`"),
        (["smem", "lane * 2", "4"], "lane 1: the address must be a multiple of 4, got 2"),
        (["ldmatrix", "3", "64"], "1, 2 or 4 matrices, got 3"),
        (["algebra", "4:1 o"], "layout"),
        (["order", "spiral", "8x8", "10"], "row-major, grouped, hilbert"),
        (["stripes", "100x256", "5"], "multiples of 128 and 64"),
        (["64"], "N K"),
    ],
)
def test_bad_input_names_the_rule(arguments: list[str], message: str):
    result = CliRunner().invoke(app, ["layout", *arguments])
    assert result.exit_code != 0
    assert message in f"{result.output}{result.exception}"


PICTURES = [
    ["smem", "lane * 8", "4"],
    ["swizzle", "64"],
    ["mma", "m16n8k8", "b"],
    ["tma", "16x16", "8x16", "12,0", "2", "32"],
    ["w4", "64", "128"],
    ["order", "hilbert", "4x4", "4"],
    ["stripes", "768x256", "5"],
    ["algebra", "(4,2):(2,1)"],
]


@pytest.mark.parametrize("arguments", PICTURES, ids=[name[0] for name in PICTURES])
def test_pictures_are_written(arguments: list[str], tmp_path: Path):
    svg, html = tmp_path / "x.svg", tmp_path / "x.html"
    command(*arguments, "--svg", str(svg), "--html", str(html))
    tree = ElementTree.parse(svg).getroot()
    cells = tree.findall(".//{http://www.w3.org/2000/svg}g[@class='cell']")
    assert len(cells) >= 8
    page = html.read_text()
    assert not re.search(r"(src|href)=|url\(|@import|fetch\(", page)  # nothing from elsewhere


def test_a_picture_as_png(tmp_path: Path):
    pytest.importorskip("matplotlib")
    command("swizzle", "128", "--png", str(tmp_path / "x.png"))
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_the_guides_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    guide = Path(__file__).parents[1] / "docs" / "layouts.md"
    commands = re.findall(r"^\$ xgemm layout (.*)$", guide.read_text(), re.MULTILINE)
    assert len(commands) >= 10
    for text in commands:
        assert command(*shlex.split(text, comments=True)).strip()


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "headless_shell")
BROWSERS += ("chromium-headless-shell", "chrome-headless-shell")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
with_browser = pytest.mark.skipif(BROWSER is None, reason=f"no browser here: {', '.join(BROWSERS)}")


def seen(page: Path, does: str = "") -> str:
    """What a browser shows of the page once a reader has done something; not its scripts."""
    page.write_text(page.read_text().replace("</body>", f"<script>{does}</script></body>"))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    found = subprocess.run(
        [str(BROWSER), *options, page.as_uri()], capture_output=True, text=True, timeout=60
    )
    return re.sub(r"<script>.*?</script>", "", found.stdout, flags=re.DOTALL)


@with_browser
@pytest.mark.parametrize(("swizzle", "extra"), [("none", 28), ("128", 0)])
@pytest.mark.parametrize("chosen", [True, False])
def test_a_browser_counts_the_same_turns(swizzle: str, extra: int, chosen: bool, tmp_path: Path):
    """With the swizzle that the page was made with, and with one that is chosen in it."""
    page = tmp_path / "x.html"
    command("ldmatrix", "4", "128", "0", "64" if chosen else swizzle, "--html", str(page))
    choose = f"""
        const list = document.getElementById('swizzle');
        list.value = '{swizzle}';
        list.dispatchEvent(new Event('change'));"""
    shown = seen(page, choose if chosen else "")
    assert f"{extra} more than needed" in shown
    assert shown.count("<table>") == 4  # phases


@with_browser
def test_a_browser_lights_up_what_a_lane_holds(tmp_path: Path):
    page = tmp_path / "x.html"
    command("mma", "m16n8k16", "a", "--html", str(page))
    assert "cell lit" not in seen(page)
    hover = """
        document.querySelector('[data-group="5"]').dispatchEvent(new MouseEvent('mouseenter'));"""
    assert seen(page, hover).count('class="cell lit"') == 8  # elements of A in a lane
