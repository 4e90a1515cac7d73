"""Who may read a file that takes another's place: those who might read the old one."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

_ACL = "system.posix_acl_access"


def keep_rights(old: Path, new: Path) -> None:
    """Give `new` the owner, group, mode (setgid too) and access list of `old`, as far as allowed.

    Where the group cannot be kept, the new group gets no more than others had. Other extended
    attributes are not copied: they tell of contents that are replaced. A symbolic link has no
    rights to hand on.
    """
    before = os.lstat(old)
    if stat.S_ISLNK(before.st_mode):
        return
    mode = stat.S_IMODE(before.st_mode)
    if not _chown(new, before.st_uid, before.st_gid):
        mode &= ~(stat.S_ISUID | stat.S_ISGID)
        if not _chown(new, -1, before.st_gid):
            others = mode & stat.S_IRWXO
            os.chmod(new, (mode & ~stat.S_IRWXG) | (others << 3))
            return
    os.chmod(new, mode)
    with contextlib.suppress(OSError):  # the file system has no access lists, or `old` has none
        os.setxattr(new, _ACL, os.getxattr(old, _ACL))


def _chown(path: Path, owner: int, group: int) -> bool:
    """Whether `path` belongs to them now."""
    now = os.stat(path)
    if now.st_gid == group and owner in (-1, now.st_uid):
        return True
    try:
        os.chown(path, owner, group)
    except OSError:  # root_squash, a file system without owners, or simply another user
        return False
    return True
