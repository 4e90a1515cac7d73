"""Damaged and hostile checkpoints, loaded or converted: `python tests/fuzz_checkpoints.py`.

Each case is a copy of a checkpoint with one or two mutations. A load ends in an error that names
the directory, or in the very model that was saved. It never hangs, crashes, takes memory without
end, runs code or asks for a kernel. Files of other tools have no hashes: a load of those may also
end in another model, with finite scales. A convert that is refused leaves no destination; one that
is not makes a directory that loads, or whose error names it. fuzzing.py has the variables.
"""

from __future__ import annotations

import collections
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from checkpoints import Net, quantized
from fuzzing import fuzz
from language_models import save_llama
from test_gguf import write_gguf
from transformers import LlamaForCausalLM
from transformers.integrations import hub_kernels
from transformers.utils import logging

import xgemm
import xgemm.hf

HANG_S = 60
MEMORY = 1 << 30  # a model of a case has 100 KB
OTHER_TOOLS = ("gptq", "awq", "compressed-tensors")
METHODS = (*OTHER_TOOLS, "xgemm")
CODE = "import pathlib\npathlib.Path({marker!r}).touch()\n"

Mutation = Callable[[random.Random, Path], None]


# ---- mutations ----


def regular(path: Path) -> list[Path]:
    return sorted(file for file in path.iterdir() if file.is_file() and not file.is_symlink())


def pick(rng: random.Random, path: Path, *suffixes: str) -> Path:
    files = regular(path)
    return rng.choice([file for file in files if file.suffix in suffixes] or files)


def truncate(rng: random.Random, path: Path) -> None:
    file = pick(rng, path)
    os.truncate(file, rng.choice([0, 8, rng.randrange(file.stat().st_size + 1)]))


def extend(rng: random.Random, path: Path) -> None:
    with pick(rng, path).open("ab") as file:
        file.write(rng.randbytes(rng.choice([1, 8, 5000])))


def flip_bits(rng: random.Random, path: Path) -> None:
    file = pick(rng, path)
    data = bytearray(file.read_bytes())
    reach = rng.choice([8, 64, 2000, len(data)])  # the beginning decides more
    for _ in range(rng.choice([1, 1, 2, 30])):
        if data:
            data[rng.randrange(min(reach, len(data)))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


def hostile_value(rng: random.Random) -> Any:
    numbers = [0, -1, 1, 2**31, 2**63, 2**64, 10**400, 1e308, float("nan"), float("inf"), 0.5]
    texts = ["", ".", "..", "../out", "/etc/passwd", "owner/kernel", "\x1b[31m", "\0", "é" * 9000]
    others = [None, True, [], {}, [[]] * 50, {"a": {"b": {}}}, [1, "a", None]]
    return rng.choice(rng.choice([numbers, texts, others]))


def edit_value(rng: random.Random, value: Any) -> Any:
    """`value` with a hostile one somewhere in it, or with a member less or renamed."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.1:
        return hostile_value(rng)
    if isinstance(value, list):
        index = rng.randrange(len(value))
        return [*value[:index], edit_value(rng, value[index]), *value[index + 1 :]]
    key = rng.choice(sorted(value))
    rest = {name: inner for name, inner in value.items() if name != key}
    how = rng.random()
    if how < 0.15:
        return rest
    if how < 0.3:
        return {**rest, str(hostile_value(rng))[:100]: value[key]}
    if how < 0.4:
        return {**value, rng.choice(["quant_method", "dtype", "auto_map"]): hostile_value(rng)}
    return {**value, key: edit_value(rng, value[key])}


def edit_json(rng: random.Random, path: Path) -> None:
    file = pick(rng, path, ".json")
    try:
        value = json.loads(file.read_bytes())
    except ValueError:
        return  # of an earlier mutation
    file.write_text(json.dumps(edit_value(rng, value)))


def edit_header(rng: random.Random, path: Path) -> None:
    """A safetensors header that lies: of dtypes, shapes, offsets, names, or of its own length."""
    file = pick(rng, path, ".safetensors")
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + length])
    except ValueError:
        return
    text = json.dumps(edit_value(rng, header)).encode()
    said = rng.choice([len(text)] * 8 + [0, 2**63, 2**40])
    file.write_bytes(said.to_bytes(8, "little") + text + data[8 + length :])


def edit_gguf(rng: random.Random, path: Path) -> None:
    """Counts, lengths, types, dimensions and offsets in the header of a GGUF file that lie."""
    file = pick(rng, path, ".gguf")
    data = bytearray(file.read_bytes())
    width = rng.choice([4, 8, 8])
    at = rng.choice([8, 16, rng.randrange(4, max(5, min(len(data), 4000)))])  # 8, 16: the counts
    value = rng.choice([0, 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**64 - 1, rng.randrange(64)])
    data[at : at + width] = (value % 256**width).to_bytes(width, "little")
    file.write_bytes(data)


def exchange(rng: random.Random, path: Path) -> None:
    """Two files change names."""
    one, other = pick(rng, path), pick(rng, path)
    if one != other:
        between = path / "between"
        one.rename(between)
        other.rename(one)
        between.rename(other)


def irregular(rng: random.Random, path: Path) -> None:
    file = pick(rng, path)
    kind = rng.choice(["missing", "FIFO", "directory", "loop", "/dev/zero", "/proc/self/mem"])
    file.unlink()
    if kind == "FIFO":
        os.mkfifo(file)
    elif kind == "directory":
        file.mkdir()
    elif kind == "loop":
        file.symlink_to(file.name)
    elif kind != "missing":
        file.symlink_to(kind)


def name_files_elsewhere(rng: random.Random, path: Path) -> None:
    """An index, or a manifest, that leads out of the directory, to a whole copy of a file."""
    elsewhere = path.parent / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    file = pick(rng, path, ".safetensors")
    shutil.copy(file, elsewhere / "model.safetensors")
    name = rng.choice(["../elsewhere/model.safetensors", str(elsewhere / "model.safetensors")])
    for document in ("xgemm_manifest.json", "model.safetensors.index.json"):
        if path / document in regular(path):
            text = (path / document).read_text(errors="replace")
            (path / document).write_text(text.replace(file.name, name))
    if rng.random() < 0.5:
        file.unlink(missing_ok=True)


def plant_code(rng: random.Random, path: Path) -> None:
    code = CODE.format(marker=str(path.parent / "marker"))
    for name in ("modeling_planted.py", "configuration_planted.py", "__init__.py"):
        (path / name).write_text(code)
    payload = b"c__builtin__\nexec\n(V" + code.replace("\n", "\\u000a").encode() + b"\ntR."
    (path / "pytorch_model.bin").write_bytes(payload)
    if rng.random() < 0.5:
        for file in regular(path):
            if file.suffix == ".safetensors":
                file.unlink()
    change_config(
        rng,
        path,
        {
            "auto_map": {
                "AutoConfig": "configuration_planted.Config",
                "AutoModelForCausalLM": "modeling_planted.Model",
            }
        },
        {"model_type": "planted", "auto_map": {"AutoConfig": "configuration_planted.Config"}},
        {"transformers_weights": "pytorch_model.bin"},
    )


def name_kernel(rng: random.Random, path: Path) -> None:
    key = rng.choice(["", "_"]) + rng.choice(["attn", "experts"]) + "_implementation"
    kernel = rng.choice(["owner/kernel", "owner/kernel:forward", "sonicmoe", "flash_attention_3"])
    change_config(rng, path, {key: kernel}, {"text_config": {key: kernel}}, {key: {"": kernel}})


def change_config(rng: random.Random, path: Path, *values: dict[str, Any]) -> None:
    file = path / "config.json"
    if file not in regular(path):
        return
    try:
        file.write_text(json.dumps({**json.loads(file.read_bytes()), **rng.choice(values)}))
    except (ValueError, TypeError):
        return  # of an earlier mutation


MUTATIONS: tuple[Mutation, ...] = (
    *(truncate, extend, flip_bits, flip_bits, edit_json, edit_json, edit_json, edit_header),
    *(edit_header, exchange, irregular, name_files_elsewhere, plant_code, name_kernel),
)
OF_ONE_FILE: tuple[Mutation, ...] = (truncate, extend, flip_bits, irregular, *[edit_gguf] * 4)


# ---- what a load does ----


def load(kind: str, path: Path, verify: bool) -> torch.nn.Module:
    if kind == "net":
        return xgemm.load(path, model=Net(seed=9).eval(), verify=verify)
    return xgemm.load(path / "model.gguf" if kind == "gguf" else path, verify=verify)


def state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def raw(tensor: torch.Tensor) -> bytes:
    """Bytes, in which a NaN equals itself."""
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def check_finite(found: dict[str, torch.Tensor]) -> None:
    for name, tensor in found.items():
        if name.endswith(("scales", "zeros")) and not tensor.isfinite().all():
            raise AssertionError(f"{name} is not finite")


class Checkpoints:
    """Whole checkpoints of every kind, and what is in them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        sources = folder / "sources"
        xgemm.save(quantized(), sources / "net", max_shard_bytes=12000)
        save_llama(sources / "float")
        model = LlamaForCausalLM.from_pretrained(sources / "float").eval()
        xgemm.save(xgemm.quantize(model, group_size=32), sources / "llama", max_shard_bytes=60000)
        for to in OTHER_TOOLS:
            xgemm.hf.convert(sources / "llama", sources / to, to=to)
        (sources / "gguf").mkdir()
        write_gguf(sources / "gguf" / "model.gguf")
        self.sources = sources
        self.kinds = ["net", "llama", "llama", *OTHER_TOOLS, "gguf"]
        self.whole = {kind: state(load(kind, sources / kind, True)) for kind in {*self.kinds}}
        self.config = load("llama", sources / "llama", True).config.to_dict()
        self.outcomes: collections.Counter[str] = collections.Counter()

    def case(self, rng: random.Random) -> None:
        kind = rng.choice(self.kinds)
        place = self.folder / "case"
        shutil.rmtree(place, ignore_errors=True)
        path = shutil.copytree(self.sources / kind, place / "out")
        verify = rng.random() < 0.8
        to = None
        if kind not in ("net", "gguf") and rng.random() < 0.4:
            to = rng.choice([to for to in METHODS if to != ("xgemm" if kind == "llama" else kind)])
        mutations = rng.choices(OF_ONE_FILE if kind == "gguf" else MUTATIONS, k=rng.choice([1, 2]))
        for mutate in mutations:
            if regular(path):
                mutate(rng, path)
        child = os.fork()
        if child == 0:
            with (place / "log").open("w") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
                os._exit(self.outcome(kind, path, verify, to))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        names = [mutate.__name__ for mutate in mutations]
        said = (place / "log").read_text(errors="replace")
        if code not in (0, 1):
            why = {-signal.SIGALRM: f"no end after {HANG_S} s"}.get(code, f"exit code {code}")
            raise AssertionError(
                f"{kind}, verify={verify}, to={to}, {names}: {why}\n{said[-3000:]}"
            )
        if (place / "marker").exists():
            raise AssertionError(f"{kind}, {names}: the checkpoint's code was run\n{said[-3000:]}")
        if to and code and (place / "converted").exists():
            raise AssertionError(f"{kind}, to={to}, {names}: left a destination\n{said[-3000:]}")
        self.outcomes["refused" if code else "converted" if to else "the same model"] += 1

    def outcome(self, kind: str, path: Path, verify: bool, to: str | None) -> int:
        """0: done. 1: refused, by the directory's name. 2: anything else."""
        signal.alarm(HANG_S)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        asked: list[str] = []
        hub_kernels.is_kernels_available = lambda *args: True
        hub_kernels.get_kernel = lambda name, *args, **options: asked.append(name)
        try:
            if to:
                self.convert(path, to)
            else:
                self.compare(kind, load(kind, path, verify), verify)
        except (TypeError, ValueError, OSError) as error:
            traceback.print_exc()
            code = 1 if str(path) in str(error) else 2
        except BaseException:
            traceback.print_exc()
            code = 2
        else:
            code = 0
        if asked:
            print(f"transformers asked for {asked}")
        return 2 if asked else code

    def convert(self, path: Path, to: str) -> None:
        """What was written loads, but where the source's own shapes are not its config's."""
        made = path.parent / "converted"
        xgemm.hf.convert(path, made, to=to)
        try:
            check_finite(state(xgemm.load(made)))
        except (TypeError, ValueError, OSError) as error:
            if str(made) not in str(error):
                raise AssertionError(f"no name of what was made: {error!r}") from error

    def compare(self, kind: str, model: torch.nn.Module, verify: bool) -> None:
        found = state(model)
        check_finite(found)
        if kind in OTHER_TOOLS or kind == "gguf" or not verify:
            return
        whole = self.whole[kind]
        assert found.keys() == whole.keys(), found.keys() ^ whole.keys()
        for name, tensor in found.items():
            assert tensor.dtype == whole[name].dtype, name
            assert raw(tensor) == raw(whole[name]), name
        if kind == "llama":
            config = model.config.to_dict()
            config["_name_or_path"] = self.config["_name_or_path"]
            assert config == self.config


def main() -> None:
    torch.set_num_threads(1)  # no thread that a fork would lose
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    sys.setrecursionlimit(1000)
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder))
        fuzz("fuzz_checkpoints", checkpoints.case)
        counts = ", ".join(f"{number} {name}" for name, number in checkpoints.outcomes.items())
        print(f"fuzz_checkpoints: {counts}")


if __name__ == "__main__":
    main()
