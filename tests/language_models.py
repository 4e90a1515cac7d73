"""A tiny language model over bytes, with a tokenizer, as a transformers directory."""

from __future__ import annotations

from pathlib import Path

import torch

CHAT_TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def save_tokenizer(directory: Path, chat: bool = True) -> None:
    """One token a byte, and an end-of-text token, 256."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate([*alphabet, "<end>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
    fast.chat_template = CHAT_TEMPLATE if chat else None
    fast.save_pretrained(directory)


def save_llama(directory: Path, chat: bool = True, layers: int = 1, seed: int = 0) -> Path:
    """A random Llama that never ends by itself (no eos), and its tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=layers, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=257, tie_word_embeddings=True,
        max_position_embeddings=128, eos_token_id=None, bos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(directory)
    save_tokenizer(directory, chat)
    return directory
