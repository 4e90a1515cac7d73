"""torch.library.opcheck on every op of the GEMM family: schema, fake kernel, autograd, AOT."""

from __future__ import annotations

import pytest
import torch
from helpers import randn, random_weight, w4a16_args, w4a16_form
from moe import mixture

import xgemm

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def _mul_samples():
    yield "matrices", (randn((3, 4), F32), randn((4, 5), F32)), {}
    yield "grad", (randn((3, 4), F32).requires_grad_(), randn((4, 5), F32).requires_grad_()), {}
    grad = [randn(s, F32).requires_grad_() for s in ((2, 3, 4), (4, 5), (5,))]
    yield "grad-bias-activation", tuple(grad), {"activation": "gelu"}
    yield "vectors", (randn((4,), F16), randn((4,), F16)), {"activation": "relu"}
    yield "batch", (randn((2, 1, 3, 4), BF16), randn((5, 4, 6), BF16)), {}
    yield "strided", (randn((4, 3), F32).t(), randn((4, 10), F32)[:, ::2]), {"precision": "tf32"}
    yield "empty", (randn((0, 4), F32), randn((4, 0), F32)), {}


def _sgemm_samples():
    a, b, c = randn((3, 4), F32), randn((4, 5), F32), randn((3, 5), F32)
    yield "plain", (a, b), {}
    yield "transposed", (a.t().contiguous(), b.t().contiguous()), {"transa": True, "transb": True}
    grad = tuple(x.clone().requires_grad_() for x in (a, b, c))
    yield "grad", grad, {"alpha": 0.5, "beta": 2.0}
    yield "batch", (randn((2, 3, 4), F32), b), {"alpha": -1.0}


def _packed(**options):
    return xgemm.pack(random_weight(48, 100, **options))


def _w4a16_samples():
    p = _packed(group_size=32)
    yield "plain", (randn((3, 100), F32), *w4a16_args(p)), {}
    x, bias = randn((2, 3, 100), F32).requires_grad_(), randn((48,), F32, 1).requires_grad_()
    yield "grad", (x, *w4a16_args(p), bias), {"activation": "silu"}
    q = _packed(group_size=64, zeros="real", scale_dtype=BF16, act_order=True)
    options = {**w4a16_form(q), "batch_invariant": True}
    yield "perm", (randn((5, 100), F16), *w4a16_args(q), None, q.perm), options
    yield "vector", (randn((100,), BF16), *w4a16_args(p)), {}
    r = _packed(group_size=-1, zeros="integer")
    yield "per-channel", (randn((0, 100), F32), *w4a16_args(r)), w4a16_form(r)


def _into(samples, shape_of):
    for name, args, options in samples:
        args = tuple(x.detach() if isinstance(x, torch.Tensor) else x for x in args)
        yield name, (torch.empty(shape_of(args, options), dtype=args[0].dtype), *args), options


def _mul_into_samples():
    return _into(_mul_samples(), lambda args, _: torch.matmul(args[0], args[1]).shape)


def _w4a16_into_samples():
    return _into(_w4a16_samples(), lambda args, _: (*args[0].shape[:-1], 48))


def _sgemm_into_samples():
    for name, (a, b, *c), options in _sgemm_samples():
        a, b = a.detach(), b.detach()
        shape = torch.ops.xgemm.sgemm(a, b, *(x.detach() for x in c), **options).shape
        yield name, (torch.zeros(shape), a, b), options


def _grad_a_samples():
    p = _packed(group_size=32)
    yield "plain", (randn((3, 48), F32), *w4a16_args(p)), {}
    q = _packed(group_size=128, zeros="real", act_order=True)
    grad = randn((2, 48), F32).requires_grad_()
    yield "grad", (grad, *w4a16_args(q), q.perm), w4a16_form(q)


def _pack_samples():
    for zeros in ("none", "real"):
        q = random_weight(48, 100, 32, zeros)
        yield zeros, (q.codes, q.scales, q.zeros, 32), {}
    q = random_weight(65, 33, -1, "integer", BF16)
    yield "per-channel", (q.codes, q.scales, q.zeros, -1), {}


def _unpack_samples():
    for options in (
        {"group_size": 32},
        {"group_size": -1, "zeros": "real", "scale_dtype": BF16},
    ):
        p = _packed(**options)
        yield str(p.group_size), w4a16_args(p), w4a16_form(p)


def _dequantize_samples():
    for name, args, options in _unpack_samples():
        yield name, args, {**options, "dtype": "float16"}


def _moe_sort_samples():
    yield "int32", (torch.randint(-1, 5, (6, 2), dtype=torch.int32), 4), {}
    yield "int64", (torch.randint(0, 4, (0, 2)), 4), {}


def _moe_samples():
    for name, m in {
        "plain": mixture(4, 2, 3, 48, 100, F32, 32),
        "weights": mixture(4, 2, 3, 48, 100, BF16, 64, "real", bias=True, weights=F32),
        "perm": mixture(4, 2, 3, 48, 100, F16, 32, act_order=True, rows="slots"),
        "gate": mixture(4, 2, 3, 48, 100, F16, -1, activation="silu_and_mul"),
        "fp4": mixture(4, 2, 3, 48, 100, BF16, fp4=True, weights=F32),
    }.items():
        yield name, m.args(torch.ops.xgemm.moe_sort(m.ids, 3)), m.options()


OPS = {
    "mul.default": _mul_samples,
    "mul.w4a16": _w4a16_samples,
    "mul_into.default": _mul_into_samples,
    "mul_into.w4a16": _w4a16_into_samples,
    "sgemm.default": _sgemm_samples,
    "sgemm_into.default": _sgemm_into_samples,
    "w4a16_grad_a.default": _grad_a_samples,
    "pack_w4.default": _pack_samples,
    "unpack_w4.default": _unpack_samples,
    "dequantize_w4.default": _dequantize_samples,
    "moe_sort.default": _moe_sort_samples,
    "moe.w4a16": _moe_samples,
}


@pytest.mark.parametrize(
    ("op", "args", "options"),
    [
        pytest.param(op, args, options, id=f"{op}-{name}")
        for op, samples in OPS.items()
        for name, args, options in samples()
    ],
)
def test_opcheck(op, args, options):
    packet, overload = op.split(".")
    torch.library.opcheck(getattr(getattr(torch.ops.xgemm, packet), overload), args, options)


def test_every_gemm_op_is_checked():
    """An op that is added to the library has to be added here (or to the reductions' tests).

    Those of direct.py, whose names begin with "_", are never traced.
    """
    reductions = {"sum", "mean", "prod", "amax", "amin", "norm", "argmax", "argmin"}
    names = {
        name.removeprefix("xgemm::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("xgemm::")
    }
    names = {
        name if "." in name else f"{name}.default" for name in names if not name.startswith("_")
    }
    names -= {f"{name}.default" for name in (*reductions, "explain", "explain_reduce")}
    assert names == set(OPS)
