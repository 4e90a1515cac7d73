"""What a config may name: nothing that would bring code, or files from elsewhere, into the process.

transformers takes some values of config.json for the names of code or of files: an attention kernel
"owner/name" is fetched and run, another configuration or a pickled checkpoint is read. xgemm's
readers take only names that are built in, and refuse others before transformers sees them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# What transformers computes by itself.
ATTENTION = ("eager", "sdpa", "flex_attention")
EXPERTS = ("eager", "grouped_mm", "batched_mm")
# Where the package of one is missing, transformers fetches a kernel of its own choice.
FLASH_PACKAGES = {
    "flash_attention_2": "flash_attn",
    "flash_attention_3": "flash_attn_interface",
    "flash_attention_4": "flash_attn",
}
_IMPLEMENTATIONS = {"attn_implementation": ATTENTION, "experts_implementation": EXPERTS}
_FETCHED = {
    "attn_implementation": tuple(FLASH_PACKAGES),
    "experts_implementation": ("deepgemm", "sonicmoe"),
}
# Arguments of timm.create_model that read other files; checkpoint_path is unpickled.
_TIMM_FILES = ("checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay")
_MAX_SHOWN = 100


def refuse_foreign_names(path: Path, config: dict[str, Any], where: str = "load") -> None:
    """Refuse a config.json that names code, or files other than its directory's own.

    path: the config.json, for the message, which says the key and its value.
    """
    for keys, value in _entries(config):
        rule = _rule_against(keys[-1], value)
        if rule is not None:
            name = ".".join(keys)
            raise ValueError(f"{where}: {path}: {name} {rule}, got {value!r:.{_MAX_SHOWN}}")


def refuse_foreign_implementations(config: Any, where: str) -> None:
    """Refuse a transformers config object whose implementations are not built into transformers.

    The object has the last word: a name in a file can stand for another attribute (attribute_map).
    Who set it, a file or the caller, does not show; so names for which transformers fetches a
    kernel of its own choice pass here.
    """
    waiting, seen = [config], set()
    while waiting:
        current = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        for key, built_in in _IMPLEMENTATIONS.items():
            value = getattr(current, f"_{key}", None)
            if value is not None and value not in built_in + _FETCHED[key]:
                raise ValueError(
                    f"{where}: {type(current).__name__}: {key} must be built into transformers "
                    f"({', '.join(built_in + _FETCHED[key])}), got {value!r:.{_MAX_SHOWN}}; a "
                    f"kernel of your own choice takes model.set_{key} after loading"
                )
        waiting += [
            value for value in vars(current).values() if hasattr(value, "_attn_implementation")
        ]


def _entries(config: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each (keys, value) in a JSON object, to any depth; read_json bounds the depth."""
    waiting: list[tuple[tuple[str, ...], Any]] = [((), config)]
    while waiting:
        keys, value = waiting.pop()
        if isinstance(value, dict):
            for key, inner in value.items():
                yield (*keys, key), inner
                waiting.append(((*keys, key), inner))
        elif isinstance(value, list):
            waiting += [((*keys, str(i)), inner) for i, inner in enumerate(value)]


def _rule_against(key: str, value: Any) -> str | None:
    """What `value` must be, where it may not stand under `key`; None where it may."""
    if value is None:
        return None
    built_in = _IMPLEMENTATIONS.get(key.removeprefix("_").removesuffix("_internal"))
    if built_in is not None:
        names = value.values() if isinstance(value, dict) else [value]
        if all(_is_built_in(name, built_in) for name in names):
            return None
        return f"must be built into transformers ({', '.join(built_in)})"
    if key == "attribute_map" and value:
        return "must be absent: it makes names stand for others"
    if key == "configuration_files":
        return "must be absent: it names another config"
    if key in ("backbone", "architecture") and isinstance(value, str) and _is_elsewhere(value):
        return "must be the name of a model without a source"
    if key == "transformers_weights" and not _is_safe_file(value):
        return "must be a safetensors file of the directory"
    if key in ("model_args", "backbone_kwargs") and isinstance(value, dict):
        named = [name for name in _TIMM_FILES if value.get(name)]
        return f"must not have {', '.join(named)}: it names other files" if named else None
    return None


def _is_built_in(name: Any, built_in: tuple[str, ...]) -> bool:
    if name is None or name in built_in:
        return True
    package = FLASH_PACKAGES.get(name) if isinstance(name, str) and built_in is ATTENTION else None
    return package is not None and importlib.util.find_spec(package) is not None


def _is_elsewhere(name: str) -> bool:
    """Of "owner/model", "hf-hub:owner/model", "local-dir:/path"."""
    return "/" in name or ":" in name


def _is_safe_file(name: Any) -> bool:
    if not isinstance(name, str) or Path(name).name != name:
        return False
    return name.endswith((".safetensors", ".safetensors.index.json"))
