"""What the bytes of a packed weight do not say themselves, as the tensor that travels with them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from xgemm.formats.packed import LAYOUT_VERSION, check_layout_version

FIELDS = ("layout_version", "n", "k", "group_size", "bf16_scales", "zeros")


class PackedFormat(NamedTuple):
    """The format of a packed weight [n, k] of this library's layout version.

    As a tensor it is int64 [6]: the layout version, n, k, group_size, whether the scales are bf16
    (1) or fp16 (0), whether there are zeros.
    """

    n: int
    k: int
    group_size: int
    bf16_scales: bool
    zeros: bool

    def to_tensor(self, device: torch.device | str | int | None = None) -> torch.Tensor:
        """The values of FIELDS, int64 [6]."""
        return torch.tensor((LAYOUT_VERSION, *self), dtype=torch.int64, device=device)

    def check(self, name: str, given: Any) -> None:
        """Refuse a tensor of another format or layout version; one without data passes."""
        if not isinstance(given, torch.Tensor):
            raise TypeError(f"{name}: packed_format must be a tensor, got {type(given).__name__}")
        if given.dtype != torch.int64 or tuple(given.shape) != (len(FIELDS),):
            raise ValueError(
                f"{name}: packed_format must be int64 [{len(FIELDS)}] ({', '.join(FIELDS)}), "
                f"got {str(given.dtype).removeprefix('torch.')} {list(given.shape)}"
            )
        if given.is_meta:
            return
        version, *values = given.tolist()
        check_layout_version(f"{name}: layout_version", version)
        for field, mine, other in zip(FIELDS[1:], self, values, strict=True):
            if other != mine:
                raise ValueError(f"{name}: {field} is {int(mine)} here, got {other}")

    def check_extra_state(self, name: str, given: Any) -> None:
        """The same for the dict that a state dict held before it held a tensor."""
        if not isinstance(given, dict):
            raise TypeError(f"{name}: extra state must be a dict, got {type(given).__name__}")
        check_layout_version(f"{name}: layout_version", given.get("layout_version"))
        for field, mine in zip(FIELDS[1:], self, strict=True):
            other = given.get(field)
            if type(other) is not type(mine) or other != mine:
                raise ValueError(f"{name}: {field} is {mine!r} here, got {other!r}")
