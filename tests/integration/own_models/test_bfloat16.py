"""A model of bfloat16 between the daemon and PyTorch, on a machine without ml_dtypes."""

from __future__ import annotations

import pathlib
import subprocess
import sys

from daemon_process import Daemon

ROOT = pathlib.Path(__file__).resolve().parents[3]

PROGRAM = """
import sys
sys.modules["ml_dtypes"] = None
import penstock, pytest, torch

with penstock.Client(sys.argv[1]) as client:
    pipeline = client.create_pipeline(
        "half", model="mlp", options={"layers": 2, "width": 4}, stages=1, schedule="1f1b", micro_batches=1, dtype="bf16",
        loss="mean_squared_error",
    )
    state = pipeline.state_dict()
    assert {value.dtype for value in state.values()} == {torch.bfloat16}
    assert all(value.abs().max() < 2 for value in state.values()), "numbers of a new model, not their bits"
    wanted = {name: torch.full_like(value, 0.25) for name, value in state.items()}
    pipeline.load_state_dict(wanted)
    assert all(torch.equal(value, wanted[name]) for name, value in pipeline.state_dict().items())
    pipeline.save_safetensors(sys.argv[2])
    from safetensors.torch import load_file
    assert all(torch.equal(value, wanted[name]) for name, value in load_file(sys.argv[2]).items())
    pipeline.load_state_dict(state)
    pipeline.load_safetensors(sys.argv[2])
    assert all(torch.equal(value, wanted[name]) for name, value in pipeline.state_dict().items())
    rows = torch.ones(2, 4, dtype=torch.bfloat16, requires_grad=True)
    assert pipeline.train_step(rows, torch.zeros(2, 4, dtype=torch.bfloat16)).loss > 0
    with pytest.raises(ImportError, match="pip install ml_dtypes"):
        pipeline.infer(rows)
    pipeline.delete()
"""


def test_weights_go_both_ways_and_tensors_in(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    environment = {"PYTHONPATH": str(ROOT / "client" / "python"), "PATH": "/usr/bin"}
    command = [sys.executable, "-c", PROGRAM, daemon.address, str(tmp_path / "weights.safetensors")]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
