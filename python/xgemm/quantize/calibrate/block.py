"""Block: what a method sees of the layers that it quantizes together, and of their inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from xgemm.formats.quantized import QuantizedWeight
from xgemm.nn.float_experts import expert_weights, experts_projections
from xgemm.nn.float_linear import is_conv1d
from xgemm.quantize.calibrate.batches import moved
from xgemm.quantize.calibrate.experts import expert_rows, middle
from xgemm.quantize.calibrate.replay import Replay, Stop
from xgemm.quantize.calibrate.settings import Settings
from xgemm.quantize.errors import LayerError, layer_error
from xgemm.quantize.weight import quantize_weight

Sink = Callable[["Layer", torch.Tensor], None]
PairSink = Callable[["Layer", torch.Tensor, torch.Tensor], None]


@dataclass(eq=False)
class Layer:
    """A linear layer, or one expert's projection of a module that holds experts as 3-D parameters.

    name: its full name; of an expert "model.layers.0.mlp.experts.gate_up_proj.3".
    scale_dtype: of its scales; None: as quantize_weight chooses.
    """

    name: str
    module: nn.Module
    scale_dtype: torch.dtype | None = None
    projection: str | None = None
    expert: int = 0

    @property
    def parameter(self) -> nn.Parameter:
        """What holds its weight, with those of the other experts."""
        parameter = self.module._parameters[self.projection or "weight"]
        assert parameter is not None  # the plan takes only such layers
        return parameter

    @property
    def weight(self) -> torch.Tensor:
        """The float weight of now, as [N, K]; to be read only."""
        return self.view_of(self.parameter.detach())

    def view_of(self, data: torch.Tensor) -> torch.Tensor:
        """This layer's [N, K] in `data`, which is shaped as its parameter is."""
        if self.projection is not None:
            return expert_weights(self.module, data)[self.expert]
        return data.t() if is_conv1d(self.module) else data

    @property
    def n(self) -> int:
        return self.weight.shape[0]

    @property
    def k(self) -> int:
        return self.weight.shape[1]


@dataclass(frozen=True)
class Call:
    """A call of a module, its tensors where activations are kept.

    mask: bool [B, T] of the positions that count; None where all do.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    mask: torch.Tensor | None
    device: torch.device

    def run(self, module: nn.Module) -> Any:
        """`module` called in the same way, without a gradient."""
        with torch.no_grad():
            return module(*moved(self.args, self.device), **moved(self.kwargs, self.device))


@dataclass(eq=False)
class Block:
    """A block of the model, or the layers that run between its blocks, while they are quantized.

    name, module: the block's; of layers outside of blocks the whole model.
    device: where the block, its inputs and its weights are.
    groups: the layers that read the same tensor together, in the order in which groups run: q, k
        and v; o; gate and up; down. Of experts, those of all experts are together. Layers that no
        token of the calibration reaches are not there.
    leaders: layer -> the first layer of its group that reads the same tensor; often itself.
    """

    name: str
    module: nn.Module
    device: torch.device
    replay: Replay
    index: int
    settings: Settings
    groups: list[list[Layer]] = field(default_factory=list)
    leaders: dict[Layer, Layer] = field(default_factory=dict)
    calls_of: dict[nn.Module, int] = field(default_factory=dict)  # the most calls in a batch
    done: dict[Layer, QuantizedWeight] = field(default_factory=dict)
    errors: dict[Layer, LayerError] = field(default_factory=dict)
    fallbacks: dict[Layer, str] = field(default_factory=dict)
    originals: dict[nn.Parameter, torch.Tensor] = field(default_factory=dict)

    def inputs(self, layers: Sequence[Layer], sink: Sink, *, original: bool = False) -> None:
        """Hand the inputs of `layers` to sink(layer, x [rows, K]), batch by batch.

        The block runs with its weights of now until the last of `layers` is reached. x is without
        padding, on `device`, in the dtype that the layer gets; a layer may be served several times
        a batch. original: with the float model's weights, on what its blocks gave.
        """
        with self._original_weights() if original else contextlib.nullcontext():
            for batch in range(len(self.replay.batches)):
                self._run_once(batch, layers, sink, original)

    def input_pairs(self, layers: Sequence[Layer], sink: PairSink) -> None:
        """As `inputs`, with what the float model's layers read: sink(layer, x, float x).

        Of a method with float_inputs. An expert that gets other tokens in the float model is served
        with x twice.
        """
        for batch in range(len(self.replay.batches)):
            floats: dict[Layer, list[torch.Tensor]] = {layer: [] for layer in layers}
            with self._original_weights():
                self._run_once(batch, layers, lambda layer, x: floats[layer].append(x), True)  # noqa: B023

            def pair(layer: Layer, x: torch.Tensor, floats: Any = floats) -> None:
                others = floats[layer]
                other = others.pop(0) if others else x
                sink(layer, x, other if other.shape == x.shape else x)

            self._run_once(batch, layers, pair, False)

    def _run_once(self, batch: int, layers: Sequence[Layer], sink: Sink, original: bool) -> None:
        served: dict[nn.Module, list[Layer]] = {}
        for layer in layers:
            served.setdefault(layer.module, []).append(layer)
        missing = {module: self.calls_of.get(module, 1) for module in served}

        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            serve(module, args, kwargs, served[module])
            missing[module] -= 1
            if all(count <= 0 for count in missing.values()):
                raise Stop

        def serve(module: nn.Module, args: Any, kwargs: Any, wanted: list[Layer]) -> None:
            if wanted[0].projection is None:
                sink(wanted[0], self._counted(batch, first_input(args, kwargs)))
                return
            masks = self.replay.batches[batch].mask_of_rows
            for expert, x in expert_rows(module, args, kwargs, masks):
                for layer in wanted:
                    if layer.expert != expert or x.shape[0] == 0:
                        continue
                    sink(layer, middle(module, expert, x) if _is_down(layer) else x)

        self.run_hooked(batch, list(served), hook, original)

    def calls(self, module: nn.Module) -> list[Call]:
        """The calls of a submodule of the block, of every batch."""
        found: list[Call] = []
        keep = self.replay.activations_device
        for batch in range(len(self.replay.batches)):

            def hook(module: nn.Module, args: Any, kwargs: Any, batch: int = batch) -> None:
                mask = self._mask(batch, first_input(args, kwargs))
                found.append(Call(moved(args, keep), moved(kwargs, keep), mask, self.device))
                if self.calls_of.get(module, 0) == 1:
                    raise Stop

            self.run_hooked(batch, [module], hook)
        return found

    def run_hooked(
        self,
        batch: int,
        modules: Sequence[nn.Module],
        hook: Callable[..., None],
        original: bool = False,
    ) -> None:
        """Run the block over a batch; `modules` call hook(module, args, kwargs) before they run."""
        with contextlib.ExitStack() as stack:
            for module in modules:
                handle = module.register_forward_pre_hook(hook, with_kwargs=True)
                stack.callback(handle.remove)
            self.replay.run(self.index, batch, original=original)

    def set(
        self,
        layer: Layer,
        quantized: QuantizedWeight,
        *,
        hessian: torch.Tensor | None = None,
        inputs: torch.Tensor | None = None,
    ) -> None:
        """The layer's 4-bit weight; from here on the block runs with it, dequantized.

        hessian: [K, K], sum or mean of x x^T; or inputs: [rows, K], of the layer, for the report's
            error of outputs against `layer.weight` as it is now.
        """
        self.errors[layer] = layer_error(layer.weight, quantized, inputs, hessian)
        self.done[layer] = quantized
        self.put(layer, quantized.dequantize(torch.float32))

    def put(self, layer: Layer, weight: torch.Tensor) -> None:
        """Let the block run with `weight` [N, K] as the layer's."""
        layer.view_of(self._own(layer.parameter)).copy_(weight)

    def round(self, layer: Layer, reason: str) -> None:
        """Round to nearest a layer that the method cannot do; the report says the reason."""
        settings = self.settings
        quantized = quantize_weight(
            layer.weight,
            group_size=settings.group_size,
            symmetric=settings.symmetric,
            scale_dtype=layer.scale_dtype,
        )
        self.set(layer, quantized)
        self.fallbacks[layer] = reason
        if layer.projection is not None:
            # Of its outputs nothing is known; those of the other experts are still shown.
            self.errors[layer] = replace(self.errors[layer], output_error=0.0, output_norm=0.0)

    def replace(self, parameter: nn.Parameter, value: torch.Tensor) -> None:
        """Give a float parameter of the block other values of its shape."""
        if value.shape != parameter.shape:
            raise ValueError(
                f"{self.name}: a parameter of {list(parameter.shape)} cannot become "
                f"{list(value.shape)}"
            )
        self._own(parameter).copy_(value)

    def feed(self, original: bool) -> None:
        """Run all batches for what the next block reads; original: the float model's, too."""
        for batch in range(len(self.replay.batches)):
            self.replay.run(self.index, batch, keep=True)
            if original:
                with self._original_weights():
                    self.replay.run(self.index, batch, keep=True, original=True)

    def restore(self) -> None:
        """The float weights that the block had."""
        for parameter, data in self.originals.items():
            parameter.data = data
        self.originals.clear()

    # ---- how ----

    def _own(self, parameter: nn.Parameter) -> torch.Tensor:
        """The parameter's data, of which `originals` keeps the first values."""
        if parameter not in self.originals:
            self.originals[parameter] = parameter.data
            parameter.data = parameter.data.clone()
        return parameter.data

    @contextlib.contextmanager
    def _original_weights(self) -> Iterator[None]:
        changed = {parameter: parameter.data for parameter in self.originals}
        for parameter, data in self.originals.items():
            parameter.data = data
        try:
            yield
        finally:
            for parameter, data in changed.items():
                parameter.data = data

    def _counted(self, batch: int, x: torch.Tensor) -> torch.Tensor:
        return self.replay.batches[batch].counted(x)

    def _mask(self, batch: int, x: torch.Tensor) -> torch.Tensor | None:
        return self.replay.batches[batch].mask_of(x)


def first_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """The tensor that a layer reads."""
    values = [*args, *kwargs.values()]
    return next(value for value in values if isinstance(value, torch.Tensor))


def layers_of(module: nn.Module, name: str, scale_dtype: Callable[..., Any]) -> list[Layer]:
    """A linear as a Layer; of a module of experts each expert's projections.

    scale_dtype: gives the dtype of scales that serves all of some weights.
    """
    projections = experts_projections(module)
    if projections is None:
        return [Layer(name, module, scale_dtype(None))]
    layers = []
    for projection in projections:
        parameter: Any = module._parameters[projection]
        weights = expert_weights(module, parameter)
        dtype = scale_dtype(weights)
        layers += [
            Layer(f"{name}.{projection}.{expert}", module, dtype, projection, expert)
            for expert in range(len(weights))
        ]
    return layers


def _is_down(layer: Layer) -> bool:
    return layer.projection == "down_proj"
