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


# Tells the program penstock why there is no torch, and on the next line the command that mends it.
NO_TORCH = "PENSTOCK_NO_TORCH"


class NoTorch(Exception):
    """Why penstockd can't be started, and the command that installs what is missing."""

    def __init__(self, reason: str, package: str) -> None:
        self.reason, self.command = reason, f"{sys.executable} -m pip install '{package}.*'"
        super().__init__(f"{reason}: {self.command}")


def torch_libraries() -> pathlib.Path:
    """The folder with LibTorch, when everything is there that its CPU part loads."""
    spec = importlib.util.find_spec("torch")
    folders = [pathlib.Path(folder) for folder in spec.submodule_search_locations or []] if spec else []
    folder = next((folder for folder in folders if (folder / "lib" / "libtorch_cpu.so").is_file()), None)
    if not folder:
        raise NoTorch(f"it needs torch {NEEDED}, and {sys.prefix} has none", f"torch=={NEEDED}")
    about = folder / "version.py"
    text = about.read_text(encoding="utf-8", errors="replace") if about.is_file() else ""
    version = next(iter(re.findall(r"^__version__ = '([^']+)'", text, re.M)), None)
    if not version:
        raise NoTorch(f"it needs torch {NEEDED}, and {folder} is of an unknown version", f"torch=={NEEDED}")
    if not re.match(rf"{re.escape(NEEDED)}\b", version):
        raise NoTorch(f"it needs torch {NEEDED}, and {folder} is torch {version}", f"torch=={NEEDED}")
    for cuda in re.findall(r"^cuda\b.*= '(\d+)", text, re.M):  # none in a build for CPUs alone
        for package, library in (("runtime", f"libcudart.so.{cuda}"), ("cupti", f"libcupti.so.{cuda}")):
            if not any(folder.parent.glob(f"nvidia/*/lib/{library}")) and not _opens(library):
                missing = f"torch {version} loads {library} also without a GPU, and it is missing"
                raise NoTorch(missing, f"nvidia-cuda-{package}=={cuda}")
    return folder / "lib"


def _opens(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _start(name: str, libraries: pathlib.Path | None, no_torch: NoTorch | None = None) -> NoReturn:
    environment = {name: value for name, value in os.environ.items() if name != NO_TORCH}
    if no_torch:
        environment[NO_TORCH] = f"{no_torch.reason}\n{no_torch.command}"
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
    """The console script penstock. It needs no torch, but `penstock doctor` tells why the daemon beside it has none."""
    try:
        libraries = torch_libraries()
    except NoTorch as problem:
        _start("penstock", None, problem)
    _start("penstock", libraries)
