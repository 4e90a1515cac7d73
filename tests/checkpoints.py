"""A small model and its checkpoint, for the tests of save and load."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import xgemm


class Net(nn.Module):
    def __init__(self, seed: int = 0, tie: bool = True) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(50, 48)
        self.up = nn.Linear(48, 200)
        self.down = nn.Linear(200, 48, bias=False)
        self.norm = nn.BatchNorm1d(48)
        self.head = nn.Linear(48, 50, bias=False)
        if tie:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.down(torch.relu(self.up(self.embed(tokens))))))


TOKENS = torch.arange(50)
SECTION = "quantization_config"


def quantized(seed: int = 0, **options: Any) -> Net:
    model = Net(seed).eval()
    xgemm.quantize(model, **{"group_size": 32, **options})
    return model


def same(a: nn.Module, b: nn.Module) -> None:
    with torch.inference_mode():
        assert torch.equal(a(TOKENS), b(TOKENS))


def load_into_new(path: Path, **options: Any) -> nn.Module:
    return xgemm.load(path, model=Net(seed=9).eval(), **options)


def weights(path: Path) -> Path:
    return path / "model.safetensors"


def edit(path: Path, change: Callable[[dict], None]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))
