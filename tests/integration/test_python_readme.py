"""The program in the Python client's README runs as it stands."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

from daemon_process import Daemon

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_example_trains_and_infers(daemon: Daemon) -> None:
    text = (ROOT / "client" / "python" / "README.md").read_text()
    program, _ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)  # the other one is own_models/test_own_model_readme.py's
    program = program.replace("127.0.0.1:8470", daemon.address)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "client" / "python")}
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    steps = [line.split() for line in result.stdout.splitlines()]
    assert [int(step) for step, _ in steps] == list(range(1, 11))
    assert float(steps[-1][1]) < float(steps[0][1])
