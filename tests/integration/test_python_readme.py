"""The first program of each README runs as it stands."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest
from daemon_process import Daemon

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("page", ["README.md", "client/python/README.md"])
def test_the_example_trains_and_infers(page: str, daemon: Daemon) -> None:
    # Others on the page are own_models/test_own_model_readme.py's.
    program = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)[0]
    program = program.replace("127.0.0.1:8470", daemon.address)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "client" / "python")}
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    steps = [line.split() for line in result.stdout.splitlines()]
    assert [int(step) for step, *_ in steps] == list(range(1, 11))
    assert float(steps[-1][1]) < float(steps[0][1])
