"""save and load: experts, Conv1D, Falcon's linears, and directories that are not ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from checkpoints import edit
from test_experts import EXPERTS, HIDDEN, OwnExperts, llama4, make, routing
from torch import nn

import xgemm
from xgemm.formats.manifest import CONFIG_FILE
from xgemm.nn import QuantExperts, QuantLinear

safetensors_torch = pytest.importorskip("safetensors.torch")


class Layer(nn.Module):
    def __init__(self, experts: nn.Module) -> None:
        super().__init__()
        self.up = nn.Linear(HIDDEN, HIDDEN)
        self.experts = experts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.up(x)
        if "Llama4" in f"{self.experts}":
            return self.experts(x.repeat(EXPERTS, 1))
        return self.experts(x, *routing(x.shape[0]))


FAMILIES = {
    "mixtral": "MixtralExperts",
    "gpt_oss": "GptOssExperts",
    "nemotron_h": "NemotronHExperts",
    "muse_spark": "MuseSparkExperts",
    "llama4": "Llama4TextExperts",
}


@pytest.mark.parametrize("meta", [False, True])
@pytest.mark.parametrize("family", FAMILIES.items(), ids=FAMILIES)
def test_experts_come_back(tmp_path: Path, family: tuple[str, str], meta: bool) -> None:
    pytest.importorskip("transformers")
    model = Layer(QuantExperts.from_experts(make(*family), group_size=32, symmetric=False)).eval()
    xgemm.save(model, tmp_path / "out")
    section = json.loads((tmp_path / "out" / CONFIG_FILE).read_text())["quantization_config"]
    spec = section["experts"]["experts"]
    assert spec["num_experts"] == EXPERTS
    assert spec["projections"]["down_proj"]["group_size"] == 32
    assert spec["projections"]["down_proj"]["bias"] == (family[0] == "gpt_oss")
    stored = safetensors_torch.load_file(tmp_path / "out" / "model.safetensors")
    assert stored["experts.down_proj"].shape == (0,)  # a guard
    fresh = Layer(make(*family, seed=4)).eval()
    if meta:
        fresh.to("meta")
    other = xgemm.load(tmp_path / "out", model=fresh)
    assert isinstance(other.experts, QuantExperts)
    assert {p.device.type for p in other.parameters()} == {"cpu"}
    x = torch.randn(6, HIDDEN)
    assert torch.equal(other(x), model(x))
    # Over what is packed already, in another format.
    again = Layer(QuantExperts.from_experts(make(*family, seed=5), group_size=64)).eval()
    assert torch.equal(xgemm.load(tmp_path / "out", model=again)(x), model(x))


def test_experts_that_differ_are_refused(tmp_path: Path) -> None:
    model = nn.Sequential(QuantExperts.from_experts(OwnExperts(), group_size=32))
    xgemm.save(model, tmp_path / "out")
    three = OwnExperts(num_experts=3)
    with pytest.raises(ValueError, match="0 has 3 experts in the model, 2 in the checkpoint"):
        xgemm.load(tmp_path / "out", model=nn.Sequential(three))
    with pytest.raises(ValueError, match="0: QuantExperts: module must hold experts as 3-D"):
        xgemm.load(tmp_path / "out", model=nn.Sequential(nn.Linear(4, 4)))
    biased = OwnExperts(has_bias=True)
    biased.register_parameter("down_proj_bias", nn.Parameter(torch.zeros(2, 32)))
    with pytest.raises(ValueError, match="0: down_proj has no bias in the checkpoint"):
        xgemm.load(tmp_path / "out", model=nn.Sequential(biased))
    before = (tmp_path / "out" / CONFIG_FILE).read_text()
    for change, message in (
        (lambda s: s["experts"]["0"].pop("num_experts"), "0: num_experts must be an int"),
        (lambda s: s["experts"].update({"0": 3}), "0 must be an object with projections"),
        (lambda s: s["modules"].update(s["experts"]["0"]["projections"]), "no module 'gate_up"),
    ):
        edit(
            tmp_path / "out" / CONFIG_FILE,
            lambda config, change=change: change(config["quantization_config"]),
        )
        with pytest.raises((TypeError, ValueError), match=message):
            xgemm.load(tmp_path / "out", model=nn.Sequential(OwnExperts()), verify=False)
        (tmp_path / "out" / CONFIG_FILE).write_text(before)


def test_linears_of_other_classes_are_filled(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from transformers.models.falcon.modeling_falcon import FalconLinear
    from transformers.pytorch_utils import Conv1D

    model = nn.Sequential(Conv1D(40, 48), FalconLinear(40, 24))
    weights = [model[0].weight.detach().t(), model[1].weight.detach()]
    quantized = nn.Sequential(
        *(
            QuantLinear.from_packed(
                xgemm.pack(xgemm.quantize_weight(w, group_size=32)), layer.bias.detach()
            )
            for w, layer in zip(weights, model, strict=True)
        )
    )
    xgemm.save(quantized, tmp_path / "out")
    other = xgemm.load(tmp_path / "out", model=nn.Sequential(Conv1D(40, 48), FalconLinear(40, 24)))
    assert all(type(layer) is QuantLinear for layer in other)
    x = torch.randn(3, 48)
    assert torch.equal(other(x), quantized(x))
    with pytest.raises(ValueError, match=r"0 is \[41, 48\] in the model, \[40, 48\]"):
        xgemm.load(tmp_path / "out", model=nn.Sequential(Conv1D(41, 48), FalconLinear(40, 24)))


def test_float_and_foreign_directories_say_what_they_are(tmp_path: Path) -> None:
    (tmp_path / CONFIG_FILE).write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(ValueError, match=r"weights there are float\. Quantize them first: xgemm q"):
        xgemm.load(tmp_path)
    edit(tmp_path / CONFIG_FILE, lambda c: c.update(quantization_config={"quant_method": "exl3"}))
    with pytest.raises(ValueError, match=r"quant_method must be 'xgemm', 'gptq'.* got 'exl3'"):
        xgemm.load(tmp_path)


def test_llama4_has_another_form() -> None:
    pytest.importorskip("transformers")
    assert "Llama4" in repr(QuantExperts.from_experts(llama4(), group_size=32))
