"""What the launcher of packed programs starts them with, and what it advises where torch is missing or broken: with a torch and
programs that stand in, and Pythons with and without pip."""

from __future__ import annotations

import os
import pathlib
import shlex
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

CPU = "--no-deps torch==2.11.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85  # with a GPU: 'torch==2.11.*'"
WITHOUT_GPU = not list(pathlib.Path("/dev").glob("nvidia[0-9]*"))
NEEDED = CPU if WITHOUT_GPU else "'torch==2.11.*'"


class Installed:
    """The package with programs that print what they are started with, a folder `site` on Python's path, and a Python."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self.site, self.other = folder, folder / "site", folder / "other"
        self.package = folder / "package/penstock_server"
        shutil.copytree(ROOT / "deploy/package/penstock_server", self.package)
        for name in ("penstockd", "penstock"):
            program = self.package / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text('#!/bin/sh\necho "$LD_LIBRARY_PATH|$PENSTOCK_NO_TORCH"\n')
            program.chmod(0o755)
        for path in (self.site, self.other):
            path.mkdir()
        self.python = pathlib.Path(sys.executable)

    def torch(self, *empty: str, version: str = "2.11.0", cuda: str = "None") -> pathlib.Path:
        """A torch whose libraries named in `empty` are empty."""
        lib = self.site / "torch/lib"
        lib.mkdir(parents=True)
        (self.site / "torch/__init__.py").touch()
        (self.site / "torch/version.py").write_text(f"__version__ = '{version}'\ncuda: Optional[str] = {cuda}\n")
        (self.site / f"torch-{version}.dist-info").mkdir()
        for name in ("libtorch_cpu.so", "libc10.so"):
            (lib / name).write_text("" if name in empty else "all of it")
        return lib

    def start(self, program: str = "penstockd", **more: str) -> tuple[int, str]:
        code = f"from penstock_server.launch import {program}; {program}()"
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{self.package.parent}:{self.site}:{self.other}", **more}
        done = subprocess.run([self.python, "-B", "-c", code], env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def complaint(self) -> str:
        code, told = self.start()
        assert code == 1, told
        return told.removeprefix("penstockd: ").rstrip("\n")


@pytest.fixture
def installed(tmp_path: pathlib.Path) -> Installed:
    return Installed(tmp_path)


def test_libraries_of_the_package_come_before_others(installed: Installed) -> None:
    lib = installed.torch()
    ours = installed.package / "lib"
    assert installed.start(LD_LIBRARY_PATH="/others") == (0, f"{ours}:{lib}:/others|\n")
    assert installed.start() == (0, f"{ours}:{lib}|\n")
    shutil.rmtree(installed.site)
    code, told = installed.start("penstock", LD_LIBRARY_PATH="/others")
    assert code == 0 and told.startswith(f"{ours}:/others|it needs torch 2.11, and "), told


@pytest.mark.parametrize("name", ["libtorch_cpu.so", "libc10.so"])
@pytest.mark.parametrize("there", [True, False])
def test_a_broken_torch_is_installed_over(installed: Installed, name: str, there: bool) -> None:
    """pip says of it that it is satisfied."""
    lib = installed.torch(name)
    if not there:
        (lib / name).unlink()
    command = f"{sys.executable} -m pip install --force-reinstall --no-deps torch==2.11.0"
    assert installed.complaint() == f"torch 2.11.0 of {lib.parent} is broken, as {name} is missing or empty: {command}"


def test_a_torch_of_which_only_the_record_is_left_is_broken(installed: Installed) -> None:
    shutil.rmtree(installed.torch().parent)
    command = f"{sys.executable} -m pip install --force-reinstall --no-deps torch==2.11.0"
    assert installed.complaint() == f"torch of {installed.site} is broken, as its folder is missing: {command}"


def test_cuda_of_another_folder_is_found(installed: Installed) -> None:
    """As where torch is the user's and CUDA's libraries are the system's."""
    torch = installed.torch(cuda="'99.9'")
    assert "loads libcudart.so.99 also without a GPU, and it is missing: " in installed.complaint()
    lib = installed.other / "nvidia/cu99/lib"
    lib.mkdir(parents=True)
    (lib / "libcudart.so.99").touch()
    assert installed.complaint().endswith(" -m pip install 'nvidia-cuda-cupti==99.*'")
    (lib / "libcupti.so.99").touch()
    assert installed.start() == (0, f"{installed.package / 'lib'}:{torch}:{lib}|\n")
    shutil.move(installed.other / "nvidia", installed.site / "nvidia")
    assert installed.start() == (0, f"{installed.package / 'lib'}:{torch}|\n"), "torch finds what is beside it"


def test_the_advice_is_that_of_the_page(installed: Installed) -> None:
    assert installed.complaint().endswith(f"{sys.executable} -m pip install {NEEDED}")
    assert CPU.partition("  #")[0] in (ROOT / "docs/install.md").read_text()
    assert CPU.partition("  #")[0] in (ROOT / "deploy/package/penstock_server/README.md").read_text()


def test_the_advice_can_be_followed(installed: Installed) -> None:
    """In environments without pip, in folders with spaces; and for a Python that nothing may be installed in."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(installed.folder / "with a space")], check=True)
    installed.python = installed.folder / "with a space/bin/python"
    assert installed.complaint().endswith(f"uv pip install --python {shlex.quote(str(installed.python))} {NEEDED}")
    installed.python = pathlib.Path("/usr/bin/python3")
    if not list(pathlib.Path("/usr/lib").glob("python3*/EXTERNALLY-MANAGED")):
        pytest.skip("this is no Debian")
    venv = "/usr/bin/python3 -m venv ~/penstock-venv && . ~/penstock-venv/bin/activate && pip install"
    assert installed.complaint().endswith(f": {venv} {NEEDED}")
