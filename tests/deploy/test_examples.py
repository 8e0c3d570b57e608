"""Every command that a page shows is run against a real daemon, as it stands there but for its length."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import penstock
import pytest
from conftest import PENSTOCK, ROOT
from daemon_process import Daemon
from small_models import create_gpt, gpt_batch
from test_documents import commands_in

QUICK = ("--warm-up", "0.05", "--window", "0.2", "--max-windows", "3", "--stability-percentage", "200")
# What makes an example shorter: options that come after its own.
SHORTER = {
    "top": ("--looks", "1"),
    "bench": QUICK,
    "train": ("--steps", "1"),
}
# Exit codes beside 0 that the example itself may have here.
ALSO_FINE = {"doctor": {1}}
# Examples that need what is not here.
LEFT_OUT = {
    ("model", "add"): "the file comes from the page's other example; tests/integration/own_models runs that one",
}
# Examples that wait for what another caller does.
BESIDE_A_TRAINER = {("trace", "--steps")}
PAGES = ("docs/cli.md", "docs/deployment.md", "docs/optimizers.md", "docs/publishing.md", "docs/traces.md", "docs/unloading.md", "docs/updates.md")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with a pipeline `gpt` that has trained and a checkpoint of it: what the pages take for granted."""
    with Daemon(tmp_path_factory.mktemp("daemon"), "--drain-announce=0s").running() as shared:
        with penstock.Client(shared.address) as client:
            pipeline = create_gpt(client, "gpt")
            for step in range(12):
                pipeline.train_step(*gpt_batch(step))
            pipeline.save_checkpoint("step-100")
        yield shared


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run(page: str, daemon: Daemon, tmp_path: pathlib.Path) -> None:
    calls = commands_in((ROOT / page).read_text())
    assert len(calls) > 2
    if page == "docs/cli.md":  # the file of the commands
        (program,) = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M)
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    for words in calls:
        if tuple(words[:2]) in LEFT_OUT:
            continue
        file = None
        if ">" in words:  # the shell's
            at = words.index(">")
            words, file = words[:at], tmp_path / words[at + 1]
        if words[-1] == "─▶":  # the heading of a picture
            words = words[:-2]
        if "train" in words[:1]:  # an option stands once
            at = words.index("--steps")
            words = words[:at] + words[at + 2 :]
        if "bench" in words[:1] and "gpt" in words:
            words = [*words, "--sequence", "16"]
        if "doctor" in words[:1] and "--state-dir" in words:
            words[words.index("--state-dir") + 1] = str(tmp_path)
        if "--text" in words and not pathlib.Path(words[words.index("--text") + 1]).exists():
            words[words.index("--text") + 1] = str(ROOT / "LICENSE")
        if "restore" in words:
            words = [*words, "--yes"]
        command = [PENSTOCK, "--server", daemon.address, *words, *SHORTER.get(words[0], ())]
        if any(words[0] == name and option in words for name, option in BESIDE_A_TRAINER):
            with penstock.Client(daemon.address) as client:
                assert run_beside_steps(command, client.pipeline("gpt"), tmp_path) == 0, words
            continue
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode in {0} | ALSO_FINE.get(words[0], set()), (words, done.stderr)
        if file is not None:
            file.write_text(done.stdout)


def run_beside_steps(command: list[str], pipeline: penstock.Pipeline, folder: pathlib.Path) -> int:
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while process.poll() is None:
            pipeline.train_step(*gpt_batch(0))
        return process.returncode
    finally:
        process.kill()
        process.wait()
