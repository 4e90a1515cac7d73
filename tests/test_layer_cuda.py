"""QuantLinear on a GPU: moved there, its weight, bytes at any address, offloaded."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from test_layer_ecosystem import X, build
from test_nn import check, check_product, inputs, make
from torch import nn

import xgemm
from xgemm.nn.parameter import PackedParameter

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("act_order", [False, True])
def test_moved_there_and_back(dtype: torch.dtype, act_order: bool) -> None:
    layer, w = make(act_order=act_order, symmetric=False)
    layer.to("cuda", dtype)
    assert type(layer.qweight) is PackedParameter
    assert layer.weight.device == layer.qweight.device == layer.packed_format.device
    assert layer.weight.dtype == dtype
    with torch.inference_mode():
        check(layer.cpu(), w, inputs(3, 200, dtype=dtype))
    layer.cuda()
    x = inputs(3, 200, dtype=dtype).cuda()
    check(layer, w, x)
    check_product(F.linear(x, layer.weight, layer.bias), layer, w, x)
    assert torch.equal(layer.weight.cpu(), w.to(dtype))


def test_bytes_at_any_address() -> None:
    layer, w = make(symmetric=False)
    layer.half().cuda()
    packed = layer.to_packed()
    moved = torch.cat([packed.qweight.new_zeros(5), packed.qweight.flatten()])[5:]
    moved = xgemm.PackedWeight(moved.view(packed.qweight.shape), 70, 200, 32, has_zeros=True)
    assert moved.qweight.data_ptr() % 16 != 0
    x = inputs(3, 200, dtype=torch.float16).cuda()
    with torch.no_grad():
        assert torch.equal(xgemm.linear(x, moved, layer.bias), layer(x))
        assert torch.equal(moved.dequantize().cpu(), w.float())
        assert torch.equal(xgemm.unpack(moved).codes, xgemm.unpack(packed).codes)
    assert PackedParameter(moved.qweight).data_ptr() % 16 == 0


def test_offloaded_to_memory() -> None:
    accelerate = pytest.importorskip("accelerate")
    model = build().half()
    expected = build().half().cuda()(X.half().cuda())
    accelerate.cpu_offload(model, execution_device=torch.device("cuda:0"))
    assert model[0].qweight.is_meta
    with torch.no_grad():
        assert torch.equal(model(X.half().cuda()), expected)


def test_in_a_cuda_graph() -> None:
    model = nn.Sequential(make(act_order=True)[0]).half().cuda()
    x = inputs(3, 200, dtype=torch.float16).cuda()
    with torch.no_grad():
        expected = model(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        y.zero_()
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, expected)
