"""What merging an adapter into 4-bit weights costs, as the loss of small Llamas on what it learned.

    python benchmarks/merge_loss.py [--hidden 256]

Each case trains a LoRA adapter over a packed model (random weights, random tokens) and merges it:
into float weights, by xgemm's requantize, by rounding to the nearest code of the old scales, and by
quantizing anew (rtn, clip="mse"). The change is the root mean square of the adapter's update over a
weight, in steps of its scale. The table stands in docs/guide/finetune.md, and requantize's
NEW_SCALE_STEPS comes from it.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import peft
import torch
import transformers
from torch import nn

import xgemm
from xgemm.nn import QuantLinear
from xgemm.quantize.requantize import requantize

GROUP_SIZE = 128


@dataclass(frozen=True)
class Case:
    """A larger spread of the weights makes the same update a smaller part of a step."""

    spread: float  # standard deviation of the weights
    learning_rate: float
    steps: int


CASES = (Case(0.1, 3e-4, 60), Case(0.1, 1e-3, 40), Case(0.02, 1e-3, 30), Case(0.02, 5e-3, 30))


def packed_model(case: Case, hidden: int) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=96,
        max_position_embeddings=64,
        initializer_range=case.spread,
    )
    model = transformers.LlamaForCausalLM(config)
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear and name != "lm_head":
            model.set_submodule(name, QuantLinear.from_linear(module, group_size=GROUP_SIZE))
    return model


def train(model: Any, case: Case, tokens: torch.Tensor) -> Any:
    torch.manual_seed(1)
    config = peft.LoraConfig(r=8, lora_alpha=16, target_modules="all-linear")
    model = peft.get_peft_model(model, config).train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=case.learning_rate)
    for _ in range(case.steps):
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def nearest(packed: xgemm.PackedWeight, w: torch.Tensor) -> torch.Tensor:
    old = xgemm.unpack(packed)
    scales = old.scales.float().t()[:, old.group_of_channel()]
    codes = (old.codes + (w - old.dequantize()) / scales).round().clamp(0, 15)
    return (codes - 8) * scales


def anew(packed: xgemm.PackedWeight, w: torch.Tensor) -> torch.Tensor:
    return xgemm.quantize_weight(w, group_size=packed.group_size, clip="mse").dequantize()


MERGES: dict[str, Callable[[xgemm.PackedWeight, torch.Tensor], torch.Tensor]] = {
    "merged, float": lambda packed, w: w,
    "merged, 4 bits": lambda packed, w: requantize(packed, w).dequantize(),
    "rounded to nearest": nearest,
    "quantized anew": anew,
}


def lora_layers(model: nn.Module) -> list[Any]:
    return [m for m in model.modules() if isinstance(m, peft.tuners.lora.LoraLayer)]


def merged(model: Any, merge: Callable[..., torch.Tensor]) -> Any:
    """A copy of the model, each base layer with the merged weight and without its adapter."""
    model = copy.deepcopy(model)
    for layer in lora_layers(model):
        base = layer.base_layer
        wide = base.dequantize(torch.float32) + layer.get_delta_weight("default")
        twin = nn.Linear(base.in_features, base.out_features, bias=False)
        twin.weight = nn.Parameter(merge(base.to_packed(), wide))
        layer.base_layer = twin
        layer.lora_B["default"].weight.zero_()
    return model


def change(model: Any) -> float:
    """In steps, over all layers."""
    shares = []
    for layer in lora_layers(model):
        scale = xgemm.unpack(layer.base_layer.to_packed()).scales.float().mean()
        shares.append(layer.get_delta_weight("default").square().mean().sqrt() / scale)
    return float(torch.stack(shares).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hidden", type=int, default=256, help="channels of a layer")
    parser.add_argument("--steps-scale", type=float, default=1.0, help="of each case's steps")
    options = parser.parse_args()
    tokens = torch.randint(96, (8, 24), generator=torch.Generator().manual_seed(0))
    print("| change | base | adapter |", " | ".join(MERGES), "|")
    print("|---" * (3 + len(MERGES)) + "|")
    for case in CASES:
        steps = max(1, round(case.steps * options.steps_scale))
        case = Case(case.spread, case.learning_rate, steps)
        model = train(packed_model(case, options.hidden), case, tokens)
        with torch.no_grad():
            with model.disable_adapter():
                losses = [model(input_ids=tokens, labels=tokens).loss]
            for one in (model, *(merged(model, merge) for merge in MERGES.values())):
                losses.append(one(input_ids=tokens, labels=tokens).loss)
            cells = " | ".join(f"{float(loss):.2f}" for loss in losses)
            print(f"| {change(model):.2f} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
