"""An unpacked image, run as a container would be: read-only, uid 65532, no capabilities, only the declared mounts."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest
from conftest import ROOT

USER = 65532
# As the image says it; the tests of the manifests compare it with theirs.
HOME = (re.findall(r"HOME=(\S+)", (ROOT / "deploy" / "image" / "Dockerfile").read_text()))[0]


class Sandbox:
    """Runs programs of an unpacked image in bubblewrap, each as process 1, without a network and without the host's files.

    Args:
        root: the image's files; bubblewrap mounts them read-only, so mount points must be in them.
        state: a folder of this machine that is the volume /var/lib/penstock.
    """

    def __init__(self, root: pathlib.Path, state: pathlib.Path) -> None:
        if not shutil.which("bwrap"):
            pytest.skip("no bubblewrap here: the image can't be run")
        self.command = [
            "bwrap", "--unshare-all", "--uid", str(USER), "--gid", str(USER), "--cap-drop", "ALL", "--die-with-parent",
            "--as-pid-1", "--ro-bind", str(root), "/", "--proc", "/proc", "--dev", "/dev",
            "--tmpfs", "/tmp", "--tmpfs", HOME, "--bind", str(state), "/var/lib/penstock",
            "--setenv", "HOME", HOME, "--setenv", "TMPDIR", "/tmp",
        ]  # fmt: skip
        # A program that isn't there is found missing only once the sandbox stands.
        tried = subprocess.run([*self.command, "/nothing"], env={}, capture_output=True, text=True)
        if "execvp /nothing" not in tried.stderr:
            pytest.skip(f"no sandbox here, so the image can't be run: {tried.stderr.strip()}")

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self.command, *command], env={}, capture_output=True, text=True, timeout=120)

    def start(self, *command: str, log: pathlib.Path) -> tuple[subprocess.Popen[bytes], int]:
        """Starts a program that stays; the sandbox's own process, and the program's number on this machine."""
        reader, writer = os.pipe()
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [*self.command, "--info-fd", str(writer), *command],
                env={}, stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=[writer],
            )  # fmt: skip
        os.close(writer)
        with os.fdopen(reader) as told:
            text = told.read()  # the sandbox closes it when it has told all
        assert text, log.read_text()
        return process, json.loads(text)["child-pid"]
