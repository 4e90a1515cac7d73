"""Products of float32 operands on CUDA against float64, for each precision.

Fast where the precision is asked for, and never otherwise: torch's own switches change nothing.
"""

from __future__ import annotations

import pytest
import torch
from random_products import OF_A_PRODUCT, PRECISIONS

import xgemm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SHAPES = (
    (1, 1, 1),
    (1, 4096, 4096),
    (4096, 1, 512),
    (5, 300, 77),
    (16, 1000, 129),
    (64, 64, 4000),
    (129, 257, 33),
    (128, 128, 65536),
    (256, 128, 31),
    (1000, 3333, 555),
    (1024, 1024, 1024),
    (2048, 511, 3201),
)


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


def share(
    y: torch.Tensor, a: torch.Tensor, b: torch.Tensor, precision: str, beyond: float = 0.0
) -> float:
    """The largest error as a share of its bound; infinite where NaN."""
    exact, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    unit = (a.shape[-1] + 8) * 2.0**-24 + OF_A_PRODUCT[precision]
    bound = unit * magnitude + 2.0**-23 * exact.abs() + beyond + 1e-37
    return float(((y.double() - exact).abs() / bound).nan_to_num(nan=float("inf")).max())


def views(x: torch.Tensor) -> list[torch.Tensor]:
    """Row-major, column-major, with a leading dimension that nothing is aligned to, strided."""
    rows, columns = x.shape
    padded = torch.full((rows, columns + 3), float("nan"), device="cuda")[:, 1 : columns + 1]
    strided = torch.full((rows, 2 * columns), float("nan"), device="cuda")[:, ::2]
    padded.copy_(x)
    strided.copy_(x)
    return [x, x.t().contiguous().t(), padded, strided]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_in_all_layouts(shape: tuple[int, int, int], precision: str) -> None:
    torch.manual_seed(0)
    m, n, k = shape
    a, b = randn(m, k), randn(k, n)
    for a_view in views(a):
        for b_view in views(b):
            torch.full((m, n), float("nan"), device="cuda")  # where the result will likely lie
            y = torch.ops.xgemm.mul(a_view, b_view, precision=precision)
            found = share(y, a, b, precision)
            assert found <= 1, (
                f"{found:.3g} of the bound, strides {a_view.stride()} {b_view.stride()}"
            )
            assert torch.equal(y, torch.ops.xgemm.mul(a_view, b_view, precision=precision))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_sgemm_has_blas_semantics(precision: str) -> None:
    torch.manual_seed(1)
    m, n, k = 300, 500, 260
    a, b, c = randn(m, k), randn(k, n), randn(m, n)
    for transa in (False, True):
        for transb in (False, True):
            given = (a.t().contiguous() if transa else a, b.t().contiguous() if transb else b)
            options = {"transa": transa, "transb": transb, "precision": precision}
            y = torch.ops.xgemm.sgemm(*given, c, alpha=0.5, beta=2.0, **options)
            beyond = float(c.abs().max()) * 2.0**-20
            assert share(2 * (y - 2 * c), a, b, precision, beyond) <= 1
            unread = torch.full_like(c, float("nan"))
            torch.ops.xgemm.sgemm_into(unread, *given, **options)
            assert share(unread, a, b, precision) <= 1
            torch.ops.xgemm.sgemm_into(unread, *given, alpha=0.0, beta=0.0, **options)
            assert (unread == 0).all()
            in_place = c.clone()
            torch.ops.xgemm.sgemm_into(in_place, *given, alpha=0.5, beta=2.0, **options)
            assert torch.equal(in_place, y)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_batches_bias_and_strided_destinations(precision: str) -> None:
    torch.manual_seed(2)
    for batch_a, batch_b in (([3], [3]), ([3], []), ([], [3]), ([2, 1], [3]), ([2, 3], [2, 1])):
        a, b, bias = randn(*batch_a, 130, 72), randn(*batch_b, 72, 300), randn(300)
        y = torch.ops.xgemm.mul(a, b, bias, activation="relu", precision=precision)
        wide = torch.matmul(a.double(), b.double()) + bias.double()
        error = (y.double() - wide.relu()).abs()
        magnitude = torch.matmul(a.double().abs(), b.double().abs()) + bias.double().abs()
        assert (error <= magnitude * (90 * 2.0**-24 + OF_A_PRODUCT[precision])).all()
    a, b = randn(200, 64), randn(64, 260)
    for shape in ((200, 264), (260, 203)):
        buffer = torch.full(shape, 7.0, device="cuda")
        dst = buffer[:, :260] if shape[0] == 200 else buffer.t()[:200]
        torch.ops.xgemm.mul_into(dst.fill_(float("nan")), a, b, precision=precision)
        assert share(dst, a, b, precision) <= 1
        assert (buffer == 7.0).sum() >= buffer.numel() - dst.numel()


@pytest.mark.parametrize("k", [2048, 8192])
@pytest.mark.parametrize("values", ["normal", "positive", "rows and columns of other scales"])
def test_three_products_are_as_exact_as_cublas(values: str, k: int) -> None:
    torch.manual_seed(3)
    a, b = randn(512, k), randn(k, 512)
    if values == "positive":
        a, b = a.abs(), b.abs()
    elif values != "normal":
        a *= 10.0 ** torch.empty(512, 1, device="cuda").uniform_(-8, 8)
        b *= 10.0 ** torch.empty(1, 512, device="cuda").uniform_(-8, 8)
    exact, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    cublas = ((a @ b - exact) / magnitude).square().mean().sqrt()
    torch.backends.cuda.matmul.allow_tf32 = before
    ours = torch.ops.xgemm.mul(a, b, precision="tf32x3")
    assert ((ours - exact) / magnitude).square().mean().sqrt() <= cublas


def test_torchs_switches_change_nothing() -> None:
    torch.manual_seed(4)
    a, b = randn(512, 1024), randn(1024, 512)
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for precision in PRECISIONS:
            results = []
            for allowed in (False, True):
                torch.backends.cuda.matmul.allow_tf32 = allowed
                results.append(torch.ops.xgemm.mul(a, b, precision=precision))
            assert torch.equal(*results)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_is_not_finite_stays_so(precision: str) -> None:
    torch.manual_seed(5)
    a, b = randn(300, 520), randn(520, 400)
    a[7, 3], a[9, 519] = float("nan"), float("inf")
    b[100, 11] = float("-inf")
    y = torch.ops.xgemm.mul(a, b, precision=precision)
    finite = torch.isfinite(a.double() @ b.double())
    assert torch.equal(torch.isfinite(y), finite)
    assert y[7].isnan().all()
    if precision == "ieee":
        assert torch.equal(y.isnan(), (a.double() @ b.double()).isnan())


def test_ieee_keeps_subnormal_and_large_numbers() -> None:
    a, b = torch.full((64, 16), 2.0**-149, device="cuda"), torch.ones(16, 64, device="cuda")
    assert (torch.ops.xgemm.mul(a, b) == 2.0**-145).all()
    a.fill_(3.4e38)
    b.fill_(1 / 16)
    for precision in ("ieee", "tf32x3"):
        y = torch.ops.xgemm.mul(a, b, precision=precision)
        assert ((y.double() / 3.4e38 - 1).abs() < 1e-6).all()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_in_a_graph_and_on_a_side_stream(precision: str) -> None:
    torch.manual_seed(6)
    a, b = randn(1024, 512), randn(512, 640)
    expected = torch.ops.xgemm.mul(a, b, precision=precision)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        beside = torch.ops.xgemm.mul(a, b, precision=precision)
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(beside, expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.ops.xgemm.mul(a, b, precision=precision)
    y.fill_(float("nan"))
    graph.replay()
    assert torch.equal(y, expected)


def test_explain_knows_the_precision() -> None:
    for op in ("mul", "sgemm"):
        for precision in PRECISIONS:
            said = xgemm.explain(
                op, 4096, 4096, 4096, dtype="float32", device="cuda", precision=precision
            )
            tensor_cores = precision != "ieee" and torch.cuda.get_device_capability() == (9, 0)
            expected = "tf32" if tensor_cores else "fp32"
            assert said["choice"]["kernel"].startswith(expected)
            assert said["problem"]["precision"] == precision
