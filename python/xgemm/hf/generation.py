"""accelerate_generation: `generate` whose decode steps are one CUDA graph.

transformers' own loop launches some 1,500 small kernels a token from Python: the host, not the GPU,
is the limit. Here the prompt is computed by the model as it is, its keys and values move into a
static cache, and each further token is one replay of a recorded graph. The host stays a step
ahead of the GPU: what stops a generation is read one step late, and the step too many is dropped.
Logits processors, sampling, stopping criteria and streaming are transformers' own.
"""

from __future__ import annotations

import functools
import inspect
import logging
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from xgemm.hf.recorded_step import CannotRecordError, RecordedStep, cache_name

logger = logging.getLogger("xgemm")

MIN_LENGTH = 512  # positions of the shortest cache; longer ones are powers of two
RECORDED_ON = ("cuda",)  # types of devices whose work is recorded
MAX_RECORDED = 4  # graphs that a model keeps, each with a cache of its own
# What generate may hand to the model beside the tokens, and what a step knows how to follow.
_KNOWN_INPUTS = {"attention_mask", "use_cache", "logits_to_keep", "position_ids"}
_ADAPTER_STATE = ("active_adapters", "disable_adapters", "merged_adapters")  # of a peft layer
# The recorded steps of each model. They lie beside the model, which is still copied and pickled.
_STEPS: weakref.WeakKeyDictionary[nn.Module, OrderedDict[tuple[Any, ...], RecordedStep]]
_STEPS = weakref.WeakKeyDictionary()


def accelerate_generation(model: nn.Module) -> nn.Module:
    """Make `model.generate` decode on a CUDA graph from now on; returns the model.

    model: a transformers model with a language modelling head, on one device. Of a peft model the
        base model is taken.

    Tokens are those of plain `generate`: greedy and sampling, batches, padding, streamers, logits
    processors and stopping criteria. What the fast way cannot take (beams, an assistant, a cache of
    the caller's, a sliding window, an offloaded layer) is named in one warning, and plain
    `generate` goes on. The first call with a batch size or a longer cache records a graph. A graph
    holds a static cache; weights that are moved or replaced make it record anew.
    """
    base = _base_model(model)
    if not callable(getattr(base, "_sample", None)):
        raise TypeError(
            f"accelerate_generation: model must be a transformers model that generates, got "
            f"{type(model).__name__}"
        )
    if not _is_accelerated(base):
        base.generate = functools.partial(_generate, base)
    return model


def plain_generation(model: nn.Module) -> nn.Module:
    """Undo `accelerate_generation`, and free what its graphs hold; returns the model."""
    base = _base_model(model)
    if _is_accelerated(base):
        del base.generate
    _STEPS.pop(base, None)
    return model


def _base_model(model: Any) -> Any:
    """The transformers model itself, within a peft model too."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _is_accelerated(base: nn.Module) -> bool:
    return getattr(vars(base).get("generate"), "func", None) is _generate


def _generate(model: Any, *args: Any, **options: Any) -> Any:
    """generate, with the decoding loop replaced; everything before the loop is transformers'."""
    plain = functools.partial(type(model).generate, model)
    given = inspect.signature(plain).bind(*args, **options).arguments
    given = {**given, **given.get("kwargs", {})}
    for name in ("custom_generate", "assistant_model", "prompt_lookup_num_tokens", "synced_gpus"):
        if given.get(name):
            _say_why(f"{name} was given")
            return plain(*args, **options)
    # transformers hands the streamer to its own loops only.
    decode = functools.partial(_decode, streamer=given.get("streamer"))
    return plain(*args, custom_generate=decode, **options)


def _say_why(reason: str) -> None:
    logger.warning("accelerate_generation: %s: plain generate goes on", reason)


def _decode(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    synced_gpus: bool = False,
    streamer: Any = None,
    **model_kwargs: Any,
) -> Any:
    """The decoding loop that `generate` calls in place of `_sample`."""
    reason = _reason_for_plain(model, logits_processor, generation_config, model_kwargs)
    if reason is None:
        step = _step_for(model, input_ids, stopping_criteria, generation_config)
        loop = _Loop(
            model, step, input_ids, logits_processor, stopping_criteria, generation_config, streamer
        )
        try:
            logits = loop.prefill(model_kwargs)
        except CannotRecordError as error:
            reason = str(error)
            model_kwargs[cache_name()] = type(model_kwargs[cache_name()])()
        else:
            return loop.run(logits)
    _say_why(reason)
    method = getattr(type(model), _plain_method(generation_config))
    return method(
        model, input_ids, logits_processor=logits_processor, stopping_criteria=stopping_criteria,
        generation_config=generation_config, synced_gpus=synced_gpus, streamer=streamer,
        **model_kwargs,
    )  # fmt: skip


def _plain_method(generation_config: Any) -> str:
    from transformers.generation.utils import GENERATION_MODES_MAPPING

    name: str = GENERATION_MODES_MAPPING[generation_config.get_generation_mode(None)]
    return name


def _reason_for_plain(
    model: Any, logits_processor: Any, generation_config: Any, model_kwargs: dict[str, Any]
) -> str | None:
    """Why this call cannot take the fast way, in words for the user; None where it can."""
    from transformers import DynamicCache
    from transformers.generation import GenerationMode

    mode = generation_config.get_generation_mode(None)
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        return f"generation mode {mode.value}"
    if model.config.is_encoder_decoder:
        return f"{type(model).__name__} is an encoder-decoder model"
    if not generation_config.use_cache:
        return "use_cache=False"
    if generation_config.cache_implementation is not None:
        return f"cache_implementation={generation_config.cache_implementation!r}"
    if generation_config.output_attentions or generation_config.output_hidden_states:
        return "output_attentions or output_hidden_states"
    if generation_config.prefill_chunk_size is not None:
        return "prefill_chunk_size"
    cache: Any = model_kwargs.get(cache_name())
    if type(cache) is not DynamicCache:
        return f"a cache of class {type(cache).__name__}"
    if getattr(cache, "_is_user_defined", False) or cache.get_seq_length() > 0:
        return f"{cache_name()} was given"
    if extra := sorted(
        name
        for name, value in model_kwargs.items()
        if value is not None and name not in (*_KNOWN_INPUTS, cache_name())
    ):
        return f"the model input {extra[0]!r}"
    if any("Guidance" in type(each).__name__ for each in logits_processor):
        return "guidance_scale"
    return _reason_of_model(model)


def _reason_of_model(model: Any) -> str | None:
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    if len(devices) > 1 or any(device.type == "meta" for device in devices):
        return f"the model is spread over {', '.join(sorted(map(str, devices)))}"
    if (device := next(iter(devices)).type) not in RECORDED_ON:
        return f"the model is on the device {device!r}"
    for name, module in model.named_modules():
        hook = getattr(module, "_hf_hook", None)
        if getattr(hook, "offload", False):
            return f"the layer {name!r} is offloaded"
    text_config = model.config.get_text_config(decoder=True)
    kinds = set(getattr(text_config, "layer_types", None) or ["full_attention"])
    if others := sorted(kinds - {"full_attention"}):
        return f"layers of type {others[0]!r}"
    if getattr(text_config, "sliding_window", None) and not getattr(
        text_config, "layer_types", None
    ):
        return "a sliding window"
    return None


def _signature(model: nn.Module) -> tuple[Any, ...]:
    """What a recorded graph depends on: where the tensors lie, and which adapters are active."""
    tensors = tuple(
        (tensor.data_ptr(), tensor.dtype) for tensor in (*model.parameters(), *model.buffers())
    )
    adapters = tuple(
        tuple(str(getattr(module, name)) for name in _ADAPTER_STATE)
        for module in model.modules()
        if all(hasattr(module, name) for name in _ADAPTER_STATE)
    )
    return tensors, adapters, model.training


def _step_for(
    model: Any, input_ids: torch.Tensor, stopping_criteria: Any, generation_config: Any
) -> RecordedStep:
    """The recorded step of this batch size whose cache is long enough, or a new one."""
    length = stopping_criteria.max_length or generation_config.max_length
    wanted = MIN_LENGTH
    while wanted < length:
        wanted *= 2
    steps = _STEPS.setdefault(model, OrderedDict())
    signature = _signature(model)
    for key in [key for key in steps if key[0] != signature]:
        del steps[key]
    key = (signature, input_ids.shape[0], wanted)
    if key not in steps:
        while len(steps) >= MAX_RECORDED:
            steps.popitem(last=False)
        layers = model.config.get_text_config(decoder=True).num_hidden_layers
        steps[key] = RecordedStep(layers, input_ids.shape[0], wanted, input_ids.device)
    steps.move_to_end(key)
    return steps[key]


# ---- the loop ----


class _Loop:
    """transformers' `_sample`, with a graph for a step; whether to stop is read one step late."""

    def __init__(
        self,
        model: Any,
        step: RecordedStep,
        input_ids: torch.Tensor,
        logits_processor: Callable[..., torch.Tensor],
        stopping_criteria: Any,
        generation_config: Any,
        streamer: Any,
    ) -> None:
        self.model = model
        self.step = step
        self.input_ids = input_ids
        self.process = logits_processor
        self.stopping_criteria = stopping_criteria
        self.max_length: int | None = stopping_criteria.max_length
        self.config = generation_config
        self.streamer = streamer
        self.scores: list[torch.Tensor] = []
        self.raw_logits: list[torch.Tensor] = []
        self.ends = any(hasattr(criterion, "eos_token_id") for criterion in stopping_criteria)
        self.unfinished = torch.ones(input_ids.shape[0], dtype=torch.long, device=input_ids.device)

    def prefill(self, model_kwargs: dict[str, Any]) -> torch.Tensor:
        """The logits [rows, vocabulary] after the prompt, by the model as it is."""
        inputs = self.model.prepare_inputs_for_generation(
            self.input_ids, is_first_iteration=True, **model_kwargs
        )
        logits = self.model(**inputs, return_dict=True).logits[:, -1].float()
        if self.max_length is None or self.input_ids.shape[1] + 1 < self.max_length:
            self.step.start(model_kwargs[cache_name()], model_kwargs.get("attention_mask"))
            self.step.record(self.model)
        return logits

    def run(self, logits: torch.Tensor) -> Any:
        """Everything after the prompt."""
        watch = _LateWatch(self.input_ids.device, self.streamer)
        tokens = self._choose(logits)
        while not watch(self.unfinished, tokens):
            if self.max_length is not None and self.input_ids.shape[1] >= self.max_length:
                break
            tokens = self._choose(self.step(self.model, tokens))
        return self._result(watch.finish())

    def _choose(self, logits: torch.Tensor) -> torch.Tensor:
        """The next token of each sequence [rows], by transformers' rules; takes note of it."""
        scores = self.process(self.input_ids, logits.clone())
        if self.config.return_dict_in_generate:
            if self.config.output_scores:
                self.scores.append(scores)
            if self.config.output_logits:
                self.raw_logits.append(logits.clone())
        if self.config.do_sample:
            tokens = torch.multinomial(torch.softmax(scores, dim=-1), num_samples=1).squeeze(1)
        else:
            tokens = scores.argmax(dim=-1)
        if self.ends:
            pad = self.config._pad_token_tensor.to(tokens.device)
            tokens = tokens * self.unfinished + pad * (1 - self.unfinished)
        self.input_ids = torch.cat([self.input_ids, tokens[:, None]], dim=-1)
        given = tuple(self.scores) or None
        self.unfinished = self.unfinished & ~self.stopping_criteria(self.input_ids, given)
        return tokens

    def _result(self, dropped: int) -> Any:
        from transformers.generation import GenerateDecoderOnlyOutput

        end = self.input_ids.shape[1] - dropped
        sequences = self.input_ids[:, :end]
        if self.streamer is not None:
            self.streamer.end()
        if not self.config.return_dict_in_generate:
            return sequences
        kept = len(self.scores or self.raw_logits) - dropped
        return GenerateDecoderOnlyOutput(
            sequences=sequences,
            scores=tuple(self.scores[:kept]) or None,
            logits=tuple(self.raw_logits[:kept]) or None,
        )


class _LateWatch:
    """Tells one step late whether all sequences have ended, so that the host need not wait."""

    def __init__(self, device: torch.device, streamer: Any) -> None:
        self.streamer = streamer
        self.on_gpu = device.type == "cuda"
        self.pending: tuple[torch.Tensor, torch.Tensor, Any] | None = None
        self.stopped = False

    def __call__(self, unfinished: torch.Tensor, tokens: torch.Tensor) -> bool:
        if not self.on_gpu:
            if self.streamer is not None:
                self.streamer.put(tokens)
            return bool(unfinished.max() == 0)
        going = unfinished.max().to("cpu", non_blocking=True)
        copied = tokens.to("cpu", non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        before, self.pending = self.pending, (going, copied, event)
        if before is not None:
            self.stopped = self._read(before)
        return self.stopped

    def _read(self, entry: tuple[torch.Tensor, torch.Tensor, Any]) -> bool:
        going, tokens, event = entry
        event.synchronize()
        if self.streamer is not None:
            self.streamer.put(tokens)
        return bool(going == 0)

    def finish(self) -> int:
        """How many steps at the end came after all sequences had ended; streams what is left."""
        if not self.on_gpu or self.pending is None:
            return 0
        if self.stopped:  # the last step was one too many
            return 1
        self._read(self.pending)
        return 0
