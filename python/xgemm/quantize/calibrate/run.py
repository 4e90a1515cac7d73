"""Quantizes a model stage by stage: statistics, 4-bit weights, packed layers, the next inputs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import nn

from xgemm.formats.packed import PackedWeight, pack
from xgemm.nn import QuantExperts, QuantLinear
from xgemm.nn.float_experts import experts_projections
from xgemm.quantize.calibrate.batches import Batch, read_batches
from xgemm.quantize.calibrate.block import Block, Layer, layers_of
from xgemm.quantize.calibrate.groups import find_groups
from xgemm.quantize.calibrate.method import BlockMethod
from xgemm.quantize.calibrate.replay import Replay, Stage, home_of
from xgemm.quantize.calibrate.resume import Finished, Store, fingerprint
from xgemm.quantize.calibrate.stages import find_stages
from xgemm.quantize.groups import choose_scale_dtype, row_blocks
from xgemm.quantize.offload import is_offloaded, move_hook
from xgemm.quantize.report import QuantizationReport
from xgemm.quantize.rtn import SHRINKS

Progress = Callable[[int, int, str], None]

NEVER_SEEN = "no token of the calibration reached it: rtn"


def calibrate(
    model: nn.Module,
    layers: dict[nn.Module, list[str]],
    method: BlockMethod,
    calibration: Any,
    device: torch.device | str | None,
    resume: str | os.PathLike[str] | None,
    report: QuantizationReport,
    progress: Progress | None,
) -> None:
    """Quantize `layers` (float layer -> its names) of the model by `method`; fills the report."""
    batches = read_batches(calibration)
    store = None
    if resume is not None:
        facts = {"method": method.name, **asdict(method)}
        layer_names = [names[0] for names in layers.values()]
        store = Store(resume, fingerprint(model, [facts, layer_names], batches))
    where = None if device is None else torch.device(device)
    Calibration(model, layers, method, batches, where, store, report, progress).run()


@dataclass
class Calibration:
    """Quantizes the `layers` of a model (float layer -> its names) in place, block by block.

    done: called with the number of weights' layers done, of all, and the last one with its error.
    """

    model: nn.Module
    layers: dict[nn.Module, list[str]]
    method: BlockMethod
    batches: list[Batch]
    device: torch.device | None
    store: Store | None
    report: QuantizationReport
    progress: Progress | None

    def run(self) -> None:
        self._refuse_offloaded()
        total = len(self.layers)
        with torch.inference_mode(False), torch.no_grad(), _calm(self.model):
            self._tell(0, total, "")
            stages = find_stages(self.model, self.layers, self.batches[0])
            known = {layer for stage in stages for layer in stage.layers}
            home = home_of(self.model)
            unseen = Stage("layers that the first batch does not reach", None, -1)
            unseen.layers = [layer for layer in self.layers if layer not in known]
            if unseen.layers:
                stages.append(unseen)
            replay = Replay(self.model, self.batches, stages, self.device or home)
            for index in range(len(stages)):
                self._run_stage(replay, index, total)

    def _run_stage(self, replay: Replay, index: int, total: int) -> None:
        stage = replay.stages[index]
        module = self.model if stage.module is None else stage.module
        device = replay.home if stage.module is None else replay.device
        with _placed(stage.module, device):
            block = Block(stage.name, module, device, replay, index, self.method.settings)
            try:
                finished = None if self.store is None else self.store.read(index, stage.name)
                if finished is None:
                    finished = self._quantize(block, stage)
                    if self.store is not None:
                        self.store.write(index, stage.name, finished)
                else:
                    self._take(block, stage, finished)
                if stage.module is not None:
                    block.feed(self.method.float_inputs)
            except BaseException as error:
                block.restore()
                if isinstance(error, torch.OutOfMemoryError):
                    raise torch.OutOfMemoryError(
                        f"quantize: {stage.name}: out of memory; the block is in float again. "
                        "Smaller calibration batches need less, and so does a model on the CPU "
                        f"with device='cuda'. resume=DIR keeps what is done. ({error})"
                    ) from error
                raise
            self._swap(stage, finished, replay.home, total)

    def _quantize(self, block: Block, stage: Stage) -> Finished:
        """4-bit weights of the stage's layers; `block` computes with them then."""
        layers = [part for module in stage.layers for part in self._parts(module)]
        if layers:
            find_groups(block, layers)
        reached = {layer for group in block.groups for layer in group}
        self.method.quantize_block(block)
        for layer in layers:
            if layer in reached and layer not in block.done:
                raise RuntimeError(f"quantize: {self.method.name} left {layer.name} as it was")
            if layer not in reached:
                block.round(layer, NEVER_SEEN)
        changed = {id(p) for layer in layers for p in (layer.parameter,)}
        names = {id(p): name for name, p in self.model.named_parameters()}
        floats = {names[id(p)]: p.detach().clone() for p in block.originals if id(p) not in changed}
        packed = {
            self.layers[module][0]: _packed([x for x in layers if x.module is module], block)
            for module in stage.layers
        }
        errors = {
            self.layers[module][0]: reduce(
                add, (block.errors[layer] for layer in layers if layer.module is module)
            )
            for module in stage.layers
        }
        fallbacks = {layer.name: reason for layer, reason in block.fallbacks.items()}
        return Finished(packed, floats, errors, fallbacks)

    def _parts(self, module: nn.Module) -> list[Layer]:
        settings = self.method.settings
        asked = settings.scale_dtype

        def scale_dtype(weights: list[torch.Tensor] | None) -> torch.dtype | None:
            """For experts, whose scales are of one dtype: fp16 where that serves all of them."""
            if weights is None or asked is not None:
                return asked
            found = set()
            for w in weights:
                size = w.shape[1] if settings.group_size == -1 else settings.group_size
                blocks = list(row_blocks(w, size))
                least = SHRINKS[-1]
                found.add(choose_scale_dtype(w, blocks, size, settings.symmetric, least, None))
            return torch.bfloat16 if torch.bfloat16 in found else torch.float16

        return layers_of(module, self.layers[module][0], scale_dtype)

    def _take(self, block: Block, stage: Stage, finished: Finished) -> None:
        """Let `block` compute with what an earlier run has stored."""
        for module in stage.layers:
            for name, weights in finished.packed[self.layers[module][0]].items():
                for expert, packed in enumerate(weights):
                    projection = None if experts_projections(module) is None else name
                    layer = Layer(name, module, None, projection, expert)
                    block.put(layer, packed.to(block.device).dequantize(torch.float32))
        for name, value in finished.floats.items():
            block.replace(self.model.get_parameter(name), value)

    def _swap(self, stage: Stage, finished: Finished, home: torch.device, total: int) -> None:
        """Packed layers in the places of the stage's float ones."""
        for layer in stage.layers:
            names = self.layers.pop(layer)
            packed = finished.packed[names[0]]
            weights = _float_parameters(layer)
            self.report.bytes_before += sum(w.numel() * w.element_size() for w in weights)
            self.report.bytes_after += sum(p.nbytes for part in packed.values() for p in part)
            new = _module(layer, packed, home)
            move_hook(layer, new)
            for name in names:
                self.model.set_submodule(name, new)
            self.report.quantized += names
            self.report.errors.update(dict.fromkeys(names, finished.errors[names[0]]))
            self.report.experts += names if isinstance(new, QuantExperts) else []
            error = finished.errors[names[0]]
            self._tell(total - len(self.layers), total, f"{names[0]}, error {error.shown:.2%}")
        self.report.fallbacks.update(finished.fallbacks)
        stage.layers.clear()

    def _tell(self, done: int, total: int, text: str) -> None:
        if self.progress is not None:
            self.progress(done, total, text)

    def _refuse_offloaded(self) -> None:
        for name, module in self.model.named_modules():
            if is_offloaded(module):
                raise ValueError(
                    f"quantize: {name} is offloaded (its weights are on the meta device): method "
                    f"{self.method.name!r} runs the model block by block. Load it on the CPU and "
                    "pass device='cuda', which brings one block at a time to the GPU"
                )


def _float_parameters(layer: nn.Module) -> list[torch.Tensor]:
    names = experts_projections(layer) or ["weight"]
    parameters = (layer._parameters[name] for name in names)
    return [parameter for parameter in parameters if parameter is not None]


def _packed(layers: list[Layer], block: Block) -> dict[str, list[PackedWeight]]:
    """The packed weights of a linear ("weight"), or of each projection of experts."""
    packed: dict[str, list[PackedWeight]] = {}
    for layer in layers:
        packed.setdefault(layer.projection or "weight", []).append(pack(block.done[layer]))
    return packed


def _module(layer: Any, packed: dict[str, list[PackedWeight]], home: torch.device) -> nn.Module:
    placed = {name: [p.to(home) for p in weights] for name, weights in packed.items()}
    new: nn.Module
    if experts_projections(layer) is not None:
        new = QuantExperts.from_packed(layer, placed)
    else:
        (one,) = placed["weight"]
        new = QuantLinear.from_packed(one, layer.bias, dtype=layer.weight.dtype)
    return new.eval()


@contextlib.contextmanager
def _placed(block: nn.Module | None, device: torch.device) -> Iterator[None]:
    """Within, the parameters and buffers of `block` are on `device`; after it where they were."""
    if block is None or all(t.device == device for t in block.parameters()):
        yield
        return
    parameters = {p: p.data for p in block.parameters()}
    buffers = [
        (module, name, buffer)
        for module in block.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    moved = {}
    for parameter, data in parameters.items():
        parameter.data = moved[parameter] = data.to(device)
    for module, name, buffer in buffers:
        module._buffers[name] = buffer.to(device)
    try:
        yield
    finally:
        for parameter, data in parameters.items():
            same = parameter.data.data_ptr() == moved[parameter].data_ptr()
            parameter.data = data if same else parameter.data.to(data.device)
        for module, name, buffer in buffers:
            module._buffers[name] = buffer


@contextlib.contextmanager
def _calm(model: nn.Module) -> Iterator[None]:
    """Within, the model is as in inference, keeps no cache, and calls its linears itself."""
    training = [name for name, module in model.named_modules() if module.training]
    configs = {
        id(config): config
        for module in model.modules()
        for config in _configs(getattr(module, "config", None))
    }
    cached = [config for config in configs.values() if config.use_cache]
    fast = torch.backends.mha.get_fastpath_enabled()
    model.eval()
    # torch's fused layers of transformers read the weights, and not by the layers' forward.
    torch.backends.mha.set_fastpath_enabled(False)
    for config in cached:
        config.use_cache = False
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for config in cached:
            config.use_cache = True
        for name in training:  # a packed layer has the place of a float one
            model.get_submodule(name).training = True


def _configs(config: Any) -> list[Any]:
    return [config] if isinstance(getattr(config, "use_cache", None), bool) else []
