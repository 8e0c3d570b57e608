"""Your own model in ten lines: the lines of the READMEs run as they stand."""

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
PAGES = [ROOT / "client" / "python" / "README.md", ROOT / "docs" / "models.md", ROOT / "README.md"]


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
    # The same lines, and then the question whether they did it.
    name = f"page-{PAGES.index(page)}"
    program = program.replace("127.0.0.1:8470", daemon.address).replace('"mine"', f'"{name}-own"')
    program = program.replace("resnet18.pt2", f"{name}.pt2")
    program += f"""
    pipeline = client.pipeline("{name}-own")
    rows = torch.randn(2, 3, 64, 64)
    model.eval()
    torch.set_num_threads(1)
    with torch.no_grad():
        (served,) = pipeline.infer(rows.numpy(), micro_batches=1).values()
        print(pipeline.message.step, torch.equal(torch.from_numpy(served), model(rows)))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "client" / "python")}
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    steps, equal = result.stdout.split()
    assert int(steps) >= 4 and equal == "True"
    assert "loss" in result.stderr, "progress is shown"
    assert (tmp_path / f"{name}.pt2").is_file()
