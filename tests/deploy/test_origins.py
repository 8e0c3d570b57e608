"""Where deploy/image and deploy/package say that files are from: in one language, and never ours because nobody knows."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
from conftest import ROOT

sys.path[:0] = [str(ROOT / "deploy" / "image"), str(ROOT / "deploy" / "package")]

import programs  # noqa: E402

import origins  # noqa: E402


def test_programs_answer_in_one_language() -> None:
    script = "import origins; print(origins.run('sh', '-c', 'echo $LC_ALL,$LANGUAGE'))"
    environment = {**os.environ, "LC_ALL": "de_DE.UTF-8", "LANGUAGE": "de", "PYTHONPATH": str(ROOT / "deploy/image")}
    told = subprocess.run([sys.executable, "-B", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "C,"


def test_programs_of_the_system_are_found_by_an_ordinary_user() -> None:
    """Debian gives nobody but root a PATH with ldconfig."""
    script = "import origins; print(origins.library_in_cache('libc.so.6'))"
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": str(ROOT / "deploy/image")}
    told = subprocess.run([sys.executable, "-B", "-c", script], env=environment, capture_output=True, text=True)
    assert told.stdout.strip().endswith("libc.so.6"), told.stderr


def test_a_missing_program_is_named() -> None:
    with pytest.raises(origins.Problem, match="^program-of-nobody is not installed$"):
        origins.run("program-of-nobody")


def test_a_file_of_nobody_is_not_ours(tmp_path: pathlib.Path) -> None:
    mine, other = tmp_path / "build/mine.so", tmp_path / "other.so"
    mine.parent.mkdir()
    for path in (mine, other):
        path.touch()
    known = origins.Origins({"mine": mine, "other": other}, "1.2", tmp_path / "build")
    assert known.package_of(mine) == ("penstock", "1.2")
    with pytest.raises(origins.Problem, match=r"other\.so is of no package"):
        known.package_of(other)
    with pytest.raises(origins.Problem, match=r"mine\.so is of no package"):
        origins.Origins({"mine": mine}, "1.2").package_of(mine)


def test_a_package_without_a_licence_is_refused() -> None:
    with pytest.raises(origins.Problem, match="the licence of package-of-nobody is missing"):
        origins.Origins({}, "1.2").licences_of("package-of-nobody")


def test_of_two_libraries_the_first_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = "2 libs found\n\tliba.so.1 (libc6,x86-64) => /first/liba.so.1\n\tliba.so.1 (libc6,x86-64) => /second/liba.so.1\n"
    monkeypatch.setattr(origins, "run", lambda *command: listed)
    origins._cache.cache_clear()
    try:
        assert origins.library_in_cache("liba.so.1") == pathlib.Path("/first/liba.so.1")
    finally:
        origins._cache.cache_clear()


def test_versions_that_are_not_understood_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    packed = programs.Programs(tmp_path, tmp_path)
    packed.sources = {"bin/penstock": pathlib.Path("/usr/bin/ldconfig")}
    monkeypatch.setattr(programs, "needed_by", lambda file: ["libc.so.6"])
    told = "Version needs section '.gnu.version_r' contains 1 entry:\n  0x0010:   Name: GLIBC_2.34  Flags: none  Version: 3\n"
    monkeypatch.setattr(programs, "run", lambda *command: told)
    packed.check_complete()
    monkeypatch.setattr(programs, "run", lambda *command: told.replace("2.34", "2.37"))
    with pytest.raises(origins.Problem, match=r"bin/penstock needs GLIBC_2\.37, which is newer"):
        packed.check_complete()
    monkeypatch.setattr(programs, "run", lambda *command: told.replace("Version needs", "Versionsbedarf"))
    with pytest.raises(origins.Problem, match="names no version"):
        packed.check_complete()


def test_the_time_of_what_is_made_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert origins.epoch() == 1700000000
    for wrong in ("", "yesterday", "-1"):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", wrong)
        with pytest.raises(origins.Problem, match=f"got '{wrong}'"):
            origins.epoch()
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    with pytest.raises(origins.Problem, match="SOURCE_DATE_EPOCH must be"):
        origins.epoch()
