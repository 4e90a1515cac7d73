"""Cases for torch.func over the ops, and what compares them with torch in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from helpers import randn, small_packed, w4a16_args, w4a16_form

import xgemm
from xgemm import reference
from xgemm.activations import activate
from xgemm.nn import QuantLinear

ops = torch.ops.xgemm
mul, sgemm = ops.mul.default, ops.sgemm.default


@dataclass
class Case:
    """An op, the same in float64 torch, and inputs that are differentiable and can be batched."""

    ours: Any
    theirs: Any
    shapes: tuple[tuple[int, ...], ...]

    def inputs(self, *batch: int) -> list[torch.Tensor]:
        return [randn((*batch, *s), torch.float32, i) for i, s in enumerate(self.shapes)]


Q, P = small_packed(48, 40, group_size=32, zeros="real", act_order=True)
W = reference.dequantize(Q)


def _sgemm(transa: bool, transb: bool, beta: float) -> Any:
    def ours(a, b, c):
        return sgemm(a, b, c, transa=transa, transb=transb, alpha=1.5, beta=beta)

    def theirs(a, b, c):
        return 1.5 * (a.mT if transa else a) @ (b.mT if transb else b) + beta * c

    return ours, theirs


def _mul(activation: str) -> Any:
    def theirs(a, b, bias=None):
        y = torch.matmul(a, b)
        if bias is not None:
            y = y + (bias if b.dim() > 1 else bias.squeeze(0))
        return activate(y, activation)

    return (lambda *inputs: mul(*inputs, activation=activation)), theirs


CASES = {
    "mul": Case(*_mul("none"), ((3, 4), (4, 5))),
    "mul-bias-gelu": Case(*_mul("gelu"), ((3, 4), (4, 5), (5,))),
    "mul-vectors": Case(*_mul("none"), ((4,), (4,), (1,))),
    "mul-vector-matrix": Case(*_mul("silu"), ((4,), (4, 5), (5,))),
    "mul-matrix-vector": Case(*_mul("none"), ((3, 4), (4,), (1,))),
    "mul-vector-batch": Case(*_mul("none"), ((4,), (2, 4, 5))),
    "mul-batch-vector": Case(*_mul("none"), ((2, 3, 4), (4,))),
    "mul-batch-matrix": Case(*_mul("none"), ((2, 3, 4), (4, 5), (5,))),
    "mul-matrix-batch": Case(*_mul("none"), ((3, 4), (2, 4, 5), (5,))),
    "mul-batches": Case(*_mul("none"), ((2, 1, 3, 4), (2, 4, 5))),
    "sgemm": Case(*_sgemm(False, False, 0.5), ((3, 4), (4, 5), (3, 5))),
    "sgemm-transposed": Case(*_sgemm(True, True, 0.0), ((4, 3), (5, 4), (3, 5))),
    "sgemm-batches": Case(*_sgemm(False, True, 2.0), ((2, 3, 4), (5, 4), (2, 3, 5))),
    "linear": Case(
        lambda x, bias: xgemm.linear(x, P, bias, "silu"),
        lambda x, bias: activate(x @ W.t() + bias, "silu"),
        ((3, 40), (48,)),
    ),
    "linear-vector": Case(
        lambda x: xgemm.linear(x, P, activation="gelu_tanh"),
        lambda x: activate(x @ W.t(), "gelu_tanh"),
        ((40,),),
    ),
    "grad_a": Case(
        lambda g: ops.w4a16_grad_a(g, *w4a16_args(P), P.perm, **w4a16_form(P)),
        lambda g: g @ W,
        ((3, 48),),
    ),
    "sum": Case(lambda x: ops.sum(x, [1]), lambda x: x.sum(1), ((3, 4),)),
    "mean": Case(
        lambda x: ops.mean(x, [0, -1], True), lambda x: x.mean((0, 2), True), ((3, 4, 2),)
    ),
    "prod": Case(lambda x: ops.prod(x, [-2]), lambda x: x.prod(-2), ((3, 4),)),
    "amax": Case(lambda x: ops.amax(x, [0], True), lambda x: x.amax(0, True), ((3, 4),)),
    "amin": Case(lambda x: ops.amin(x), lambda x: x.amin(), ((3, 4),)),
    "norm": Case(
        lambda x: ops.norm(x, [1]), lambda x: torch.linalg.vector_norm(x, dim=1), ((3, 4),)
    ),
    "norm-3": Case(
        lambda x: ops.norm(x, p=3.0), lambda x: torch.linalg.vector_norm(x, 3), ((3, 4),)
    ),
    "sum-scalar": Case(lambda x: ops.sum(x), lambda x: x.sum(), ((),)),
}

each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def close(found: Any, expected: Any) -> None:
    found, spec = torch.utils._pytree.tree_flatten(found)
    expected, expected_spec = torch.utils._pytree.tree_flatten(expected)
    assert spec == expected_spec
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float32
        scale = float(other.abs().max()) if other.numel() else 0.0
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=2e-5 * max(scale, 1.0))


def compare(case: Case, transform: Any, inputs: list[torch.Tensor] | None = None) -> None:
    """transform(op, inputs) of ours, next to the same of torch's in float64."""
    inputs = case.inputs() if inputs is None else inputs
    wide = [x.double() for x in inputs]
    close(transform(case.ours, tuple(inputs)), transform(case.theirs, tuple(wide)))


def tangents(inputs: Any) -> Any:
    return tuple(torch.linspace(-1, 2, x.numel(), dtype=x.dtype).view(x.shape) for x in inputs)


def loss(op: Any) -> Any:
    return lambda *inputs: op(*inputs).sin().sum()


def small_layer(seed: int) -> QuantLinear:
    torch.manual_seed(seed)
    return QuantLinear.from_linear(torch.nn.Linear(40, 48), group_size=32)
