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

import penstock.session  # noqa: E402
import sample_work  # noqa: E402
from daemon_process import Daemon  # noqa: E402

MOST_BYTES = 300_000
STEP = 3  # after begin()
FLAGS = ("--drain-announce=0s", "--drain-checkpoint=0s", "--admin-listen=off")  # no save at the end


def without_times(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime = member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def work(daemon: Daemon, through: bool) -> dict[str, str]:
    """Does the work of the sample, or all of it; the digests of the pipelines."""
    digests = {}
    with daemon.running(), penstock.Client(daemon.address, "sampler") as client:
        for name in sample_work.PIPELINES:
            pipeline = sample_work.create(client, name)
            sample_work.begin(pipeline)
            if through:
                sample_work.end(pipeline)
            digests[name] = sample_work.digest(pipeline)
    return digests


def make(folder: pathlib.Path) -> None:
    penstock.session._session = sample_work.SESSION
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory() as other:
        daemon = Daemon(pathlib.Path(place), *FLAGS)
        opened = work(daemon, through=False)
        ended = work(Daemon(pathlib.Path(other), *FLAGS), through=True)
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(folder / "state.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as archive:
            archive.add(daemon.state_dir, "state", filter=without_times)
    version = subprocess.run([os.environ["PENSTOCKD"], "--version"], capture_output=True, text=True, check=True).stdout
    expected = {"written_by": version.strip(), "step": STEP, "opened": opened, "ended": ended}
    (folder / "expected.json").write_text(json.dumps(expected, indent=2) + "\n")
    size = (folder / "state.tar.gz").stat().st_size
    assert size < MOST_BYTES, f"{size} bytes: at most {MOST_BYTES}"
    print(f"{folder}: {size} bytes")


if __name__ == "__main__":
    make(pathlib.Path(sys.argv[1]))
