"""A stand-in for the package `kernels`, which fetches code from the Hub and runs it."""

from __future__ import annotations

from typing import Any

import pytest


def record_kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """From now on transformers believes that `kernels` is installed; what it asks for is listed."""
    from transformers import modeling_utils
    from transformers.integrations import hub_kernels

    asked: list[str] = []

    def get_kernel(name: str, *args: Any, **options: Any) -> Any:
        asked.append(name)
        raise ValueError(f"the stand-in for kernels was asked for {name}")

    for module in (modeling_utils, hub_kernels):
        monkeypatch.setattr(module, "is_kernels_available", lambda *args: True)
    monkeypatch.setattr(hub_kernels, "get_kernel", get_kernel)
    return asked
