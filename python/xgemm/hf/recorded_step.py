"""One decode step of a transformers model in fixed memory, recorded as a CUDA graph."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


def cache_name() -> str:
    """What transformers calls a model's cache: "cache" from 5.24 on, "past_key_values" before."""
    from transformers.generation.utils import ALL_CACHE_NAMES

    return "cache" if "cache" in ALL_CACHE_NAMES else "past_key_values"


class CannotRecordError(RuntimeError):
    """A step could not be recorded; the text says why."""


class StepLayer(CacheLayerMixin):
    """Keys and values [rows, heads, length, size] in fixed memory; new ones go to position `slot`.

    slot: int64 [1], shared by all layers of a cache. Whoever runs a step advances it.
    """

    is_compileable = True
    is_sliding = False

    def __init__(self, rows: int, length: int, slot: torch.Tensor) -> None:
        super().__init__()
        self.rows, self.length, self.slot = rows, length, slot

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        shape = (self.rows, key_states.shape[1], self.length)
        self.keys = key_states.new_zeros(*shape, key_states.shape[-1])
        self.values = value_states.new_zeros(*shape, value_states.shape[-1])
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def take(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Begin with the keys and values [rows, heads, used, size] of a prompt."""
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        self.keys[:, :, : keys.shape[2]] = keys
        self.values[:, :, : values.shape[2]] = values

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if key_states.is_cuda:
            from xgemm.hf.decode_kernels import append

            append(key_states, value_states, self.keys, self.values, self.slot)
        else:
            self.keys.index_copy_(2, self.slot, key_states)
            self.values.index_copy_(2, self.slot, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length, 0

    def get_seq_length(self) -> int:
        return self.length  # what lies in the cache is told by the mask and the positions

    def get_max_length(self) -> int:
        return self.length

    def get_max_cache_shape(self) -> int:
        return self.length


class RecordedStep:
    """One new token for each of `rows` sequences: static inputs, a static cache, and its logits.

    On a GPU the step is a CUDA graph once `record` was called; elsewhere it is called as it is.
    """

    def __init__(self, layers: int, rows: int, length: int, device: torch.device) -> None:
        self.rows, self.length = rows, length
        self.tokens = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self.positions = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self.slot = torch.zeros(1, dtype=torch.long, device=device)
        self.seen = torch.zeros(rows, length, dtype=torch.bool, device=device)
        self.cache = Cache(layers=[StepLayer(rows, length, self.slot) for _ in range(layers)])
        self.logits = torch.empty(0)
        self._graph: torch.cuda.CUDAGraph | None = None

    def start(self, cache: Any, attention_mask: torch.Tensor | None) -> None:
        """Take over the keys and values of the prompt, and where each sequence stands."""
        used = cache.get_seq_length()
        for mine, theirs in zip(self.cache.layers, cache.layers, strict=True):
            mine.take(theirs.keys, theirs.values)
        self.seen.zero_()
        if attention_mask is None:
            self.seen[:, :used] = True
            self.positions.fill_(used)
        else:
            self.seen[:, :used] = attention_mask[:, :used].bool()
            # As transformers counts them: padding on the left has no position of its own.
            self.positions.copy_(attention_mask[:, :used].long().sum(-1, keepdim=True))
        self.slot.fill_(used)

    def __call__(self, model: Any, tokens: torch.Tensor) -> torch.Tensor:
        """The fp32 logits [rows, vocabulary] after `tokens` [rows]; the next step reuses them."""
        self.tokens.copy_(tokens[:, None])
        if self._graph is None:
            return self._forward(model)
        self._graph.replay()
        return self.logits

    def _forward(self, model: Any) -> torch.Tensor:
        self.seen.index_fill_(1, self.slot, True)
        output = model(
            input_ids=self.tokens,
            attention_mask=self.seen[:, None, None, :],
            position_ids=self.positions,
            use_cache=True,
            return_dict=True,
            **{cache_name(): self.cache},
        )
        self.slot.add_(1)
        self.positions.add_(1)
        return output.logits[:, -1].float()

    def record(self, model: Any) -> None:
        """Record the graph, once, after `start`; without a GPU there is none."""
        if self._graph is not None or self.tokens.device.type != "cuda":
            return
        from xgemm.hf.decode_fusion import fused

        state = self.slot.clone(), self.positions.clone(), self.seen.clone()
        device = self.tokens.device
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream(device)
        generator = torch.cuda.default_generators[stream.device_index]
        random = generator.get_state()
        try:
            with torch.cuda.device(device), fused(model, model.dtype, device):
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    self._forward(model)  # what only a first call does: compiling, workspaces
                torch.cuda.current_stream().wait_stream(stream)
                # What other threads allocate meanwhile ends the recording in the default mode.
                record = torch.cuda.graph(graph, capture_error_mode="thread_local")
                with _without_collections(), record:
                    self.logits = self._forward(model)
        except Exception as error:  # a model's own code may do what no graph can hold
            _end_of_recording(generator, random)
            raise CannotRecordError(
                f"{type(model).__name__} cannot be recorded ({type(error).__name__}: "
                f"{str(error).splitlines()[0] if str(error) else ''})"
            ) from error
        for tensor, before in zip((self.slot, self.positions, self.seen), state, strict=True):
            tensor.copy_(before)
        self._graph = graph


def _end_of_recording(generator: torch.Generator, state: torch.Tensor) -> None:
    """Give the default generator its state from before a recording that failed.

    It would go on counting for the graph, and refuse to draw for anything else.
    """
    usable = torch.Generator(generator.device)
    usable.set_state(state)
    generator.graphsafe_set_state(usable.graphsafe_get_state())


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Python's garbage is collected before, and none meanwhile.

    It may hold graphs of other models. CUDA may refuse what frees them while a stream is recorded,
    and the recording would end with that.
    """
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
