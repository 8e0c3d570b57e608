"""bfloat16 with ``ml_dtypes`` and without it, never as numbers of another type. With PyTorch: see own_models."""

from __future__ import annotations

import json
import pathlib
import struct
import subprocess
import sys

import numpy as np
import penstock
import pytest
from fake_daemon import FakeDaemon

from penstock import tensors

TESTS = pathlib.Path(__file__).parent
# 0.2676, 1, a NaN: the bits of what a model may hold.
BITS = np.array([[0x3E89, 0x3F80, 0x7FC1]], "<u2")

WITHOUT = """
import pathlib, sys
sys.modules["ml_dtypes"] = sys.modules["torch"] = None
import numpy as np, penstock, pytest
from penstock import tensors
from fake_daemon import FakeDaemon
path = pathlib.Path(sys.argv[1])
bits = np.array([[0x3E89, 0x3F80, 0x7FC1]], "<u2")
daemon = FakeDaemon()
daemon.state = {"weight": bits.view(tensors.BFLOAT16).copy(), "other": np.ones(2, np.float32)}
daemon.optimizer = {}
with penstock.Client(daemon.address) as client:
    pipeline = client.create_pipeline("demo")
    for refused in (
        pipeline.read_parameters,
        pipeline.state_arrays,
        lambda: pipeline.infer({"half": bits.view(tensors.BFLOAT16)}),                            # comes with the reply
        lambda: pipeline.put({"x": np.ones((1 << 20, 1), "<u2").view(tensors.BFLOAT16)}).fetch(),
        lambda: penstock.read_safetensors(path),
    ):
        pipeline.save_safetensors(path)
        daemon.double = lambda value: value
        with pytest.raises(ImportError, match="pip install ml_dtypes"):
            refused()
    with pytest.raises(ImportError, match="torch"):
        pipeline.state_dict()
    daemon.state["weight"] = np.zeros((1, 3), "<u2").view(tensors.BFLOAT16)
    pipeline.load_safetensors(path)
    assert daemon.state["weight"].dtype == tensors.BFLOAT16
    assert daemon.state["weight"].tobytes() == bits.tobytes()
    penstock.write_safetensors(path.with_name("integers"), {"x": bits})
daemon.stop()
"""


def entry_of(path: pathlib.Path, name: str) -> tuple[str, bytes]:
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    entry = json.loads(content[8 : 8 + length])[name]
    begin, end = entry["data_offsets"]
    return entry["dtype"], content[8 + length + begin : 8 + length + end]


def test_without_ml_dtypes_it_is_bytes_or_an_error(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "weights"
    environment = {"PYTHONPATH": f"{TESTS}:{TESTS.parent}", "PATH": ""}
    subprocess.run([sys.executable, "-c", WITHOUT, path], check=True, env=environment, cwd=TESTS)
    assert entry_of(path, "weight") == ("BF16", BITS.tobytes())
    assert entry_of(path, "other")[0] == "F32"
    assert entry_of(tmp_path / "integers", "x") == ("U16", BITS.tobytes()), "integers stay integers"


def test_with_ml_dtypes_it_is_numbers(pipeline: penstock.Pipeline, daemon: FakeDaemon, tmp_path: pathlib.Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    daemon.state = {"weight": BITS.view(tensors.BFLOAT16).copy()}
    read = pipeline.state_arrays()["weight"]
    assert read.dtype == ml_dtypes.bfloat16 and float(read[0, 1]) == 1.0 and round(float(read[0, 0]), 4) == 0.2676
    pipeline.save_safetensors(tmp_path / "weights")
    assert entry_of(tmp_path / "weights", "weight") == ("BF16", BITS.tobytes())
    assert penstock.read_safetensors(tmp_path / "weights")["weight"].tobytes() == BITS.tobytes()
    daemon.state["weight"] = np.zeros_like(read)
    pipeline.load_safetensors(tmp_path / "weights")
    assert daemon.state["weight"].tobytes() == BITS.tobytes()
