"""Makes the packages twice and compares their bytes: the second time from what an image is built from, in a folder with another
name, from nothing and without the compiler cache, on one core, with another umask, time zone and language. Installs them where
there is no compiler: Debian 12 and 13. The wheels are installed as an ordinary user with that system's Python, without a network;
on Debian 12 also together with PyTorch, grpcio and tritonclient. Debian's packages are installed by apt, as root (debs.py).

Usage: packages.py [--out FOLDER] [--made] [SUITE...]      (bookworm trixie)

--made: the packages of both builds lie in FOLDER from an earlier run.

Run by tests/run.sh --long. Needs Debian's mmdebstrap and bubblewrap, and a network for the systems and for what the client
needs. The systems lie in FOLDER (build/package-tests) and stay there.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import Any

from base_system import BASE, FOLDER
from otherwise import OTHERWISE

ROOT = pathlib.Path(__file__).resolve().parents[2]
MIRROR = "http://deb.debian.org/debian"
SUITES = {"bookworm": "3.11", "trixie": "3.13"}


def run(*command: str | pathlib.Path, umask: int = -1, **more: str) -> None:
    subprocess.run(command, cwd=ROOT, env={**os.environ, **more}, umask=umask, check=True)


def sources_elsewhere(folder: pathlib.Path) -> pathlib.Path:
    """The sources again, in a folder with another name, but for what .dockerignore leaves out, and nothing that was built."""
    copy = folder / "sources-in-another-folder"
    shutil.rmtree(copy, ignore_errors=True)
    (copy / "build").mkdir(parents=True)
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    left_out = (ROOT / ".dockerignore").read_text().splitlines()
    for name in names.strip("\0").split("\0"):
        if name.partition("/")[0] in left_out:
            continue
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name)
    # No link to the folder: gcc names what it reads there by where links lead, if that is shorter.
    shutil.copytree(ROOT / "build/deps/venv", copy / "build/deps/venv", symlinks=True, copy_function=linked)
    return copy


def linked(source: str, goal: str) -> None:
    try:
        os.link(source, goal)
    except OSError:  # on another disk
        shutil.copy2(source, goal)


def make_twice(folder: pathlib.Path) -> None:
    """The second time where all is different that may be."""
    epoch = subprocess.run([ROOT / "deploy/source_date.sh"], capture_output=True, text=True, check=True).stdout
    for name in ("packages", "again"):
        shutil.rmtree(folder / name, ignore_errors=True)
    run(ROOT / "deploy/package.sh", "--out", folder / "packages", SOURCE_DATE_EPOCH=epoch.strip())
    one_core = ("taskset", "--cpu-list", str(min(os.sched_getaffinity(0))))
    package = (*one_core, sources_elsewhere(folder) / "deploy/package.sh", "--out", folder / "again")
    run(*package, umask=0o077, SOURCE_DATE_EPOCH=epoch.strip(), CCACHE_DISABLE="1", **OTHERWISE)


def same(folder: pathlib.Path) -> pathlib.Path:
    """The packages, if both builds gave the same bytes."""
    sums = [(folder / name / "SHA256SUMS").read_text() for name in ("packages", "again")]
    if sums[0] != sums[1]:
        sys.exit(f"packages: two builds give different bytes:\n{sums[0]}{sums[1]}")
    return folder / "packages"


def system(folder: pathlib.Path, suite: str) -> pathlib.Path:
    """The root of a Debian with Python and nothing to build with."""
    root = folder / suite
    if not root.exists():
        made = folder / f"{suite}.new"
        run("mmdebstrap", "--quiet", "--variant=minbase", "--include=python3,python3-venv", suite, made, MIRROR)
        made.rename(root)
    for name in ("packages", "wheels", "torch", "torch-needs"):
        (root / name).mkdir(exist_ok=True)
    for name in ("README.md", "LICENSE", "packages_inside.py", "together_inside.py"):
        (root / name).touch()
    return root


def client_wheels(folder: pathlib.Path, packages: pathlib.Path, python: str, *more: str) -> pathlib.Path:
    """What the client needs, and more if named, for a version of Python."""
    wheels = folder / "-".join(["wheels", python, *(re.sub(r"\W", "", name) for name in more)])
    (client,) = packages.glob("penstock-*.whl")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--python-version", python]
    run(*pip, "--dest", wheels, client, *more)
    for copy in wheels.glob("penstock-*.whl"):
        copy.unlink()
    return wheels


def site_packages(environment: str) -> pathlib.Path:
    (found,) = (ROOT / "build/deps" / environment / "lib").glob("python3*/site-packages")
    return found.resolve()


def told_inside(root: pathlib.Path, script: str, inside: dict[str, pathlib.Path]) -> Any:
    """The last line, as JSON, of a script that runs in the system with files of this machine, as an ordinary user."""
    command = ["bwrap", "--unshare-all", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL", "--die-with-parent"]
    command += ["--ro-bind", str(root), "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/home"]
    for name, path in {**inside, f"/{script}": ROOT / "tests/deploy" / script}.items():
        command += ["--ro-bind", str(path), name]
    environment = {"HOME": "/home", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([*command, "python3", f"/{script}"], env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"packages: {root.name}: {script}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def tried(root: pathlib.Path, packages: pathlib.Path, wheels: pathlib.Path) -> dict[str, object]:
    """What packages_inside.py tells."""
    inside = {"/packages": packages, "/wheels": wheels, "/torch": site_packages("venv")}
    inside |= {f"/{name}": ROOT / name for name in ("README.md", "LICENSE")}
    told: dict[str, object] = told_inside(root, "packages_inside.py", inside)
    return told


def check_together(folder: pathlib.Path, packages: pathlib.Path) -> None:
    """On Debian 12, whose Python is the one that PyTorch of build/deps/torch-venv is for."""
    wheels = client_wheels(folder, packages, SUITES["bookworm"], "tritonclient[grpc]", "grpcio")
    inside = {
        "/packages": packages,
        "/wheels": wheels,
        "/torch": site_packages("venv"),
        "/torch-needs": site_packages("torch-venv"),
    }
    for told in told_inside(system(folder, "bookworm"), "together_inside.py", inside):
        losses = told["losses"]
        if not (losses[0] > losses[1] > losses[2] and told["apart"] == 0 and told["gradient"]):
            sys.exit(f"packages: together with tritonclient: {told}")
        print(f"together: {told['versions']}")


def check(suite: str, told: dict[str, object]) -> None:
    steps = [line.split() for line in str(told["printed"]).splitlines()]
    if len(steps) != 10 or float(steps[-1][1]) >= float(steps[0][1]):
        sys.exit(f"packages: {suite}: the example printed\n{told['printed']}")
    loaded = told.pop("loaded")
    assert isinstance(loaded, list)
    base = [path for path in loaded if FOLDER.match(path) and BASE.fullmatch(pathlib.Path(path).name)]
    foreign = [path for path in loaded if path not in base and not path.startswith(("/torch/", "/tmp/venv/"))]
    if foreign or not any(path.startswith("/torch/") for path in loaded):
        sys.exit(f"packages: {suite}: the daemon loaded {foreign or loaded}")
    told.pop("printed")
    print(f"{suite}: {told}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/package-tests")
    parser.add_argument("--made", action="store_true")
    parser.add_argument("suites", nargs="*", metavar="SUITE")
    arguments = parser.parse_args()
    for tool in ("mmdebstrap", "bwrap"):
        if not shutil.which(tool):
            print(f"skipped: {tool} is missing")
            return 77
    folder = arguments.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if not arguments.made:
        make_twice(folder)
    packages = same(folder)
    build = {"PENSTOCK_BUILD": str(ROOT / "build/release"), "PENSTOCK_PACKAGES": str(packages)}
    if (layers := ROOT / "build/release/tests/unit/own_layers/test_layers.so").exists():
        build["PENSTOCK_TEST_LAYERS"] = str(layers)
    programs = {"PENSTOCKD": "build/portable/server/penstockd", "PENSTOCK": "build/portable/client/cli/penstock"}
    run("tests/integration/run_pytest.sh", "tests/deploy/test_package.py", **build, **programs)
    suites = arguments.suites or list(SUITES)
    for suite in suites:
        check(suite, tried(system(folder, suite), packages, client_wheels(folder, packages, SUITES[suite])))
    if "bookworm" in suites:
        check_together(folder, packages)
    if os.getuid() == 0:
        where = {"PENSTOCK_SYSTEMS": str(folder), "PENSTOCK_SUITES": " ".join(suites)}
        run("tests/integration/run_pytest.sh", "tests/deploy/debs.py", **build, **programs, **where)
    else:
        print("Debian's packages are not installed: that takes root")
    return 0


if __name__ == "__main__":
    sys.exit(main())
