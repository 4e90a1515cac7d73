"""The names of guards: what a reader that does not know the format stumbles over."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from xgemm.formats.guard import HINT, guard_names, guarded_name, guards
from xgemm.nn import QuantLinear


def test_a_guard_has_the_name_of_the_float_weight() -> None:
    assert guarded_name("model.layers.0.mlp.up_proj.qweight") == "model.layers.0.mlp.up_proj.weight"
    assert guarded_name("mlp.experts.gate_up_proj_qweight") == "mlp.experts.gate_up_proj"
    assert guarded_name("qweight") == "weight"
    for other in ("up.bias", "up.perm", "up.packed_format", "qweight.scale", "experts.down_bias"):
        assert guarded_name(other) is None


def test_the_hint_stands_beside_the_first_layer() -> None:
    names = ["embed.weight", "up.qweight", "up.bias", "experts.down_proj_qweight"]
    assert guard_names(names) == [f"up.{HINT}", "up.weight", "experts.down_proj"]
    assert guard_names(["qweight"]) == [HINT, "weight"]
    assert guard_names(["embed.weight"]) == []


def test_guards_hold_no_bytes() -> None:
    for tensor in guards(["up.qweight"]).values():
        assert (tensor.dtype, tensor.shape) == (torch.uint8, (0,))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("foreign", "got"),
    [
        (torch.zeros(64, 32), r"float32 \[64, 32\]"),
        (torch.empty(0), r"float32 \[0\]"),
        (torch.zeros(64, 32, dtype=torch.uint8), r"uint8 \[64, 32\]"),
        ([], "list"),
    ],
)
def test_a_layer_takes_guards_and_no_other_weight(foreign: Any, got: str, strict: bool) -> None:
    model = nn.Sequential(QuantLinear(32, 64, group_size=32))
    state = model.state_dict()
    assert "0.weight" in state
    model.load_state_dict({**state, **guards(state)}, strict=strict)
    before = {name: tensor for name, tensor in state.items() if name != "0.weight"}
    model.load_state_dict(before, strict=strict)
    with pytest.raises(
        ValueError, match=rf"0\.weight must be uint8 without elements, .* got {got}: load"
    ):
        model.load_state_dict({**state, "0.weight": foreign}, strict=strict)
