"""The packed W4 layout in Python, and the packing of canonical weights into it.

`Layout` mirrors csrc/w4/packed_layout.h (a test holds the two equal); docs/design/packed-layout.md
describes it. `pack` and `unpack` go through the library's own ops; `reference_pack` and
`reference_unpack` go through the index map element by element and are what the ops are tested by.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch.compiler import is_compiling

from xgemm.quoting import shown

from .quantized import QuantizedWeight

LAYOUT_VERSION = 1
GROUP_SIZES = (32, 64, 128, -1)
ROW_COLUMNS = 64  # output columns of a row of qweight
UNIT_K = 128  # k of a unit
STRIP_COLUMNS = 16  # output columns of a strip
STRIP_CODE_BYTES = 1024
SCALE_BYTES = 2  # a scale (fp16 or bf16) or a zero (fp16)
MAX_FEATURES = 2**31 - 1  # of N and of K

# The index map is arithmetic on // and %: it takes ints, and int64 tensors that broadcast.
Index = TypeVar("Index", int, torch.Tensor)


def check_int(name: str, value: Any, low: int, high: int) -> int:
    """`value` if it is an int (a bool is not) within low..high, else an error that names it."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__} {shown(value)}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be within {low}..{high}, got {shown(value)}")
    return value


def check_bool(name: str, value: Any) -> bool:
    """`value` if it is a bool, else an error that names it."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, got {type(value).__name__} {shown(value)}")
    return value


def check_tensor(name: str, value: Any) -> None:
    """Refuse what is no tensor, by name."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")


def check_group_size(name: str, value: Any) -> int:
    """`value` if it is a group size of the layout, else an error that names it."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__} {shown(value)}")
    if value not in GROUP_SIZES:
        raise ValueError(f"{name} must be one of {GROUP_SIZES}, got {shown(value)}")
    return value


def check_fp4(name: str, fp4: Any, group_size: int, bf16_scales: bool, zeros: bool) -> None:
    """Refuse an `fp4` that is no bool, or that goes with a form which is not MXFP4's."""
    if check_bool(f"{name}: fp4", fp4) and (group_size != 32 or not bf16_scales or zeros):
        raise ValueError(
            f"{name}: fp4 must have group_size 32, bf16 scales and no zeros, got "
            f"group_size={group_size}, bf16_scales={bf16_scales}, zeros={zeros}"
        )


def form_of_fp4(fp4: bool) -> dict[str, bool]:
    """The option of an op that says so; left out where it is not, as any default."""
    return {"fp4": True} if fp4 else {}


def check_layout_version(name: str, value: Any) -> int:
    """`value` if it is the layout version that this library reads, else an error that names it."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__} {shown(value)}")
    if value != LAYOUT_VERSION:
        raise ValueError(
            f"{name} must be {LAYOUT_VERSION} (what this xgemm reads), got {shown(value)}"
        )
    return value


@dataclass(frozen=True)
class Layout:
    """The index map of a packed weight [n, k]; see docs/design/packed-layout.md."""

    n: int
    k: int
    group_size: int  # 32, 64, 128, or -1: one group for all of K
    zeros: bool  # the format stores zero points

    def __post_init__(self) -> None:
        check_int("n", self.n, 0, MAX_FEATURES)
        check_int("k", self.k, 0, MAX_FEATURES)
        check_group_size("group_size", self.group_size)
        check_bool("zeros", self.zeros)

    @property
    def per_channel(self) -> bool:
        return self.group_size == -1

    @property
    def rows(self) -> int:
        return -(-self.n // ROW_COLUMNS)

    @property
    def units(self) -> int:
        return -(-self.k // UNIT_K)

    @property
    def groups(self) -> int:
        """Groups that a weight of k channels has, the last one possibly short."""
        if self.per_channel:
            return 1 if self.k > 0 else 0
        return -(-self.k // self.group_size)

    @property
    def groups_per_unit(self) -> int:
        return 0 if self.per_channel else UNIT_K // self.group_size

    @property
    def strip_bytes(self) -> int:
        scales = self.groups_per_unit * STRIP_COLUMNS * SCALE_BYTES
        return STRIP_CODE_BYTES + scales * (2 if self.zeros else 1)

    @property
    def unit_bytes(self) -> int:
        return self.strip_bytes * (ROW_COLUMNS // STRIP_COLUMNS)

    @property
    def row_bytes(self) -> int:
        tail = ROW_COLUMNS * SCALE_BYTES * (2 if self.zeros else 1) if self.per_channel else 0
        return self.units * self.unit_bytes + tail

    @property
    def nbytes(self) -> int:
        return self.rows * self.row_bytes

    def strip_offset(self, column: Index, unit: Index) -> Index:
        """First byte of the strip that holds `column` at `unit`."""
        return (
            column // ROW_COLUMNS * self.row_bytes
            + unit * self.unit_bytes
            + column % ROW_COLUMNS // STRIP_COLUMNS * self.strip_bytes
        )

    def nibble_index(self, column: Index, channel: Index) -> Index:
        """Nibble of (column, channel): its byte times two, plus one for the high nibble."""
        half, word = channel % UNIT_K // 64, channel % 64 // 16
        gid, upper_row = column % 8, column % 16 // 8
        tig, odd, upper_k = channel % 8 // 2, channel % 2, channel % 16 // 8
        nibble = upper_row + 2 * upper_k + 4 * odd
        byte = (
            self.strip_offset(column, channel // UNIT_K)
            + half * 512
            + (gid * 4 + tig) * 16
            + word * 4
            + nibble // 2
        )
        return byte * 2 + nibble % 2

    def scale_offset(self, column: Index, group: Index) -> Index:
        """First byte of the scale of (column, group)."""
        if self.per_channel:
            return (
                column // ROW_COLUMNS * self.row_bytes
                + self.units * self.unit_bytes
                + column % ROW_COLUMNS * SCALE_BYTES
                + group * 0  # one group; keeps the shape where both are tensors
            )
        slot = group % self.groups_per_unit * STRIP_COLUMNS + column % STRIP_COLUMNS
        strip = self.strip_offset(column, group // self.groups_per_unit)
        return strip + STRIP_CODE_BYTES + slot * SCALE_BYTES

    def zero_offset(self, column: Index, group: Index) -> Index:
        """First byte of the zero point of (column, group); only where the format stores zeros."""
        scales = ROW_COLUMNS if self.per_channel else self.groups_per_unit * STRIP_COLUMNS
        return self.scale_offset(column, group) + scales * SCALE_BYTES


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """A 4-bit weight [n, k] in the packed layout, with what its bytes do not say themselves.

    qweight: uint8 [ceil(n/64), row_bytes].
    perm: int32 [k] or None; channel j of the packed weight multiplies x[..., perm[j]] (act-order).
        It names each channel once, which is checked here: that waits for the device. Not while a
        CUDA stream is captured or a program is traced, nor of a tensor without data.
    fp4: MXFP4, as in QuantizedWeight; `moe.w4a16` multiplies it, `mul.w4a16` does not.
    """

    qweight: torch.Tensor
    n: int
    k: int
    group_size: int
    bf16_scales: bool = False
    has_zeros: bool = False
    perm: torch.Tensor | None = None
    layout_version: int = LAYOUT_VERSION
    fp4: bool = False

    def __post_init__(self) -> None:
        check_layout_version("PackedWeight: layout_version", self.layout_version)
        check_bool("PackedWeight: bf16_scales", self.bf16_scales)
        layout = self.layout  # checks n, k, group_size, has_zeros
        check_fp4("PackedWeight", self.fp4, self.group_size, self.bf16_scales, self.has_zeros)
        shape = (layout.rows, layout.row_bytes)
        if self.qweight.dtype != torch.uint8 or tuple(self.qweight.shape) != shape:
            raise ValueError(
                f"PackedWeight: qweight must be uint8 {list(shape)} for n={self.n}, k={self.k}, "
                f"group_size={self.group_size}, has_zeros={self.has_zeros}, got "
                f"{self.qweight.dtype} {list(self.qweight.shape)}"
            )
        if self.perm is not None and (
            self.perm.dtype != torch.int32 or tuple(self.perm.shape) != (self.k,)
        ):
            raise ValueError(
                f"PackedWeight: perm must be int32 [{self.k}] or None, got "
                f"{self.perm.dtype} {list(self.perm.shape)}"
            )
        if self.perm is not None and _has_values(self.perm):
            check_permutation("PackedWeight: perm", self.perm, self.k)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()  # a pickle of another layout version is refused like a constructor

    @property
    def layout(self) -> Layout:
        return Layout(self.n, self.k, self.group_size, self.has_zeros)

    @property
    def device(self) -> torch.device:
        return self.qweight.device

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weight and its permutation."""
        perm = 0 if self.perm is None else self.perm.numel() * 4
        return self.qweight.numel() + perm

    def to(self, device: torch.device | str | int) -> PackedWeight:
        """The same weight with its tensors on `device`."""
        perm = None if self.perm is None else self.perm.to(device)
        return replace(self, qweight=self.qweight.to(device), perm=perm)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The weight [n, k] in `dtype` (float32, float16 or bfloat16), its channels as x has them.

        Each weight is rounded once. Act-order needs a second tensor of the result's size.
        """
        w = torch.ops.xgemm.dequantize_w4.default(
            self.qweight, self.n, self.k, self.group_size, bf16_scales=self.bf16_scales,
            zeros=self.has_zeros, dtype=str(dtype).removeprefix("torch."), **form_of_fp4(self.fp4),
        )  # fmt: skip
        # Zeros: perm may have been changed since it was checked.
        return w if self.perm is None else torch.zeros_like(w).index_copy_(1, self.perm.long(), w)


def pack(q: QuantizedWeight) -> PackedWeight:
    """Pack a canonical weight, once, for the kernels; `unpack` gives it back.

    With a `g_idx` other than k // group_size the channels are sorted by group (stable) and the
    order is kept as `perm`. Codes, scales, zeros and g_idx are validated, which synchronizes: not
    to be called while a CUDA stream is captured.
    """
    if not isinstance(q, QuantizedWeight):
        raise TypeError(f"pack: q must be a QuantizedWeight, got {type(q).__name__}")
    _refuse_capture(q.codes)
    _validate(q)
    codes, perm = q.codes, None
    if q.g_idx is not None:
        perm = _act_order(q.g_idx, q.k, q.group_size)
        if perm is not None:
            codes = codes.index_select(1, perm.long())
    zeros = None if q.zeros is None else q.zeros.contiguous()
    qweight = torch.ops.xgemm.pack_w4.default(
        codes.contiguous(), q.scales.contiguous(), zeros, q.group_size
    )
    return PackedWeight(
        qweight=qweight,
        n=q.n,
        k=q.k,
        group_size=q.group_size,
        bf16_scales=q.scales.dtype == torch.bfloat16,
        has_zeros=zeros is not None,
        perm=perm,
        fp4=q.fp4,
    )


def unpack(p: PackedWeight) -> QuantizedWeight:
    """The canonical weight that `pack` was given (a g_idx of k // group_size becomes None)."""
    if not isinstance(p, PackedWeight):
        raise TypeError(f"unpack: p must be a PackedWeight, got {type(p).__name__}")
    _refuse_capture(p.qweight)
    codes, scales, zeros = torch.ops.xgemm.unpack_w4.default(
        p.qweight, p.n, p.k, p.group_size, bf16_scales=p.bf16_scales, zeros=p.has_zeros
    )
    g_idx = None
    if p.perm is not None:
        check_permutation("unpack: perm", p.perm, p.k)
        order = p.perm.long()
        group = torch.arange(p.k, dtype=torch.int32, device=codes.device)
        group //= max(p.k, 1) if p.group_size == -1 else p.group_size
        g_idx = torch.empty_like(group).index_copy_(0, order, group)
        codes = torch.empty_like(codes).index_copy_(1, order, codes)
    zeros_or_none = zeros if p.has_zeros else None
    return QuantizedWeight(codes, scales, zeros_or_none, g_idx, p.group_size, p.fp4)


def check_permutation(name: str, perm: torch.Tensor, k: int) -> None:
    """Refuse a `perm` that is not int32 and a permutation of 0..k-1."""
    if perm.dtype != torch.int32 or tuple(perm.shape) != (k,):
        raise ValueError(f"{name} must be int32 [{k}], got {perm.dtype} {list(perm.shape)}")
    expected = torch.arange(k, dtype=torch.int32, device=perm.device)
    if not torch.equal(perm.sort().values, expected):
        raise ValueError(f"{name} must hold each of 0..{k - 1} once")


def _has_values(tensor: torch.Tensor) -> bool:
    """Whether the elements of `tensor` can be looked at here and now."""
    if type(tensor) is not torch.Tensor or tensor.is_meta or is_compiling():
        return False
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return torch._C._len_torch_dispatch_stack() == 0  # as of FakeTensorMode


def _refuse_capture(tensor: torch.Tensor) -> None:
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("pack and unpack synchronize: call them before the CUDA graph capture")


def _validate(q: QuantizedWeight) -> None:
    if q.codes.dtype != torch.uint8 or q.codes.dim() != 2:
        raise ValueError(
            f"pack: codes must be uint8 [N, K], got {q.codes.dtype} {list(q.codes.shape)}"
        )
    check_group_size("pack: group_size", q.group_size)
    layout = Layout(q.n, q.k, q.group_size, q.zeros is not None)
    bf16_scales = q.scales.dtype == torch.bfloat16
    check_fp4("pack", q.fp4, q.group_size, bf16_scales, q.zeros is not None)
    if q.codes.is_meta:
        raise ValueError("pack: codes has no data (it is on the meta device)")
    for name, tensor in (("scales", q.scales), ("zeros", q.zeros), ("g_idx", q.g_idx)):
        if tensor is not None and tensor.device != q.codes.device:
            raise ValueError(
                f"pack: {name} must be on the device of codes ({q.codes.device}), "
                f"got {tensor.device}"
            )
    _check_group_values("scales", q.scales, (torch.float16, torch.bfloat16), layout)
    if q.zeros is not None:
        _check_group_values("zeros", q.zeros, (torch.float16,), layout)
    if q.codes.numel() > 0 and int(q.codes.max()) > 15:
        raise ValueError(f"pack: codes must be within 0..15, got {int(q.codes.max())}")


def _check_group_values(
    name: str, tensor: torch.Tensor, dtypes: tuple[torch.dtype, ...], layout: Layout
) -> None:
    shape = (layout.groups, layout.n)
    if tensor.dtype not in dtypes or tuple(tensor.shape) != shape:
        allowed = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise ValueError(
            f"pack: {name} must be {allowed} [groups, N] = {list(shape)}, "
            f"got {tensor.dtype} {list(tensor.shape)}"
        )
    finite = torch.isfinite(tensor)
    if not bool(finite.all()):
        group, column = (~finite).nonzero()[0].tolist()
        value = float(tensor[group, column])
        raise ValueError(
            f"pack: {name} must be finite, got {value} at group {group}, column {column}"
        )


def _act_order(g_idx: torch.Tensor, k: int, group_size: int) -> torch.Tensor | None:
    """The channels sorted by group, int32 [k]; None where they already are in order."""
    if g_idx.dtype not in (torch.int32, torch.int64) or tuple(g_idx.shape) != (k,):
        raise ValueError(f"pack: g_idx must be int32 [{k}], got {g_idx.dtype} {list(g_idx.shape)}")
    size = max(k, 1) if group_size == -1 else group_size
    groups = -(-k // size)
    if k > 0 and (int(g_idx.min()) < 0 or int(g_idx.max()) >= groups):
        raise ValueError(
            f"pack: g_idx must be within 0..{groups - 1}, "
            f"got {int(g_idx.min())}..{int(g_idx.max())}"
        )
    in_order = torch.arange(k, device=g_idx.device) // size
    if torch.equal(g_idx.long(), in_order):
        return None
    counts = torch.bincount(g_idx.long(), minlength=groups)
    expected = torch.bincount(in_order, minlength=groups)
    if not torch.equal(counts, expected):
        group = int((counts != expected).nonzero()[0])
        raise ValueError(
            f"pack: g_idx must give every group {size} channels (the last one what is left of "
            f"K={k}), got {int(counts[group])} in group {group}, expected {int(expected[group])}"
        )
    return g_idx.long().argsort(stable=True).int()


def reference_pack(
    codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, group_size: int
) -> torch.Tensor:
    """`pack_w4` through the index map, for CPU tensors: what the op is tested by."""
    n, k = codes.shape
    layout = Layout(n, k, group_size, zeros is not None)
    column = torch.arange(n)[:, None]
    nibbles = torch.zeros(layout.nbytes * 2, dtype=torch.uint8)
    nibbles[layout.nibble_index(column, torch.arange(k)[None, :]).flatten()] = codes.flatten()
    packed = nibbles[0::2] | (nibbles[1::2] << 4)
    group = torch.arange(layout.groups)[None, :]
    halves = packed.view(torch.int16)  # scales and zeros lie at even bytes
    halves[layout.scale_offset(column, group).flatten() // 2] = (
        scales.t().contiguous().view(torch.int16).flatten()
    )
    if zeros is not None:
        halves[layout.zero_offset(column, group).flatten() // 2] = (
            zeros.t().contiguous().view(torch.int16).flatten()
        )
    return packed.view(layout.rows, layout.row_bytes)


def reference_unpack(
    qweight: torch.Tensor, layout: Layout, bf16_scales: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """`unpack_w4` through the index map, for CPU tensors: what the op is tested by."""
    column = torch.arange(layout.n)[:, None]
    packed = qweight.contiguous().flatten()
    nibble = layout.nibble_index(column, torch.arange(layout.k)[None, :])
    codes = (packed[nibble // 2] >> (nibble % 2 * 4).to(torch.uint8)) & 15
    group = torch.arange(layout.groups)[None, :]
    halves = packed.view(torch.int16)
    scales = halves[layout.scale_offset(column, group) // 2].t().contiguous()
    scales = scales.view(torch.bfloat16 if bf16_scales else torch.float16)
    zeros = None
    if layout.zeros:
        zeros = halves[layout.zero_offset(column, group) // 2].t().contiguous()
        zeros = zeros.view(torch.float16)
    return codes, scales, zeros
