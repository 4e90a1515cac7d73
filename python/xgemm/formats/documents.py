"""config.json and generation_config.json: what a model is, beside its tensors.

The manifest keeps a copy of both, as they were saved, so that a load can say what differs. The
section quantization_config has a hash in the manifest instead: it is as long as the model has
layers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xgemm.formats.files import present, read_json
from xgemm.formats.manifest import CONFIG_FILE, GENERATION_FILE, SECTION, Manifest, hash_json

_SHOWN_DIFFERENCES = 5
_SHOWN_VALUE = 60  # characters
_ABSENT = object()

Documents = dict[str, dict[str, Any]]


def read_documents(directory: Path) -> Documents:
    """config.json, which must be there, and generation_config.json where it is, by file name."""
    documents = {CONFIG_FILE: read_json(directory / CONFIG_FILE)}
    if present(directory / GENERATION_FILE):
        documents[GENERATION_FILE] = read_json(directory / GENERATION_FILE)
    return documents


def to_keep(documents: Documents) -> Documents:
    """What the manifest holds of them."""
    config = {name: value for name, value in documents[CONFIG_FILE].items() if name != SECTION}
    return {**documents, CONFIG_FILE: config}


def check_documents(directory: Path, documents: Documents, manifest: Manifest) -> None:
    """Refuse documents that differ from what was saved, by file and key.

    A manifest of an older version says nothing but the hash of quantization_config.
    """
    found = hash_json(documents[CONFIG_FILE][SECTION])
    if found != manifest.quantization_config_sha256:
        raise ValueError(
            f"load: {directory / CONFIG_FILE}: quantization_config is not what was saved "
            f"(sha256 {found}, expected {manifest.quantization_config_sha256})"
        )
    if manifest.documents is None:
        return
    kept = to_keep(documents)
    for file in sorted(kept.keys() | manifest.documents.keys()):
        saved, now = manifest.documents.get(file, _ABSENT), kept.get(file, _ABSENT)
        differing = list(_differences("", saved, now))
        if differing:
            shown = "; ".join(differing[:_SHOWN_DIFFERENCES])
            if len(differing) > _SHOWN_DIFFERENCES:
                shown += f" and {len(differing) - _SHOWN_DIFFERENCES} more"
            raise ValueError(
                f"load: {directory / file} is not what was saved: {shown}. If the change is meant, "
                "load with verify=False; saving the model again records it"
            )


def _differences(name: str, saved: Any, found: Any) -> Iterator[str]:
    """Each key at which two JSON values differ, with both values."""
    if isinstance(saved, dict) and isinstance(found, dict):
        for key in sorted(saved.keys() | found.keys()):
            inner = f"{name}.{key}" if name else key
            yield from _differences(inner, saved.get(key, _ABSENT), found.get(key, _ABSENT))
    elif saved is _ABSENT or found is _ABSENT or json.dumps(saved) != json.dumps(found):
        yield f"{name or 'the file'} is {_shown(found)}, was {_shown(saved)}"


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "absent"
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_VALUE else f"{text[:_SHOWN_VALUE]}..."
