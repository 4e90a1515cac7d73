"""moe_sort and moe.w4a16 against float64, on the CPU and on CUDA."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from moe import FORMATS, Mixture, check, mixture, run_op, sorted_slots

HALVES = (torch.float16, torch.bfloat16)
FLOATS = (torch.float32, *HALVES)
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu", "silu_and_mul", "gelu_tanh_and_mul")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

ops = torch.ops.xgemm


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_sort(dtype: torch.dtype, device: str) -> None:
    sizes = ((1, 1, 1), (0, 4, 3), (3, 0, 3), (7, 3, 5), (64, 8, 128), (700, 6, 64), (5000, 2, 600))
    for tokens, top_k, experts in sizes:
        ids = torch.randint(-2, experts + 3, (tokens, top_k)).to(dtype)
        found = ops.moe_sort(ids.to(device), experts)
        assert torch.equal(found.cpu(), sorted_slots(ids, experts)), (tokens, top_k, experts)
    all_of_one = torch.full((300, 4), 2, dtype=dtype)
    expected = sorted_slots(all_of_one, 4)
    assert torch.equal(ops.moe_sort(all_of_one.to(device), 4).cpu(), expected)
    strided = torch.randint(0, 9, (4, 50)).to(dtype).t()
    assert torch.equal(ops.moe_sort(strided.to(device), 9).cpu(), sorted_slots(strided, 9))
    huge = torch.tensor([[2**31 - 1, -(2**31), 1]]).to(dtype)
    assert ops.moe_sort(huge.to(device), 2).cpu().tolist() == [0, 0, 1, 2, 0, 1]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("group_size", "zeros", "scales"), FORMATS, ids=str)
def test_formats(
    group_size: int, zeros: str, scales: torch.dtype, dtype: torch.dtype, device: str
) -> None:
    form = (dtype, group_size, zeros, scales)
    check(mixture(6, 2, 5, 70, 300, *form, bias=True, strangers=True).to(device))
    check(mixture(40, 3, 4, 33, 129, *form, act_order=True, rows="slots").to(device))
    check(mixture(1, 4, 8, 128, 512, *form, weights=dtype, activation="silu_and_mul").to(device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_activations(activation: str, dtype: torch.dtype, device: str) -> None:
    for n in (256, 66):  # a gate that ends with a row of units, and one that does not
        options: dict[str, Any] = {"activation": activation, "bias": True}
        check(mixture(5, 2, 4, n, 200, dtype, **options).to(device))
        check(mixture(9, 2, 4, n, 200, dtype, weights=torch.float32, **options).to(device))


@pytest.mark.parametrize("device", DEVICES)
def test_edges(device: str) -> None:
    for n, k in ((1, 1), (65, 7), (64, 128), (200, 129), (2, 1000)):
        for tokens, top_k, experts in ((1, 1, 1), (3, 1, 2), (70, 2, 1), (2, 9, 3)):
            check(mixture(tokens, top_k, experts, n, k, group_size=32).to(device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("weights", FLOATS, ids=str)
def test_weights(weights: torch.dtype, device: str) -> None:
    for top_k in (1, 2, 7):
        options: dict[str, Any] = {"weights": weights, "strangers": True}
        check(mixture(11, top_k, 6, 90, 256, torch.bfloat16, **options).to(device))


@pytest.mark.parametrize("device", DEVICES)
def test_many_rows_of_one_expert(device: str) -> None:
    m = mixture(300, 1, 3, 96, 256, rows="slots")
    m.ids.fill_(1)
    check(m.to(device))


@pytest.mark.parametrize("device", DEVICES)
def test_empty(device: str) -> None:
    for m in (
        mixture(0, 2, 3, 64, 128, weights=torch.float16),
        mixture(0, 2, 3, 64, 128),
        mixture(4, 2, 3, 0, 128, weights=torch.float16),
        mixture(4, 2, 3, 20, 0, bias=True),
    ):
        check(m.to(device))
    m = mixture(4, 2, 3, 64, 128, bias=True).to(device)
    m.ids.fill_(-1)
    assert not run_op(m).any()


@pytest.mark.parametrize("device", DEVICES)
def test_strides(device: str) -> None:
    m = mixture(6, 2, 4, 64, 136).to(device)
    for strided in (
        m.a.t().contiguous().t(),
        torch.nn.functional.pad(m.a, (0, 5))[:, :136],
        torch.nn.functional.pad(m.a, (3, 5))[:, 3:139],
        m.a[:1].expand(6, -1),
    ):
        whole = Mixture(m.weights_4bit, m.ids, strided).to(device)
        check(whole)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_bad_row_is_its_own(value: float, device: str) -> None:
    m = mixture(20, 1, 2, 64, 256)
    m.a[3, 50] = value
    y = run_op(m.to(device)).cpu()
    assert not y[3].isfinite().any()
    m.a[3] = 0
    others = [t for t in range(20) if t != 3]
    assert torch.equal(run_op(m.to(device)).cpu()[others], y[others])


GOOD = mixture(4, 2, 3, 64, 128, bias=True, weights=torch.float16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: torch.zeros(4, 128, dtype=torch.float64)}, "a must be .*, got float64"),
        ({0: torch.zeros(4, 127).half()}, r"a must have the shape \[rows, k=128\], got \[4, 127\]"),
        ({0: torch.zeros(5, 128).half()}, r"a must have a row for each of 4 tokens or of 8 slots"),
        ({1: torch.zeros(3, 1, 9, dtype=torch.uint8)}, r"qweight must have the shape \[experts, 1"),
        ({2: torch.zeros(3, dtype=torch.int32)}, r"sorted must be moe_sort's result for 3 experts"),
        (
            {2: torch.zeros(13, dtype=torch.int32)},
            "sorted must be .* multiple of top_k=2 slots, got",
        ),
        ({2: torch.zeros(12)}, "sorted must be int32, got float32"),
        ({3: 0}, "top_k must be in .*, got 0"),
        ({4: -1}, "n must be in .*, got -1"),
        ({6: 48}, "group_size must be 32, 64, 128 or -1, got 48"),
        ({7: torch.zeros(3, 63).half()}, r"bias must have the shape \[3, 64\], got \[3, 63\]"),
        ({7: torch.zeros(3, 64)}, "bias must have the dtype of a, float16, got float32"),
        ({8: torch.zeros(128, dtype=torch.int32)}, r"perm must have the shape \[3, 128\]"),
        ({8: torch.zeros(3, 128)}, "perm must be int32, got float32"),
        ({9: torch.zeros(8, 1).half()}, r"weights must have the shape \[4, 2\], got \[8, 1\]"),
        ({9: torch.zeros(4, 2, dtype=torch.int32)}, "weights must be .*, got int32"),
        ({"activation": "swish"}, "activation must be one of 'none', .*, got 'swish'"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_bad_input(change: dict[Any, Any], message: str, device: str) -> None:
    args: list[Any] = list(GOOD.args(ops.moe_sort(GOOD.ids, 3)))
    options = GOOD.options()
    for place, value in change.items():
        if isinstance(place, str):
            options[place] = value
        else:
            args[place] = value
    args = [x.to(device) if isinstance(x, torch.Tensor) else x for x in args]
    with pytest.raises(ValueError, match=f"moe.w4a16: {message}"):
        ops.moe.w4a16(*args, **options)


def test_an_odd_gate() -> None:
    m = mixture(4, 2, 3, 63, 128, activation="silu_and_mul")
    with pytest.raises(ValueError, match="n must be even, a gate and what it multiplies, got 63"):
        run_op(m)


def test_bad_values_on_the_cpu() -> None:
    sorted = ops.moe_sort(GOOD.ids, 3)
    for index, value, message in ((1, -1, "bounds 0 and -1"), (3, 9, "and 9 of"), (5, 8, "slot 8")):
        wrong = sorted.clone()
        wrong[index] = value
        with pytest.raises(ValueError, match=f"sorted must be moe_sort's result, got .*{message}"):
            ops.moe.w4a16(*GOOD.args(wrong), **GOOD.options())
    m = mixture(4, 2, 3, 64, 128, group_size=32, act_order=True)
    args = list(m.args(sorted))
    args[8][1, 5] = 128
    with pytest.raises(ValueError, match=r"perm must hold channels in \[0, 128\), got 128"):
        ops.moe.w4a16(*args)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_bad_ids(device: str) -> None:
    for ids, experts, message in (
        (torch.zeros(4, dtype=torch.int32), 2, r"ids must have the shape \[T, k\], got \[4\]"),
        (torch.zeros(4, 1), 2, "ids must be int32 or int64, got float32"),
        (torch.zeros(4, 1, dtype=torch.int32), 0, "experts must be in .*, got 0"),
    ):
        with pytest.raises(ValueError, match=f"moe_sort: {message}"):
            ops.moe_sort(ids.to(device), experts)


def test_no_gradient_is_lost_silently() -> None:
    args = list(GOOD.args(ops.moe_sort(GOOD.ids, 3)))
    for place, name in ((0, "a"), (7, "bias"), (9, "weights")):
        wanted = [*args]
        wanted[place] = args[place].clone().requires_grad_()
        with pytest.raises(ValueError, match=f"moe.w4a16: {name} must not require a gradient"):
            ops.moe.w4a16(*wanted)
        with torch.no_grad():
            assert torch.equal(ops.moe.w4a16(*wanted), ops.moe.w4a16(*args))


def test_compiled() -> None:
    m = mixture(6, 2, 3, 64, 128, weights=torch.float32, activation="silu_and_mul")

    def layer(a: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        sorted = ops.moe_sort(ids, 3)
        args = m.args(sorted)
        return ops.moe.w4a16(a * 2, *args[1:], **m.options()) + 1

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for tokens in (6, 3, 5):
        a, ids = m.a[:tokens], m.ids[:tokens]
        m_weights = m.weights
        assert m_weights is not None
        m.weights = m_weights[:tokens]
        assert torch.equal(compiled(a, ids), layer(a, ids))
        m.weights = m_weights


def test_a_sample_at_a_time() -> None:
    m = mixture(6, 2, 3, 64, 128)
    _, *rest = m.args(ops.moe_sort(m.ids, 3))
    batch = torch.stack([m.a, m.a * 2])
    y = torch.vmap(lambda a: ops.moe.w4a16(a, *rest))(batch)
    assert torch.equal(y, torch.stack([ops.moe.w4a16(a, *rest) for a in batch]))
    ids = torch.stack([m.ids, m.ids.flip(0)])
    sorted = torch.vmap(lambda i: ops.moe_sort(i, 3))(ids)
    assert torch.equal(sorted, torch.stack([ops.moe_sort(i, 3) for i in ids]))


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ["none", "silu_and_mul"])
def test_a_graph_takes_other_experts(activation: str) -> None:
    """Captured once with some ids and replayed with others, among them none at all."""
    form: dict[str, Any] = {"weights": torch.float32, "activation": activation, "strangers": True}
    m = mixture(30, 4, 40, 256, 512, **form).to("cuda")
    run_op(m)  # loads the kernels
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = run_op(m)
    for seed in range(4):
        ids = torch.randint(-2, 42, m.ids.shape, generator=torch.Generator().manual_seed(seed))
        m.ids.copy_(ids if seed else torch.full_like(ids, -1))
        graph.replay()
        check(m, lambda _: y)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize(("group_size", "zeros", "scales"), FORMATS, ids=str)
def test_a_row_does_not_depend_on_the_others(
    group_size: int, zeros: str, scales: torch.dtype, dtype: torch.dtype
) -> None:
    """Bit by bit: whatever the tile, and whatever other experts get."""
    m = mixture(400, 2, 6, 192, 1100, dtype, group_size, zeros, scales, bias=True).to("cuda")
    whole = run_op(m).view(400, 2, -1)
    for rows in (slice(0, 1), slice(7, 9), slice(3, 30), slice(100, 201)):
        part = Mixture(m.weights_4bit, m.ids[rows], m.a[rows], m.bias).to("cuda")
        assert torch.equal(run_op(part).view_as(whole[rows]), whole[rows]), rows


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("form", [form for form in FORMATS if form[1] == "none"], ids=str)
def test_both_kernels_give_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, form: tuple[int, str, torch.dtype], dtype: torch.dtype
) -> None:
    """Without zero points, so that nobody sees which of them the number of rows decides for."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma is compute capability 9.0's")
    for m in (
        mixture(200, 3, 6, 192, 1100, dtype, *form, bias=True),
        mixture(90, 2, 4, 256, 512, dtype, *form, activation="silu_and_mul"),
    ):
        on_gpu, found = m.to("cuda"), []
        for kernel in ("mma_sync", "wgmma:16", "wgmma:32", "wgmma:64"):
            monkeypatch.setenv("XGEMM_MOE_KERNEL", kernel)
            found.append(run_op(on_gpu))
        assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.gpu
def test_a_layer_is_the_same_in_every_run() -> None:
    """Each kernel starts under the one before it: one that did not wait would differ at times."""
    up = mixture(64, 8, 128, 512, 256, activation="silu_and_mul").to("cuda")
    down = mixture(64, 8, 128, 256, 256, rows="slots", weights=torch.float32, seed=9).to("cuda")
    sorted = ops.moe_sort(up.ids, 128)
    _, *up_rest = up.args(sorted)
    _, *down_rest = down.args(sorted)

    def layer() -> torch.Tensor:
        order = ops.moe_sort(up.ids, 128)
        up_rest[1] = down_rest[1] = order
        h = ops.moe.w4a16(up.a, *up_rest, **up.options())
        return ops.moe.w4a16(h, *down_rest, **down.options())

    first = layer()
    runs = [layer() for _ in range(200)]
    assert all(torch.equal(first, other) for other in runs)
