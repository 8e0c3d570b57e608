#!/usr/bin/env python3
"""Gives a Debian package of ours, unpacked from what cpack made, what Debian's policy asks for.

Usage: debian.py --build FOLDER UNPACKED      (deploy/package.sh packs it again)

What it adds or makes right:
  documents     copyright, with those of what is linked in; both changelogs; the manual page and the completion of the programs;
                what lintian is not to complain of
  archives      without notes and comments of the compiler, and without times
  modes         755 for folders and programs, 644 for files, whatever the umask was
  DEBIAN        md5sums and Installed-Size of all that is there
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import time

from manual import PENSTOCK, of_both
from programs import HEADERS_OF, archives_of

from origins import ROOT, Origins, Problem, project_version  # of deploy/image, which programs.py has put on the path

OURS = """\
Copyright {year} the authors of Penstock

Licensed under the Apache License, version 2.0; on Debian's systems its text is /usr/share/common-licenses/Apache-2.0.
"""
LINKED = """
The program penstock contains parts of the packages of Debian below, from their archives and headers. What each of them says
of its copyright follows.
"""
RELEASE = """\
{package} ({version}) unstable; urgency=medium

  * Release {release} of Penstock; what is new in it is in changelog.gz.

 -- {maintainer}  {day}
"""


def zipped(text: bytes) -> bytes:
    return gzip.compress(text, 9, mtime=0)


def fields_of(control: pathlib.Path) -> dict[str, str]:
    return dict(re.findall(r"^([\w-]+): (.+)$", control.read_text(), re.M))


def copyright_of(package: str, build: pathlib.Path, year: int) -> str:
    text = OURS.format(year=year)
    if package != "penstock":
        return text  # what it needs of others comes with their packages
    linked = {str(path): path for path in [*archives_of(build, PENSTOCK), *map(pathlib.Path, HEADERS_OF)]}
    origins = Origins(linked, project_version())
    text += LINKED
    for name, version in sorted({origins.package_of(path) for path in linked.values()}):
        told = pathlib.Path("/usr/share/doc") / name / "copyright"
        if not told.exists():
            raise Problem(f"{told} is missing, and so the licence of what is linked in")
        title = f"{name} {version}"
        text += f"\n{title}\n{'=' * len(title)}\n\n{told.read_text().strip()}\n"
    return text


def overrides_of(package: str) -> str:
    paragraphs = (ROOT / "deploy/package/lintian-overrides").read_text().strip().split("\n\n")
    return "".join(f"{text}\n" for text in paragraphs if re.search(rf"^{package}: ", text, re.M))


def documents(fields: dict[str, str], build: pathlib.Path, epoch: int) -> dict[str, bytes]:
    """Contents of files by their path below /usr."""
    package, version = fields["Package"], fields["Version"]
    when = time.gmtime(epoch)
    day = time.strftime("%a, %d %b %Y %H:%M:%S +0000", when)
    told = RELEASE.format(package=package, version=version, release=project_version(), maintainer=fields["Maintainer"], day=day)
    files = {
        "copyright": copyright_of(package, build, when.tm_year).encode(),
        "changelog.gz": zipped((ROOT / "CHANGELOG.md").read_bytes()),
        "changelog.Debian.gz": zipped(told.encode()),
    }
    files = {f"share/doc/{package}/{name}": contents for name, contents in files.items()}
    files[f"share/lintian/overrides/{package}"] = overrides_of(package).encode()
    if package == "penstock":
        for path, text in of_both(build, project_version(), epoch).items():
            if path.startswith("share/man/"):
                path, contents = f"{path}.gz", zipped(text.encode())
            else:
                contents = text.encode()
            if "penstockd" not in path:  # the daemon is not in this package
                files[path] = contents
    return files


def finish(folder: pathlib.Path, build: pathlib.Path, epoch: int) -> None:
    control = folder / "DEBIAN" / "control"
    for name, contents in documents(fields_of(control), build, epoch).items():
        goal = folder / "usr" / name
        goal.parent.mkdir(parents=True, exist_ok=True)
        goal.write_bytes(contents)
    sections = ("--remove-section=.comment", "--remove-section=.note")
    for archive in sorted(folder.glob("usr/lib/**/*.a")):
        subprocess.run(["strip", "--strip-debug", "--enable-deterministic-archives", *sections, archive], check=True)
    for program in sorted(folder.glob("usr/bin/*")):
        subprocess.run(["strip", "--strip-unneeded", *sections, program], check=True)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and "DEBIAN" not in path.parts)
    sums = [f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n" for path in files]
    (folder / "DEBIAN" / "md5sums").write_text("".join(sums))
    size = sum(-(-path.stat().st_size // 1024) for path in files)
    control.write_text(re.sub(r"^Installed-Size: .*", f"Installed-Size: {size}", control.read_text(), flags=re.M))
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() or path.parent == folder / "usr/bin" else 0o644)


def main() -> int:
    parser = argparse.ArgumentParser(description="Gives an unpacked Debian package what the policy asks for.")
    parser.add_argument("--build", type=pathlib.Path, required=True, help="build folder of the preset portable")
    parser.add_argument("folder", type=pathlib.Path, metavar="UNPACKED", help="what dpkg-deb --raw-extract wrote")
    arguments = parser.parse_args()
    try:
        finish(arguments.folder, arguments.build, int(os.environ.get("SOURCE_DATE_EPOCH", "0")))
    except Problem as problem:
        print(f"debian: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
