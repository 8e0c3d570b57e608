"""Debian's packages, installed by apt in systems of their own: Debian 12 and 13. packages.py runs these tests with PENSTOCK_PACKAGES
the folder of the packages, and PENSTOCK_SYSTEMS that of the systems, of which it works on copies.

As root and with a network: apt gets what they depend on from Debian."""

from __future__ import annotations

import gzip
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator

import pytest
from conftest import PENSTOCKD, ROOT
from daemon_process import Daemon
from test_manifests import project_version

VERSION = project_version()
PACKAGES = pathlib.Path(os.environ["PENSTOCK_PACKAGES"])
SYSTEMS = pathlib.Path(os.environ["PENSTOCK_SYSTEMS"])
SUITES = os.environ["PENSTOCK_SUITES"].split()
TORCH = next((ROOT / "build/deps/venv/lib").glob("python3*/site-packages")).resolve()
NAMES = ("penstock", "libpenstock-dev")
# What dpkg and apt keep for themselves.
BOOKS = re.compile(r"/(var/(lib/(dpkg|apt)|cache|log)|etc/ld\.so\.cache|tmp|packages|torch|proc|dev)(/|$)")


def deb(name: str) -> pathlib.Path:
    (found,) = PACKAGES.glob(f"{name}_*.deb")
    return found


class System:
    """A copy of a Debian, in which apt may do what it likes."""

    def __init__(self, suite: str) -> None:
        self.root = SYSTEMS / f"{suite}-debs"
        shutil.rmtree(self.root, ignore_errors=True)
        subprocess.run(["cp", "-a", SYSTEMS / suite, self.root], check=True)
        self.archives = SYSTEMS / f"{suite}-archives"  # so that another run asks the mirror for nothing
        (self.archives / "partial").mkdir(parents=True, exist_ok=True)
        self.run("apt-get", "update", "-q")

    def attempt(self, *command: str, user: int = 0) -> subprocess.CompletedProcess[str]:
        enter = ["bwrap", "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--bind", str(self.root), "/"]
        enter += ["--proc", "/proc", "--dev", "/dev", "--ro-bind", str(PACKAGES), "/packages"]
        enter += ["--bind", str(self.archives), "/var/cache/apt/archives", "--ro-bind", str(TORCH), "/torch"]
        enter += ["--ro-bind", "/etc/resolv.conf", "/etc/resolv.conf"] if pathlib.Path("/etc/resolv.conf").exists() else []
        enter += ["--cap-add", "ALL"] if user == 0 else ["--unshare-user", "--uid", str(user), "--cap-drop", "ALL"]
        proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp", "DEBIAN_FRONTEND": "noninteractive", **proxies}
        return subprocess.run([*enter, *command], env={**environment, "LC_ALL": "C.UTF-8"}, capture_output=True, text=True)

    def run(self, *command: str, user: int = 0) -> str:
        done = self.attempt(*command, user=user)
        assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
        return done.stdout

    def install(self, *packages: str) -> set[str]:
        """Returns the names of the packages that are new."""
        keep = ("-o", "APT::Keep-Downloaded-Packages=true")
        told = self.run("apt-get", "install", "-q", "-y", "--no-install-recommends", *keep, *packages)
        return set(re.findall(r"^Setting up ([^ :]+)", told, re.M))

    def files(self) -> set[str]:
        found = set()
        for folder, folders, files in os.walk(self.root):
            inside = "/" + str(pathlib.Path(folder).relative_to(self.root)).removeprefix(".")
            found |= {f"{inside.rstrip('/')}/{name}" for name in [*folders, *files]}
        return {name for name in found if not BOOKS.match(name)}


@pytest.fixture(scope="module", params=SUITES)
def system(request: pytest.FixtureRequest) -> Iterator[System]:
    copy = System(request.param)
    yield copy
    shutil.rmtree(copy.root)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Outside of the systems, whose network is this machine's."""
    one = Daemon(tmp_path_factory.mktemp("daemon"), "--drain-announce=0s")
    with one.running():
        yield one


@pytest.mark.parametrize("name", NAMES)
def test_what_is_inside_has_an_owner_a_mode_and_a_sum(name: str, tmp_path: pathlib.Path) -> None:
    packed = subprocess.run(["dpkg-deb", "--fsys-tarfile", deb(name)], capture_output=True, check=True).stdout
    (tmp_path / "files.tar").write_bytes(packed)
    subprocess.run(["dpkg-deb", "--control", deb(name), tmp_path / "control"], check=True)
    sums = {}
    with tarfile.open(tmp_path / "files.tar") as archive:
        for member in archive:
            assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "root", "root"), member.name
            program = member.isdir() or member.name.startswith("./usr/bin/")
            assert member.isdir() or member.isfile(), member.name
            assert member.mode == (0o755 if program else 0o644), member.name
            if file := archive.extractfile(member):
                contents = file.read()
                sums[member.name.removeprefix("./")] = hashlib.md5(contents).hexdigest()
                for folder in {str(ROOT), str((ROOT / "build/deps").resolve()), os.environ["HOME"] + "/"}:
                    assert folder.encode() not in contents, f"{member.name} names {folder}"
                if member.name.endswith("changelog.gz"):
                    assert gzip.decompress(contents) == (ROOT / "CHANGELOG.md").read_bytes()
    lines = (tmp_path / "control/md5sums").read_text().splitlines()
    told = {path: digest for digest, path in (line.split("  ") for line in lines)}
    assert told == sums
    assert {f"usr/share/doc/{name}/{file}" for file in ("copyright", "changelog.gz", "changelog.Debian.gz")} <= sums.keys()


def test_the_command_line_comes_and_goes(system: System, daemon: Daemon) -> None:
    before = system.files()
    assert system.install(f"/packages/{deb('penstock').name}") <= {"penstock", "libisal2", "libc-bin"}
    assert system.run("dpkg", "--verify", "penstock") == ""
    assert system.run("penstock", "--version", user=1000) == f"penstock {VERSION}\n"
    assert "Usage: penstock" in system.run("penstock", "--help", user=1000)
    told = system.run("penstock", "--server", daemon.address, "status", "-o", "json", user=1000)
    assert VERSION in told
    script = (
        "source /usr/share/bash-completion/completions/penstock; COMP_WORDS=(penstock pipe); COMP_CWORD=1; _penstock; "
        'echo "${COMPREPLY[@]}"; complete -p penstock'
    )
    assert system.run("bash", "-c", script) == "pipeline\ncomplete -o default -F _penstock penstock\n"
    system.run("apt-get", "purge", "-q", "-y", "--autoremove", "penstock")
    assert system.files() == before


def built(system: System, page: str, source: str, *options: str) -> pathlib.Path:
    """Builds the page's project in the system. Returns its folder there."""
    text = (ROOT / "docs" / page).read_text()
    folder = pathlib.Path("/srv", source.partition(".")[0])
    (system.root / "srv" / folder.name).mkdir()
    for name, language in (("CMakeLists.txt", "cmake"), (source, "cpp")):
        (block,) = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
        (system.root / "srv" / folder.name / name).write_text(block)
    system.run("env", "PYTHONPATH=/torch", "cmake", "-S", str(folder), "-B", f"{folder}/build", *options)
    system.run("cmake", "--build", f"{folder}/build")
    return folder / "build"


def test_programs_in_cpp_are_built_with_what_debian_12_has(system: System, daemon: Daemon, tmp_path: pathlib.Path) -> None:
    if "bookworm" not in system.root.name:
        pytest.skip("test_another_debian_refuses_the_archives")
    system.install("g++", "cmake", "make", f"/packages/{deb('libpenstock-dev').name}")
    assert system.run("dpkg", "--verify", "libpenstock-dev") == ""
    program = built(system, "install.md", "train.cc") / "train"
    steps = [line.split() for line in system.run(str(program), daemon.address, user=1000).splitlines()]
    assert len(steps) == 10 and float(steps[-1][1]) < float(steps[0][1]), steps

    layers = built(system, "own_layers.md", "gated_block.cc", "-D", "PENSTOCK_TORCH_PYTHON=/usr/bin/python3")
    library = system.root / layers.relative_to("/") / "libgated_block.so"
    command = [PENSTOCKD, "--check-config", f"--state-dir={tmp_path}", f"--layer-library={library}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(system.root / "srv")
    system.run("apt-get", "purge", "-q", "-y", "libpenstock-dev")
    assert {name for name in system.files() if "penstock" in name.lower()} == set()


def test_another_debian_refuses_the_archives(system: System) -> None:
    if "bookworm" in system.root.name:
        pytest.skip("test_programs_in_cpp_are_built_with_what_debian_12_has")
    before = system.files()
    done = system.attempt("apt-get", "install", "-q", "-y", f"/packages/{deb('libpenstock-dev').name}")
    assert done.returncode == 100, done.stdout[-2000:]
    assert re.search(r"libpenstock-dev : Depends: (libabsl-dev \(< 20220624\)|lib\S+-dev \(< )", done.stdout), (
        done.stdout + done.stderr
    )
    assert system.files() == before


def test_lintian_has_nothing_to_say(system: System) -> None:
    if "bookworm" not in system.root.name:
        pytest.skip("one version of it is enough")
    system.install("lintian")
    told = system.attempt(
        "lintian", "--fail-on", "error,warning", "--tag-display-limit", "0", *(f"/packages/{deb(name).name}" for name in NAMES)
    )
    assert (told.returncode, told.stdout) == (0, ""), told.stdout + told.stderr
