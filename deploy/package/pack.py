#!/usr/bin/env python3
"""Packs a portable build: the wheels of the client and of the programs, a tar archive of the programs, checksums.

Usage: pack.py --build FOLDER --out FOLDER [--shared]

deploy/package.sh calls this. The folder --out may hold packages that others have made; SHA256SUMS names all of its files.

What it guarantees, or it ends with a sentence:
  complete      a program loads only what is packed, LibTorch, and the base of every Linux system with glibc 2.36
  apart         the programs show no symbol of gRPC, protobuf or Abseil to other libraries of a process
  reproducible  the same build gives the same bytes; times are those of SOURCE_DATE_EPOCH
  accounted     a bill of materials (SPDX 2.3, JSON) names each file, each package, and what is linked from archives;
                the licences of all of them are there
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pathlib
import sys
import tempfile
import tomllib

from archives import Entry, WheelName, write_tar, write_wheel
from manual import of_both
from programs import HEADERS_OF, Programs

from bill import Bill  # of deploy/image, which programs.py has put on the path
from origins import ROOT, Origins, Problem, project_version

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


def client_wheel(folder: pathlib.Path, epoch: int) -> pathlib.Path:
    """What pip would build from client/python, without setuptools."""
    project = tomllib.loads((CLIENT / "pyproject.toml").read_text())["project"]
    name = WheelName(project["name"], project["version"], "py3-none-any")
    files = {}
    for path in sorted((CLIENT / "penstock").rglob("*")):
        if path.suffix in (".py", ".pyi") or path.name == "py.typed":
            files[str(path.relative_to(CLIENT))] = Entry(path.read_bytes())
    lines = [f"Requires-Dist: {needed}" for needed in project["dependencies"]]
    for extra, needs in project["optional-dependencies"].items():
        lines += [f"Provides-Extra: {extra}", *(f"Requires-Dist: {needed}; extra == '{extra}'" for needed in needs)]
    files[f"{name.info}/METADATA"] = metadata(name, project["description"], lines, (CLIENT / "README.md").read_text())
    files[f"{name.info}/licenses/LICENSE"] = Entry((ROOT / "LICENSE").read_bytes())
    return write_wheel(folder, name, files, epoch)


def metadata(name: WheelName, summary: str, lines: list[str], text: str) -> Entry:
    head = ["Metadata-Version: 2.1", f"Name: {name.name}", f"Version: {name.version}", f"Summary: {summary}"]
    head += ["License: Apache-2.0", "Requires-Python: >=3.10", *lines, "Description-Content-Type: text/markdown"]
    return Entry(("\n".join(head) + f"\n\n{text}").encode())


def packed(folder: pathlib.Path) -> dict[str, Entry]:
    """The files below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): Entry(path.read_bytes(), os.access(path, os.X_OK)) for path in files}


def account(programs: Programs, epoch: int) -> tuple[str, dict[str, Entry]]:
    """The bill of materials, and the licences by the name of their package."""
    inside = {name: [*paths, *map(pathlib.Path, HEADERS_OF)] for name, paths in programs.archives.items()}
    everything = dict(programs.sources)
    for paths in inside.values():
        everything.update({str(path): path for path in paths})
    origins = Origins(everything, project_version())
    bill = Bill(f"penstock_server-{project_version()}", f"urn:penstock:server:{project_version()}", "deploy/package/pack.py")
    for name, source in sorted(programs.sources.items()):
        spdx = bill.add_file(f"penstock_server/{name}", (programs.folder / name).read_bytes(), origins.package_of(source))
        for package in sorted({origins.package_of(path) for path in inside.get(name, [])}):
            bill.add_link(spdx, package)
    licences = {"LICENSE": Entry((ROOT / "LICENSE").read_bytes())}
    for debian in sorted({origins.package_of(path)[0] for path in everything.values()} - {"penstock"}):
        text = pathlib.Path("/usr/share/doc") / debian / "copyright"
        if not text.exists():
            raise Problem(f"{text} is missing, and so the licence of what is packed")
        licences[f"{debian}/copyright"] = Entry(text.read_bytes())
    return bill.text(epoch), licences


def server_packages(folder: pathlib.Path, build: pathlib.Path, epoch: int, shared: bool) -> list[pathlib.Path]:
    """The wheel with the programs, and the tar archive with the same files."""
    name = WheelName("penstock_server", project_version(), PLATFORM)
    with tempfile.TemporaryDirectory() as scratch:
        programs = Programs(build, pathlib.Path(scratch) / "penstock_server")
        programs.collect()
        programs.check_complete()
        if not shared:
            programs.check_apart()
        bill, licences = account(programs, epoch)
        files = {f"penstock_server/{inside}": entry for inside, entry in packed(programs.folder).items()}
    print("with the CUDA module" if programs.has_cuda else "without the CUDA module, which this build has not")
    for path in sorted(LAUNCHERS.glob("*.py")):
        files[f"penstock_server/{path.name}"] = Entry(path.read_bytes())
    scripts = "".join(f"{program} = penstock_server.launch:{program}\n" for program in ("penstock", "penstockd"))
    info = {
        "METADATA": metadata(name, SUMMARY, [], (LAUNCHERS / "README.md").read_text()),
        "entry_points.txt": Entry(f"[console_scripts]\n{scripts}".encode()),
        "sboms/penstock_server.spdx.json": Entry(bill.encode()),
        **{f"licenses/{inside}": entry for inside, entry in licences.items()},
    }
    wheel = write_wheel(folder, name, {**files, **{f"{name.info}/{inside}": entry for inside, entry in info.items()}}, epoch)

    loose = {**files, "README.md": Entry((LAUNCHERS / "README.md").read_bytes()), "sbom.spdx.json": Entry(bill.encode())}
    loose |= {f"licenses/{inside}": entry for inside, entry in licences.items()}
    loose |= {path: Entry(text.encode()) for path, text in of_both(build, name.version, epoch).items()}
    for program in ("penstock", "penstockd"):
        loose[f"bin/{program}"] = Entry(START.format(name=program).encode(), executable=True)
    root = f"penstock-{name.version}-linux-x86_64"
    return [wheel, write_tar(folder / f"{root}.tar.gz", root, loose, epoch)]


def write_checksums(folder: pathlib.Path) -> None:
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (folder / "SHA256SUMS").write_text("".join(lines))


def main() -> int:
    parser = argparse.ArgumentParser(description="Packs a portable build.")
    parser.add_argument("--build", type=pathlib.Path, required=True, help="build folder of the preset portable")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="where the packages go")
    parser.add_argument("--shared", action="store_true", help="carry gRPC and the like as shared libraries: any build will do")
    arguments = parser.parse_args()
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    arguments.out.mkdir(parents=True, exist_ok=True)
    try:
        made = [client_wheel(arguments.out, epoch), *server_packages(arguments.out, arguments.build, epoch, arguments.shared)]
    except Problem as problem:
        print(f"pack: {problem}", file=sys.stderr)
        return 1
    write_checksums(arguments.out)
    for path in made:
        print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
