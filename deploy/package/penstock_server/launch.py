"""Starts the programs in the folder bin beside this file, with the LibTorch of the torch that this Python has.

torch is found without importing it: that would take seconds, and all of its Python dependencies.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pathlib
import re
import shlex
import sys
import sysconfig
from typing import NoReturn

NEEDED = "2.11"
_TORCH = "torch==2.11.0"
# Without the 4 GB of CUDA's libraries that torch's own dependencies are.
_FOR_CPUS = ("--no-deps", _TORCH, "nvidia-cuda-runtime==13.0.96", "nvidia-cuda-cupti==13.0.85")
_FOR_GPUS = (f"torch=={NEEDED}.*",)
_PROGRAMS = pathlib.Path(__file__).resolve().parent / "bin"


# Tells the program penstock why there is no torch, and on the next line the command that mends it.
NO_TORCH = "PENSTOCK_NO_TORCH"


class NoTorch(Exception):
    """Why penstockd can't be started, and the command that installs what is missing: the words of pip's install."""

    def __init__(self, reason: str, *words: str) -> None:
        self.reason, self.command = reason, _install(words or _FOR_GPUS)
        if not words and not any(pathlib.Path("/dev").glob("nvidia[0-9]*")):
            self.command = f"{_install(_FOR_CPUS)}  # with a GPU: {shlex.join(_FOR_GPUS)}"
        super().__init__(f"{self.reason}: {self.command}")


def _install(words: tuple[str, ...]) -> str:
    """The command for this Python, which may have no pip (uv's have none), or be one that Debian installs in."""
    python = shlex.quote(sys.executable)
    debian = pathlib.Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
    if sys.prefix == sys.base_prefix and debian.exists():
        start = f"{python} -m venv ~/penstock-venv && . ~/penstock-venv/bin/activate && pip install"
    elif importlib.util.find_spec("pip"):
        start = f"{python} -m pip install"
    else:
        start = f"uv pip install --python {python}"
    return f"{start} {shlex.join(words)}"


def torch_libraries() -> list[pathlib.Path]:
    """The folders with LibTorch and with what it does not find itself, when everything is there that its CPU part loads."""
    sites = [pathlib.Path(path) for path in sys.path if path]
    again = ("--force-reinstall", "--no-deps", _TORCH)  # else pip takes a broken one for good
    spec = importlib.util.find_spec("torch")
    folders = [pathlib.Path(folder) for folder in spec.submodule_search_locations or []] if spec else []
    marks = ("version.py", "lib/libtorch_cpu.so")
    folder = next((folder for folder in folders if any((folder / mark).is_file() for mark in marks)), None)
    if not folder:
        if record := next((record for site in sites for record in site.glob("torch-*.dist-info")), None):
            raise NoTorch(f"torch of {record.parent} is broken, as its folder is missing", *again)
        raise NoTorch(f"it needs torch {NEEDED}, and {sys.prefix} has none")
    about = folder / "version.py"
    text = about.read_text(encoding="utf-8", errors="replace") if about.is_file() else ""
    version = next(iter(re.findall(r"^__version__ = '([^']+)'", text, re.M)), None)
    if not version:
        raise NoTorch(f"it needs torch {NEEDED}, and {folder} is of an unknown version", *again)
    if not re.match(rf"{re.escape(NEEDED)}\b", version):
        raise NoTorch(f"it needs torch {NEEDED}, and {folder} is torch {version}")
    for library in ("libtorch_cpu.so", "libc10.so"):
        file = folder / "lib" / library
        if not (file.is_file() and file.stat().st_size):
            raise NoTorch(f"torch {version} of {folder} is broken, as {library} is missing or empty", *again)
    found = [folder / "lib"]
    for cuda in re.findall(r"^cuda\b.*= '(\d+)", text, re.M):  # none in a build for CPUs alone
        for package, library in (("runtime", f"libcudart.so.{cuda}"), ("cupti", f"libcupti.so.{cuda}")):
            site = next((site for site in [folder.parent, *sites] if any(site.glob(f"nvidia/*/lib/{library}"))), None)
            if site and site != folder.parent:
                found += [path for path in sorted(site.glob("nvidia/*/lib")) if path not in found]
            elif not site and not _opens(library):
                missing = f"torch {version} loads {library} also without a GPU, and it is missing"
                raise NoTorch(missing, f"nvidia-cuda-{package}=={cuda}.*")
    return found


def _opens(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _start(name: str, libraries: list[pathlib.Path], no_torch: NoTorch | None = None) -> NoReturn:
    environment = {name: value for name, value in os.environ.items() if name != NO_TORCH}
    if no_torch:
        environment[NO_TORCH] = f"{no_torch.reason}\n{no_torch.command}"
    # Before any others that the machine has: what is carried, then LibTorch.
    paths = [str(path) for path in (_PROGRAMS.parent / "lib", *libraries)]
    others = environment.get("LD_LIBRARY_PATH")
    environment["LD_LIBRARY_PATH"] = ":".join([*paths, others] if others else paths)
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
        _start("penstock", [], problem)
    _start("penstock", libraries)
