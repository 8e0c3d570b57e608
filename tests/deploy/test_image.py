"""The images without an engine: their files assembled and counted, built by buildah, unpacked, and run as a container is."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator

import pytest
import spdx
from conftest import ROOT
from image_sandbox import HOME, Sandbox
from image_tree import files_of
from packing import packed
from test_manifests import project_version

ASSEMBLE = ROOT / "deploy" / "image" / "assemble.py"
WITHOUT_ENGINE = ROOT / "deploy" / "image" / "build_without_engine.sh"
DOCKERFILE = ROOT / "deploy" / "image" / "Dockerfile"
KEEP_OWNER = () if os.geteuid() == 0 else ("--keep-owner",)
ENVIRONMENT = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
SMALL_CUDA = {"libcudart.so.13", "libcupti.so.13"}


def assemble(target: str, wheel: pathlib.Path, out: pathlib.Path, *more: str) -> str:
    command = ["/usr/bin/python3", "-B", str(ASSEMBLE), target, "--wheel", str(wheel), "--out", str(out), *more, *KEEP_OWNER]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    (found,) = packed(tmp_path_factory.mktemp("packages")).glob("penstock_server-*.whl")
    return found


@pytest.fixture(scope="module")
def cpu(wheel: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The root of the CPU image. Symbol tables stay, which saves half a minute of stripping."""
    if not shutil.which("ldconfig"):
        pytest.skip("no ldconfig here: an image can't be assembled")
    out = tmp_path_factory.mktemp("files") / "image" / "daemon-cpu"
    print(assemble("daemon-cpu", wheel, out, "--no-strip"))
    return out


@pytest.fixture(scope="module")
def unpacked(cpu: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """What the Dockerfile's target daemon-cpu comes to, with `cpu` as what the stages before leave. Its configuration is beside."""
    folder = tmp_path_factory.mktemp("built")
    out = folder / "root"
    done = subprocess.run(
        [str(WITHOUT_ENGINE), "daemon-cpu", "--out", str(out), "--files", str(cpu.parents[1]), "--work", str(folder / "work")],
        env=ENVIRONMENT, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode == 77 or "not permitted" in done.stderr:
        pytest.skip(f"no image can be built here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    yield out
    shutil.rmtree(folder)


def names(root: pathlib.Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def test_no_cuda_but_the_two_small_ones(cpu: pathlib.Path) -> None:
    libraries = {path.name for path in cpu.rglob("*.so*")}
    cuda = {name for name in libraries if re.match(r"lib(cu|nv|nccl|torch_cuda|c10_cuda|penstock_cuda)", name)}
    assert cuda == SMALL_CUDA
    assert sum((cpu / "usr/lib/penstock" / name).stat().st_size for name in cuda) < 8 << 20


def test_ucx_is_there_for_ranks_but_not_its_plugins(cpu: pathlib.Path) -> None:
    names_of_ucx = {path.name for path in cpu.rglob("libuc*.so*")}
    assert names_of_ucx == {"libucp.so.0", "libucs.so.0", "libuct.so.0", "libucm.so.0"}
    cached = subprocess.run(
        ["ldconfig", "-r", str(cpu), "-C", "/etc/ld.so.cache", "-p"], capture_output=True, text=True, check=True
    )
    assert names_of_ucx <= set(re.findall(r"^\s*(\S+) \(", cached.stdout, re.MULTILINE))


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
    files = {name: (cpu / name).read_bytes() for name in names(cpu) if (cpu / name).is_file() and not (cpu / name).is_symlink()}
    del files["usr/share/doc/penstock/sbom.spdx.json"]
    spdx.check(bill, files)
    packages = {package["name"]: package["versionInfo"] for package in bill["packages"]}
    assert packages["penstock"] == project_version() and packages["torch"].startswith("2.11.0") and "libc6" in packages


def test_the_command_line_knows_no_torch(wheel: pathlib.Path, tmp_path: pathlib.Path) -> None:
    print(assemble("cli", wheel, tmp_path / "cli"))
    assert not any("torch" in name for name in names(tmp_path / "cli"))


def test_the_programs_are_those_of_the_wheel(cpu: pathlib.Path, wheel: pathlib.Path) -> None:
    """So one build serves who installs packages and who runs images."""
    with zipfile.ZipFile(wheel) as archive:
        for name in ("penstockd", "penstock"):
            inside = archive.read(f"penstock_server/bin/{name}")
            assert (cpu / "usr/bin" / name).read_bytes() == inside
            assert str(ROOT).encode() + b"/build" not in inside, "the folders of the build machine are out"


def test_the_programs_find_their_libraries_wherever_the_files_are_copied_to(cpu: pathlib.Path) -> None:
    """docs/deployment.md copies them to a machine whose linker is told nothing."""
    for name in ("penstockd", "penstock"):
        header = subprocess.run(["readelf", "--dynamic", cpu / "usr/bin" / name], capture_output=True, text=True, check=True).stdout
        assert "$ORIGIN/../lib/penstock" in header
    assert "ld.so.conf" not in (ROOT / "docs/deployment.md").read_text()


def test_what_is_built_is_what_was_assembled(cpu: pathlib.Path, unpacked: pathlib.Path) -> None:
    """Modes, owners, times and contents, but for the root itself, which each engine makes."""
    built, assembled = files_of(unpacked), files_of(cpu)
    del built["."], assembled["."]
    assert built == assembled


def test_the_configuration_of_what_is_built(unpacked: pathlib.Path) -> None:
    config = json.loads(unpacked.with_suffix(".json").read_text())["Docker"]["config"]
    assert config["User"] == "65532:65532" and config["StopSignal"] == "SIGTERM"
    assert config["Entrypoint"] == ["/usr/bin/penstockd"]
    assert config["ExposedPorts"].keys() == {"8470/tcp", "8472/tcp", "8473/tcp"}
    assert config["Healthcheck"]["Test"] == ["CMD", "/usr/bin/penstock", "health", "liveness"]
    assert config["Volumes"].keys() == {"/var/lib/penstock"}
    assert config["Labels"]["org.opencontainers.image.version"] == project_version()
    assert {f"HOME={HOME}", "TMPDIR=/tmp", "PENSTOCK_STATE_DIR=/var/lib/penstock"} <= set(config["Env"])


def test_a_wrong_call_is_refused(tmp_path: pathlib.Path) -> None:
    torn = tmp_path / "torn"
    torn.mkdir()
    (torn / "penstock_server-0.1.0-torn.whl").touch()
    (torn / "SHA256SUMS").write_text(f"{'0' * 64}  penstock_server-0.1.0-torn.whl\n")
    for arguments, told in (
        (["gpu"], "TARGET must be daemon-cpu, daemon or cli, got 'gpu'"),
        (["cli", "--out", str(tmp_path / "o"), "--packages", str(tmp_path)], "--packages must have a wheel of penstock_server"),
        (["cli", "--out", str(tmp_path / "o"), "--packages", str(torn)], "--packages must have the files that its SHA256SUMS names"),
        (["cli"], "--out is needed"),
        (["cli", "--out", str(tmp_path)], "--out must not exist yet"),
        (["cli", "--out", str(tmp_path / "o"), "--files", str(tmp_path)], "--files must have a folder image/cli"),
    ):
        done = subprocess.run([str(WITHOUT_ENGINE), *arguments], capture_output=True, text=True)
        assert done.returncode == 2 and told in done.stderr, done.stderr


@pytest.fixture
def sandbox(cpu: pathlib.Path, tmp_path: pathlib.Path) -> Sandbox:
    (tmp_path / "state").mkdir(mode=0o777)
    return Sandbox(cpu, tmp_path / "state")


def test_its_programs_run(sandbox: Sandbox) -> None:
    version = project_version()
    assert sandbox.run("/usr/bin/penstockd", "--version").stdout == f"penstockd {version}\n"
    assert sandbox.run("/usr/bin/penstock", "version", "-o", "name").stdout == f"{version}\n"
    # A read-only root holds: state can't go anywhere but where it is mounted.
    done = sandbox.run("/usr/bin/penstockd", "--state-dir=/usr/state", "--listen=127.0.0.1:0", "--metrics-listen=off")
    assert done.returncode == 1 and "can't start" in done.stderr, done.stderr


def test_it_serves_as_process_1_and_ends(sandbox: Sandbox, tmp_path: pathlib.Path) -> None:
    """Started, probed by the image's own health check from a second container, stopped by SIGTERM."""
    socket = "unix:/var/lib/penstock/api.sock"
    process, number = sandbox.start(
        "/usr/bin/penstockd", f"--listen={socket}", "--state-dir=/var/lib/penstock", "--device=cpu:0", "--drain-announce=0s",
        log=tmp_path / "log",
    )  # fmt: skip
    try:
        done = sandbox.run("/usr/bin/penstock", "--server", socket, "health", "readiness", "--wait", "60")
        assert done.returncode == 0, (done.stderr, (tmp_path / "log").read_text())
        status = dict(
            line.split(":\t", 1) for line in pathlib.Path(f"/proc/{number}/status").read_text().splitlines() if ":\t" in line
        )
        assert status["NSpid"].split()[-1] == "1"
        assert {int(status[kind], 16) for kind in ("CapEff", "CapPrm", "CapBnd", "CapAmb")} == {0}
        assert status["NoNewPrivs"] == "1"
        assert sandbox.run("/usr/bin/penstock", "--server", socket, "health", "liveness").returncode == 0
        os.kill(number, signal.SIGTERM)
        assert process.wait(60) == 0, (tmp_path / "log").read_text()
        assert (tmp_path / "state" / "epoch").exists(), "state goes to the volume"
    finally:
        process.kill()
        process.wait()


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
