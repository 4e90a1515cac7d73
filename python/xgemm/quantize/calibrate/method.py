"""What a method that uses calibration data is: it quantizes the layers of one block at a time."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

from xgemm.quantize.calibrate.block import Block
from xgemm.quantize.calibrate.settings import Settings
from xgemm.quantize.weight import CALIBRATED_METHODS


@dataclass
class BlockMethod(abc.ABC):
    """A method is a dataclass: its fields after `settings` are its options, with their defaults."""

    settings: Settings

    name: ClassVar[str]

    @property
    def float_inputs(self) -> bool:
        """Whether it reads what the float model's layers read: Block.inputs(original=True)."""
        return False

    @property
    def options(self) -> dict[str, Any]:
        """Its options, as JSON takes them."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)[1:]}

    @abc.abstractmethod
    def quantize_block(self, block: Block) -> None:
        """Quantize every layer of `block.groups` (Block.set)."""


def make_method(name: str, settings: Settings, options: Mapping[str, Any]) -> BlockMethod:
    """The method `name`; refuses an option that it does not have."""
    module, cls = CALIBRATED_METHODS[name]
    made: Any = getattr(import_module(module), cls)
    known = [f.name for f in dataclasses.fields(made) if f.name != "settings"]
    for option in options:
        if option not in known:
            raise ValueError(
                f"quantize: options of method {name!r} are {', '.join(known)}, got {option!r}"
            )
    return made(settings, **options)
