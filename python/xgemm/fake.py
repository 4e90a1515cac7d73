"""Fake kernels of the GEMM ops: shapes, dtypes and strides without data.

They let torch.compile, torch.export and the meta device run the ops; a shape may be symbolic, so
nothing here turns a size into an int. Results are contiguous, as the kernels' are. What is wrong
with a call is said with the kernels' words, as far as it can be seen without data.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .activations import ACTIVATIONS
from .formats.packed import GROUP_SIZES, MAX_FEATURES, ROW_COLUMNS, UNIT_K, Layout
from .onnx_guard import refuse_onnx_export
from .quoting import shown

PRECISIONS = ("ieee", "tf32x3", "tf32")
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)

Tensor = torch.Tensor
Size = int | torch.SymInt


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shape(tensor: Tensor) -> str:
    return "[" + ", ".join(str(size) for size in tensor.shape) + "]"


def _require(condition: bool | torch.SymBool, message: str) -> None:
    """A ValueError now, or, where the sizes are not known yet, when they are."""
    torch._check_value(condition, lambda: message)


def _check_dtype(op: str, name: str, tensor: Tensor, allowed: Sequence[torch.dtype]) -> None:
    if tensor.dtype not in allowed:
        *rest, last = (_name(dtype) for dtype in allowed)
        names = f"{', '.join(rest)} or {last}" if rest else last
        raise ValueError(f"{op}: {name} must be {names}, got {_name(tensor.dtype)}")


def _check_like(op: str, name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """Same dtype and device."""
    if tensor.dtype != other.dtype:
        raise ValueError(
            f"{op}: {name} must have the dtype of {other_name}, {_name(other.dtype)},"
            f" got {_name(tensor.dtype)}"
        )
    _check_device(op, name, tensor, other_name, other)


def _check_device(op: str, name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    if tensor.device != other.device:
        raise ValueError(
            f"{op}: {name} must be on the device of {other_name}, {other.device},"
            f" got {tensor.device}"
        )


def _check_shape(op: str, name: str, tensor: Tensor, shape: Sequence[Size]) -> None:
    expected = "[" + ", ".join(str(size) for size in shape) + "]"
    message = f"{op}: {name} must have the shape {expected}, got {_shape(tensor)}"
    if tensor.dim() != len(shape):
        raise ValueError(message)
    for size, wanted in zip(tensor.shape, shape, strict=True):
        _require(size == wanted, message)


def _check_name(op: str, argument: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        names = ", ".join(f"'{name}'" for name in allowed)
        raise ValueError(f"{op}: {argument} must be one of {names}, got {shown(value)}")


def _broadcast(op: str, a: Tensor, b: Tensor) -> list[Size]:
    """The batch dimensions of a product of matrices a and b."""
    # Imported already wherever a size can be symbolic; not a thing to import with the library.
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    batch_a, batch_b = list(a.shape[:-2]), list(b.shape[:-2])
    dims = max(len(batch_a), len(batch_b))
    batch_a = [1] * (dims - len(batch_a)) + batch_a
    batch_b = [1] * (dims - len(batch_b)) + batch_b
    result: list[Size] = []
    for of_a, of_b in zip(batch_a, batch_b, strict=True):
        if guard_or_false(of_a == 1):
            result.append(of_b)
            continue
        if not guard_or_false(of_b == 1):
            _require(
                of_a == of_b,
                f"{op}: the batch dimensions of a and b must be equal or 1,"
                f" got a {_shape(a)} and b {_shape(b)}",
            )
        result.append(of_a)
    return result


def _matmul_shape(
    op: str, a: Tensor, b: Tensor, transa: bool = False, transb: bool = False
) -> list[Size]:
    for name, operand in (("a", a), ("b", b)):
        if operand.dim() == 0:
            raise ValueError(f"{op}: {name} must have at least 1 dimension, got a 0-D tensor")
    k = a.shape[-2 if transa else -1]
    k_of_b = b.shape[0] if b.dim() == 1 else b.shape[-1 if transb else -2]
    in_a = "the second to last" if transa else "the last"
    in_b = "the second to last dimension"
    if b.dim() == 1:
        in_b = "the dimension"
    elif transb:
        in_b = "the last dimension"
    _require(
        k == k_of_b,
        f"{op}: {in_a} dimension of a must equal {in_b} of b, got a {_shape(a)} and b {_shape(b)}",
    )
    shape = _broadcast(op, a, b)
    if a.dim() > 1:
        shape.append(a.shape[-1 if transa else -2])
    if b.dim() > 1:
        shape.append(b.shape[-2 if transb else -1])
    return shape


def mul_shape(
    op: str,
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    activation: str = "none",
    precision: str = "ieee",
) -> list[Size]:
    """The shape of mul's result; ValueError where the call is wrong."""
    _check_dtype(op, "a", a, _FLOATS)
    _check_like(op, "b", b, "a", a)
    _check_name(op, "precision", precision, PRECISIONS)
    if precision != "ieee" and a.dtype != torch.float32:
        raise ValueError(
            f"{op}: precision must be 'ieee' for {_name(a.dtype)} operands, as it chooses how"
            f" float32 ones are multiplied, got {shown(precision)}"
        )
    _check_name(op, "activation", activation, ACTIVATIONS)
    shape = _matmul_shape(op, a, b)
    if bias is not None:
        _check_like(op, "bias", bias, "a", a)
        _check_shape(op, "bias", bias, [b.shape[-1] if b.dim() > 1 else 1])
    return shape


def _check_destination(op: str, name: str, dst: Tensor, a: Tensor, shape: Sequence[Size]) -> None:
    _check_like(op, name, dst, "a", a)
    _check_shape(op, name, dst, shape)


@torch.library.register_fake("xgemm::mul")
def _mul(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str = "none",
    precision: str = "ieee",
) -> Tensor:
    return a.new_empty(mul_shape("mul", a, b, bias, activation, precision))


@torch.library.register_fake("xgemm::mul_into")
def _mul_into(
    dst: Tensor,
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str = "none",
    precision: str = "ieee",
) -> None:
    shape = mul_shape("mul_into", a, b, bias, activation, precision)
    _check_destination("mul_into", "dst", dst, a, shape)


def _check_layout(op: str, n: Size, k: Size, group_size: int, zeros: bool) -> Layout:
    """What of the layout does not depend on n and k, which may be symbolic: that of [0, 0]."""
    for name, extent in (("n", n), ("k", k)):
        message = f"{op}: {name} must be in [0, {MAX_FEATURES}], got {extent}"
        _require(extent >= 0, message)
        _require(extent <= MAX_FEATURES, message)
    for known in GROUP_SIZES:
        if group_size == known:
            return Layout(0, 0, known, bool(zeros))
    raise ValueError(f"{op}: group_size must be 32, 64, 128 or -1, got {group_size}")


def _check_fp4(op: str, fp4: bool, group_size: int, bf16_scales: bool, zeros: bool) -> None:
    if fp4 and (group_size != 32 or not bf16_scales or zeros):
        raise ValueError(
            f"{op}: fp4 must have group_size=32, bf16_scales=true, zeros=false, got "
            f"group_size={group_size}, bf16_scales={str(bf16_scales).lower()}, "
            f"zeros={str(zeros).lower()}"
        )


def _packed_shape(layout: Layout, n: Size, k: Size) -> list[Size]:
    # row_bytes of a layout without channels is what a row holds beside its units.
    units = (k + UNIT_K - 1) // UNIT_K
    return [(n + ROW_COLUMNS - 1) // ROW_COLUMNS, units * layout.unit_bytes + layout.row_bytes]


def _groups(layout: Layout, k: Size) -> Size:
    if layout.per_channel:
        return 1 if k > 0 else 0
    return (k + layout.group_size - 1) // layout.group_size


def _check_packed(
    op: str, qweight: Tensor, n: Size, k: Size, group_size: int, bf16_scales: bool, zeros: bool
) -> Layout:
    layout = _check_layout(op, n, k, group_size, zeros)
    _check_dtype(op, "qweight", qweight, (torch.uint8,))
    expected = _packed_shape(layout, n, k)
    message = (
        f"{op}: qweight must have the shape [{expected[0]}, {expected[1]}] for n={n}, k={k},"
        f" group_size={group_size}, bf16_scales={str(bf16_scales).lower()},"
        f" zeros={str(zeros).lower()}, got {_shape(qweight)}"
    )
    if qweight.dim() != 2:
        raise ValueError(message)
    for size, wanted in zip(qweight.shape, expected, strict=True):
        _require(size == wanted, message)
    return layout


def _check_channels(op: str, name: str, x: Tensor, extent_name: str, extent: Size) -> None:
    message = (
        f"{op}: the last dimension of {name} must be {extent_name}={extent}, got {name} {_shape(x)}"
    )
    if x.dim() == 0:
        raise ValueError(message)
    _require(x.shape[-1] == extent, message)


def _check_perm(op: str, perm: Tensor, k: Size, other_name: str, other: Tensor) -> None:
    _check_dtype(op, "perm", perm, (torch.int32,))
    _check_device(op, "perm", perm, other_name, other)
    _check_shape(op, "perm", perm, [k])


def w4a16_shape(
    op: str,
    a: Tensor,
    qweight: Tensor,
    n: Size,
    k: Size,
    group_size: int,
    bias: Tensor | None,
    perm: Tensor | None,
    bf16_scales: bool = False,
    zeros: bool = False,
    activation: str = "none",
    batch_invariant: bool = False,
) -> list[Size]:
    """The shape of mul.w4a16's result; ValueError where the call is wrong."""
    _check_dtype(op, "a", a, _FLOATS)
    _check_channels(op, "a", a, "k", k)
    _check_packed(op, qweight, n, k, group_size, bf16_scales, zeros)
    _check_device(op, "qweight", qweight, "a", a)
    if perm is not None:
        _check_perm(op, perm, k, "a", a)
    _check_name(op, "activation", activation, ACTIVATIONS)
    if bias is not None:
        _check_like(op, "bias", bias, "a", a)
        _check_shape(op, "bias", bias, [n])
    return [*a.shape[:-1], n]


@torch.library.register_fake("xgemm::mul.w4a16")
def _mul_w4a16(
    a: Tensor,
    qweight: Tensor,
    n: Size,
    k: Size,
    group_size: int,
    bias: Tensor | None = None,
    perm: Tensor | None = None,
    *,
    bf16_scales: bool = False,
    zeros: bool = False,
    activation: str = "none",
    batch_invariant: bool = False,
) -> Tensor:
    refuse_onnx_export("mul.w4a16")
    shape = w4a16_shape(
        "mul.w4a16", a, qweight, n, k, group_size, bias, perm, bf16_scales, zeros, activation
    )
    return a.new_empty(shape)


@torch.library.register_fake("xgemm::mul_into.w4a16")
def _mul_into_w4a16(
    dst: Tensor,
    a: Tensor,
    qweight: Tensor,
    n: Size,
    k: Size,
    group_size: int,
    bias: Tensor | None = None,
    perm: Tensor | None = None,
    *,
    bf16_scales: bool = False,
    zeros: bool = False,
    activation: str = "none",
    batch_invariant: bool = False,
) -> None:
    op = "mul_into.w4a16"
    shape = w4a16_shape(
        op, a, qweight, n, k, group_size, bias, perm, bf16_scales, zeros, activation
    )
    _check_destination(op, "dst", dst, a, shape)


def w4a16_grad_shape(
    op: str,
    grad: Tensor,
    qweight: Tensor,
    n: Size,
    k: Size,
    group_size: int,
    perm: Tensor | None,
    bf16_scales: bool = False,
    zeros: bool = False,
) -> list[Size]:
    """The shape of w4a16_grad_a's result; ValueError where the call is wrong."""
    _check_dtype(op, "grad", grad, _FLOATS)
    _check_channels(op, "grad", grad, "n", n)
    _check_packed(op, qweight, n, k, group_size, bf16_scales, zeros)
    _check_device(op, "qweight", qweight, "grad", grad)
    if perm is not None:
        _check_perm(op, perm, k, "grad", grad)
    return [*grad.shape[:-1], k]


@torch.library.register_fake("xgemm::w4a16_grad_a")
def _w4a16_grad_a(
    grad: Tensor,
    qweight: Tensor,
    n: Size,
    k: Size,
    group_size: int,
    perm: Tensor | None = None,
    *,
    bf16_scales: bool = False,
    zeros: bool = False,
) -> Tensor:
    shape = w4a16_grad_shape(
        "w4a16_grad_a", grad, qweight, n, k, group_size, perm, bf16_scales, zeros
    )
    return grad.new_empty(shape)


def _product_shape(
    op: str, a: Tensor, b: Tensor, transa: bool, transb: bool, precision: str
) -> list[Size]:
    for name, operand in (("a", a), ("b", b)):
        _check_dtype(op, name, operand, (torch.float32,))
        if operand.dim() < 2:
            raise ValueError(f"{op}: {name} must have at least 2 dimensions, got {_shape(operand)}")
    _check_device(op, "b", b, "a", a)
    _check_name(op, "precision", precision, PRECISIONS)
    return _matmul_shape(op, a, b, transa, transb)


def sgemm_shape(
    op: str,
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    transa: bool = False,
    transb: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
    precision: str = "ieee",
) -> list[Size]:
    """The shape of sgemm's result; ValueError where the call is wrong."""
    shape = _product_shape(op, a, b, transa, transb, precision)
    if c is not None:
        _check_destination(op, "c", c, a, shape)
    elif beta != 0:
        raise ValueError(f"{op}: c must be given when beta is not 0, got None with beta={beta}")
    return shape


@torch.library.register_fake("xgemm::sgemm")
def _sgemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    transa: bool = False,
    transb: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
    precision: str = "ieee",
) -> Tensor:
    return a.new_empty(sgemm_shape("sgemm", a, b, c, transa, transb, alpha, beta, precision))


@torch.library.register_fake("xgemm::sgemm_into")
def _sgemm_into(
    c: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    transa: bool = False,
    transb: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
    precision: str = "ieee",
) -> None:
    shape = _product_shape("sgemm_into", a, b, transa, transb, precision)
    _check_destination("sgemm_into", "c", c, a, shape)


@torch.library.register_fake("xgemm::pack_w4")
def _pack_w4(codes: Tensor, scales: Tensor, zeros: Tensor | None, group_size: int) -> Tensor:
    op = "pack_w4"
    _check_dtype(op, "codes", codes, (torch.uint8,))
    if codes.dim() != 2:
        raise ValueError(f"{op}: codes must have the shape [N, K], got {_shape(codes)}")
    n, k = codes.shape
    layout = _check_layout(op, n, k, group_size, zeros is not None)
    _check_dtype(op, "scales", scales, (torch.float16, torch.bfloat16))
    _check_shape(op, "scales", scales, [_groups(layout, k), n])
    _check_device(op, "scales", scales, "codes", codes)
    if zeros is not None:
        _check_dtype(op, "zeros", zeros, (torch.float16,))
        _check_shape(op, "zeros", zeros, [_groups(layout, k), n])
        _check_device(op, "zeros", zeros, "codes", codes)
    return codes.new_empty(_packed_shape(layout, n, k))


@torch.library.register_fake("xgemm::unpack_w4")
def _unpack_w4(
    qweight: Tensor,
    n: Size,
    k: Size,
    group_size: int,
    *,
    bf16_scales: bool = False,
    zeros: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    layout = _check_packed("unpack_w4", qweight, n, k, group_size, bf16_scales, zeros)
    groups = _groups(layout, k)
    scale_dtype = torch.bfloat16 if bf16_scales else torch.float16
    return (
        qweight.new_empty([n, k]),
        qweight.new_empty([groups, n], dtype=scale_dtype),
        qweight.new_empty([groups if zeros else 0, n], dtype=torch.float16),
    )


@torch.library.register_fake("xgemm::dequantize_w4")
def _dequantize_w4(
    qweight: Tensor,
    n: Size,
    k: Size,
    group_size: int,
    *,
    bf16_scales: bool = False,
    zeros: bool = False,
    dtype: str = "float32",
    fp4: bool = False,
) -> Tensor:
    op = "dequantize_w4"
    _check_fp4(op, fp4, group_size, bf16_scales, zeros)
    _check_packed(op, qweight, n, k, group_size, bf16_scales, zeros)
    for known in _FLOATS:
        if dtype == _name(known):
            return qweight.new_empty([n, k], dtype=known)
    raise ValueError(f"{op}: dtype must be 'float32', 'float16' or 'bfloat16', got {shown(dtype)}")
