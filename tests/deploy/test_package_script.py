"""deploy/package.sh with stand-ins for all that sets up, builds and packs: what is left where it succeeds and where it fails."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

import pytest
from conftest import ROOT

# By their path in the sources, or on the path of programs: what each does.
STAND_INS = {
    "deploy/setup.sh": "true",
    "deploy/build.sh": 'echo "$@" >build.told',
    "tools/cpack": 'touch "${@: -1}/penstock_2_amd64.deb"',
    "tools/dpkg-deb": '[[ $1 == --raw-extract ]] && mkdir "${@: -1}" || echo packed >"${@: -1}"',
}
PYTHON = {
    "deploy/package/debian.py": "",
    "deploy/package/pack.py": """
import os, pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
(out / "penstock-2-py3-none-any.whl").write_text("new")
if "FAIL" in os.environ:
    sys.exit("pack: no")
(out / "SHA256SUMS").write_text(" ".join(sys.argv[1:]))
""",
}
NEW = {"penstock-2-py3-none-any.whl", "penstock_2_amd64.deb", "SHA256SUMS"}


@pytest.fixture
def sources(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "sources"
    for name, text in STAND_INS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"#!/usr/bin/env bash\nset -e\n{text}\n")
        (folder / name).chmod(0o755)
    for name, text in PYTHON.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for name in ("package.sh", "source_date.sh"):
        shutil.copy2(ROOT / "deploy" / name, folder / "deploy")
    return folder


def package(sources: pathlib.Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{sources}/tools:/usr/bin:/bin", "SOURCE_DATE_EPOCH": "1700000000", **more}
    return subprocess.run([str(sources / "deploy/package.sh"), *words], env=environment, capture_output=True, text=True)


def with_older_ones(out: pathlib.Path) -> set[str]:
    out.mkdir()
    names = {"penstock-1-py3-none-any.whl", "penstock_1_amd64.deb", "SHA256SUMS", "notes.txt"}
    for name in names:
        (out / name).write_text("old")
    return names


def test_older_packages_go_when_all_new_ones_are_there(sources: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with_older_ones(tmp_path / "out")
    done = package(sources, "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*NEW, "notes.txt"}
    assert {path.name for path in tmp_path.iterdir()} == {"sources", "out"}, "nothing else is left"
    told = (tmp_path / "out/SHA256SUMS").read_text()
    assert "/penstock_2_amd64.deb" in told
    assert (sources / "build.told").read_text() == "portable penstockd penstock\n"


def test_a_failure_leaves_what_was_there(sources: pathlib.Path, tmp_path: pathlib.Path) -> None:
    older = with_older_ones(tmp_path / "out")
    done = package(sources, "--out", str(tmp_path / "out"), FAIL="1")
    assert done.returncode == 1 and "pack: no" in done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == older
    assert {path.read_text() for path in (tmp_path / "out").iterdir()} == {"old"}
    assert {path.name for path in tmp_path.iterdir()} == {"sources", "out"}


def test_there_are_no_packages_of_1970(sources: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = package(sources, "--out", str(tmp_path / "out"), SOURCE_DATE_EPOCH="")
    assert done.returncode == 1 and "set SOURCE_DATE_EPOCH" in done.stderr and not (tmp_path / "out").exists()
    assert os.listdir(sources / "deploy") and not (sources / "build.told").exists()


@pytest.mark.parametrize("script", ["package.sh", "image/build_without_engine.sh"])
def test_help_is_told_wherever_it_is_asked_for(script: str) -> None:
    path = ROOT / "deploy" / script
    for words in ((f"./{path.name}", "--help"), (f"./{path.name}", "-h")):
        done = subprocess.run(words, cwd=path.parent, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert f"Usage: deploy/{script}" in done.stdout and "set -e" not in done.stdout
