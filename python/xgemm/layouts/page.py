"""One page without a network: a picture whose cells light up by group, or banks under a swizzle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from xgemm.layouts.banks import BANKS, PHASE_LANES, SWIZZLES
from xgemm.layouts.grid import Grid, to_svg

_STYLE = """
body { font-family: sans-serif; margin: 1.5em; }
table { border-collapse: collapse; font: 10px monospace; margin: 0.5em 0 1em; }
td, th { border: 1px solid #999; width: 2.4em; height: 1.6em; text-align: center; }
.lit rect { stroke: #000; stroke-width: 2.5; }
td.lit { outline: 2px solid #000; }
"""

_LIGHT = """
function light(on, group) {
  document.querySelectorAll('[data-group="' + group + '"]').forEach(
      cell => cell.classList.toggle('lit', on));
}
function listen(root) {
  root.querySelectorAll('[data-group]').forEach(cell => {
    cell.addEventListener('mouseenter', () => light(true, cell.dataset.group));
    cell.addEventListener('mouseleave', () => light(false, cell.dataset.group));
  });
}
"""

# The same as banks.access, in the page: which words each bank is asked for, turn by turn.
_BANKS = """
function swizzled(address, bits) {
  return address ^ ((address >> 7 & (1 << bits) - 1) << 4);
}
function draw() {
  const bits = data.swizzles[document.getElementById('swizzle').value];
  let turns = 0, phases = 0, text = '';
  for (let first = 0; first < data.addresses.length; first += data.phase) {
    const banks = Array.from({length: data.banks}, () => new Map());
    const end = Math.min(first + data.phase, data.addresses.length);
    for (let lane = first; lane < end; ++lane) {
      const begin = swizzled(data.addresses[lane], bits);
      for (let byte = 0; byte < data.width; byte += 4) {
        const word = (begin + byte) >> 2, bank = banks[word % data.banks];
        if (!bank.has(word)) bank.set(word, []);
        bank.get(word).push(lane);
      }
    }
    const deep = Math.max(...banks.map(bank => bank.size));
    turns += deep, phases += 1;
    text += '<table><tr><th>turn</th>' +
        banks.map((_, i) => '<th>' + i + '</th>').join('') + '</tr>';
    for (let turn = 0; turn < deep; ++turn) {
      text += '<tr><th>' + turn + '</th>';
      for (const bank of banks) {
        const lanes = [...bank.values()][turn];
        if (!lanes) { text += '<td></td>'; continue; }
        const hue = lanes[0] * 137 % 360;
        text += '<td data-group="' + lanes[0] + '" title="lanes ' + lanes.join(' ') +
            '" style="background:hsl(' + hue + ',70%,82%)">' + lanes[0] +
            (lanes.length > 1 ? '+' : '') + '</td>';
      }
      text += '</tr>';
    }
    text += '</table>';
  }
  document.getElementById('banks').innerHTML = text;
  document.getElementById('counts').textContent =
      turns + ' wavefronts, ' + (turns - phases) + ' more than needed';
  listen(document.getElementById('banks'));
}
document.getElementById('swizzle').addEventListener('change', draw);
draw();
"""


def grid_page(grid: Grid) -> str:
    """The mouse over a cell lights up all of its group: what else the lane holds."""
    return _page(grid.title, to_svg(grid), f"{_LIGHT}listen(document);")


def banks_page(title: str, addresses: Sequence[int], width: int, swizzle: str = "none") -> str:
    """`addresses` are not swizzled yet: the page does that, by the choice in it."""
    options = "".join(
        f"<option{' selected' if name == swizzle else ''}>{name}</option>" for name in SWIZZLES
    )
    body = (
        f'<label>swizzle <select id="swizzle">{options}</select></label>'
        '<p id="counts"></p><div id="banks"></div>'
    )
    data = {
        "addresses": list(addresses),
        "width": width,
        "phase": PHASE_LANES[width],
        "banks": BANKS,
        "swizzles": SWIZZLES,
    }
    return _page(title, body, f"const data = {json.dumps(data)};{_LIGHT}{_BANKS}")


def _page(title: str, body: str, script: str) -> str:
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}'
        f"</title><style>{_STYLE}</style></head>\n<body><h1>{escape(title)}</h1>\n{body}\n"
        f"<script>{script}</script></body></html>\n"
    )
