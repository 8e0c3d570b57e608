"""Writes a sample of this release's journal: a state folder whose calls no checkpoint holds, and the state they lead to.

Run it once for each release, and for each change of what a journal holds; the sample then stays as it is:

    PENSTOCKD=build/release/server/penstockd python tests/journals/make_sample.py tests/journals/samples/0.1.0
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "integration"), str(HERE.parents[1] / "client/python")]

import penstock  # noqa: E402
import sample_work  # noqa: E402
from daemon_process import Daemon  # noqa: E402

MOST_BYTES = 300_000
FLAGS = ("--drain-announce=0s", "--drain-checkpoint=0s", "--admin-listen=off")  # no save at the end


def without_times(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime = member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def make(folder: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        daemon = Daemon(pathlib.Path(place), *FLAGS)
        with daemon.running(), penstock.Client(daemon.address, "sampler") as client:
            pipeline = sample_work.create(client)
            sample_work.begin(pipeline)
            opened = sample_work.digest(pipeline)
        # Another copy of the same work tells what the open accumulation leads to.
        with tempfile.TemporaryDirectory() as other:
            second = Daemon(pathlib.Path(other), *FLAGS)
            with second.running(), penstock.Client(second.address, "sampler") as client:
                pipeline = sample_work.create(client)
                sample_work.begin(pipeline)
                sample_work.end(pipeline)
                ended = sample_work.digest(pipeline)
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(folder / "state.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as archive:
            archive.add(daemon.state_dir, "state", filter=without_times)
    version = subprocess.run([os.environ["PENSTOCKD"], "--version"], capture_output=True, text=True, check=True).stdout
    expected = {"written_by": version.strip(), "step": 3, "opened": opened, "ended": ended}
    (folder / "expected.json").write_text(json.dumps(expected, indent=2) + "\n")
    size = (folder / "state.tar.gz").stat().st_size
    assert size < MOST_BYTES, f"{size} bytes: at most {MOST_BYTES}"
    print(f"{folder}: {size} bytes")


if __name__ == "__main__":
    make(pathlib.Path(sys.argv[1]))
