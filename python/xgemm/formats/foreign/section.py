"""`quantization_config` of another tool's checkpoint: where it lies, and its values, checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xgemm.formats.directory import QUANTIZED_FILES, quantized_by
from xgemm.formats.files import read_json
from xgemm.formats.manifest import CONFIG_FILE, QUANT_METHOD


def foreign_section(directory: Path, config: dict[str, Any]) -> tuple[Path, dict[str, Any]] | None:
    """(The file, its section) that say how another tool quantized a directory; None for xgemm's
    own directory and for a float one.

    The section is config.json's, or that of a config nested in it (text_config, ...), or the file
    quantize_config.json or quant_config.json of older tools. It always has a `quant_method`.
    """
    method = quantized_by(directory, config)
    if method is None or method == QUANT_METHOD:
        return None
    section = _find(config)
    if section is not None:
        return directory / CONFIG_FILE, {**section, "quant_method": method}
    for name, known in QUANTIZED_FILES.items():
        if (directory / name).is_file():
            return directory / name, {**read_json(directory / name), "quant_method": known}
    return None


def _find(config: Mapping[str, Any]) -> dict[str, Any] | None:
    for key in ("quantization_config", "compression_config"):
        if isinstance(config.get(key), dict):
            return dict(config[key])
    nested = (_find(value) for value in config.values() if isinstance(value, dict))
    return next((found for found in nested if found is not None), None)


class Section:
    """Values of a section by key; an error names the file, the key, the rule and the value."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where = where
        self.values = values

    def error(self, key: str, rule: str, value: Any) -> ValueError:
        return ValueError(f"load: {self.where}: {key} must be {rule}, got {value!r:.200}")

    def integer(self, *keys: str, default: int | None = None) -> int:
        """The first of `keys` that is there: older tools used other names."""
        key, value = self._first(keys, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, "an int", value)
        return value

    def flag(self, *keys: str, default: bool | None = None) -> bool:
        key, value = self._first(keys, default)
        if not isinstance(value, bool):
            raise self.error(key, "true or false", value)
        return value

    def text(self, *keys: str, default: str | None = None) -> str:
        key, value = self._first(keys, default)
        if not isinstance(value, str):
            raise self.error(key, "a string", value)
        return value

    def mapping(self, key: str) -> dict[str, Any]:
        """An object; empty where it is null or missing."""
        value = self.values.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.error(key, "an object", value)
        return value

    def inside(self, key: str, values: Mapping[str, Any]) -> Section:
        """The object under `key`, which lies in this section."""
        return Section(f"{self.where}: {key}", values)

    def four_bits(self, *keys: str) -> None:
        """Refuse another number of bits than 4."""
        bits = self.integer(*keys)
        if bits != 4:
            raise self.error(keys[0], "4: xgemm has 4-bit kernels", bits)

    def group_size(self, *keys: str, default: int | None = None) -> int:
        """-1 (one group for all of K), or a positive number."""
        size = self.integer(*keys, default=default)
        if size != -1 and size < 1:
            raise self.error(keys[0], "-1 or positive", size)
        return size

    def _first(self, keys: tuple[str, ...], default: Any) -> tuple[str, Any]:
        for key in keys:
            if self.values.get(key) is not None:
                return key, self.values[key]
        return keys[0], default
