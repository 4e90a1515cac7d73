"""Q4_K of GGUF files: its codes taken over, against the package gguf, which dequantizes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

gguf = pytest.importorskip("gguf")
pytest.importorskip("transformers")

from xgemm.hf.gguf_q4_k import BLOCK_BYTES, q4_k_weight  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def random_blocks(n: int, blocks: int, d: np.ndarray, dmin: np.ndarray) -> np.ndarray:
    """uint8 [n, blocks * 144] of random scales, minimums and codes."""
    raw = np.random.default_rng(0).integers(0, 256, (n, blocks, BLOCK_BYTES), dtype=np.uint8)
    raw[..., :2] = np.broadcast_to(d, (n, blocks)).astype(np.float16)[..., None].view(np.uint8)
    raw[..., 2:4] = np.broadcast_to(dmin, (n, blocks)).astype(np.float16)[..., None].view(np.uint8)
    return raw.reshape(n, -1)


def dequantized(blocks: np.ndarray) -> torch.Tensor:
    floats = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.Q4_K)
    return torch.from_numpy(np.array(floats, dtype=np.float64))


def test_weights_move_by_one_rounding_of_scale_and_of_zero_point() -> None:
    rng = np.random.default_rng(1)
    d, dmin = rng.uniform(1e-4, 1e-2, (2, 24, 3))
    blocks = random_blocks(24, 3, d, dmin)
    found = q4_k_weight(blocks)
    assert (found.codes.shape, found.scales.shape, found.group_size) == ((24, 768), (24, 24), 32)
    expected = dequantized(blocks)
    # d * s * q - dmin * m: the code is in the file, so the minimum is what is left.
    scales = found.scales.double().t().repeat_interleave(32, 1) * found.codes
    bound = 2.0**-11 * (scales + (scales - expected).abs()) * 1.01
    error = (found.dequantize(torch.float64) - expected).abs()
    assert bool((error <= bound).all())
    assert float(error.max()) > 0  # as 17 bits do not fit into 11


def test_what_fits_is_exact() -> None:
    """d a power of two, so that d * s is an fp16 number, and dmin = d: whole zero points m / s."""
    blocks = random_blocks(8, 2, np.array(2.0**-9), np.array(2.0**-9))
    raw = blocks.reshape(8, 2, BLOCK_BYTES)
    raw[..., 4:16] = 0x11  # every scale 1 or 17, minimums alike
    raw[..., 4:8] = 2
    raw[..., 8:12] = 6
    raw[..., 12:16] = 0x42  # scales 2, minimums 4
    found = q4_k_weight(blocks)
    assert torch.equal(found.dequantize(torch.float64), dequantized(blocks))
    assert found.zeros.unique().tolist() == [2.0, 3.0]


@pytest.mark.parametrize(("d", "dmin"), [(0.0, 0.25), (0.0, 0.0), (2.0**-24, 0.5), (0.0, -0.25)])
def test_groups_without_a_scale_are_constants(d: float, dmin: float) -> None:
    blocks = random_blocks(4, 1, np.array(d), np.array(dmin))
    if d:
        blocks.reshape(4, 1, BLOCK_BYTES)[..., 4:16] = 1
    found = q4_k_weight(blocks)
    expected = dequantized(blocks)
    assert bool(torch.isfinite(found.zeros).all())
    assert float((found.dequantize(torch.float64) - expected).abs().max()) <= max(15 * 63 * d, 0)


def test_other_bytes_are_refused() -> None:
    for blocks in (np.zeros((2, 143), np.uint8), np.zeros((2, 144), np.int8)):
        with pytest.raises(ValueError, match=r"blocks must be uint8 \[N, a multiple of 144\], got"):
            q4_k_weight(blocks)


def test_the_reader_of_files_takes_it_over() -> None:
    from xgemm.hf.gguf import GgufTensor

    blocks = random_blocks(4, 1, np.array(0.01), np.array(0.01))
    tensor = GgufTensor("up", True, "Q4_K", (4, 256), lambda: blocks)
    weight = tensor.packed_weight()
    assert weight is not None
    assert torch.equal(weight.codes, q4_k_weight(blocks).codes)


def test_load_takes_a_file(tmp_path: Path) -> None:
    from test_gguf import TAKEN, write_gguf

    import xgemm
    from xgemm.nn import QuantLinear

    path = write_gguf(tmp_path / "tiny.gguf")
    model = xgemm.load(path, dtype=torch.bfloat16)
    packed = [name for name, m in model.named_modules() if isinstance(m, QuantLinear)]
    assert [name.rpartition(".")[2] for name in packed] == TAKEN
    assert model.get_parameter("model.norm.weight").dtype == torch.bfloat16
    assert bool(model(torch.tensor([[1, 2, 3]])).logits.isfinite().all())
    with pytest.raises(ValueError, match=r"load: .*tiny\.gguf is a GGUF file: load it without"):
        xgemm.load(path, model=model)
    (tmp_path / "model.bin").write_bytes(b"pickle")
    with pytest.raises(FileNotFoundError, match=r"config\.json is missing"):
        xgemm.load(tmp_path / "model.bin")
