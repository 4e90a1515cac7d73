"""siblings: which layers a forward gives the same tensor, by its source."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import xgemm
from xgemm.quantize.siblings import siblings


def found(method: Any) -> list[tuple[str, ...]]:
    layers = frozenset("abc")
    return [one.names for one in siblings(method, layers)]


class Sources:
    """Forwards of which siblings must, or must not, be found."""

    a: Any
    b: Any
    c: Any
    act: Any

    def joined(self, x):
        shape = (*x.shape[:-1], -1)
        y = self.act(self.a(x).view(shape))
        z = self.b(x).transpose(0, 1)
        return y + z + self.c(x)

    def by_another_name(this, h, other=None):
        states = other if other is not None else h
        y = this.a(h)
        if states is None:
            return y
        else:
            y = y + this.b(states)
        return y + this.c(states)

    def chain(self, x):
        x = self.a(x)
        x = self.b(x)
        return self.c(x)

    def written_by_name(self, x):
        y = self.a(x)
        x.relu_()
        return y + self.b(x)

    def written_through_a_view(self, x):
        view = x[0]
        y = self.a(x)
        view.mul_(2)
        return y + self.b(x)

    def written_at_an_index(self, x):
        y = self.a(x)
        x[0] = 0
        return y + self.b(x)

    def added_to(self, x):
        y = self.a(x)
        x += 1
        return y + self.b(x)

    def given_to_a_module(self, x):
        y = self.a(x)
        self.act(x)
        return y + self.b(x)

    def given_to_a_function(self, x):
        y = self.a(x)
        change(x)
        return y + self.b(x)

    def written_view_read(self, x):
        view = x.flatten()
        y = self.a(view)
        x.zero_()
        return y + self.b(view)

    def out(self, x, y):
        y = self.a(x)
        torch.add(y, 1, out=x)
        return y + self.b(x)

    def another_mode(self, x):
        y = self.a(x)
        with torch.autocast("cpu"):
            return y + self.b(x)

    def mode_set(self, x):
        y = self.a(x)
        torch.set_grad_enabled(True)
        return y + self.b(x)

    def looped(self, x):
        for _ in range(3):
            y = self.a(x) + self.b(x)
        return y

    def listed(self, x):
        return [f(self.a(x), self.b(x)) for f in range(3)]

    def twice(self, x):
        return self.a(x) + self.b(x) + self.a(x)

    def exclusive(self, x):
        if x is None:
            return self.a(x)
        return self.b(x)

    def either(self, x):
        return self.a(x) if x is None else self.b(x)

    def rebound(self, x):
        y = self.a(x)
        x = x + 1
        return y + self.b(x)

    def other_arguments(self, x):
        return self.a(x, 1) + self.b(x) + self.c(input=x)


def change(x: torch.Tensor) -> None:
    x.zero_()


def test_siblings_are_found() -> None:
    assert found(Sources.joined) == [("a", "b", "c")]
    assert found(Sources.by_another_name) == [("a", "b", "c")]
    (one,) = siblings(Sources.by_another_name, frozenset("abc"))
    assert one.surely == ("b", "c")


NOT_SIBLINGS = [n for n in vars(Sources) if not n.startswith("__")]
NOT_SIBLINGS = [n for n in NOT_SIBLINGS if n not in ("joined", "by_another_name", "exclusive")]


@pytest.mark.parametrize("name", NOT_SIBLINGS)
def test_what_may_differ_is_not_joined(name: str) -> None:
    assert found(getattr(Sources, name)) == []


def test_a_forward_without_source_is_left() -> None:
    scope: dict[str, Any] = {"nn": nn}
    text = "class M(nn.Module):\n    def forward(self, x): return self.a(x) + self.b(x)"
    exec(text, scope)
    model = scope["M"]()
    model.a, model.b = nn.Linear(32, 64), nn.Linear(32, 64)
    xgemm.quantize(model, group_size=32, fuse=True)
    assert "source cannot be read" in model.xgemm_fusion.left[""]
