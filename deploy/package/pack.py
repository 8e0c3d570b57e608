#!/usr/bin/env python3
"""Packs a portable build: the wheels of the client and of the programs, a tar archive of the programs, checksums.

Usage: pack.py --build FOLDER --out FOLDER [--shared] [--with FILE...]

deploy/package.sh calls this. SHA256SUMS names what is packed here and, by --with, packages in --out that others have made.

What it guarantees, or it ends with a sentence:
  complete      a program loads only what is packed, LibTorch, and the base of every Linux system with glibc 2.36
  apart         the programs show no symbol of gRPC, protobuf or Abseil to other libraries of a process
  reproducible  the same build gives the same bytes; times are those of SOURCE_DATE_EPOCH
  accounted     each package has a bill of materials (SPDX 2.3, JSON), which names each of its files but itself and what only
                lists files, each package that they are from, and what is compiled in or linked from archives; the licences
                of all of them are there
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pathlib
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from typing import Any

from archives import Entry, WheelName, whole, write_tar, write_wheel
from contents import Contents
from manual import of_both
from programs import Programs

from bill import Bill, Package  # of deploy/image, which programs.py has put on the path
from origins import ROOT, Problem, common_licences, epoch, project_version

CLIENT = ROOT / "client" / "python"
LAUNCHERS = ROOT / "deploy" / "package" / "penstock_server"
PLATFORM = "py3-none-manylinux_2_36_x86_64"
SUMMARY = "The daemon and the command line of Penstock, for the LibTorch of an installed torch 2.11."
START = """#!/usr/bin/env python3
# Starts {name} with the LibTorch of the torch that this Python has.
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from penstock_server.launch import {name}

{name}()
"""


def client_wheel(folder: pathlib.Path, seconds: int) -> pathlib.Path:
    """What pip would build from client/python, without setuptools."""
    project = client_project()
    name = WheelName(project["name"], project["version"], "py3-none-any")
    files = {}
    for path in sorted((CLIENT / "penstock").rglob("*")):
        if path.suffix in (".py", ".pyi") or path.name == "py.typed":
            files[str(path.relative_to(CLIENT))] = Entry(path.read_bytes())
    lines = [f"Requires-Dist: {needed}" for needed in project["dependencies"]]
    for extra, needs in project["optional-dependencies"].items():
        lines += [f"Provides-Extra: {extra}", *(f"Requires-Dist: {needed}; extra == '{extra}'" for needed in needs)]
    files[f"{name.info}/METADATA"] = metadata(name, project["description"], lines, (CLIENT / "README.md").read_text("utf-8"))
    files[f"{name.info}/licenses/LICENSE"] = Entry((ROOT / "LICENSE").read_bytes())
    files[f"{name.info}/sboms/penstock.spdx.json"] = bill_of(name.file, files, {}, {}, seconds)
    return write_wheel(folder, name, files, seconds)


def client_project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((CLIENT / "pyproject.toml").read_text("utf-8"))["project"]
    return project


def metadata(name: WheelName, summary: str, lines: list[str], text: str) -> Entry:
    head = ["Metadata-Version: 2.1", f"Name: {name.name}", f"Version: {name.version}", f"Summary: {summary}"]
    head += ["License: Apache-2.0", f"Requires-Python: {client_project()['requires-python']}", *lines]
    return Entry(("\n".join([*head, "Description-Content-Type: text/markdown"]) + f"\n\n{text}").encode())


def bill_of(
    name: str, files: Mapping[str, Entry], origins: Mapping[str, Package], inside: Mapping[str, list[Package]], seconds: int
) -> Entry:
    """The bill of materials of these files; those that are not in `origins` are ours."""
    bill = Bill(name, ("penstock", project_version()), "deploy/package/pack.py")
    for path, entry in sorted(files.items()):
        bill.add_file(path, entry.contents, origins.get(path, ("penstock", project_version())), inside.get(path, []))
    return Entry(bill.text(seconds).encode())


def packed(folder: pathlib.Path) -> dict[str, Entry]:
    """The files below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): Entry(path.read_bytes(), os.access(path, os.X_OK)) for path in files}


class Server:
    """The files of the wheel with the programs, and where they are from.

    `files` are those of the package, by their path in site-packages; `licences` by their path in the folder of licences.
    """

    def __init__(self, build: pathlib.Path, shared: bool) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            programs = Programs(build, pathlib.Path(scratch) / "penstock_server")
            programs.collect()
            programs.check_complete()
            if not shared:
                programs.check_apart()
            self.files = {f"penstock_server/{inside}": entry for inside, entry in packed(programs.folder).items()}
        for path in sorted(LAUNCHERS.glob("*.py")):
            self.files[f"penstock_server/{path.name}"] = Entry(path.read_bytes())
        contents = Contents(build, programs.sources, programs.inside)
        self._origins = {f"penstock_server/{name}": contents.package_of(name) for name in programs.sources}
        self._inside = {f"penstock_server/{name}": contents.linked_into(name) for name in programs.sources}
        self.licences = {"LICENSE": Entry((ROOT / "LICENSE").read_bytes())}
        self._texts_of: dict[str, Package] = {}
        for package, paths in contents.licences().items():
            for path in paths:
                self.licences[f"{package[0]}/{path.name}"] = Entry(path.read_bytes())
                self._texts_of[f"{package[0]}/{path.name}"] = package
        for path in common_licences(entry.contents.decode("utf-8", "replace") for entry in self.licences.values()):
            self.licences[f"common-licenses/{path.name}"] = Entry(path.read_bytes())
            self._texts_of[f"common-licenses/{path.name}"] = contents.package_of_file(path)

    def bill(self, name: str, files: Mapping[str, Entry], licences: str, seconds: int) -> Entry:
        """Of files among which the licences stand in the folder `licences`."""
        texts = {f"{licences}/{inside}": package for inside, package in self._texts_of.items()}
        return bill_of(name, files, {**self._origins, **texts}, self._inside, seconds)


def server_packages(folder: pathlib.Path, build: pathlib.Path, seconds: int, shared: bool) -> list[pathlib.Path]:
    """The wheel with the programs, and the tar archive with the same files."""
    name = WheelName("penstock_server", project_version(), PLATFORM)
    server = Server(build, shared)
    about = (LAUNCHERS / "README.md").read_text("utf-8")
    scripts = "".join(f"{program} = penstock_server.launch:{program}\n" for program in ("penstock", "penstockd"))
    files = dict(server.files)
    files[f"{name.info}/METADATA"] = metadata(name, SUMMARY, [], about)
    files[f"{name.info}/entry_points.txt"] = Entry(f"[console_scripts]\n{scripts}".encode())
    files |= {f"{name.info}/licenses/{inside}": entry for inside, entry in server.licences.items()}
    files[f"{name.info}/sboms/penstock_server.spdx.json"] = server.bill(name.file, files, f"{name.info}/licenses", seconds)
    wheel = write_wheel(folder, name, files, seconds)

    root = f"penstock-{name.version}-linux-x86_64"
    loose = {**server.files, "README.md": Entry(about.encode())}
    loose |= {f"licenses/{inside}": entry for inside, entry in server.licences.items()}
    loose |= {path: Entry(text.encode()) for path, text in of_both(build, name.version, seconds).items()}
    for program in ("penstock", "penstockd"):
        loose[f"bin/{program}"] = Entry(START.format(name=program).encode(), executable=True)
    loose["sbom.spdx.json"] = server.bill(f"{root}.tar.gz", loose, "licenses", seconds)
    return [wheel, write_tar(folder / f"{root}.tar.gz", root, loose, seconds)]


def write_checksums(folder: pathlib.Path, files: list[pathlib.Path]) -> None:
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(files)]
    with whole(folder / "SHA256SUMS") as sums:
        sums.write_text("".join(lines), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="Packs a portable build.")
    parser.add_argument("--build", type=pathlib.Path, required=True, help="build folder of the preset portable")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="where the packages go")
    parser.add_argument("--shared", action="store_true", help="carry gRPC and the like as shared libraries: any build with the CUDA module will do")
    parser.add_argument("--with", dest="others", type=pathlib.Path, nargs="*", default=[], help="of --out, for SHA256SUMS too")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    try:
        made = [client_wheel(arguments.out, epoch())]
        made += server_packages(arguments.out, arguments.build, epoch(), arguments.shared)
    except Problem as problem:
        print(f"pack: {problem}", file=sys.stderr)
        return 1
    write_checksums(arguments.out, [*made, *(arguments.out / path.name for path in arguments.others)])
    for path in made:
        print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
