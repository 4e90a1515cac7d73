"""The memory of arguments: freed or shrunk under a tensor, shared with a destination, too large."""

from __future__ import annotations

import itertools

import pytest
import torch
from helpers import random_weight

import xgemm

ops = torch.ops.xgemm
Q = random_weight(48, 64, 32, "real")
P = xgemm.pack(Q)
W4 = (P.qweight, 48, 64, 32)
REDUCTIONS = ("sum", "mean", "prod", "amax", "amin", "norm", "argmax", "argmin")


def f(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


PERM = torch.arange(64, dtype=torch.int32)
# (op, overload, tensors by name, other arguments by name)
CALLS = [
    ("mul", "default", {"a": f(2, 3), "b": f(3, 4), "bias": f(4)}, {}),
    ("mul_into", "default", {"dst": f(2, 4), "a": f(2, 3), "b": f(3, 4), "bias": f(4)}, {}),
    ("sgemm", "default", {"a": f(2, 3), "b": f(3, 4), "c": f(2, 4)}, {"beta": 1.0}),
    ("sgemm", "default", {"a": f(2, 3), "b": f(3, 4), "c": f(2, 4)}, {}),  # which reads no c
    ("sgemm_into", "default", {"c": f(2, 4), "a": f(2, 3), "b": f(3, 4)}, {}),
    *[(name, "default", {"x": f(2, 3)}, {}) for name in REDUCTIONS],
    (
        "mul",
        "w4a16",
        {"a": f(2, 64), "qweight": P.qweight, "bias": f(48), "perm": PERM},
        {"n": 48, "k": 64, "group_size": 32, "zeros": True},
    ),
    (
        "mul_into",
        "w4a16",
        {"dst": f(2, 48), "a": f(2, 64), "qweight": P.qweight, "bias": f(48), "perm": PERM},
        {"n": 48, "k": 64, "group_size": 32, "zeros": True},
    ),
    (
        "w4a16_grad_a",
        "default",
        {"grad": f(2, 48), "qweight": P.qweight, "perm": PERM},
        {"n": 48, "k": 64, "group_size": 32, "zeros": True},
    ),
    ("pack_w4", "default", {"codes": Q.codes, "scales": Q.scales, "zeros": Q.zeros},
     {"group_size": 32}),
    *[
        (name, "default", {"qweight": P.qweight},
         {"n": 48, "k": 64, "group_size": 32, "zeros": True})
        for name in ("unpack_w4", "dequantize_w4")
    ],
]  # fmt: skip


STORAGES = {"freed": (0, 0.0), "shrunk": (0, 0.25), "view": (1, 0.0), "shrunk view": (1, 0.75)}


def freed(x: torch.Tensor, how: str) -> torch.Tensor:
    """x, or its second copy, in a storage that was made smaller than the two of them."""
    copy, part = STORAGES[how]
    both = torch.stack([x, x])
    view = both[copy]
    both.untyped_storage().resize_(int(part * both.nbytes))
    return view


@pytest.mark.parametrize("how", [*STORAGES])
@pytest.mark.parametrize(
    ("op", "overload", "tensors", "options", "name"),
    [
        pytest.param(*call, name, id=f"{call[0]}.{call[1]}-{name}-{index}")
        for index, call in enumerate(CALLS)
        for name in call[2]
    ],
)
def test_a_storage_that_was_freed(op, overload, tensors, options, name, how):
    """torch reads on, or fails, as the op has it: here it is the argument's error."""
    call = getattr(getattr(ops, op), overload)
    call(**tensors, **options)
    given = {key: value.clone() for key, value in tensors.items()}
    given[name] = freed(given[name], how)
    text = f"{op if overload == 'default' else f'{op}.{overload}'}: {name} has elements, but"
    with pytest.raises(ValueError, match=f"^{text} its data is not allocated yet, .* bytes, got"):
        call(**given, **options)
    for key, value in given.items():
        assert key == name or torch.equal(value, tensors[key])


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "overload", "tensors", "options"), CALLS)
def test_a_storage_that_was_freed_on_cuda(op, overload, tensors, options):
    call = getattr(getattr(ops, op), overload)
    for name, how in itertools.product(tensors, STORAGES):
        given = {key: value.cuda() for key, value in tensors.items()}
        given[name] = freed(given[name], how)
        with pytest.raises(ValueError, match=f": {name} has elements, but its data is not alloc"):
            call(**given, **options)


def test_tensors_without_elements_need_no_storage():
    empty = freed(f(2, 0), "freed")
    assert torch.equal(ops.mul(empty, f(0, 4)), torch.zeros(2, 4))
    assert ops.sum(empty) == 0


def test_a_parameter_that_comes_back():
    """As FSDP1 does: the storage of a flat parameter is freed between uses."""
    weight = torch.nn.Parameter(f(3, 4))
    size = weight.untyped_storage().size()
    weight.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="mul: b has elements, but its data is not allocated yet"):
        ops.mul(f(2, 3), weight)
    weight.untyped_storage().resize_(size)
    weight.data.fill_(2)
    assert torch.equal(ops.mul(f(2, 3), weight), torch.full((2, 4), 6.0))


# ---- destinations ----

BUFFER = 24


def addresses(x: torch.Tensor) -> list[int]:
    places = torch.arange(BUFFER).as_strided(x.shape, x.stride(), x.storage_offset())
    return [int(place) for place in places.flatten()]


def matrices() -> list[tuple[int, int, int]]:
    """(row stride, column stride, offset) of 2 x 2 matrices in a buffer of 24 elements."""
    return [
        (rows, columns, offset)
        for rows, columns in itertools.product((0, 1, 2, 3, 6), repeat=2)
        for offset in (0, 1, 5)
    ]


def test_destinations_are_refused_where_an_element_is_shared_and_nowhere_else():
    """Every pair of 2 x 2 views of a small buffer, by an enumeration of their elements."""
    refused = taken = 0
    b = torch.tensor([[2.0, -1.0], [0.5, 3.0]])
    for dst_form, a_form in itertools.product(matrices(), repeat=2):
        buffer = torch.arange(float(BUFFER))
        dst = buffer.as_strided((2, 2), dst_form[:2], dst_form[2])
        a = buffer.as_strided((2, 2), a_form[:2], a_form[2])
        expected = a.clone() @ b
        own = addresses(dst)
        shared = len(set(own)) < 4 or set(own) & set(addresses(a))
        before = buffer.clone()
        try:
            ops.mul_into.default(dst, a, b)
            was_taken = True
        except ValueError:
            was_taken = False
        assert was_taken == (not shared), f"{dst_form}, {a_form}"
        assert torch.equal(*((dst, expected) if was_taken else (buffer, before)))
        taken += was_taken
        refused += not was_taken
    assert refused > 3000
    assert taken > 500


def test_views_of_many_dimensions_that_interleave():
    """Strides without a common order: what is shared is found by search, within its budget."""
    base = torch.zeros(4000)
    dst = base.as_strided((3, 3, 3, 3, 3), (1000, 333, 111, 37, 12), 0)
    a = base.as_strided((3, 3, 3, 3, 3), (1000, 333, 111, 37, 12), 1)
    own = {int(x) for x in torch.arange(4000).as_strided(dst.shape, dst.stride(), 0).flatten()}
    other = {int(x) for x in torch.arange(4000).as_strided(a.shape, a.stride(), 1).flatten()}
    assert len(own) == 243
    assert not own & other
    ops.mul_into(dst, a, torch.eye(3))
    with pytest.raises(ValueError, match="dst must not overlap a"):
        ops.mul_into(dst, base.as_strided(a.shape, a.stride(), 12), torch.eye(3))


def test_a_destination_of_another_dtype_than_what_it_touches():
    memory = torch.zeros(48 * 8, dtype=torch.uint8)
    codes = P.qweight.clone()
    dst = codes.flatten()[: 48 * 4].view(torch.float32).view(1, 48)
    with pytest.raises(ValueError, match="dst must not overlap qweight"):
        ops.mul_into.w4a16(dst, f(1, 64), codes, 48, 64, 32, zeros=True)
    # Every second float of the buffer; perm's integers would be the others.
    dst = memory.view(torch.float32)[:96].view(48, 2)[:, 0].unsqueeze(0)
    bias = memory.view(torch.float32)[:96].view(48, 2)[:, 1]
    ops.mul_into.w4a16(dst, f(1, 64), codes, 48, 64, 32, bias, zeros=True)


# ---- sizes ----


def test_results_too_large_to_count():
    """2^80 elements: their number is beyond 64 bits."""
    column, row = f(1, 1).expand(2**40, 1), f(1, 1).expand(1, 2**40)
    wide = torch.ones(0, 1, 1).expand(0, 2**40, 2**40)
    rows = torch.ones(1, 1, 64).expand(2**30, 2**26, 64)
    for call in (
        lambda: ops.mul(column, row),
        lambda: ops.sgemm(column, row),
        lambda: ops.sum(wide, [0]),
        lambda: ops.norm(wide, [0], p=0.5),
        lambda: ops.mul.w4a16(rows, *W4, zeros=True),
    ):
        with pytest.raises(RuntimeError, match=r"no float32 tensor of shape .* beyond 63 bits"):
            call()


def test_empty_tensors_of_large_sizes():
    wide = torch.ones(0, 1, 1).expand(0, 2**40, 2**40)
    assert ops.sum(wide) == 0
    assert ops.sum(wide, [1, 2]).shape == (0,)
    assert ops.norm(wide, [1, 2], p=0.5).shape == (0,)
    assert ops.sum(torch.ones(1, 0, 1).expand(2**40, 0, 2**40)) == 0
    with pytest.raises(ValueError, match=r"mul\.w4a16: a must have fewer than 2\^63 rows"):
        ops.mul.w4a16(
            torch.ones(0).as_strided((0, 2**40, 2**40, 0), (0, 0, 0, 1)),
            torch.empty(0, 0, dtype=torch.uint8), 0, 0, 32,
        )  # fmt: skip
