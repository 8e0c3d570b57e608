"""Where files of this machine are from: the libraries of a program, and the Debian package or wheel of a file."""

from __future__ import annotations

import functools
import os
import pathlib
import re
import subprocess
from collections.abc import Mapping

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Problem(Exception):
    """Why there is no image or package; the message is the whole report."""


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Problem(f"{command[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def project_version() -> str:
    match = re.search(r"project\(Penstock VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert match
    return match[1]


def libraries_of(file: pathlib.Path) -> dict[str, pathlib.Path]:
    """Name in the ELF header to path, of everything that the dynamic linker would load for `file`."""
    found = {}
    for line in run("ldd", str(file)).splitlines():
        if match := re.match(r"\s*(\S+) => (\S+) \(0x", line):
            found[match[1]] = pathlib.Path(match[2])
        elif match := re.match(r"\s*(/\S+/(ld-linux\S*)) \(0x", line):
            found[match[2]] = pathlib.Path(match[1])
        elif "not found" in line:
            raise Problem(f"{file.name} needs {line.split()[0]}, which is not on this machine")
    return found


def needed_by(file: pathlib.Path) -> list[str]:
    """The names in the ELF header of a program or library."""
    return re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "--dynamic", str(file)))


def library_in_cache(name: str) -> pathlib.Path:
    """The path of a library that a program opens by its name."""
    if name not in _cache():
        raise Problem(f"{name} is not on this machine")
    return pathlib.Path(_cache()[name])


@functools.cache
def _cache() -> dict[str, str]:
    return dict(re.findall(r"^\s*(\S+) \(libc6,x86-64[^)]*\) => (\S+)$", run("ldconfig", "-p"), re.MULTILINE))


class Origins:
    """The packages of a set of files.

    Args:
        sources: any names to paths; all are asked for at the first question, for Debian's answer takes long.
        version: of Penstock, which a file is from that nobody else owns.
    """

    def __init__(self, sources: Mapping[str, pathlib.Path], version: str) -> None:
        self._sources, self._version = sources, version
        self._packages: dict[pathlib.Path, tuple[str, str]] = {}

    def package_of(self, source: pathlib.Path) -> tuple[str, str]:
        """Name and version of the Debian package or wheel that a file is from; ours is from penstock."""
        if source not in self._packages:
            self._packages[source] = self._look_up(source)
        return self._packages[source]

    def _look_up(self, source: pathlib.Path) -> tuple[str, str]:
        if "site-packages" in source.parts:
            at = source.parts.index("site-packages") + 1
            site, inside = pathlib.Path(*source.parts[:at]), str(pathlib.Path(*source.parts[at:]))
            inside = os.path.normpath(inside)
            for record in site.glob("*.dist-info/RECORD"):
                if any(line.startswith(inside + ",") for line in record.read_text().splitlines()):
                    name, version = record.parent.name.removesuffix(".dist-info").split("-", 1)
                    return name, version
        if source.is_relative_to("/usr/share/doc"):
            return source.parts[4], self._debian_versions()[source.parts[4]]
        package = self._debian_packages().get(str(source)) or self._debian_packages().get("/usr" + str(source))
        if package:
            return package, self._debian_versions()[package]
        return "penstock", self._version

    @functools.cache
    def _debian_packages(self) -> dict[str, str]:
        """Path to package, of all files that came from Debian."""
        sources = [str(source) for source in self._sources.values() if "site-packages" not in source.parts]
        asked = [path for source in sources for path in (source, "/usr" + source) if path.startswith(("/usr/", "/lib"))]
        done = subprocess.run(["dpkg-query", "--search", *asked], capture_output=True, text=True)
        found = {}
        for line in done.stdout.splitlines():
            packages, _, path = line.partition(": ")
            found[path] = packages.split(",")[0].split(":")[0]
        return found

    @functools.cache
    def _debian_versions(self) -> dict[str, str]:
        packages = sorted(set(self._debian_packages().values()))
        lines = run("dpkg-query", "-W", "-f", "${Package} ${Version}\n", *packages).splitlines()
        return dict(line.split() for line in lines)
