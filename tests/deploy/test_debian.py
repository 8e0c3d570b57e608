"""What deploy/package/debian.py makes of a package that cpack could have made. debs.py installs real ones."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import spdx
from conftest import PENSTOCK, ROOT
from otherwise import OTHERWISE

CONTROL = """\
Architecture: amd64
Description: anything
 Of several lines.
Installed-Size: 1
Maintainer: Somebody <somebody@penstock.invalid>
Package: {name}
Version: 0.1.0-1
"""


def unpacked(folder: pathlib.Path, name: str) -> pathlib.Path:
    """With modes as a umask of 077 leaves them."""
    (folder / "DEBIAN").mkdir(parents=True)
    (folder / "DEBIAN/control").write_text(CONTROL.format(name=name))
    (folder / "DEBIAN/md5sums").write_text("of files that are there no more\n")
    (folder / "usr/lib").mkdir(parents=True)
    (folder / "usr/lib/anything.txt").write_text("x" * 3000)
    if name == "penstock":
        (folder / "usr/bin").mkdir()
        shutil.copyfile(PENSTOCK, folder / "usr/bin/penstock")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return folder


def finished(folder: pathlib.Path, umask: int = 0o022, **more: str) -> pathlib.Path:
    command = [sys.executable, "-B", ROOT / "deploy/package/debian.py", "--build", os.environ["PENSTOCK_BUILD"], "--shared", folder]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", **more}
    done = subprocess.run(command, env=environment, umask=umask, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return finished(unpacked(tmp_path_factory.mktemp("debian") / "penstock", "penstock"))


def test_sums_and_the_size_are_those_of_what_is_there(package: pathlib.Path) -> None:
    there = {name: text for name, text in contents(package).items() if not name.startswith("DEBIAN/")}
    lines = [f"{hashlib.md5(there[name]).hexdigest()}  {name}" for name in sorted(there)]
    assert (package / "DEBIAN/md5sums").read_text().splitlines() == lines
    size = sum((len(text) + 1023) // 1024 for text in there.values())
    assert f"\nInstalled-Size: {size}\n" in (package / "DEBIAN/control").read_text()


def test_everybody_may_read_it(package: pathlib.Path) -> None:
    for path in (package, *package.rglob("*")):
        wanted = 0o755 if path.is_dir() or path.parent.name == "bin" else 0o644
        assert path.stat().st_mode & 0o7777 == wanted, path


def test_it_has_its_documents(package: pathlib.Path) -> None:
    documents = package / "usr/share/doc/penstock"
    assert gzip.decompress((documents / "changelog.gz").read_bytes()) == (ROOT / "CHANGELOG.md").read_bytes()
    told = gzip.decompress((documents / "changelog.Debian.gz").read_bytes()).decode()
    assert told.startswith("penstock (0.1.0-1) unstable; ") and told.endswith("invalid>  Tue, 14 Nov 2023 22:13:20 +0000\n"), (
        told
    )
    rights = (documents / "copyright").read_text()
    assert rights.startswith("Copyright 2026 the authors") and "/usr/share/common-licenses/Apache-2.0" in rights
    assert "\nlibcli11-dev " in rights and "Henry Schreiner" in rights, "what is compiled in from headers"
    names = contents(package / "usr/share").keys()
    assert {"man/man1/penstock.1.gz", "bash-completion/completions/penstock"} <= names
    assert [name for name in names if "penstockd" in name] == [], "it has no daemon"
    manual = gzip.decompress((package / "usr/share/man/man1/penstock.1.gz").read_bytes()).decode()
    assert "penstock pipeline create" in manual and "(8)" not in manual, "it names no page that is not there"


def test_the_archives_have_no_programs_documents(tmp_path: pathlib.Path) -> None:
    archives = finished(unpacked(tmp_path / "archives", "libpenstock-dev"))
    names = {name.removeprefix("usr/share/") for name in contents(archives) if name.startswith("usr/share/")}
    documents = {f"doc/libpenstock-dev/{name}" for name in ("changelog.gz", "changelog.Debian.gz", "copyright", "sbom.spdx.json")}
    assert names == {*documents, "lintian/overrides/libpenstock-dev"}
    told = (archives / "usr/share/lintian/overrides/libpenstock-dev").read_text()
    assert "\nlibpenstock-dev: " in told and "\npenstock: " not in told


@pytest.mark.parametrize("name", ["penstock", "libpenstock-dev"])
def test_its_bill_names_each_file(name: str, tmp_path: pathlib.Path) -> None:
    files = contents(finished(unpacked(tmp_path / "one", name)))
    bill = json.loads(files.pop(f"usr/share/doc/{name}/sbom.spdx.json"))
    spdx.check(bill, {path: text for path, text in files.items() if not path.startswith("DEBIAN/")})
    packages = {package["name"] for package in bill["packages"]}
    assert packages == ({"penstock", "libcli11-dev", "nlohmann-json3-dev"} if name == "penstock" else {"penstock"})


def test_again_gives_the_same_bytes(package: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Also with another umask, zone and language."""
    again = finished(unpacked(tmp_path / "again", "penstock"), umask=0o077, **OTHERWISE)
    assert contents(again) == contents(package)
