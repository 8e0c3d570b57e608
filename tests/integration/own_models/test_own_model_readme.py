"""Your own model in ten lines: the lines of the pages run as they stand."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

from daemon_process import Daemon
from own_fixtures import daemon, programs, reference_has_one_thread  # noqa: F401

ROOT = pathlib.Path(__file__).resolve().parents[3]
PAGES = [ROOT / "client" / "python" / "README.md", ROOT / "docs" / "models.md"]


def snippets(page: pathlib.Path) -> list[str]:
    """Those that export a model."""
    programs = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    return [program for program in programs if "penstock.export(" in program]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if snippets(page)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_lines_train_and_give_the_weights_back(page: pathlib.Path, daemon: Daemon, tmp_path: pathlib.Path) -> None:
    (program,) = snippets(page)
    assert sum(1 for line in program.splitlines() if line.strip()) <= 10
    # The same lines, with the question whether they did it before the last one, which leaves nothing behind.
    program = program.replace("127.0.0.1:8470", daemon.address)
    program, cleaning = program.rsplit("    pipeline.delete();", 1)
    program += """
    rows = torch.randn(2, 3, 64, 64)
    model.eval()
    torch.set_num_threads(1)
    with torch.no_grad():
        (served,) = pipeline.infer(rows.numpy(), micro_batches=1).values()
        print(client.pipeline("images").message.step, torch.equal(torch.from_numpy(served), model(rows)))
"""
    program += f"    pipeline.delete();{cleaning}    print(len(client.list_pipelines()), any('resnet18' in model.name for model in client.models.list()))\n"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "client" / "python")}
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    steps, equal, pipelines, models = result.stdout.split()
    assert int(steps) >= 4 and equal == "True"
    assert (pipelines, models) == ("0", "False"), "the lines can be run again"
    assert "loss" in result.stderr, "progress is shown"
    assert (tmp_path / "resnet18.pt2").is_file()
