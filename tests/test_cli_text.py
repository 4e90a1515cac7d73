"""`xgemm generate` and `xgemm eval`: what they print is what the model computes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from language_models import save_llama, save_tokenizer

import xgemm

pytest.importorskip("typer")
pytest.importorskip("rich")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def directories(tmp_path_factory) -> tuple[Path, Path]:
    """A float directory and an xgemm directory made from it."""
    root = tmp_path_factory.mktemp("models")
    source = save_llama(root / "float")
    model = transformers.AutoModelForCausalLM.from_pretrained(source)
    xgemm.save(xgemm.quantize(model, group_size=32), root / "packed")
    save_tokenizer(root / "packed")
    return source, root / "packed"


def greedy(model: torch.nn.Module, ids: list[int], count: int) -> list[int]:
    for _ in range(count):
        with torch.inference_mode():
            ids = [*ids, int(model(torch.tensor([ids])).logits[0, -1].argmax())]
    return ids[-count:]


@pytest.mark.parametrize("kind", [0, 1], ids=["float", "xgemm"])
def test_generate_is_greedy_by_default(run, directories, kind):
    directory = directories[kind]
    code, out, err = run(
        *("generate", directory, "Hello", "--no-chat", "--max-new-tokens", 6, "--json"),
        *("--device", "cpu"),
    )
    assert code == 0, err
    facts = json.loads(out)
    model = (
        xgemm.load(directory)
        if kind
        else transformers.AutoModelForCausalLM.from_pretrained(directory)
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    expected = greedy(model.eval(), tokenizer("Hello")["input_ids"], 6)
    assert facts["text"] == tokenizer.decode(expected, skip_special_tokens=True)
    assert (facts["prompt_tokens"], facts["new_tokens"]) == (5, 6)
    assert facts["tokens_per_s"] > 0
    assert 0 < facts["first_token_s"] < facts["seconds"]
    assert facts["model"] == "LlamaForCausalLM, float32, cpu"


def test_generate_streams_to_stdout_and_measures_on_stderr(run, directories):
    arguments = ("generate", directories[1], "Hi", "--max-new-tokens", 4)
    code, out, err = run(*arguments)
    text = json.loads(run(*arguments, "--json")[1])["text"]
    assert code == 0, err
    assert out == xgemm.quoting.printable(text) + "\n"
    assert "4 tokens, " in err
    assert "tokens/s after the first; first token after" in err


def test_generate_refuses_tokens_that_the_model_lacks(run, tmp_path):
    plain = save_llama(tmp_path / "plain", chat=False)
    file = tmp_path / "plain" / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["H"] = 9999
    file.write_text(json.dumps(tokenizer))
    code, _, err = run("generate", plain, "H")
    assert code == 1
    assert "the tokenizer gives token 9999, of a model of 257" in " ".join(err.split())


def test_generate_uses_the_chat_template(run, directories, tmp_path):
    arguments = ("generate", directories[0], "Hi", "--max-new-tokens", 1, "--json")
    with_chat = json.loads(run(*arguments)[1])
    assert with_chat["chat"] is True
    assert with_chat["prompt_tokens"] == len("<user>Hi<assistant>")
    assert json.loads(run(*arguments, "--no-chat")[1])["prompt_tokens"] == 2
    plain = save_llama(tmp_path / "plain", chat=False)
    assert (
        json.loads(run("generate", plain, "Hi", "--max-new-tokens", 1, "--json")[1])["chat"]
        is False
    )
    (tmp_path / "plain" / "chat_template.jinja").write_text("{{ ''.__class__ }}{% endfor %}")
    code, _, err = run("generate", plain, "Hi")
    assert code == 1
    assert "its chat template fails (TemplateSyntaxError" in err
    (tmp_path / "plain" / "chat_template.jinja").unlink()
    code, _, err = run("generate", plain, "Hi", "--chat")
    assert code == 1
    assert "has no chat template" in err


def test_generate_samples_by_seed_and_temperature(run, directories):
    def text(*arguments: object) -> str:
        code, out, err = run("generate", directories[0], "Hi", "--max-new-tokens", 12, "--json",
                             *arguments)  # fmt: skip
        assert code == 0, err
        return json.loads(out)["text"]

    hot = ("--temperature", 5)
    assert text(*hot, "--seed", 1) == text(*hot, "--seed", 1)
    assert text(*hot, "--seed", 1) != text(*hot, "--seed", 2)
    assert text(*hot, "--seed", 1, "--top-p", 0.0001) == text()
    code, _, err = run("generate", directories[0], "Hi", "--seed", 1)
    assert code == 1
    assert "give a --temperature above 0" in err


def test_generate_in_another_dtype(run, directories):
    code, out, err = run("generate", directories[1], "Hi", "--dtype", "bfloat16", "--json",
                         "--max-new-tokens", 2, "--device", "cpu")  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["model"] == "LlamaForCausalLM, bfloat16, cpu"
    assert "--dtype must be one of" in run("generate", directories[1], "Hi", "--dtype", "int8")[2]


def test_generate_refuses_what_writes_no_text(run, tmp_path):
    config = transformers.BertConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        vocab_size=40, max_position_embeddings=32,
    )  # fmt: skip
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path / "bert")
    for command in (("generate", tmp_path / "bert", "Hi"), ("eval", tmp_path / "bert")):
        code, out, err = run(*command)
        assert (code, out) == (1, "")
        assert "BertForMaskedLM is no language model that writes text" in err
    code, _, err = run("generate", tmp_path, "Hi")
    assert code == 1
    assert "holds no config.json: not a model's directory" in err
    save_llama(tmp_path / "bare")
    for file in (tmp_path / "bare").glob("tokenizer*"):
        file.unlink()
    assert "holds no tokenizer" in run("generate", tmp_path / "bare", "Hi")[2]


def test_windows_score_each_token_once_after_enough_context():
    from xgemm.hf.perplexity import windows

    for tokens in (2, 3, 7, 8, 9, 20, 33):
        for window, stride in ((8, 7), (8, 1), (8, 4), (2, 1)):
            found = windows(tokens, window, stride)
            scored = [t for _, end, first in found for t in range(first, end)]
            assert scored == list(range(1, tokens))
            for begin, end, first in found:
                assert end - begin <= window
                assert first - begin >= min(window - stride, first)
    with pytest.raises(ValueError, match=r"stride must be within 1\.\.window - 1, got 8"):
        windows(20, 8, 8)


def losses(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        logits = model(ids[None]).logits[0, :-1].double()
    return -logits.log_softmax(-1)[torch.arange(ids.numel() - 1), ids[1:]]


def test_eval_is_the_perplexity_of_the_text(run, directories, tmp_path):
    source, packed = directories
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog.\n")
    code, out, err = run("eval", packed, "--text", text, "--reference", source, "--json")
    assert code == 0, err
    facts = json.loads(out)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    ids = torch.tensor(tokenizer(text.read_text())["input_ids"])
    ours = losses(xgemm.load(packed), ids)
    theirs = losses(transformers.AutoModelForCausalLM.from_pretrained(source), ids)
    assert facts["models"][0]["tokens"] == ids.numel() - 1 == 44
    assert facts["models"][0]["perplexity"] == pytest.approx(math.exp(ours.mean()), rel=1e-5)
    assert facts["models"][1]["perplexity"] == pytest.approx(math.exp(theirs.mean()), rel=1e-5)
    difference = ours - theirs
    assert facts["difference"]["loss"] == pytest.approx(float(difference.mean()), abs=1e-5)
    error = float(difference.std()) / math.sqrt(44)
    assert facts["difference"]["loss_standard_error"] == pytest.approx(error, rel=1e-3)
    assert facts["models"][0]["bytes"] < facts["models"][1]["bytes"]


def test_eval_slides_over_what_it_was_told_to_read(run, directories, tmp_path):
    source, _ = directories
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog.\n")
    arguments = ("--text", text, "--window", 16, "--stride", 5, "--max-tokens", 30, "--json")
    facts = json.loads(run("eval", source, *arguments)[1])
    assert facts["models"][0]["tokens"] == 29
    model = transformers.AutoModelForCausalLM.from_pretrained(source)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    ids = torch.tensor(tokenizer(text.read_text())["input_ids"][:30])
    total = float(losses(model, ids[:16]).sum())
    for begin in (5, 10, 15):  # the tokens that the window before did not hold
        total += float(losses(model, ids[begin : begin + 16])[-5 if begin < 15 else -4 :].sum())
    assert facts["models"][0]["loss"] == pytest.approx(total / 29, rel=1e-5)


def test_eval_prints_a_table(run, directories):
    source, packed = directories
    code, out, err = run("eval", packed, "--reference", source, "--max-tokens", 200)
    assert code == 0, err
    assert "199 tokens" in out
    assert "pydoc_data/topics.py" in out
    assert "windows of 128 tokens, stride 64" in out
    assert "from the reference's (standard error" in out
    assert "same most likely token at" in out


def test_eval_refuses_what_does_not_compare(run, directories, tmp_path):
    source, packed = directories
    other = save_llama(tmp_path / "other")
    path = other / "tokenizer.json"
    path.write_text(path.read_text().replace('"add_prefix_space":false', '"add_prefix_space":true')
                    .replace('"add_prefix_space": false', '"add_prefix_space": true'))  # fmt: skip
    code, _, err = run("eval", packed, "--reference", other, "--max-tokens", 50)
    assert code == 1
    assert "makes other tokens of the text" in err
    for arguments, text in (
        (("--window", 4096), "--window must be at most 128"),
        (
            ("--window", 16, "--stride", 16),
            "--stride must be below the window of 16 tokens, got 16",
        ),
    ):
        code, _, err = run("eval", source, *arguments)
        assert code == 1
        assert text in err
    (tmp_path / "empty.txt").write_text("a")
    assert "at least 2 tokens, got 1" in run("eval", source, "--text", tmp_path / "empty.txt")[2]
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    assert "is not UTF-8" in run("eval", source, "--text", tmp_path / "bytes.txt")[2]
