"""Pages of 2 MiB under packed weights: what is asked for, and that no byte moves."""

from __future__ import annotations

import copy
import ctypes
from pathlib import Path

import pytest
import torch
from torch import nn

import xgemm
from xgemm.nn import large_pages
from xgemm.nn.large_pages import LARGE_PAGE, LEAST_BYTES, ask_for_large_pages


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The blocks that were asked for."""
    blocks: list[int] = []

    def madvise(address: ctypes.c_void_p, size: ctypes.c_size_t, advice: int) -> int:
        assert (size.value, advice) == (LARGE_PAGE, 25)
        blocks.append(address.value or 0)
        return 0

    monkeypatch.setattr(large_pages, "_madvise", lambda: madvise)
    return blocks


def covers(blocks: list[int], tensor: torch.Tensor) -> bool:
    first = tensor.data_ptr()
    wanted = range(first // LARGE_PAGE, (first + tensor.nbytes - 1) // LARGE_PAGE + 1)
    return set(wanted) <= {block // LARGE_PAGE for block in blocks}


def layer(n: int = 512, k: int = 512) -> xgemm.nn.QuantLinear:
    return xgemm.nn.QuantLinear.from_linear(nn.Linear(k, n, bias=False), group_size=32)


@pytest.mark.parametrize("size", [LEAST_BYTES, LARGE_PAGE, 5 * LARGE_PAGE + 4096 + 1])
@pytest.mark.parametrize("offset", [0, 4096, LARGE_PAGE - 64])
def test_every_block_that_a_tensor_touches_is_asked_for_once(
    asked: list[int], size: int, offset: int
) -> None:
    memory = torch.empty(size + offset + LARGE_PAGE, dtype=torch.uint8)
    tensor = memory[-memory.data_ptr() % LARGE_PAGE + offset :][:size]
    ask_for_large_pages(tensor)
    assert covers(asked, tensor)
    assert len(asked) == len(set(asked)) == -(-(offset + size) // LARGE_PAGE)
    assert all(block % LARGE_PAGE == 0 for block in asked)


def test_small_and_meta_tensors_are_left_alone(asked: list[int]) -> None:
    ask_for_large_pages(torch.empty(LEAST_BYTES - 1, dtype=torch.uint8))
    ask_for_large_pages(torch.empty(1 << 30, dtype=torch.uint8, device="meta"))
    assert asked == []


def test_layers_ask_however_they_come_by_their_weight(asked: list[int]) -> None:
    made = layer()
    assert covers(asked, made.qweight)
    asked.clear()
    loaded = layer()
    asked.clear()
    loaded.load_state_dict(made.state_dict())
    assert covers(asked, loaded.qweight)
    asked.clear()
    copied = copy.deepcopy(made)
    assert covers(asked, copied.qweight)
    asked.clear()
    moved = copy.deepcopy(made).to("meta").to_empty(device="cpu")
    assert covers(asked, moved.qweight)


def test_never_is_respected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    setting = tmp_path / "enabled"
    monkeypatch.setattr(large_pages, "_SETTING", setting)
    for text, wanted in (("always madvise [never]", False), ("always [madvise] never", True)):
        setting.write_text(text)
        large_pages._madvise.cache_clear()
        assert (large_pages._madvise() is not None) is wanted
    setting.unlink()
    large_pages._madvise.cache_clear()
    assert large_pages._madvise() is None
    large_pages._madvise.cache_clear()


def test_bytes_and_address_stay() -> None:
    """By the system itself, whatever it answers."""
    tensor = torch.randint(0, 256, (3 * LARGE_PAGE + 77,), dtype=torch.uint8)
    before, address = tensor.clone(), tensor.data_ptr()
    ask_for_large_pages(tensor)
    assert tensor.data_ptr() == address
    assert torch.equal(tensor, before)


def test_a_mapped_file_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * (LARGE_PAGE // 256) * 2)
    mapped = torch.from_file(str(path), shared=False, size=2 * LARGE_PAGE, dtype=torch.uint8)
    ask_for_large_pages(mapped)
    assert mapped[:256].tolist() == list(range(256))
    assert path.read_bytes()[-1] == 255
