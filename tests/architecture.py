"""Architecture: a model class of transformers, tiny or at a real size, and inputs for it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

VOCABULARY = 128
TOKENS = 12  # of a test's prompt

Inputs = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Architecture:
    """One of transformers' model classes, tiny and at a real size."""

    name: str
    model: str  # class in transformers
    config: str  # class in transformers
    tiny: dict[str, Any]
    real_name: str
    real: dict[str, Any]
    inputs: Callable[[], Inputs] = field(default=lambda: {"input_ids": tokens()})
    generates: bool = True

    def make_tiny(self, seed: int = 0) -> nn.Module:
        """The tiny model in float32 and eval mode, every parameter random."""
        torch.manual_seed(seed)
        model = self._make(self.tiny)
        _randomize(model)
        generation = getattr(model, "generation_config", None)
        if generation is not None:  # no token ends a text early: all lengths are as asked for
            generation.eos_token_id = None
            generation.pad_token_id = 0
        return model.eval()

    def make_real(self) -> nn.Module:
        """The model named `real_name`, its parameters on the meta device."""
        with torch.device("meta"):
            return self._make(self.real)

    def _make(self, values: dict[str, Any]) -> nn.Module:
        import transformers

        # A copy: transformers writes into the values that it is given.
        config = getattr(transformers, self.config)(**copy.deepcopy(values))
        return getattr(transformers, self.model)(config)


def _randomize(model: nn.Module) -> None:
    """Weights of the size that keeps activations near 1; biases and norms that a test can see.

    transformers starts biases at 0, norms at 1 and some experts at 0, which would hide a bias that
    is lost or an expert that is never asked.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
            elif not name.endswith("A_log"):  # a state space's decay: its start is its meaning
                parameter.normal_(std=parameter.shape[-1] ** -0.5)


def tokens(batch: int = 2, seed: int = 1) -> torch.Tensor:
    """int64 [batch, TOKENS], ids from 3: lower ones may mean padding or an end."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY - 1, (batch, TOKENS), generator=generator)


def _noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


def sequence_to_sequence() -> Inputs:
    return {"input_ids": tokens(), "decoder_input_ids": tokens(seed=3)[:, :5]}


def pixels() -> Inputs:
    return {"pixel_values": _noise(2, 3, 32, 32)}


def pixels_and_text() -> Inputs:
    return {"input_ids": tokens(), "pixel_values": _noise(2, 3, 32, 32)}


def audio() -> Inputs:
    return {"input_features": _noise(2, 16, 64), "decoder_input_ids": tokens(seed=3)[:, :5]}


def image_in_text() -> Inputs:
    """A picture of 4 patches: its 4 places hold the id of <image>."""
    ids = tokens()
    ids[:, 2:6] = VOCABULARY - 1
    return {"input_ids": ids, "pixel_values": _noise(2, 3, 32, 32)}


def decoder(
    hidden: int,
    intermediate: int,
    layers: int,
    heads: int,
    kv_heads: int,
    vocabulary: int = VOCABULARY,
    **others: Any,
) -> dict[str, Any]:
    """The values that configurations descended from Llama's share."""
    return {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **others,
    }


def tiny_decoder(hidden: int = 64, intermediate: int = 160, **others: Any) -> dict[str, Any]:
    # 160 = 128 + 32: the last unit of K is short.
    values = decoder(hidden, intermediate, 2, 4, 2)
    return {**values, "max_position_embeddings": 64, **others}


VISION_L14 = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "patch_size": 14,
}
TINY_VISION = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 16,
}
