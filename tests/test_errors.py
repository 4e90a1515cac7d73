"""Every error of the GEMM ops: it names argument, rule and value, and nothing is written."""

from __future__ import annotations

import re

import pytest
import torch
from helpers import random_weight

import xgemm

ops = torch.ops.xgemm
P = xgemm.pack(random_weight(48, 64, 32))
Q = P.qweight


def f(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


A, B = f(2, 3), f(3, 4)
PERM = torch.arange(64, dtype=torch.int32)

MUL = [
    ((f(2, 3, dtype=torch.float64), B), {}, "a must be float32, float16 or bfloat16, got float64"),
    ((f(2, 3, dtype=torch.int64), B), {}, "a must be float32, float16 or bfloat16, got int64"),
    ((f(2, 3, dtype=torch.complex64), B), {}, "a must be .*, got complex64"),
    ((A, f(3, 4, dtype=torch.float16)), {}, "b must have the dtype of a, float32, got float16"),
    ((f(), B), {}, "a must have at least 1 dimension, got a 0-D tensor"),
    ((A, f()), {}, "b must have at least 1 dimension, got a 0-D tensor"),
    (
        (A, f(4, 4)),
        {},
        r"the last dimension of a must equal .* of b, got a \[2, 3\] and b \[4, 4\]",
    ),
    ((A, f(4)), {}, r"the last dimension of a must equal .* of b, got a \[2, 3\] and b \[4\]"),
    (
        (f(2, 2, 3), f(5, 3, 4)),
        {},
        r"batch dimensions of a and b must be equal or 1, got a \[2, 2, 3\] and b \[5, 3, 4\]",
    ),
    ((A, B, f(3)), {}, r"bias must have the shape \[4\], got \[3\]"),
    ((A, B, f(1, 4)), {}, r"bias must have the shape \[4\], got \[1, 4\]"),
    ((A, f(3), f(3)), {}, r"bias must have the shape \[1\], got \[3\]"),
    (
        (A, B, f(4, dtype=torch.bfloat16)),
        {},
        "bias must have the dtype of a, float32, got bfloat16",
    ),
    ((A, B), {"activation": "tanh"}, "activation must be one of 'none', .*'silu', got 'tanh'"),
    ((A, B), {"precision": "fp8"}, "precision must be one of 'ieee', 'tf32x3', 'tf32', got 'fp8'"),
    ((A.half(), B.half()), {"precision": "tf32"}, "precision must be 'ieee' for float16 operands"),
]

W4A16 = [
    ((f(2, 64, dtype=torch.float64), Q, 48, 64, 32), {}, "a must be .*, got float64"),
    ((f(2, 63), Q, 48, 64, 32), {}, r"the last dimension of a must be k=64, got a \[2, 63\]"),
    ((f(), Q, 48, 64, 32), {}, r"the last dimension of a must be k=64, got a \[\]"),
    ((f(2, 64), Q.float(), 48, 64, 32), {}, "qweight must be uint8, got float32"),
    (
        (f(2, 64), Q, 65, 64, 32),
        {},
        r"qweight must have the shape \[2, 4608\] for n=65, k=64, .*, got \[1, 4608\]",
    ),
    ((f(2, 64), Q, 48, 64, 64), {}, "qweight must have the shape .* group_size=64, .*, got "),
    ((f(2, 64), Q, 48, 64, 32), {"zeros": True}, "qweight must have the shape .* zeros=true, got "),
    ((f(2, 64), Q, 48, 64, 16), {}, "group_size must be 32, 64, 128 or -1, got 16"),
    ((f(2, 64), Q, -1, 64, 32), {}, r"n must be in \[0, 2147483647\], got -1"),
    ((f(2, 64), Q, 48, 2**31, 32), {}, r"k must be in \[0, 2147483647\], got 2147483648"),
    (
        (f(2, 64), Q.expand(2, -1)[:, ::2], 48, 64, 32),
        {},
        r"qweight must have the shape \[1, 4608\] for .*, got \[2, 2304\]",
    ),
    ((f(2, 64), Q.repeat(1, 2)[:, ::2], 48, 64, 32), {}, "qweight must be contiguous, got strides"),
    ((f(2, 64), Q, 48, 64, 32, f(47)), {}, r"bias must have the shape \[48\], got \[47\]"),
    ((f(2, 64), Q, 48, 64, 32, f(48).half()), {}, "bias must have the dtype of a, float32, got"),
    ((f(2, 64), Q, 48, 64, 32, None, PERM.long()), {}, "perm must be int32, got int64"),
    ((f(2, 64), Q, 48, 64, 32, None, PERM[:9]), {}, r"perm must have the shape \[64\], got \[9\]"),
    (
        (f(2, 64), Q, 48, 64, 32, None, PERM + 1),
        {},
        r"perm must hold channels in \[0, 64\), got 64 at index 63",
    ),
    (
        (f(2, 64), Q, 48, 64, 32, None, PERM - 1),
        {},
        r"perm must hold channels in \[0, 64\), got -1 at index 0",
    ),
    (
        (f(2, 64), Q, 48, 64, 32, None, PERM.repeat(2)[::2]),
        {},
        "perm must be contiguous, got a str",
    ),
    ((f(2, 64), Q, 48, 64, 32), {"activation": "tanh"}, "activation must be one of .*, got 'tanh'"),
]

SGEMM = [
    ((A.half(), B.half()), {}, "a must be float32, got float16"),
    ((A, B.double()), {}, "b must be float32, got float64"),
    ((f(3), B), {}, r"a must have at least 2 dimensions, got \[3\]"),
    ((A, f(3)), {}, r"b must have at least 2 dimensions, got \[3\]"),
    ((A, B), {"transa": True}, r"the second to last dimension of a must equal .*, got a \[2, 3\]"),
    (
        (A, B),
        {"transb": True},
        r"must equal the last dimension of b, got a \[2, 3\] and b \[3, 4\]",
    ),
    ((A, B), {"beta": 1.0}, "c must be given when beta is not 0, got None with beta=1"),
    ((A, B, f(2, 3)), {"beta": 1.0}, r"c must have the shape \[2, 4\], got \[2, 3\]"),
    ((A, B, f(2, 3)), {}, r"c must have the shape \[2, 4\], got \[2, 3\]"),
    ((A, B, f(2, 4).double()), {"beta": 1.0}, "c must .*float32, got float64"),
    ((A, B), {"precision": "fp8"}, "precision must be one of .*, got 'fp8'"),
]

GRAD_A = [
    ((f(2, 47), Q, 48, 64, 32), {}, r"the last dimension of grad must be n=48, got grad \[2, 47\]"),
    ((f(2, 48).double(), Q, 48, 64, 32), {}, "grad must be .*, got float64"),
    ((f(2, 48), Q, 48, 64, 32, PERM.float()), {}, "perm must be int32, got float32"),
    ((f(2, 48), Q, 48, 64, 32, PERM + 1), {}, r"perm must hold channels in \[0, 64\), got 64"),
    ((f(2, 48), Q, 48, 64, 32, PERM // 2), {}, "perm must hold each channel .* once, got 0 again"),
]


def cases(op, table):
    return [pytest.param(op, *row, id=f"{op}-{index}") for index, row in enumerate(table)]


def overload(name):
    packet, _, which = name.partition(".")
    return getattr(getattr(ops, packet), which or "default")


@pytest.mark.parametrize(
    ("op", "args", "options", "message"),
    [
        *cases("mul", MUL),
        *cases("mul.w4a16", W4A16),
        *cases("sgemm", SGEMM),
        *cases("w4a16_grad_a", GRAD_A),
    ],
)
def test_bad_arguments(op, args, options, message):
    with pytest.raises(ValueError, match=message) as error:
        overload(op)(*args, **options)
    assert str(error.value).startswith(f"{op}: ")


@pytest.mark.parametrize(
    ("op", "args", "options", "message"),
    [*cases("mul_into", MUL), *cases("mul_into.w4a16", W4A16)],
)
def test_into_writes_nothing(op, args, options, message):
    dst = torch.full((2, 48 if op.endswith("w4a16") else 4), 7.0, dtype=torch.float32)
    with pytest.raises(ValueError, match=message) as error:
        overload(op)(dst, *args, **options)
    assert str(error.value).startswith(f"{op}: ")
    assert (dst == 7).all()


@pytest.mark.parametrize(
    "index", [i for i, row in enumerate(SGEMM) if len(row[0]) == 2 and "beta" not in row[1]]
)
def test_sgemm_into_writes_nothing(index):
    args, options, message = SGEMM[index]
    c = torch.full((2, 4), 7.0)
    with pytest.raises(ValueError, match=message):
        ops.sgemm_into(c, *args, **options)
    assert (c == 7).all()


BUFFER = torch.ones(64)


@pytest.mark.parametrize(
    ("dst", "a", "b", "message"),
    [
        (f(2, 5), A, B, r"{} must have the shape \[2, 4\], got \[2, 5\]"),
        (f(4), A, B, r"{} must have the shape \[2, 4\], got \[4\]"),
        (
            f(1, 4).expand(2, 4),
            A,
            B,
            r"{} must not overlap itself, got shape \[2, 4\] with strides",
        ),
        (f(8).as_strided((2, 4), (1, 1)), A, B, "{} must not overlap itself"),
        (BUFFER[:8].view(2, 4), BUFFER[6:12].view(2, 3), B, "{} must not overlap a, got two views"),
        (BUFFER[:8].view(2, 4), A, BUFFER[7:19].view(3, 4), "{} must not overlap b, got two views"),
    ],
)
@pytest.mark.parametrize("op", ["mul_into", "sgemm_into"])
def test_destinations(op, dst, a, b, message):
    before = dst.clone()
    name = "dst" if op == "mul_into" else "c"
    with pytest.raises(ValueError, match=op + ": " + message.format(name)):
        getattr(ops, op)(dst, a, b)
    assert torch.equal(dst, before)


def test_destination_dtype():
    with pytest.raises(
        ValueError, match="mul_into: dst must have the dtype of a, float32, got flo"
    ):
        ops.mul_into(f(2, 4).double(), A, B)
    with pytest.raises(ValueError, match="sgemm_into: c must be float32, got float16"):
        ops.sgemm_into(f(2, 4).half(), A, B)


def test_w4a16_destination():
    memory = torch.ones(2, 64 + 48)
    x = memory[:, :64]
    with pytest.raises(
        ValueError, match=r"mul_into.w4a16: dst must have the shape \[2, 48\], got \[2, 4"
    ):
        ops.mul_into.w4a16(f(2, 49), x, Q, 48, 64, 32)
    with pytest.raises(ValueError, match=r"mul_into\.w4a16: dst must not overlap a"):
        ops.mul_into.w4a16(memory[:, 60:108], x, Q, 48, 64, 32)
    with pytest.raises(ValueError, match=r"mul_into\.w4a16: dst must not overlap bias"):
        ops.mul_into.w4a16(memory[:, 64:], f(2, 64), Q, 48, 64, 32, memory[0, 64:])
    assert (memory == 1).all()


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("op", ["mul_into", "sgemm_into"])
def test_into_refuses_a_gradient(op, which):
    tensors = [f(2, 4), f(2, 3), f(3, 4)]
    tensors[which].requires_grad_()
    name = ("dst" if op == "mul_into" else "c", "a", "b")[which]
    with pytest.raises(ValueError, match=f"{op}: {name} must not require a gradient"):
        getattr(ops, op)(*tensors)
    assert (tensors[0] == 1).all()
    with torch.no_grad():
        getattr(ops, op)(*tensors)
    assert (tensors[0] == 3).all()


@pytest.mark.parametrize("name", ["dst", "a", "bias"])
def test_w4a16_into_refuses_a_gradient(name):
    tensors = {"dst": f(2, 48), "a": f(2, 64), "bias": f(48)}
    tensors[name].requires_grad_()
    with pytest.raises(ValueError, match=rf"mul_into\.w4a16: {name} must not require a gradient"):
        ops.mul_into.w4a16(tensors["dst"], tensors["a"], Q, 48, 64, 32, tensors["bias"])
    assert (tensors["dst"] == 1).all()


@pytest.mark.parametrize("op", ["mul", "mul.w4a16"])
def test_the_activation_is_checked_where_a_gradient_is_needed(op):
    args = (f(2, 64).requires_grad_(), Q, 48, 64, 32) if "w4" in op else (A.clone(), B)
    args[0].requires_grad_()
    with pytest.raises(ValueError, match=rf"{op}: activation must be one of .*, got 'tanh'"):
        overload(op)(*args, activation="tanh")


def test_linear_wants_a_packed_weight():
    with pytest.raises(TypeError, match="linear: p must be a PackedWeight, got Tensor"):
        xgemm.linear(f(2, 64), Q)


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        (("conv", 1, 1, 1), {}, "op must be 'mul', 'mul.w4a16' or 'sgemm', got 'conv'"),
        (("mul", -1, 1, 1), {}, r"m must be in \[0, .*\], got -1"),
        (("mul", 1, 1, 1), {"dtype": "float64"}, "dtype of mul must be .*, got 'float64'"),
        (
            ("sgemm", 1, 1, 1),
            {"dtype": "float16"},
            "dtype of sgemm must be 'float32', got 'float16'",
        ),
        (("mul", 1, 1, 1), {"device": "tpu"}, "device of mul must be 'cpu' or 'cuda', got 'tpu'"),
        (("mul.w4a16", 1, 1, 1), {"group_size": 7}, "group_size must be 32, 64, 128 or -1, got 7"),
    ],
)
def test_explain(args, options, message):
    with pytest.raises(ValueError, match="explain: " + message):
        ops.explain(*args, **options)


@pytest.mark.parametrize("name", ["mul", "mul.w4a16", "sgemm", "w4a16_grad_a"])
def test_fake_kernels_say_the_same(name):
    """What can be seen without data is refused with the same words while a graph is traced."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    table = {"mul": MUL, "mul.w4a16": W4A16, "sgemm": SGEMM, "w4a16_grad_a": GRAD_A}[name]
    for args, options, message in table:
        if re.search("hold|aligned|contiguous|2147483648", message):
            continue  # values, addresses, and a k that a is checked against first
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fake = [mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in args]
            with pytest.raises(ValueError, match=re.sub("true", "[tT]rue", message)):
                overload(name)(*fake, **options)


def test_no_memory_is_said_with_what_was_asked_for():
    rows = f(1, 1).expand(2**45, 1)
    for call, shape in (
        (lambda: ops.mul(rows, f(1, 4)), r"\[35184372088832, 4\]"),
        (lambda: ops.sum(rows, [1]), r"\[35184372088832\]"),
    ):
        with pytest.raises(
            RuntimeError, match=f"no float32 tensor of shape {shape} on cpu: .* memory"
        ):
            call()
