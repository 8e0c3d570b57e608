"""Where files of this machine are from: the libraries of a program, and the Debian package or wheel of a file."""

from __future__ import annotations

import functools
import os
import pathlib
import re
import subprocess
from collections.abc import Iterable, Mapping

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMON_LICENCES = "/usr/share/common-licenses"


class Problem(Exception):
    """Why there is no image or package; the message is the whole report."""


# Programs are asked in one language, as their answers are read: readelf translates what it finds. ldconfig is in /usr/sbin,
# which is not on the PATH of Debian's ordinary users.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "LANGUAGE"} | {
    "LC_ALL": "C",
    "PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin",
}


def run(*command: str) -> str:
    try:
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, encoding="utf-8")
    except FileNotFoundError:
        raise Problem(f"{command[0]} is not installed") from None
    if done.returncode:
        raise Problem(f"{command[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def project_version() -> str:
    match = re.search(r"project\(Penstock VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text("utf-8"))
    assert match
    return match[1]


def epoch() -> int:
    """The time of all that is made, in seconds since 1970."""
    told = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not re.fullmatch(r"\d+", told):
        raise Problem(f"SOURCE_DATE_EPOCH must be a number of seconds since 1970, got {told!r}: deploy/source_date.sh tells it")
    return int(told)


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
    """The path of a library that a program opens by its name: of several, the first of the loader's list."""
    if name not in _cache():
        raise Problem(f"{name} is not on this machine")
    return pathlib.Path(_cache()[name])


@functools.cache
def _cache() -> dict[str, str]:
    listed = re.findall(r"^\s*(\S+) \(libc6,x86-64[^)]*\) => (\S+)$", run("ldconfig", "-p"), re.MULTILINE)
    return dict(reversed(listed))


def common_licences(texts: Iterable[str]) -> list[pathlib.Path]:
    """Those of Debian's that licences name: what is packed need not stand on a Debian, where they would be."""
    named = {name for text in texts for name in re.findall(rf"{COMMON_LICENCES}/([\w.-]*\w)", text)}
    if named and not pathlib.Path(COMMON_LICENCES).is_dir():
        raise Problem(f"{COMMON_LICENCES}, which licences name, is missing: it is of Debian's base-files")
    # Of a name without a version all versions: LGPL is a link to the newest, and libnuma's 2.1. Some never were there.
    return sorted({path for name in named for path in pathlib.Path(COMMON_LICENCES).glob(f"{name}*")})


class Origins:
    """The packages of a set of files.

    Args:
        sources: any names to paths; all are asked for at the first question, for Debian's answer takes long.
        version: of Penstock.
        ours: the folder of what is Penstock's, if there is one; any other file has an owner, or is refused.
    """

    def __init__(self, sources: Mapping[str, pathlib.Path], version: str, ours: pathlib.Path | None = None) -> None:
        self._sources, self._version, self._ours = sources, version, ours
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
                if any(line.startswith(inside + ",") for line in record.read_text("utf-8").splitlines()):
                    name, version = record.parent.name.removesuffix(".dist-info").split("-", 1)
                    return name, version
        if source.is_relative_to("/usr/share/doc"):
            return source.parts[4], _debian_version(source.parts[4])
        if source.is_relative_to(COMMON_LICENCES):
            return "base-files", _debian_version("base-files")
        package = self._debian_packages().get(str(source)) or self._debian_packages().get("/usr" + str(source))
        if package:
            return package, _debian_version(package)
        if self._ours and source.resolve().is_relative_to(self._ours.resolve()):
            return "penstock", self._version
        raise Problem(f"{source} is of no package of Debian's and of no wheel: nobody can say where it is from")

    def licences_of(self, package: str, site: pathlib.Path | None = None) -> list[pathlib.Path]:
        """The texts of the licence of a wheel in the folder `site`, or of a package of Debian's; at least one."""
        texts: set[pathlib.Path] = set()
        if site:
            texts = {path for path in site.glob(f"{package}-*.dist-info/licenses/*") if path.is_file()}
            texts |= {*site.glob(f"{package}-*.dist-info/**/License.txt")}
        debian = pathlib.Path("/usr/share/doc") / package / "copyright"
        if not texts and debian.exists():
            texts = {debian}
        if not texts:
            raise Problem(f"the licence of {package} is missing: neither {debian} nor a wheel of {site} has it")
        return sorted(texts)

    @functools.cache
    def _debian_packages(self) -> dict[str, str]:
        """Path to package, of all files that came from Debian."""
        sources = [str(source) for source in self._sources.values() if "site-packages" not in source.parts]
        asked = [path for source in sources for path in (source, "/usr" + source) if path.startswith(("/usr/", "/lib"))]
        done = subprocess.run(["dpkg-query", "--search", *asked], env=ENVIRONMENT, capture_output=True, encoding="utf-8")
        found = {}
        for line in done.stdout.splitlines():
            packages, _, path = line.partition(": ")
            found[path] = packages.split(",")[0].split(":")[0]
        return found


@functools.cache
def _debian_version(package: str) -> str:
    return run("dpkg-query", "-W", "-f", "${Version}\n", package).splitlines()[0]
