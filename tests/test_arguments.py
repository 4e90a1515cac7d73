"""Calls whose arguments are of the wrong type: the message names the argument and its rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers import randn, small_packed, w4a16_args

import xgemm

ops = torch.ops.xgemm
A, B, X = torch.ones(2, 3), torch.ones(3, 2), torch.ones(2, 64)
ARRAY = np.ones((300, 3))
_, P = small_packed()
W4 = w4a16_args(P)

CALLS = [
    (lambda: ops.mul(ARRAY, B), "mul: a must be a torch.Tensor, got ndarray"),
    (lambda: ops.mul.default(ARRAY, B), "mul: a must be a torch.Tensor, got ndarray"),
    (lambda: ops.mul(A, b=[[1.0]]), "mul: b must be a torch.Tensor, got list [[1.0]]"),
    (lambda: ops.mul(A, None), "mul: b must be a torch.Tensor, got NoneType"),
    (lambda: ops.mul(A, B, 1.5), "mul: bias must be a torch.Tensor or None, got float 1.5"),
    (lambda: ops.mul(A, B, activation=None), "mul: activation must be a str, got NoneType"),
    (lambda: ops.mul(ARRAY, *W4), "mul.w4a16: a must be a torch.Tensor, got ndarray"),
    (lambda: ops.mul.w4a16(X, W4[0], 48, 64.0, 128), "mul.w4a16: k must be an int, got float 64.0"),
    (
        lambda: xgemm.linear(X, P, ARRAY),
        "mul.w4a16: bias must be a torch.Tensor or None, got ndarray",
    ),
    (lambda: ops.sgemm(A, B, alpha="1"), "sgemm: alpha must be a float, got str '1'"),
    (lambda: ops.sgemm(A, B, transa="no"), "sgemm: transa must be a bool, got str 'no'"),
    (lambda: ops.mul_into(ARRAY, A, B), "mul_into: dst must be a torch.Tensor, got ndarray"),
    (lambda: ops.sgemm_into(A, B, ARRAY), "sgemm_into: b must be a torch.Tensor, got ndarray"),
    (lambda: ops.pack_w4(ARRAY, A, None, 32), "pack_w4: codes must be a torch.Tensor, got ndarray"),
    (lambda: ops.explain("mul", 1, 2, 3.5), "explain: k must be an int, got float 3.5"),
]


@pytest.mark.parametrize(("call", "message"), CALLS)
def test_the_argument_is_named(call: Any, message: str) -> None:
    with pytest.raises(TypeError) as error:
        call()
    assert str(error.value) == message


def test_what_the_dispatcher_takes_is_taken() -> None:
    """Numbers of other kinds than Python's, and what stands in for a number while it is traced."""
    x = randn((3, 4), torch.float32)
    assert torch.equal(ops.argmax(x, np.int64(1)), x.argmax(1))
    assert torch.equal(ops.argmax(x, torch.tensor(1)), x.argmax(1))
    assert torch.equal(ops.sum(x, np.array([0, 1])), ops.sum(x, (0, 1)))
    assert torch.equal(ops.norm(x, p=np.float32(2)), ops.norm(x))
    assert torch.equal(ops.mul.w4a16(X, P.qweight, np.int64(48), 64, 128), ops.mul(X, *W4))


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="Unknown keyword argument 'axis'"):
        ops.sum(A, axis=1)
    with pytest.raises(RuntimeError, match="missing value for argument 'b'"):
        ops.sgemm(A)
    with pytest.raises(NotImplementedError, match="Could not run 'xgemm::mul'"):
        ops.mul(A.to_sparse(), B)


def test_a_missing_argument_of_a_call_that_needs_a_gradient():
    """Such a call goes to a function of Python, whose name and rules are nobody's business."""
    x = A.clone().requires_grad_()
    with pytest.raises(RuntimeError, match=r"xgemm::mul\(\).* missing .* argument 'b'"):
        ops.mul.default(x)
    with pytest.raises(RuntimeError, match=r"keyword argument 'out' .*xgemm::mul"):
        ops.mul.default(x, B, out=A)


def test_none_for_tensors_where_kernels_are_of_python():
    with pytest.raises(TypeError, match=r"^pack_w4: codes must be a torch\.Tensor, got NoneType"):
        ops.pack_w4(None, torch.ones(2, 48, device="meta"), None, 32)
