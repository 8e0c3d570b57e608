#!/usr/bin/env python3
"""Gives a Debian package of ours, unpacked from what cpack made, what Debian's policy asks for.

Usage: debian.py --build FOLDER [--shared] UNPACKED      (deploy/package.sh packs it again)

What it adds or makes right:
  documents     copyright, with those of what is linked in; both changelogs; the manual page and the completion of the programs;
                what lintian is not to complain of; a bill of materials (SPDX 2.3) with each file
  archives      without notes and comments of the compiler, and without times
  modes         755 for folders and programs, 644 for files, whatever the umask was
  DEBIAN        md5sums and Installed-Size of all that is there
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import pathlib
import re
import sys
import time

from contents import Contents
from manual import PENSTOCK, of_both
from programs import check_linked, inside_of

from bill import Bill  # of deploy/image, which programs.py has put on the path
from origins import ROOT, Problem, epoch, project_version, run

OURS = """\
Copyright 2026 the authors of Penstock

Licensed under the Apache License, version 2.0; on Debian's systems its text is /usr/share/common-licenses/Apache-2.0.
"""
LINKED = """
The program penstock contains parts of the packages of Debian below, from their archives and headers. What each of them says
of its copyright follows.
"""
PROGRAM = "usr/bin/penstock"
RELEASE = """\
{package} ({version}) unstable; urgency=medium

  * Release {release} of Penstock; what is new in it is in changelog.gz.

 -- {maintainer}  {day}
"""


def zipped(text: bytes) -> bytes:
    return gzip.compress(text, 9, mtime=0)


def fields_of(control: pathlib.Path) -> dict[str, str]:
    return dict(re.findall(r"^([\w-]+): (.+)$", control.read_text("utf-8"), re.M))


def linked(package: str, build: pathlib.Path, shared: bool) -> Contents:
    """What is inside of the program; what else a package needs of others comes with theirs."""
    if package == "penstock" and not shared:
        check_linked(build, PENSTOCK)
    inside = {PROGRAM: inside_of(build, PENSTOCK)} if package == "penstock" else {}
    return Contents(build, {PROGRAM: build / PENSTOCK}, inside)


def copyright_of(package: str, contents: Contents) -> str:
    text = OURS
    if licences := contents.licences():
        text += LINKED
    for (name, version), paths in licences.items():
        title = f"{name} {version}"
        text += f"\n{title}\n{'=' * len(title)}\n\n" + "".join(f"{path.read_text('utf-8').strip()}\n" for path in paths)
    return text


def bill_of(fields: dict[str, str], folder: pathlib.Path, contents: Contents, when: int) -> str:
    name = f"{fields['Package']}_{fields['Version']}"
    bill = Bill(name, ("penstock", project_version()), "deploy/package/debian.py")
    for path in sorted(path for path in (folder / "usr").rglob("*") if path.is_file()):
        inside = str(path.relative_to(folder))
        bill.add_file(inside, path.read_bytes(), ("penstock", project_version()), contents.linked_into(inside))
    return bill.text(when)


def overrides_of(package: str) -> str:
    paragraphs = (ROOT / "deploy/package/lintian-overrides").read_text("utf-8").strip().split("\n\n")
    return "".join(f"{text}\n" for text in paragraphs if re.search(rf"^{package}: ", text, re.M))


def documents(fields: dict[str, str], build: pathlib.Path, contents: Contents, seconds: int) -> dict[str, bytes]:
    """Texts of files by their path below /usr."""
    package, version = fields["Package"], fields["Version"]
    day = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(seconds))
    told = RELEASE.format(package=package, version=version, release=project_version(), maintainer=fields["Maintainer"], day=day)
    texts = {
        "copyright": copyright_of(package, contents).encode(),
        "changelog.gz": zipped((ROOT / "CHANGELOG.md").read_bytes()),
        "changelog.Debian.gz": zipped(told.encode()),
    }
    files = {f"share/doc/{package}/{name}": text for name, text in texts.items()}
    files[f"share/lintian/overrides/{package}"] = overrides_of(package).encode()
    if package == "penstock":
        for path, page in of_both(build, project_version(), seconds).items():
            if "penstockd" in path:
                continue  # the daemon is not in this package
            if path.startswith("share/man/"):
                page = page.partition(".SH SEE ALSO")[0]  # it names the daemon's
                files[f"{path}.gz"] = zipped(page.encode())
            else:
                files[path] = page.encode()
    return files


def finish(folder: pathlib.Path, build: pathlib.Path, shared: bool) -> None:
    control = folder / "DEBIAN" / "control"
    fields = fields_of(control)
    contents = linked(fields["Package"], build, shared)
    for name, text in documents(fields, build, contents, epoch()).items():
        goal = folder / "usr" / name
        goal.parent.mkdir(parents=True, exist_ok=True)
        goal.write_bytes(text)
    sections = ("--remove-section=.comment", "--remove-section=.note")
    for archive in sorted(folder.glob("usr/lib/**/*.a")):
        run("strip", "--strip-debug", "--enable-deterministic-archives", *sections, str(archive))
    for program in sorted(folder.glob("usr/bin/*")):
        run("strip", "--strip-unneeded", *sections, str(program))
    bill = folder / "usr/share/doc" / fields["Package"] / "sbom.spdx.json"
    bill.write_text(bill_of(fields, folder, contents, epoch()), encoding="utf-8")
    files = sorted(path for path in folder.rglob("*") if path.is_file() and "DEBIAN" not in path.parts)
    sums = [f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n" for path in files]
    (folder / "DEBIAN" / "md5sums").write_text("".join(sums), encoding="utf-8")
    size = sum(-(-path.stat().st_size // 1024) for path in files)
    told = re.sub(r"^Installed-Size: .*", f"Installed-Size: {size}", control.read_text("utf-8"), flags=re.M)
    control.write_text(told, encoding="utf-8")
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() or path.parent == folder / "usr/bin" else 0o644)


def main() -> int:
    parser = argparse.ArgumentParser(description="Gives an unpacked Debian package what the policy asks for.")
    parser.add_argument("--build", type=pathlib.Path, required=True, help="build folder of the preset portable")
    parser.add_argument("--shared", action="store_true", help="nothing is linked from archives: any build will do")
    parser.add_argument("folder", type=pathlib.Path, metavar="UNPACKED", help="what dpkg-deb --raw-extract wrote")
    arguments = parser.parse_args()
    try:
        finish(arguments.folder, arguments.build, arguments.shared)
    except Problem as problem:
        print(f"debian: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
