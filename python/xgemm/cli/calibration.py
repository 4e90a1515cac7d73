"""`xgemm quantize`'s calibration data: a text cut into samples, for methods that need one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from xgemm.cli.eval import Text

BUILTIN = "builtin"  # the help topics that every Python carries
SAMPLES_A_BATCH = 4


@dataclass(frozen=True)
class Calibration:
    """--calibration, --samples and --sequence-length, and where blocks are kept (--resume)."""

    text: str = BUILTIN
    samples: int = 128
    length: int = 512
    act_order: str | None = None
    rounding: str | None = None
    resume: Path | None = None

    def check(self) -> None:
        """Refuse what cannot be, before anything is read."""
        for name, value in (("samples", self.samples), ("sequence-length", self.length)):
            if value < 1:
                raise ValueError(f"quantize: --{name} must be at least 1, got {value}")
        if self.text != BUILTIN and not Path(self.text).is_file():
            raise ValueError(
                f"quantize: --calibration must be a text file or {BUILTIN!r}, got {self.text}"
            )

    @property
    def options(self) -> dict[str, Any]:
        """The method's own."""
        given = {"act_order": self.act_order, "rounding": self.rounding}
        return {name: value for name, value in given.items() if value is not None}

    def batches(self, tokenizer: Any, model: Any) -> list[dict[str, torch.Tensor]]:
        """Samples of so many tokens from the whole text, at equal distances.

        A text that is too short gives fewer of them, but no token twice. An encoder-decoder reads
        the first half of a sample and writes the second.
        """
        text = Text(None if self.text == BUILTIN else Path(self.text)).read()
        encoded = tokenizer(text, verbose=False, add_special_tokens=False)
        ids = torch.tensor(encoded["input_ids"])
        length = min(self.length, _longest(model))
        count = min(self.samples, ids.numel() // length)
        if count == 0:
            raise ValueError(
                f"quantize: --calibration: {self.text} has {ids.numel()} tokens, fewer than "
                f"--sequence-length {length}"
            )
        starts = torch.linspace(0, ids.numel() - length, count).long()
        rows = torch.stack([ids[start : start + length] for start in starts.tolist()])
        batches: list[dict[str, torch.Tensor]] = []
        for part in rows.split(SAMPLES_A_BATCH):
            if getattr(model.config, "is_encoder_decoder", False):
                read, written = part.tensor_split(2, dim=1)
                batches.append({"input_ids": read, "decoder_input_ids": written})
            else:
                batches.append({"input_ids": part})
        return batches


def _longest(model: Any) -> int:
    """The most tokens that the model reads."""
    config = model.config
    longest = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", 0)
    return longest if isinstance(longest, int) and longest > 0 else 1 << 30


def load_tokenizer(path: Path, gguf: bool, trust_remote_code: bool) -> Any:
    """The tokenizer beside the model SRC."""
    from transformers import AutoTokenizer

    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    try:
        if gguf:
            return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, **options)
        return AutoTokenizer.from_pretrained(path, **options)
    except (OSError, ValueError) as error:
        raise ValueError(f"quantize: {path} has no tokenizer to calibrate with: {error}") from error
