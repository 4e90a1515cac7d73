"""`xgemm generate`: a model of a directory goes on with a prompt, or answers it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import xgemm
from xgemm.cli.models import check_options, describe, load_language_model, load_tokenizer
from xgemm.cli.output import log, out, print_json
from xgemm.quoting import printable


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. temperature 0: the most likely one, always."""

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None

    def arguments(self) -> dict[str, Any]:
        chosen: dict[str, Any] = {"max_new_tokens": self.max_new_tokens}
        if self.temperature == 0:
            # None: a directory's generation_config.json does not sample behind the user's back.
            return {**chosen, "do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        return {
            **chosen,
            "do_sample": True,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": 0,
        }


def run(
    directory: Path,
    prompt: str,
    sampling: Sampling,
    *,
    device: str,
    dtype: str,
    chat: bool | None,
    trust_remote_code: bool,
    verify: bool,
    as_json: bool,
) -> None:
    device = check_options("generate", device, dtype)
    if sampling.temperature == 0 and (sampling.top_p < 1 or sampling.seed is not None):
        raise ValueError(
            "generate: --top-p and --seed are of sampling: give a --temperature above 0"
        )
    model = load_language_model("generate", directory, device, dtype, trust_remote_code, verify)
    tokenizer = load_tokenizer("generate", directory, trust_remote_code)
    chat = _wants_chat(tokenizer, chat, directory)
    inputs = {
        name: value.to(device)
        for name, value in _encode(tokenizer, prompt, chat, directory).items()
    }
    prompt_tokens = inputs["input_ids"].shape[1]
    if prompt_tokens == 0:
        raise ValueError("generate: the prompt must hold at least one token, got none")
    highest = int(inputs["input_ids"].max())
    tokens = getattr(model.get_input_embeddings(), "num_embeddings", highest + 1)
    if highest >= tokens:
        raise ValueError(
            f"generate: {directory}: the tokenizer gives token {highest}, of a model of {tokens}"
        )
    if torch.device(device).type == "cuda":
        from xgemm.hf import accelerate_generation

        accelerate_generation(xgemm.fuse(model))
    if sampling.seed is not None:
        torch.manual_seed(sampling.seed)
    streamer = _stream(tokenizer, show=not as_json)
    started = time.perf_counter()
    model.generate(
        **inputs,
        **sampling.arguments(),
        streamer=streamer,
        pad_token_id=_pad_token(model, tokenizer),
    )
    facts = _facts(streamer, started, prompt_tokens)
    if as_json:
        print_json(
            {
                "model": describe(model),
                "prompt": prompt,
                "chat": chat,
                "text": streamer.text,
                **facts,
            }
        )
        return
    rate = facts["tokens_per_s"]
    text = f"{describe(model)}: {facts['new_tokens']} tokens"
    text += "" if rate is None else f", {rate:.1f} tokens/s after the first"
    first = facts["first_token_s"]
    text += "" if first is None else f"; first token after {first:.2f} s ({prompt_tokens} read)"
    log.print(printable(text), style="dim", markup=False, soft_wrap=True)


def _wants_chat(tokenizer: Any, chat: bool | None, directory: Path) -> bool:
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if chat and not has_template:
        raise ValueError(f"generate: --chat: the tokenizer of {directory} has no chat template")
    return has_template if chat is None else chat


def _encode(tokenizer: Any, prompt: str, chat: bool, directory: Path) -> dict[str, torch.Tensor]:
    if not chat:
        encoded = tokenizer(prompt, return_tensors="pt")
    else:
        try:
            encoded = tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}],
                add_generation_prompt=True,
                return_tensors="pt",
                return_dict=True,
            )
        except Exception as error:  # the template is the directory's: a program in a sandbox
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(
                f"generate: {directory}: its chat template fails ({reason:.200}); --no-chat is "
                "without one"
            ) from error
    return {name: encoded[name] for name in ("input_ids", "attention_mask") if name in encoded}


def _pad_token(model: Any, tokenizer: Any) -> int | None:
    """transformers wants one, and warns where there is none; at batch 1 it has no effect."""
    end = model.generation_config.eos_token_id
    candidates = (model.generation_config.pad_token_id, tokenizer.pad_token_id, end)
    found = next((candidate for candidate in candidates if candidate is not None), None)
    return found[0] if isinstance(found, list) else found


def _stream(tokenizer: Any, show: bool) -> Any:
    """Prints text as soon as its words are whole, and keeps when each token came."""
    from transformers import TextStreamer

    class Stream(TextStreamer):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
            self.text = ""
            self.times: list[float] = []

        def put(self, value: torch.Tensor) -> None:
            if not self.next_tokens_are_prompt:
                self.times.append(time.perf_counter())
            super().put(value)

        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            self.text += text
            if show:
                end = "\n" if stream_end else ""
                out.print(printable(text), end=end, markup=False, soft_wrap=True)

    return Stream()


def _facts(streamer: Any, started: float, prompt_tokens: int) -> dict[str, Any]:
    times = streamer.times
    later = len(times) - 1
    return {
        "prompt_tokens": prompt_tokens,
        "new_tokens": len(times),
        "first_token_s": times[0] - started if times else None,
        "tokens_per_s": later / (times[-1] - times[0]) if later > 0 else None,
        "seconds": time.perf_counter() - started,
    }
