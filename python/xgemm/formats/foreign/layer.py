"""A quantized layer of another tool's checkpoint: its tensors, checked as they are taken."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from xgemm.formats.foreign.regroup import layout_group_size, regrouped
from xgemm.formats.manifest import TensorSpec
from xgemm.formats.quantized import SYMMETRIC_ZERO, QuantizedWeight

SCALES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class LayerShape:
    """What a layer is, from its config and the headers of the files.

    group_size: the file's own; -1 for one group over all of K.
    zeros: whether the file stores zero points that the config calls asymmetric.
    experts: how many weights [N, K] the layer's tensors hold; None for one, as of a linear layer.
    fp4: the layer is MXFP4.
    """

    n: int
    k: int
    group_size: int
    zeros: bool
    experts: int | None = None
    fp4: bool = False

    @property
    def groups(self) -> int:
        return 1 if self.group_size == -1 else -(-self.k // self.group_size)


class ForeignLayer:
    """The tensors of one layer by what they are called after the layer's name."""

    def __init__(
        self,
        directory: Path,
        name: str,
        specs: Mapping[str, TensorSpec],
        read: Callable[..., torch.Tensor],
        separator: str = ".",
    ) -> None:
        self.directory = directory
        self.name = name
        self.specs = specs
        self._read = read
        self._separator = separator

    def __contains__(self, part: str) -> bool:
        return part in self.specs

    def where(self, part: str) -> str:
        """File and tensor, for a message."""
        return f"load: {self.directory / self.spec(part).file}: {self._full(part)}"

    def spec(self, part: str) -> TensorSpec:
        if part not in self.specs:
            found = ", ".join(sorted(self.specs))
            raise ValueError(
                f"load: {self.directory}: {self._full(part)} is missing: of this layer the files "
                f"hold {found}"
            )
        return self.specs[part]

    def size(self, part: str, dimension: int, rank: int = 2) -> int:
        """One size of a tensor whose rank is checked."""
        shape = self.spec(part).shape
        if len(shape) != rank:
            raise ValueError(f"{self.where(part)} must have {rank} dimensions, got {list(shape)}")
        return shape[dimension]

    def check(self, part: str, dtypes: tuple[str, ...], shape: tuple[int, ...]) -> None:
        """Refuse a tensor of another dtype or shape, by what the file's header says."""
        spec = self.spec(part)
        if spec.dtype not in dtypes or spec.shape != shape:
            raise ValueError(
                f"{self.where(part)} must be {' or '.join(dtypes)} {list(shape)}, "
                f"got {spec.dtype} {list(spec.shape)}"
            )

    def expert(self, index: int) -> ForeignLayer:
        """The same layer, whose tensors are those of one expert: of one index of the first
        dimension."""

        def read(name: str) -> torch.Tensor:
            return self._read(name, index)

        return ForeignLayer(self.directory, self.name, self.specs, read, self._separator)

    def tensor(self, part: str) -> torch.Tensor:
        self.spec(part)
        return self._read(self._full(part))

    def _full(self, part: str) -> str:
        return f"{self.name}{self._separator}{part}"

    # ---- what several formats need ----

    def integer(self, part: str) -> int:
        """The one number that a tensor of integers holds."""
        spec = self.spec(part)
        if math.prod(spec.shape) != 1 or "int" not in spec.dtype:
            raise ValueError(
                f"{self.where(part)} must be one integer, got {spec.dtype} {list(spec.shape)}"
            )
        return int(self.tensor(part).item())

    def scales(self, part: str, transpose: bool = False) -> torch.Tensor:
        """fp16 or bf16 [G, N]. fp32 is taken over exactly where one of them holds each value, else
        rounded once, with a warning."""
        given = self.tensor(part)
        given = (given.t() if transpose else given).contiguous()
        if not bool(torch.isfinite(given).all()):
            raise ValueError(f"{self.where(part)} must be finite, got NaN or infinity")
        if given.dtype != torch.float32:
            return given
        for dtype in (torch.float16, torch.bfloat16):
            if torch.equal(given.to(dtype).float(), given):
                return given.to(dtype)
        return self._rounded_scales(part, given)

    def _rounded_scales(self, part: str, given: torch.Tensor) -> torch.Tensor:
        """fp32 scales as fp16, or as bf16 where some are out of fp16's normal range."""
        fp16 = torch.finfo(torch.float16)
        size = given.abs()
        fits = (size == 0) | ((size >= fp16.tiny) & (size <= fp16.max))
        dtype = torch.float16 if bool(fits.all()) else torch.bfloat16
        if float(size.max()) > torch.finfo(torch.bfloat16).max:
            raise ValueError(
                f"{self.where(part)} must be within bfloat16's range, got {float(size.max()):.3g}"
            )
        warnings.warn(  # the same text for every layer, so that it is shown once
            f"load: {self.directory}: scales of float32 are rounded to "
            f"{str(dtype).removeprefix('torch.')}: a weight changes by a factor within 1 +- "
            f"{torch.finfo(dtype).eps / 2:.2g}",
            UserWarning,
            stacklevel=2,
        )
        return given.to(dtype)

    def g_idx(self, part: str, shape: LayerShape) -> torch.Tensor | None:
        """int32 [K], each of 0..groups - 1; None where the channels are in order."""
        if part not in self:
            return None
        given = self.tensor(part)
        size = max(shape.k, 1) if shape.group_size == -1 else shape.group_size
        in_order = torch.arange(shape.k, dtype=given.dtype) // size
        if torch.equal(given, in_order):
            return None
        low, high = int(given.min()), int(given.max())
        if low < 0 or high >= shape.groups:
            raise ValueError(
                f"{self.where(part)} must be within 0..{shape.groups - 1}, got {low}..{high}"
            )
        return given.int()

    def weight(
        self,
        shape: LayerShape,
        codes: torch.Tensor,
        scales: torch.Tensor,
        zeros: torch.Tensor | None,
        g_idx: torch.Tensor | None,
    ) -> QuantizedWeight:
        """The canonical weight, in groups that the layout has.

        zeros: numbers [G, N]; dropped where the layer is symmetric and each of them is 8.
        """
        if zeros is not None and not shape.zeros and bool((zeros == SYMMETRIC_ZERO).all()):
            zeros = None
        try:
            size = layout_group_size(shape.group_size, shape.k)
        except ValueError as error:
            raise ValueError(f"load: {self.directory}: {self.name}: {error}") from None
        weight = QuantizedWeight(
            codes.contiguous(), scales, None if zeros is None else zeros.half(), g_idx, size
        )
        return weight if size == shape.group_size else regrouped(weight, shape.group_size)
