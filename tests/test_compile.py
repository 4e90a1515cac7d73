"""torch.compile (fullgraph, dynamic shapes, one inductor run) and torch.export."""

from __future__ import annotations

import io

import pytest
import torch
from helpers import assert_within, randn, random_weight, small_packed

import xgemm
from xgemm import reference

mul = torch.ops.xgemm.mul
sgemm = torch.ops.xgemm.sgemm


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()


def model(p):
    def run(x, w, bias):
        hidden = mul(x, w, bias, activation="gelu")
        hidden = sgemm(hidden, w, transb=True, alpha=0.5) + x
        return xgemm.linear(hidden, p, activation="silu")

    return run


def inputs(m=5, grad=False):
    x, w, bias = (
        randn((m, 64), torch.float32),
        randn((64, 33), torch.float32, 1) / 8,
        torch.ones(33),
    )
    return tuple(t.requires_grad_(grad) for t in (x, w, bias))


@pytest.mark.parametrize("dynamic", [False, True])
def test_fullgraph(dynamic):
    _, p = small_packed(group_size=32, zeros="real", act_order=True)
    run = model(p)
    compiled = torch.compile(run, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for m in (5, 17, 1, 0) if dynamic else (5,):
        assert torch.equal(compiled(*inputs(m)), run(*inputs(m)))


def test_dynamic_shapes_compile_once():
    _, p = small_packed(group_size=32)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    run = model(p)
    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend=counter)
    for m in (5, 17, 129):
        assert torch.equal(compiled(*inputs(m)), run(*inputs(m)))
    assert counter.frame_count == 1


def test_dynamic_batches_and_k():
    def run(a, b):
        return mul(a, b, activation="relu")

    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch, m, n, k in ((2, 3, 4, 5), (3, 17, 15, 16), (4, 2, 33, 9)):
        a, b = randn((batch, m, k), torch.float32), randn((k, n), torch.float32, 1)
        assert torch.equal(compiled(a, b), run(a, b))


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients(dynamic):
    _, p = small_packed(group_size=32, zeros="real")
    run = model(p)
    compiled = torch.compile(run, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for m in (5, 9) if dynamic else (5,):
        ours, theirs = inputs(m, grad=True), inputs(m, grad=True)
        compiled(*ours).square().sum().backward()
        run(*theirs).square().sum().backward()
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one.grad, other.grad)


def test_the_compiler_sees_the_activation_only_where_a_gradient_is_needed():
    graphs = []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph

    from torch._dynamo.backends.common import aot_autograd

    def targets():
        return {str(node.target) for graph in graphs for node in graph.graph.nodes}

    def run(a, b):
        return mul(a, b, activation="gelu")

    a, b = randn((3, 4), torch.float32), randn((4, 5), torch.float32)
    compiler = aot_autograd(fw_compiler=backend)
    torch.compile(run, fullgraph=True, backend=compiler)(a, b)
    assert "xgemm.mul.default" in targets()
    assert not any("gelu" in target or "erf" in target for target in targets())
    graphs.clear()
    torch._dynamo.reset()
    torch.compile(run, fullgraph=True, backend=compiler)(a.requires_grad_(), b)
    assert "xgemm.mul.default" in targets()
    assert any("gelu" in target or "erf" in target for target in targets())


def test_into_mutates_under_compile():
    def run(dst, a, b):
        torch.ops.xgemm.mul_into(dst[1:4], a, b)
        torch.ops.xgemm.sgemm_into(dst[4:7], a, b, alpha=0.5, beta=2.0)
        return dst * 2

    a, b = randn((3, 4), torch.float32), randn((4, 5), torch.float32, 1)
    ours, theirs = torch.ones(8, 5), torch.ones(8, 5)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(ours, a, b), run(theirs, a, b))
    assert torch.equal(ours, theirs)


def test_w4a16_into_mutates_under_compile():
    q, p = small_packed(group_size=32)

    def run(dst, x):
        torch.ops.xgemm.mul_into(dst, x, p.qweight, p.n, p.k, p.group_size)
        return dst + 1

    x, dst = randn((3, 64), torch.float32), torch.empty(3, 48)
    y = torch.compile(run, fullgraph=True, backend="aot_eager")(dst, x)
    assert_within(dst, reference.w4a16(x, q), reference.w4a16_bound(x, q))
    assert torch.equal(y, dst + 1)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        p = xgemm.pack(random_weight(48, 64, 32, "real", act_order=True))
        self.form = (p.n, p.k, p.group_size)
        self.register_buffer("qweight", p.qweight)
        self.register_buffer("perm", p.perm)
        self.w = torch.nn.Parameter(randn((48, 5), torch.float32))

    def forward(self, x):
        y = mul.w4a16(x, self.qweight, *self.form, None, self.perm, zeros=True, activation="silu")
        return sgemm(mul(y, self.w), self.w, transb=True)


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict):
    module, x = Model().eval(), randn((7, 64), torch.float32)
    rows = torch.export.Dim("rows", min=2, max=512)
    program = torch.export.export(module, (x,), dynamic_shapes=({0: rows},), strict=strict)
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    loaded = torch.export.load(buffer).module()
    for m in (7, 19):
        x = randn((m, 64), torch.float32, m)
        assert torch.equal(loaded(x), module(x))


def test_export_decomposes_to_the_ops():
    program = torch.export.export(Model().eval(), (randn((7, 64), torch.float32),))
    targets = {str(node.target) for node in program.run_decompositions().graph.nodes}
    assert {"xgemm.mul.default", "xgemm.mul.w4a16", "xgemm.sgemm.default"} <= targets


@pytest.mark.slow
def test_inductor():
    """The default backend: the kernels stay ours, and what is around them is compiled."""
    _, p = small_packed(group_size=32)

    def run(x):
        return xgemm.linear(x * 2 + 1, p, activation="silu")

    ours, theirs = (randn((5, 64), torch.float32).requires_grad_() for _ in range(2))
    y, expected = torch.compile(run, fullgraph=True)(ours), run(theirs)
    torch.testing.assert_close(y, expected)
    y.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


def test_fake_and_meta_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        y = mul(torch.empty(2, 3, 4, dtype=torch.float16), torch.empty(4, 5, dtype=torch.float16))
        assert (y.shape, y.dtype) == ((2, 3, 5), torch.float16)
    y = mul(torch.empty(3, 4, device="meta"), torch.empty(4, 5, device="meta"))
    assert (y.shape, y.device.type) == ((3, 5), "meta")
    qweight = torch.empty_like(small_packed(group_size=32)[1].qweight, device="meta")
    y = mul.w4a16(torch.empty(3, 64, device="meta", dtype=torch.bfloat16), qweight, 48, 64, 32)
    assert (y.shape, y.dtype, y.device.type) == ((3, 48), torch.bfloat16, "meta")
