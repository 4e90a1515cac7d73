"""mul, mul_into, sgemm and sgemm_into on CUDA against float64, element by element."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F

import xgemm  # noqa: F401  (registers the ops)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

UNIT = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}
ACTIVATIONS = {
    "none": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


def assert_close(y: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **fused: object) -> None:
    """|y - float64| <= rounding of the result + fp32 accumulation over K, element by element."""
    wide_a, wide_b = a.double(), b.double()
    exact, magnitude = wide_a @ wide_b, wide_a.abs() @ wide_b.abs()
    bias = fused.get("bias")
    if isinstance(bias, torch.Tensor):
        exact, magnitude = exact + bias.double(), magnitude + bias.double().abs()
    # Every activation's slope is below 1.13; its own fp32 evaluation costs a few units.
    accumulated = 1.13 * magnitude * (a.shape[-1] + 8) * 2.0**-24
    expected = ACTIVATIONS[str(fused.get("activation", "none"))](exact)
    tiny = 2.0**-24 if y.dtype == torch.float16 else 1e-37
    bound = accumulated + (expected.abs() + accumulated) * UNIT[y.dtype] * 1.01 + tiny
    bound = bound + 4e-7 * exact.abs() * (fused.get("activation", "none") != "none")
    error = (y.double() - expected).abs()
    worst = (error / bound).nan_to_num(nan=float("inf")).max().item() if y.numel() else 0.0
    assert y.shape == exact.shape
    assert worst <= 1, f"{worst:.2f} of the bound at {tuple(a.shape)} x {tuple(b.shape)}"


def operand(
    rng: random.Random, rows: int, columns: int, dtype: torch.dtype, batch: list[int]
) -> torch.Tensor:
    """A random view [*batch, rows, columns]: row- or column-major, padded, offset or strided."""
    kind = rng.choice(["rows", "columns", "padded", "aligned", "offset", "strided"])
    make = lambda *shape: torch.randn(*shape, device="cuda", dtype=dtype)  # noqa: E731
    if kind == "rows":
        return make(*batch, rows, columns)
    if kind == "columns":
        return make(*batch, columns, rows).mT
    if kind == "padded":
        return make(*batch, rows, columns + 3)[..., :columns]
    if kind == "aligned":
        return make(*batch, columns, -(-rows // 8) * 8 + 8).mT[..., :rows, :]
    if kind == "offset":
        return make(*batch, rows, columns + 1)[..., 1:]
    return make(*batch, rows, 2 * columns)[..., ::2]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_random_problems(seed: int, dtype: torch.dtype) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(40):
        most = rng.choice([8, 40, 300, 1200])
        m, n, k = (rng.choice([rng.randint(0, most), 8 * rng.randint(0, most // 8)]) for _ in "mnk")
        batch = rng.choice([[], [], [], [3], [2, 3]])
        a = operand(rng, m, k, dtype, batch)
        b = operand(rng, k, n, dtype, rng.choice([[], batch]))
        bias = torch.randn(n, device="cuda", dtype=dtype) if rng.random() < 0.5 else None
        activation = rng.choice(list(ACTIVATIONS))
        y = torch.ops.xgemm.mul(a, b, bias, activation=activation)
        assert_close(y, a, b, bias=bias, activation=activation)
        again = torch.ops.xgemm.mul(a, b, bias, activation=activation)
        assert torch.equal(y, again), "not the same bits twice"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(2048, 2048, 2048), (4096, 264, 1000), (16, 4096, 4096), (1, 28672, 4096), (129, 8200, 4104)],
)
def test_large_products_in_all_layouts(m: int, n: int, k: int, dtype: torch.dtype) -> None:
    a, b = (
        torch.randn(m, k, device="cuda", dtype=dtype),
        torch.randn(k, n, device="cuda", dtype=dtype),
    )
    for a_view in (a, a.t().contiguous().t()):
        for b_view in (b, b.t().contiguous().t()):
            assert_close(torch.ops.xgemm.mul(a_view, b_view), a_view, b_view)


HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


@pytest.mark.skipif(not HOPPER, reason="needs a GPU of compute capability 9.0")
@pytest.mark.parametrize(
    ("m", "n", "tile"),
    [
        (2560, 2560, "tile 128x256, 4 stages of 64 k, cluster of 2"),
        (100, 33792, "tile 128x256, 4 stages of 64 k, cluster of 1"),
        (200, 264, "tile 128x128, 6 stages of 64 k, cluster of 1"),
    ],
)
def test_every_tile_of_the_sm90_kernel(m: int, n: int, tile: str) -> None:
    """Small enough in K for compute-sanitizer: each tile, layout and way to store."""
    k = 72
    for dtype in (torch.float16, torch.bfloat16):
        said = torch.ops.xgemm.explain("mul", m, n, k, dtype=str(dtype)[6:], device="cuda")
        assert tile in said
        a = torch.randn(m, k, device="cuda", dtype=dtype)
        b = torch.randn(k, n, device="cuda", dtype=dtype)
        by_column = torch.empty(n, m, device="cuda", dtype=dtype).t()
        for a_view in (a, a.t().contiguous().t()) if m % 8 == 0 else (a,):
            for b_view in (b, b.t().contiguous().t()):
                assert_close(torch.ops.xgemm.mul(a_view, b_view), a, b)
                torch.ops.xgemm.mul_into(by_column, a_view, b_view, activation="gelu")
                assert_close(by_column, a, b, activation="gelu")


def test_into_a_strided_destination() -> None:
    a, b = torch.randn(100, 64, device="cuda").half(), torch.randn(64, 80, device="cuda").half()
    for buffer in (
        torch.full((100, 200), 7.0),
        torch.full((200, 100), 7.0),
        torch.full((100, 161), 7.0),
    ):
        buffer = buffer.cuda().half()
        dst = buffer[:, 1:161:2] if buffer.shape[1] >= 161 else buffer.t()[:, :80]
        torch.ops.xgemm.mul_into(dst, a, b)
        assert_close(dst, a, b)
        assert (buffer == 7).sum() >= buffer.numel() - dst.numel()


def test_one_dimensional_and_broadcast_operands() -> None:
    for a_shape, b_shape in [
        ((5,), (5,)),
        ((5,), (5, 3)),
        ((4, 5), (5,)),
        ((2, 1, 4, 5), (3, 5, 6)),
        ((7, 4, 5), (5, 6)),
    ]:
        a, b = (
            torch.randn(a_shape, device="cuda").half(),
            torch.randn(b_shape, device="cuda").half(),
        )
        assert_close(torch.ops.xgemm.mul(a, b), a, b)


def test_more_batch_dimensions_than_a_launch_takes() -> None:
    shape = [2] * 10
    a = torch.randn(*shape, 2, 3, device="cuda").permute(*reversed(range(10)), 10, 11)
    b = torch.randn(*shape, 3, 2, device="cuda")
    assert_close(torch.ops.xgemm.mul(a, b), a, b)


def test_nan_and_inf_pass_through() -> None:
    a, b = torch.randn(64, 128, device="cuda").half(), torch.randn(128, 256, device="cuda").half()
    a[3, 5], a[9, 0], b[7, 100] = float("nan"), float("inf"), float("-inf")
    for view in (a, torch.cat([a, a], 1)[:, :128].as_strided((64, 128), (256, 1))):
        y, expected = torch.ops.xgemm.mul(view, b), view.double() @ b.double()
        assert torch.equal(y.isfinite(), expected.isfinite())
        assert torch.equal(y.isnan(), expected.isnan())


def test_sgemm_has_blas_semantics() -> None:
    torch.manual_seed(0)
    for transa in (False, True):
        for transb in (False, True):
            a, b = torch.randn(70, 50, device="cuda"), torch.randn(50, 90, device="cuda")
            c = torch.randn(70, 90, device="cuda")
            given_a, given_b = (
                a.t().contiguous() if transa else a,
                b.t().contiguous() if transb else b,
            )
            y = torch.ops.xgemm.sgemm(
                given_a, given_b, c, transa=transa, transb=transb, alpha=0.5, beta=2.0
            )
            torch.testing.assert_close(
                y.double(), 0.5 * (a.double() @ b.double()) + 2 * c.double(), rtol=1e-5, atol=1e-5
            )
            unread = torch.full_like(c, float("nan"))
            torch.ops.xgemm.sgemm_into(unread, given_a, given_b, transa=transa, transb=transb)
            assert_close(unread, a, b)


def test_graph_replay_and_side_stream() -> None:
    a, b = (
        torch.randn(256, 512, device="cuda").bfloat16(),
        torch.randn(512, 384, device="cuda").bfloat16(),
    )
    torch.ops.xgemm.mul(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.ops.xgemm.mul(a, b, activation="silu")
    a.copy_(torch.randn_like(a))
    graph.replay()
    assert_close(y, a, b, activation="silu")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        a.mul_(2)
        z = torch.ops.xgemm.mul(a, b)
    stream.synchronize()
    assert_close(z, a, b)


def test_gradients_equal_torch() -> None:
    a = torch.randn(40, 64, device="cuda", requires_grad=True)
    b = torch.randn(64, 48, device="cuda", requires_grad=True)
    torch.ops.xgemm.mul(a, b, activation="gelu").square().sum().backward()
    got = a.grad, b.grad
    a64, b64 = (t.detach().double().requires_grad_() for t in (a, b))
    F.gelu(a64 @ b64).square().sum().backward()
    for g, expected in zip(got, (a64.grad, b64.grad), strict=True):
        torch.testing.assert_close(g.double(), expected, rtol=1e-4, atol=1e-3)


def test_operands_on_two_devices_are_named() -> None:
    with pytest.raises(ValueError, match="mul: b must be on"):
        torch.ops.xgemm.mul(torch.randn(3, 3, device="cuda"), torch.randn(3, 3))
