"""What the bytes of a packed weight do not say themselves, as the tensor that travels with them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from xgemm.formats.packed import (
    LAYOUT_VERSION,
    ROW_COLUMNS,
    STRIP_CODE_BYTES,
    STRIP_COLUMNS,
    Layout,
    check_layout_version,
)

FIELDS = ("layout_version", "n", "k", "group_size", "bf16_scales", "zeros")
FP4_FIELDS = (*FIELDS, "fp4")  # readers from before MXFP4 refuse so many values


class PackedFormat(NamedTuple):
    """The format of a packed weight [n, k] of this library's layout version.

    As a tensor it is int64 [6]: the layout version, n, k, group_size, whether the scales are bf16
    (1) or fp16 (0), whether there are zeros. Of MXFP4 it is int64 [7], with a 1 at the end.
    """

    n: int
    k: int
    group_size: int
    bf16_scales: bool
    zeros: bool
    fp4: bool = False

    @property
    def fields(self) -> tuple[str, ...]:
        return FP4_FIELDS if self.fp4 else FIELDS

    def to_tensor(self, device: torch.device | str | int | None = None) -> torch.Tensor:
        """The values of `fields`."""
        values = (LAYOUT_VERSION, *self)[: len(self.fields)]
        return torch.tensor(values, dtype=torch.int64, device=device)

    def check(self, name: str, given: Any) -> None:
        """Refuse a tensor of another format or layout version; one without data passes."""
        if not isinstance(given, torch.Tensor):
            raise TypeError(f"{name}: packed_format must be a tensor, got {type(given).__name__}")
        if given.dtype != torch.int64 or tuple(given.shape) != (len(self.fields),):
            raise ValueError(
                f"{name}: packed_format must be int64 [{len(self.fields)}] "
                f"({', '.join(self.fields)}), "
                f"got {str(given.dtype).removeprefix('torch.')} {list(given.shape)}"
            )
        if given.is_meta:
            return
        version, *values = given.tolist()
        check_layout_version(f"{name}: layout_version", version)
        for field, mine, other in zip(self.fields[1:], self, values, strict=False):
            if other != mine:
                raise ValueError(f"{name}: {field} is {int(mine)} here, got {other}")

    def check_extra_state(self, name: str, given: Any) -> None:
        """The same for the dict that a state dict held before it held a tensor."""
        if not isinstance(given, dict):
            raise TypeError(f"{name}: extra state must be a dict, got {type(given).__name__}")
        check_layout_version(f"{name}: layout_version", given.get("layout_version"))
        for field, mine in zip(FIELDS[1:], self, strict=False):
            other = given.get(field)
            if type(other) is not type(mine) or other != mine:
                raise ValueError(f"{name}: {field} is {mine!r} here, got {other!r}")

    def check_finite(self, name: str, qweight: torch.Tensor) -> None:
        """Refuse packed weights with a scale or a zero that is not finite; without data they pass.

        qweight: uint8 [..., rows, row_bytes] of this format; another shape is not looked into.
        """
        layout = Layout(self.n, self.k, self.group_size, self.zeros)
        shape = (layout.rows, layout.row_bytes)
        if qweight.is_meta or tuple(qweight.shape[-2:]) != shape or qweight.numel() == 0:
            return
        rows = qweight.detach().reshape(-1, layout.row_bytes)
        # In words of 8 bytes, of which the layout consists: 5 times faster than byte by byte.
        aligned = rows if rows.is_contiguous() and rows.storage_offset() % 8 == 0 else rows.clone()
        words = aligned.view(torch.int64)
        # [rows, strips of a row, bytes of scales, then of zeros]; without groups a row is a strip.
        if layout.per_channel:
            columns, values = ROW_COLUMNS, words[:, None, layout.units * layout.unit_bytes // 8 :]
        else:
            columns = STRIP_COLUMNS
            values = words.unflatten(1, (-1, layout.strip_bytes // 8))
            values = values[:, :, STRIP_CODE_BYTES // 8 :]
        scale_words = values.shape[-1] // (2 if self.zeros else 1)
        scale_dtype = torch.bfloat16 if self.bf16_scales else torch.float16
        parts = {"scales": values[..., :scale_words].contiguous().view(scale_dtype)}
        if self.zeros:
            parts["zeros"] = values[..., scale_words:].contiguous().view(torch.float16)
        for part, found in parts.items():
            exponent = 0x7F80 if found.dtype == torch.bfloat16 else 0x7C00
            endless = found.view(torch.int16) & exponent == exponent  # faster than isfinite
            if bool(endless.any()):
                row, strip, index = endless.nonzero()[0].tolist()
                value = float(found[row, strip, index])
                unit, strip = divmod(strip, ROW_COLUMNS // columns)
                group = unit * layout.groups_per_unit + index // columns
                column = row % layout.rows * ROW_COLUMNS + strip * columns + index % columns
                where = f"group {group}, column {column}"
                if len(qweight.shape) > 2:
                    where = f"expert {row // layout.rows}, {where}"
                raise ValueError(f"{name}: {part} must be finite, got {value} at {where}")
