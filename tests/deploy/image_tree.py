"""What an image is compared by."""

from __future__ import annotations

import hashlib
import os
import pathlib


def files_of(root: pathlib.Path) -> dict[str, str]:
    """Everything that an image keeps of each of its files."""
    told = {}
    for path in [root, *root.rglob("*")]:
        status = path.lstat()
        contents = os.readlink(path) if path.is_symlink() else hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        told[str(path.relative_to(root))] = f"{status.st_mode:o} {status.st_uid} {status.st_gid} {int(status.st_mtime)} {contents}"
    return told
