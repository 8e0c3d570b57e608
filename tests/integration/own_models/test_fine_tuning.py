"""The page that fine-tunes a model: its blocks are one script, which trains, resumes after any end, and saves the module."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

from safetensors import numpy as safetensors

from conftest import QUICK_DRAIN, StartDaemon
from daemon_process import Daemon

ROOT = pathlib.Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "fine_tune_a_model.md"

# After the training of the head: whether frozen weights are the module's own, bit for bit, and others are not.
CHECK = """
state = head.state_dict()
own = {name: torch.equal(value, state[name]) for name, value in model.state_dict().items() if name in state}
frozen = [name for name in own if name.startswith(("bert.embeddings.", "bert.encoder.layer.0."))]
print("frozen", len(frozen), all(own[name] for name in frozen), any(own[name] for name in own if name not in frozen))
"""


def script(daemon: Daemon) -> str:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    assert len(blocks) == 4
    return "".join([*blocks[:2], CHECK, *blocks[2:]]).replace("127.0.0.1:8470", daemon.address)


def start(daemon: Daemon, folder: pathlib.Path) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "client" / "python"), "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", script(daemon)],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def run(daemon: Daemon, folder: pathlib.Path) -> list[list[str]]:
    """The words of each line that it prints."""
    ended = start(daemon, folder)
    output, errors = ended.communicate(timeout=400)
    assert ended.returncode == 0, errors
    return [line.split() for line in output.splitlines()]


def steps(lines: list[list[str]]) -> list[int]:
    return [int(words[1]) for words in lines if words[0] == "step"]


def test_the_page_trains_and_saves_and_goes_on_after_a_kill(start_daemon: StartDaemon, tmp_path: pathlib.Path) -> None:
    def with_models(name: str) -> Daemon:
        (tmp_path / name).mkdir()
        return start_daemon(*QUICK_DRAIN, f"--model-root={tmp_path / name}", "--allow-model-upload")

    undisturbed = with_models("one")
    lines = run(undisturbed, tmp_path / "undisturbed")
    assert steps(lines) == list(range(1, 61))
    print(lines[60:])
    head, frozen, whole = lines[60:]
    assert frozen[0] == "frozen" and int(frozen[1]) >= 20 and frozen[2:] == ["True", "False"]
    assert head[:2] == ["head", "60"] and whole[:2] == ["whole", "120"]
    assert float(whole[2]) < float(head[2]) and float(whole[3]) > 0.9
    assert not list((tmp_path / "one").glob("*.pt2")), "the model is deleted"
    undisturbed.stop()

    daemon = with_models("two")
    first = start(daemon, tmp_path / "disturbed")
    assert first.stdout is not None
    for line in first.stdout:
        if line.startswith("step 25 "):
            break
    daemon.kill()
    first.kill()
    first.communicate()
    daemon.start()
    lines = run(daemon, tmp_path / "disturbed")
    assert steps(lines) == list(range(21, 61)), "after the checkpoint of step 20"
    saved = [
        safetensors.load_file(tmp_path / folder / "tuned" / "model.safetensors") for folder in ("undisturbed", "disturbed")
    ]
    assert saved[0].keys() == saved[1].keys() and len(saved[0]) > 50
    assert all((saved[0][name] == saved[1][name]).all() for name in saved[0])
    daemon.stop()
