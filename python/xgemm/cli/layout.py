"""`xgemm layout`: the packed layout of a weight."""

from __future__ import annotations

from xgemm.cli.output import out, print_json, table
from xgemm.formats.packed import LAYOUT_VERSION, STRIP_CODE_BYTES, Layout


def run(n: int, k: int, group_size: int, zeros: bool, as_json: bool) -> None:
    layout = Layout(n, k, group_size, zeros)
    weights = n * k
    facts: dict[str, int | float | bool | list[int] | None] = {
        "layout_version": LAYOUT_VERSION,
        "n": n,
        "k": k,
        "group_size": group_size,
        "zeros": zeros,
        "qweight_shape": [layout.rows, layout.row_bytes],
        "bytes": layout.nbytes,
        "bits_per_weight": layout.nbytes * 8 / weights if weights else None,
        "groups": layout.groups,
        "units_per_row": layout.units,
        "unit_bytes": layout.unit_bytes,
        "strip_bytes": layout.strip_bytes,
        "strip_code_bytes": STRIP_CODE_BYTES,
        "padded_n": layout.rows * 64,
        "padded_k": layout.units * 128,
    }
    if as_json:
        print_json(facts)
        return
    rows = [[name, "-" if value is None else f"{value}"] for name, value in facts.items()]
    out.print(table(f"packed layout of W [{n}, {k}]", ["", "value"], rows))
    scales = "scales and zeros" if zeros else "scales"
    if layout.per_channel:
        inside = f"codes only; each row ends with its 64 {scales}"
    else:
        inside = f"{STRIP_CODE_BYTES} bytes of codes, then {scales} [{128 // group_size}][16]"
    out.print(
        f"row: 64 output columns = {layout.units} units of 128 k\n"
        "unit: 4 strips of 16 columns\n"
        f"strip: {inside}"
    )
