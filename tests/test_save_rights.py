"""Where save writes: rights and links of what it replaces, mount points, the working directory."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpoints import Net, load_into_new, quantized, same
from torch import nn

import xgemm

pytest.importorskip("safetensors.torch")
TESTS = Path(__file__).parent
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files to a group")


def rights(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_mode & 0o7777, found.st_uid, found.st_gid


def test_modes_are_kept(saved: Path) -> None:
    saved.chmod(0o700)
    modes = {"config.json": 0o640, "model.safetensors": 0o600, "xgemm_manifest.json": 0o664}
    for name, mode in modes.items():
        (saved / name).chmod(mode)
    (saved / "README").write_text("mine")
    (saved / "README").chmod(0o604)
    xgemm.save(quantized(seed=1), saved)
    assert {p.name: p.stat().st_mode & 0o7777 for p in saved.iterdir()} == modes | {"README": 0o604}
    assert saved.stat().st_mode & 0o7777 == 0o700


def test_weights_in_other_files_stay_private(saved: Path) -> None:
    (saved / "model.safetensors").chmod(0o600)
    xgemm.save(quantized(seed=1), saved, max_shard_bytes=6000)
    shards = list(saved.glob("*.safetensors"))
    assert len(shards) > 1
    assert {shard.stat().st_mode & 0o777 for shard in shards} == {0o600}


def test_new_files_follow_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        xgemm.save(quantized(), tmp_path / "out", max_shard_bytes=6000)
    finally:
        os.umask(old)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o750
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()} == {0o640}


@ROOT_ONLY
def test_group_owner_and_setgid_are_kept(saved: Path) -> None:
    os.chown(saved, 1234, 12345)
    saved.chmod(0o2770)
    for path in saved.iterdir():
        os.chown(path, 1234, 23456)
    (saved / "config.json").chmod(0o2640)
    before = {path.name: rights(path) for path in (saved, *saved.iterdir())}
    xgemm.save(quantized(seed=1), saved)
    assert {path.name: rights(path) for path in (saved, *saved.iterdir())} == before
    xgemm.save(quantized(seed=1), saved / "new")  # as every file that is made there
    assert {rights(path)[2] for path in (saved / "new").iterdir()} == {12345}


@ROOT_ONLY
def test_a_group_that_cannot_be_kept_is_not_replaced_by_a_larger_one(saved: Path) -> None:
    """A member of no such group writes: its own group gets what others had."""
    for path in (saved, *saved.iterdir()):
        os.chown(path, -1, 12345)
        path.chmod(0o777 if path == saved else 0o640)
    for path in saved.parents:
        path.chmod(path.stat().st_mode | 0o011)
    os.setegid(65534)
    os.seteuid(65534)
    try:
        xgemm.save(quantized(seed=1), saved)
    finally:
        os.seteuid(0)
        os.setegid(0)
    assert {rights(path) for path in saved.iterdir()} == {(0o600, 65534, 65534)}


def test_access_lists_are_kept(saved: Path) -> None:
    """user::rw- user:1234:r-- group::r-- mask::r-- other::---, in the kernel's encoding."""
    entries = [(1, 6, -1), (2, 4, 1234), (4, 4, -1), (16, 4, -1), (32, 0, -1)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    name = "system.posix_acl_access"
    try:
        os.setxattr(saved / "config.json", name, acl)
    except OSError as error:
        pytest.skip(f"the file system has no access lists: {error}")
    os.setxattr(saved / "config.json", "user.checksum", b"of the old contents")
    os.setxattr(saved, "user.mine", b"stays")
    xgemm.save(quantized(seed=1), saved)
    assert os.getxattr(saved / "config.json", name) == acl
    assert (saved / "config.json").stat().st_mode & 0o777 == 0o640
    assert "user.checksum" not in os.listxattr(saved / "config.json")
    assert os.getxattr(saved, "user.mine") == b"stays"


def test_links_to_the_old_files_keep_them(saved: Path, tmp_path: Path) -> None:
    """A backup by hard links, and files that are links into a store."""
    shutil.copytree(saved, tmp_path / "backup", copy_function=os.link)
    (saved / "model.safetensors").rename(tmp_path / "blob")
    (saved / "model.safetensors").symlink_to(tmp_path / "blob")
    xgemm.save(quantized(seed=1), saved)
    same(load_into_new(tmp_path / "backup"), quantized())
    same(load_into_new(saved), quantized(seed=1))
    assert not (saved / "model.safetensors").is_symlink()
    assert (tmp_path / "blob").stat().st_size > 0


def test_other_files_are_not_touched(saved: Path) -> None:
    (saved / "assets").mkdir()
    os.mkfifo(saved / "assets" / "pipe")
    (saved / "large").write_bytes(b"x" * 1000)
    (saved / "link").symlink_to("nowhere")
    names = [saved / name for name in ("assets", "assets/pipe", "large", "link")]
    before = [path.lstat() for path in names]
    xgemm.save(quantized(seed=1), saved)
    after = [path.lstat() for path in names]
    assert [(s.st_ino, s.st_mtime_ns) for s in after] == [(s.st_ino, s.st_mtime_ns) for s in before]


def test_the_working_directory(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(saved)
    for target in (".", "../out", ""):
        xgemm.save(quantized(seed=1), target)
        same(load_into_new(Path(".")), quantized(seed=1))
        assert Path("config.json").is_file()
    empty = saved.parent / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    xgemm.save(quantized(), ".")
    same(load_into_new(Path(".")), quantized())


def test_a_link_to_the_directory(saved: Path) -> None:
    link = saved.parent / "latest"
    link.symlink_to(saved.name)
    xgemm.save(quantized(seed=1), link)
    assert link.is_symlink()
    same(load_into_new(saved), quantized(seed=1))


def in_own_mounts(script: str, *arguments: object) -> str:
    """Runs a script as root of its own mount namespace."""
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"]).returncode != 0:
        pytest.skip("no mount namespace can be made here")
    path = os.pathsep.join([str(TESTS), *sys.path])
    done = subprocess.run(
        [*unshare, sys.executable, "-c", script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


MOUNT_POINT = """
import subprocess, sys
from pathlib import Path
import xgemm
from checkpoints import load_into_new, quantized, same

target = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "none", target], check=True)
for seed in (0, 1):
    xgemm.save(quantized(seed), target)
    same(load_into_new(target), quantized(seed))
before = {path.name: path.read_bytes() for path in target.iterdir()}
assert len(before) == 3, before
ballast = target / "ballast"
try:
    with ballast.open("wb") as file:
        while True:
            file.write(bytes(1024))
            file.flush()
except OSError:
    pass
for free in (0, 8 << 10, 16 << 10):
    ballast.open("r+b").truncate(ballast.stat().st_size - free)
    try:
        xgemm.save(quantized(2), target)
    except OSError as error:
        print(error.errno, error)
    assert {p.name: p.read_bytes() for p in target.iterdir() if p != ballast} == before
"""


def test_a_mount_point_also_when_it_is_full(tmp_path: Path) -> None:
    lines = in_own_mounts(MOUNT_POINT, tmp_path).splitlines()
    assert len(lines) == 3
    for line in lines:
        assert line.startswith(f"28 save: {tmp_path} cannot be written: No space left on device"), (
            line
        )


# ---- what a file cannot hold ----


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.eye(3).to_sparse(), "x must be dense, got a tensor of layout torch.sparse_coo"),
        (torch.eye(3).to_sparse_csr(), "x must be dense, got a tensor of layout torch.sparse_csr"),
        (torch.zeros(3, dtype=torch.complex128), "x is complex128, which a safetensors file"),
        (torch.zeros(3, dtype=torch.complex32), "x is complex32, which a safetensors file"),
        (torch.nested.nested_tensor([torch.ones(2)]), "x must be a plain tensor, got a nested one"),
    ],
)
def test_tensors_that_a_file_cannot_hold(saved: Path, tensor: torch.Tensor, message: str) -> None:
    model = quantized(seed=1)
    model.register_buffer("x", tensor)
    for target in (saved, saved.parent / "new"):
        with pytest.raises(TypeError, match=f"^save: {message}"):
            xgemm.save(model, target)
    same(load_into_new(saved), quantized())
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_storage_that_was_freed(tmp_path: Path) -> None:
    model = nn.Linear(8, 8)
    model.weight.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=r"^save: weight has no data \(its storage was freed"):
        xgemm.save(model, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_complex_tensors_and_their_conjugates(tmp_path: Path) -> None:
    """A conjugate shares the memory of what it is the conjugate of, and is not tied to it."""
    model = Net()
    value = torch.randn(5, dtype=torch.complex64)
    model.register_buffer("value", value)
    model.register_buffer("conjugate", value.conj())
    xgemm.save(model, tmp_path / "out")
    other = Net(seed=1)
    for name in ("value", "conjugate"):
        other.register_buffer(name, torch.zeros(5, dtype=torch.complex64))
    xgemm.load(tmp_path / "out", model=other)
    assert torch.equal(other.value, value)
    assert torch.equal(other.conjugate, value.conj())
