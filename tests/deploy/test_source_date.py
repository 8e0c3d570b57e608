"""deploy/source_date.sh: the time of what is made is given, or that of the commit, and never another one's."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

from conftest import ROOT


def told(folder: pathlib.Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(folder / "deploy/source_date.sh")]
    return subprocess.run(command, cwd="/", env={"PATH": "/usr/bin:/bin", **environment}, capture_output=True, text=True)


def sources(folder: pathlib.Path) -> pathlib.Path:
    (folder / "deploy").mkdir(parents=True)
    shutil.copy2(ROOT / "deploy/source_date.sh", folder / "deploy")
    return folder


def commit(folder: pathlib.Path, seconds: int) -> None:
    who = ["-c", "user.name=nobody", "-c", "user.email=nobody@penstock.invalid", "-c", "commit.gpgsign=false"]
    date = {"GIT_COMMITTER_DATE": f"@{seconds} +0000", "GIT_AUTHOR_DATE": "@1 +0000", "HOME": str(folder), "PATH": "/usr/bin:/bin"}
    subprocess.run(["git", "-C", str(folder), "init", "--quiet"], env=date, check=True)
    subprocess.run(["git", "-C", str(folder), *who, "commit", "--quiet", "--allow-empty", "-m", "x"], env=date, check=True)


def test_a_time_that_is_given_counts(tmp_path: pathlib.Path) -> None:
    done = told(sources(tmp_path / "a"), SOURCE_DATE_EPOCH="1700000000")
    assert (done.returncode, done.stdout) == (0, "1700000000\n")
    done = told(tmp_path / "a", SOURCE_DATE_EPOCH="today")
    assert done.returncode == 1 and "got 'today'" in done.stderr


def test_that_of_the_commit_is_next(tmp_path: pathlib.Path) -> None:
    commit(sources(tmp_path / "a clone"), 1600000000)
    assert told(tmp_path / "a clone").stdout == "1600000000\n"


def test_without_either_it_fails(tmp_path: pathlib.Path) -> None:
    done = told(sources(tmp_path / "a"))
    assert done.returncode == 1 and "set SOURCE_DATE_EPOCH" in done.stderr and not done.stdout


def test_a_clone_around_it_is_another_ones(tmp_path: pathlib.Path) -> None:
    commit(tmp_path, 1600000000)
    done = told(sources(tmp_path / "unpacked"))
    assert done.returncode == 1 and not done.stdout, "the commit is not of these sources"
