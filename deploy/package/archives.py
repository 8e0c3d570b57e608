"""Wheels and tar archives whose bytes depend on their contents alone: entries are sorted, times and modes are fixed. Each has its
name only when it is whole."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import gzip
import hashlib
import io
import os
import pathlib
import tarfile
import time
import zipfile
from collections.abc import Iterator, Mapping

FIRST_TIME = 315532800  # a zip archive knows no time before 1980


@dataclasses.dataclass(frozen=True)
class Entry:
    contents: bytes
    executable: bool = False

    @property
    def mode(self) -> int:
        return 0o755 if self.executable else 0o644


@dataclasses.dataclass(frozen=True)
class WheelName:
    """NAME-VERSION-TAG, as in py3-none-any."""

    name: str
    version: str
    tag: str

    @property
    def file(self) -> str:
        return f"{self.name}-{self.version}-{self.tag}.whl"

    @property
    def info(self) -> str:
        """The folder of the wheel's metadata."""
        return f"{self.name}-{self.version}.dist-info"


@contextlib.contextmanager
def whole(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A file beside it, which takes its name and place if nothing fails."""
    beside = path.with_name(f".{path.name}.new")
    try:
        yield beside
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def write_wheel(folder: pathlib.Path, name: WheelName, files: Mapping[str, Entry], epoch: int) -> pathlib.Path:
    """Writes the files, METADATA among them, with WHEEL and RECORD, which say what a wheel is and what is in it."""
    pure = str(name.tag.endswith("-any")).lower()
    told = f"Wheel-Version: 1.0\nGenerator: deploy/package\nRoot-Is-Purelib: {pure}\nTag: {name.tag}\n"
    everything = {**files, f"{name.info}/WHEEL": Entry(told.encode())}
    record = f"{name.info}/RECORD"
    lines = [f"{path},sha256={_digest(entry.contents)},{len(entry.contents)}" for path, entry in sorted(everything.items())]
    everything[record] = Entry("".join(f"{line}\n" for line in [*lines, f"{record},,"]).encode())
    when = time.gmtime(max(epoch, FIRST_TIME))[:6]
    path = folder / name.file
    with whole(path) as beside, zipfile.ZipFile(beside, "w") as archive:
        # The metadata last, as the format recommends.
        for inside in sorted(everything, key=lambda inside: (inside.startswith(name.info), inside)):
            about = zipfile.ZipInfo(inside, when)
            about.create_system = 3  # Unix, whose modes are kept
            about.external_attr = (0o100000 | everything[inside].mode) << 16
            about.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(about, everything[inside].contents, compresslevel=6)
    return path


def _digest(contents: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(contents).digest()).rstrip(b"=").decode()


def write_tar(path: pathlib.Path, root: str, files: Mapping[str, Entry], epoch: int) -> pathlib.Path:
    """Writes the files below the folder `root` of a .tar.gz."""
    with whole(path) as beside, open(beside, "wb") as raw, gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for name, entry in sorted(files.items()):
                about = tarfile.TarInfo(f"{root}/{name}")
                about.size, about.mode, about.mtime = len(entry.contents), entry.mode, epoch
                archive.addfile(about, io.BytesIO(entry.contents))
    return path
