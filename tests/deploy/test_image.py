"""The images without an engine: their files assembled, counted and run as the declared user under a read-only root."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT
from test_manifests import project_version

ASSEMBLE = ROOT / "deploy" / "image" / "assemble.py"
DOCKERFILE = ROOT / "deploy" / "image" / "Dockerfile"
SMALL_CUDA = {"libcudart.so.13", "libcupti.so.13"}


def assemble(target: str, out: pathlib.Path, *more: str) -> str:
    build = os.environ["PENSTOCK_BUILD"]
    done = subprocess.run(
        ["/usr/bin/python3", str(ASSEMBLE), target, "--build", build, "--out", str(out), *more],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The root of the CPU image. Symbol tables stay, which saves half a minute of stripping."""
    if not all(shutil.which(tool) for tool in ("strip", "readelf", "ldconfig")):
        pytest.skip("no binutils here: an image can't be assembled")
    out = tmp_path_factory.mktemp("image") / "root"
    print(assemble("daemon-cpu", out, "--no-strip"))
    return out


def names(root: pathlib.Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def test_no_cuda_but_the_two_small_ones(cpu: pathlib.Path) -> None:
    libraries = {path.name for path in cpu.rglob("*.so*")}
    cuda = {name for name in libraries if re.match(r"lib(cu|nv|nccl|torch_cuda|c10_cuda|penstock_cuda)", name)}
    assert cuda == SMALL_CUDA
    assert sum((cpu / "usr/lib/penstock" / name).stat().st_size for name in cuda) < 8 << 20


def test_its_size(cpu: pathlib.Path) -> None:
    total = sum(path.stat().st_size for path in cpu.rglob("*") if path.is_file() and not path.is_symlink())
    torch = (cpu / "usr/lib/penstock/libtorch_cpu.so").stat().st_size
    print(f"CPU image: {total / 1e6:.0f} MB, {torch / 1e6:.0f} MB of it libtorch_cpu.so, before stripping and compression")
    assert total - torch < 80e6


def test_nothing_to_build_with_or_to_break_in_with(cpu: pathlib.Path) -> None:
    programs = {path.name for path in cpu.rglob("*") if path.is_file() and os.access(path, os.X_OK) and ".so" not in path.name}
    assert programs == {"penstockd", "penstock"}
    for path in cpu.rglob("*"):
        if not path.is_symlink():
            assert not path.stat().st_mode & 0o6000, f"{path} runs as somebody else"


def test_the_bill_of_materials_is_complete(cpu: pathlib.Path) -> None:
    bill = json.loads((cpu / "usr/share/doc/penstock/sbom.spdx.json").read_text())
    listed = {file["fileName"].lstrip("/"): file["checksums"][0]["checksumValue"] for file in bill["files"]}
    binaries = {name for name in names(cpu) if (cpu / name).is_file() and (".so" in name or "/bin/" in name)}
    binaries = {name for name in binaries if not (cpu / name).is_symlink() and not name.startswith("etc/")}
    assert {name for name in binaries if name.startswith("usr/")} <= listed.keys()
    for name in ("usr/bin/penstockd", "usr/lib/penstock/libc10.so"):
        assert hashlib.sha256((cpu / name).read_bytes()).hexdigest() == listed[name]
    packages = {package["name"]: package["versionInfo"] for package in bill["packages"]}
    assert packages["penstock"] == project_version() and packages["torch"].startswith("2.11.0") and "libc6" in packages


def test_assembling_twice_gives_the_same(tmp_path: pathlib.Path) -> None:
    def digest(root: pathlib.Path) -> str:
        told = hashlib.sha256()
        for path in sorted(root.rglob("*")):
            status = path.lstat()
            told.update(f"{path.relative_to(root)} {status.st_mode} {status.st_uid} {int(status.st_mtime)}\n".encode())
            if path.is_symlink():
                told.update(os.readlink(path).encode())
            elif path.is_file():
                told.update(path.read_bytes())
        return told.hexdigest()

    for name in ("one", "two"):
        assemble("cli", tmp_path / name)
    assert digest(tmp_path / "one") == digest(tmp_path / "two")
    assert not any("torch" in name for name in names(tmp_path / "one")), "the command line knows no torch"
    binary = (tmp_path / "one/usr/bin/penstock").read_bytes()
    assert str(ROOT).encode() + b"/build" not in binary, "the folders of the build machine are out"


def inside(root: pathlib.Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs a program of the image with a read-only root, as uid 65532 where that is allowed, without the host's files."""
    script = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && mount -t tmpfs tmpfs "$0/tmp" && exec "$@"'
    if os.geteuid() == 0:
        enter = ["unshare", "--mount", "--net", "sh", "-c", script, str(root), "chroot", "--userspec=65532:65532", str(root)]
    else:
        enter = ["unshare", "--user", "--map-root-user", "--mount", "--net", "sh", "-c", script, str(root), "chroot", str(root)]
    if subprocess.run([*enter[: enter.index("sh")], "true"], capture_output=True).returncode:
        pytest.skip("no namespaces here: the assembled image can't be run")
    return subprocess.run([*enter, *command], env={}, capture_output=True, text=True, timeout=120)


def test_it_runs(cpu: pathlib.Path) -> None:
    version = project_version()
    assert inside(cpu, "/usr/bin/penstockd", "--version").stdout == f"penstockd {version}\n"
    assert inside(cpu, "/usr/bin/penstock", "version", "-o", "name").stdout == f"{version}\n"
    # The daemon's configuration is checked with all of its libraries loaded; its devices come from this machine.
    done = inside(cpu, "/usr/bin/penstockd", "--check-config", "--state-dir=/tmp/state", "--device=cpu:0")
    assert done.returncode == 0, done.stderr
    # A read-only root holds: state can't go anywhere but where it is mounted.
    done = inside(cpu, "/usr/bin/penstockd", "--state-dir=/usr/state", "--listen=127.0.0.1:0", "--metrics-listen=off")
    assert done.returncode == 1 and "can't start" in done.stderr, done.stderr


def test_every_mount_point_exists(cpu: pathlib.Path) -> None:
    from manifests import OVERLAYS, rendered

    for overlay in OVERLAYS:
        for mount in rendered(overlay).container["volumeMounts"]:
            assert (cpu / mount["mountPath"].lstrip("/")).is_dir(), mount


def test_the_dockerfile() -> None:
    text = DOCKERFILE.read_text()
    done = subprocess.run([str(pathlib.Path(sys.executable).parent / "hadolint"), str(DOCKERFILE)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    assert ":latest" not in text and "ADD " not in text
    finals = re.split(r"^FROM \$\{RUNTIME_IMAGE\} AS ", text, flags=re.M)[1:]
    assert [final.split()[0] for final in finals] == ["cli", "daemon-cpu", "daemon"]
    for final in finals:
        assert "USER 65532:65532" in final and "RUN " not in final and "ENTRYPOINT [" in final
        assert f'org.opencontainers.image.version="{project_version()}"' in final
    for final in finals[1:]:
        assert "HEALTHCHECK" in final and "STOPSIGNAL SIGTERM" in final
    assert "NVIDIA_VISIBLE_DEVICES=" not in text
    for name in re.findall(r"^(?:COPY|RUN) (deploy/\S+)", text, re.M):
        assert (ROOT / name).exists(), name
