"""Arguments of type str, boxed by the stable ABI, are freed: the headers' own reader is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import xgemm  # noqa: F401

CALLS = 100_000
# The headers' reader loses 48 bytes for each string: 4.8 MB in so many calls.
ALLOWED_BYTES = 2 << 20


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096


def _call_with_strings() -> None:
    a = torch.ones(2, 2)
    torch.ops.xgemm.mul.default(a, a, activation="relu", precision="ieee")


def _call_with_unknown_name() -> None:
    a = torch.ones(2, 2)
    with pytest.raises(ValueError, match="activation must be one of"):
        torch.ops.xgemm.mul.default(a, a, activation="an activation of a long name, on the heap")


def _call_with_optional_tensors() -> None:
    a = torch.ones(2, 2)
    torch.ops.xgemm.mul.default(a, a, a[0])
    torch.ops.xgemm.sgemm.default(a, a, a, beta=1.0)


@pytest.mark.parametrize(
    ("call", "calls"),
    [
        (_call_with_strings, CALLS),
        (_call_with_unknown_name, CALLS // 5),
        (_call_with_optional_tensors, CALLS),
    ],
)
def test_memory_stays(call: Callable[[], None], calls: int) -> None:
    with torch.inference_mode():
        for _ in range(2000):
            call()
        before = _resident_bytes()
        for _ in range(calls):
            call()
        grown = _resident_bytes() - before
    assert grown < ALLOWED_BYTES, f"{grown} bytes more after {calls} calls"
