"""A daemon starts from the journals of earlier releases, and reaches the state that they lead to, bit for bit."""

from __future__ import annotations

import json
import pathlib
import sys
import tarfile

import penstock
import penstock.session
import pytest

from conftest import QUICK_DRAIN
from daemon_process import Daemon

JOURNALS = pathlib.Path(__file__).resolve().parents[1] / "journals"
SAMPLES = sorted(path.parent for path in JOURNALS.glob("samples/*/state.tar.gz"))
sys.path.append(str(JOURNALS))

import sample_work  # noqa: E402


def test_there_is_a_sample() -> None:
    assert SAMPLES


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_a_start_from_a_sample_reaches_its_state(sample: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(penstock.session, "_session", sample_work.SESSION)
    expected = json.loads((sample / "expected.json").read_text())
    with tarfile.open(sample / "state.tar.gz") as archive:
        archive.extractall(tmp_path)
    daemon = Daemon(tmp_path, *QUICK_DRAIN)
    with daemon.running():
        with penstock.Client(daemon.address, "sampler") as client:
            for name in sample_work.PIPELINES:
                assert f'made again pipeline="{name}"' in daemon.log, "the sample has nothing to make again"
                pipeline = client.pipeline(name)
                assert pipeline.message.step == expected["step"]
                assert sample_work.digest(pipeline) == expected["opened"][name]
                sample_work.end(pipeline)
                assert sample_work.digest(pipeline) == expected["ended"][name]
