"""Starts the programs in the folder bin beside this file, with the LibTorch of the torch that this Python has.

torch is found without importing it: that would take seconds, and all of its Python dependencies.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pathlib
import re
import sys
from typing import NoReturn

NEEDED = "2.11"
_PROGRAMS = pathlib.Path(__file__).resolve().parent / "bin"


class NoTorch(Exception):
    """Why penstockd can't be started; the message says what to install."""


def torch_libraries() -> pathlib.Path:
    """The folder with LibTorch, when everything is there that its CPU part loads."""
    pip = f"{sys.executable} -m pip install"
    spec = importlib.util.find_spec("torch")
    folder = pathlib.Path(next(iter(spec.submodule_search_locations or []), "")) if spec else pathlib.Path()
    if not (folder / "lib" / "libtorch_cpu.so").is_file():
        raise NoTorch(f"it needs torch {NEEDED}, and {sys.prefix} has none: {pip} 'torch=={NEEDED}.*'")
    text = (folder / "version.py").read_text()
    version = next(iter(re.findall(r"^__version__ = '([^']+)'", text, re.M)), "of an unknown version")
    if not re.match(rf"{re.escape(NEEDED)}\b", version):
        raise NoTorch(f"it needs torch {NEEDED}, and {folder} is torch {version}: {pip} 'torch=={NEEDED}.*'")
    for cuda in re.findall(r"^cuda\b.*= '(\d+)", text, re.M):  # none in a build for CPUs alone
        for package, library in (("runtime", f"libcudart.so.{cuda}"), ("cupti", f"libcupti.so.{cuda}")):
            if not any(folder.parent.glob(f"nvidia/*/lib/{library}")) and not _opens(library):
                raise NoTorch(
                    f"torch {version} loads {library} also without a GPU, and it is missing: "
                    f"{pip} 'nvidia-cuda-{package}=={cuda}.*'"
                )
    return folder / "lib"


def _opens(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _start(name: str, libraries: pathlib.Path | None) -> NoReturn:
    environment = dict(os.environ)
    if libraries:
        # First, and so before any other LibTorch that the machine has.
        others = environment.get("LD_LIBRARY_PATH")
        environment["LD_LIBRARY_PATH"] = f"{libraries}:{others}" if others else str(libraries)
    program = str(_PROGRAMS / name)
    os.execve(program, [program, *sys.argv[1:]], environment)


def penstockd() -> NoReturn:
    """The console script penstockd."""
    try:
        libraries = torch_libraries()
    except NoTorch as problem:
        sys.exit(f"penstockd: {problem}")
    _start("penstockd", libraries)


def penstock() -> NoReturn:
    """The console script penstock. It needs no torch, but `penstock doctor` asks the daemon beside it."""
    try:
        libraries = torch_libraries()
    except NoTorch:
        _start("penstock", None)
    _start("penstock", libraries)
