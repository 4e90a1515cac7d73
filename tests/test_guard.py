"""The names of guards: what a reader that does not know the format stumbles over."""

from __future__ import annotations

import torch

from xgemm.formats.guard import HINT, guard_names, guarded_name, guards


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
