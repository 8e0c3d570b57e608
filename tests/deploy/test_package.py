"""What deploy/package makes, installed with pip in an environment of its own: it trains, and loads only what it may.

The packages are those of the folder PENSTOCK_PACKAGES; without it, of the build under test, with gRPC and the like as shared
libraries. tests/deploy/packages.py runs these tests on the packages of a portable build, too."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence

import daemon_process
import pytest
import spdx
from base_system import BASE
from conftest import ROOT
from daemon_process import Daemon
from otherwise import OTHERWISE
from packing import TORCH, pack, packed
from test_manifests import project_version

VERSION = project_version()
SERVER = f"penstock_server-{VERSION}"
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return packed(tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="module")
def server_wheel(packages: pathlib.Path) -> pathlib.Path:
    (wheel,) = packages.glob("penstock_server-*.whl")
    return wheel


def environment(folder: pathlib.Path, packages: pathlib.Path, *visible: pathlib.Path) -> pathlib.Path:
    """A fresh environment with both wheels, which also sees the packages in other folders, pip among them. Returns its folder
    bin."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = folder / "lib" / PYTHON / "site-packages"
    (site / "visible.pth").write_text("".join(f"{path}\n" for path in visible))
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check"]
    subprocess.run([*pip, *map(str, packages.glob("*.whl"))], check=True)
    return folder / "bin"


@pytest.fixture(scope="module")
def programs(packages: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The folder bin of an environment with torch and the packages that the client needs."""
    tests = pathlib.Path(sys.prefix) / "lib" / PYTHON / "site-packages"
    return environment(tmp_path_factory.mktemp("environment") / "venv", packages, tests, TORCH)


@pytest.fixture
def daemon(programs: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    monkeypatch.setattr(daemon_process, "BINARY", str(programs / "penstockd"))
    with Daemon(tmp_path, "--drain-announce=0s").running() as one:
        yield one


def test_the_ten_lines_of_the_readme_train(programs: pathlib.Path, daemon: Daemon) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    program = "import grpc\n" + program.replace("127.0.0.1:8470", daemon.address)  # beside another gRPC
    where = "import sys; sys.stderr.write(penstock.__file__)"
    command = [str(programs / "python"), "-I", "-c", program + where]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(str(programs.parent)), "the client is the installed one"
    steps = [line.split() for line in done.stdout.splitlines()]
    assert [int(step) for step, *_ in steps] == list(range(1, 11))
    assert float(steps[-1][1]) < float(steps[0][1])


def test_a_daemon_loads_what_is_packed_and_torch_and_the_base(programs: pathlib.Path, daemon: Daemon) -> None:
    maps = pathlib.Path(f"/proc/{daemon.pid}/maps").read_text()
    loaded = {pathlib.Path(path) for path in re.findall(r"^\S+ r.*? (/\S+\.so\S*)$", maps, re.M)}
    ours = programs.parent / "lib" / PYTHON / "site-packages/penstock_server"
    assert {path.parent for path in loaded if path.is_relative_to(ours)} == {ours / "lib"}
    torch = TORCH.resolve()
    others = {path for path in loaded if not path.is_relative_to(ours) and not path.resolve().is_relative_to(torch)}
    assert [str(path) for path in others if not BASE.search(path.name)] == []
    assert any(path.name == "libtorch_cpu.so" for path in loaded)
    assert pathlib.Path(f"/proc/{daemon.pid}/exe").resolve() == ours / "bin/penstockd"


def test_ucx_is_found_for_ranks(programs: pathlib.Path) -> None:
    """As the daemon opens it: by its name, from the place of the programs."""
    lib = programs.parent / "lib" / PYTHON / "site-packages/penstock_server/lib"
    for name in ("libucp.so.0", "libucs.so.0"):
        told = subprocess.run(["ldd", str(lib / name)], capture_output=True, text=True, check=True).stdout
        found = re.findall(r"^\t(\S+) => (\S+)", told, re.M)
        assert [path for needed, path in found if not BASE.search(needed) and not path.startswith(str(lib))] == [], told


def test_layers_of_ones_own_find_the_engine(programs: pathlib.Path, tmp_path: pathlib.Path) -> None:
    library = os.environ.get("PENSTOCK_TEST_LAYERS", "")
    if not library:
        pytest.skip("PENSTOCK_TEST_LAYERS names no library")
    command = [str(programs / "penstockd"), "--check-config", f"--state-dir={tmp_path}", f"--layer-library={library}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_command_line_sees_the_daemon(programs: pathlib.Path, daemon: Daemon) -> None:
    def penstock(*words: str) -> str:
        return subprocess.run([str(programs / "penstock"), *words], capture_output=True, text=True, check=True).stdout

    assert penstock("version", "-o", "name") == f"{VERSION}\n"
    penstock("--server", daemon.address, "health", "readiness")
    # It looks for the daemon beside itself.
    told = penstock("doctor", "--server", daemon.address)
    assert re.search(rf"ok +penstockd +penstockd {re.escape(VERSION)} runs; torch 2.11.0\S* of {re.escape(str(TORCH))}/torch and all", told), told


@pytest.fixture(scope="module")
def unpacked(packages: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """What the tar archive holds."""
    (packed,) = packages.glob("penstock-*.tar.gz")
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(packed) as archive:
        archive.extractall(folder)
    return folder / f"penstock-{VERSION}-linux-x86_64"


def test_the_archive_runs_where_it_is_unpacked(unpacked: pathlib.Path, programs: pathlib.Path) -> None:
    for program, word in (("penstockd", "--version"), ("penstock", "version")):
        command = [str(programs / "python"), "-B", str(unpacked / "bin" / program), word]
        told = subprocess.run(command, capture_output=True, text=True)
        assert told.returncode == 0 and VERSION in told.stdout, told.stderr
    shared = {str(path.relative_to(unpacked / "share")) for path in (unpacked / "share").rglob("*") if path.is_file()}
    assert {"man/man1/penstock.1", "man/man8/penstockd.8", "bash-completion/completions/penstock"} <= shared
    alone = subprocess.run([str(unpacked / "penstock_server/bin/penstock"), "version"], env={}, capture_output=True, text=True)
    assert alone.returncode == 0, alone.stderr


def test_what_is_missing_is_named(unpacked: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """With the Python of the tests, which has no torch."""

    def start(program: str, word: str) -> tuple[int, str]:
        command = [sys.executable, "-B", str(unpacked / "bin" / program), word]
        done = subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def complaint() -> str:
        code, told = start("penstockd", "--version")
        assert code == 1 and told.startswith("penstockd: "), told
        return told

    assert f"it needs torch 2.11, and {sys.prefix} has none: " in complaint()
    lib = tmp_path / "torch/lib"
    lib.mkdir(parents=True)
    (lib.parent / "__init__.py").write_text("raise ImportError('nobody is to import it')\n")
    assert "has none: " in complaint(), "a folder without LibTorch is no torch"
    for name in ("libtorch_cpu.so", "libc10.so"):
        (lib / name).write_text("all of it")
    (lib.parent / "version.py").write_text("__version__ = '2.110.0'\n")
    assert f"it needs torch 2.11, and {tmp_path}/torch is torch 2.110.0: " in complaint()
    # A number of CUDA that no machine has.
    (lib.parent / "version.py").write_text("__version__ = '2.11.0+cu999'\ncuda: Optional[str] = '99.9'\n")
    assert "torch 2.11.0+cu999 loads libcudart.so.99 also without a GPU, and it is missing: " in complaint()
    (tmp_path / "nvidia/cu99/lib").mkdir(parents=True)
    (tmp_path / "nvidia/cu99/lib/libcudart.so.99").touch()
    assert "pip install 'nvidia-cuda-cupti==99.*'" in complaint()
    # The command line goes without.
    code, told = start("penstock", "version")
    assert code == 0 and VERSION in told, told


def finding(program: Sequence[pathlib.Path | str], environment: dict[str, str], cwd: pathlib.Path) -> dict[str, str]:
    """What `penstock doctor` says of the daemon beside it."""
    command = [*program, "doctor", "-o", "json", f"--state-dir={cwd}"]
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True)
    (found,) = (check for check in json.loads(done.stdout)["checks"] if check["name"] == "penstockd")
    assert (done.returncode == 1) == (found["level"] == "fail"), done.stderr
    return dict(found)


def fake_torch(site: pathlib.Path, version: str) -> pathlib.Path:
    """LibTorch of the build, called a torch of another version. Returns its folder."""
    folder = site / "torch"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('nobody is to import it')\n")
    (folder / "version.py").write_text(f"__version__ = '{version}'\n")
    (folder / "lib").symlink_to(TORCH / "torch/lib")
    return folder


def test_doctor_says_what_the_launcher_knows(unpacked: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """With the Python of the tests, which has no torch; the daemon is where a torch beside it would be loaded."""
    beside = tmp_path / "with a space"
    shutil.copytree(unpacked, beside, symlinks=True)
    launched = [sys.executable, "-B", beside / "bin/penstock"]
    pip = f"{sys.executable} -m pip install "

    none = finding(launched, {}, tmp_path)
    assert none["detail"] == f"{beside}/penstock_server/bin/penstockd: it needs torch 2.11, and {sys.prefix} has none"
    assert none["level"] == "fail" and none["fix"].startswith(pip) and "torch==2.11." in none["fix"], none
    torch = fake_torch(beside, "2.10.0")
    other = finding(launched, {"PYTHONPATH": str(beside)}, tmp_path)
    assert (other["level"], other["fix"]) == ("fail", none["fix"]), other
    assert other["detail"].endswith(f"it needs torch 2.11, and {torch} is torch 2.10.0")

    # And where no launcher looked.
    program = [beside / "penstock_server/bin/penstock"]
    needed = {"LD_LIBRARY_PATH": ":".join(map(str, TORCH.glob("nvidia/*/lib")))}
    loaded = finding(program, needed, tmp_path)
    assert loaded["level"] == "fail" and "pip install 'torch==2.11.*'" in loaded["fix"], loaded
    assert loaded["detail"].endswith(f"is built for torch 2.11.0, and loads torch 2.10.0 of {torch}")
    (torch / "version.py").write_text("__version__ = '2.11.0'\n")
    good = finding(program, needed, tmp_path)
    assert good["level"] == "ok" and f"torch 2.11.0 of {torch} and all" in good["detail"], good
    (torch / "lib").unlink()
    gone = finding(program, needed, tmp_path)
    assert gone["level"] == "fail" and "pip install 'torch==2.11.*'" in gone["fix"] and "setup.sh" not in gone["fix"], gone


def test_the_launcher_needs_the_torch_of_the_build(unpacked: pathlib.Path) -> None:
    (needed,) = re.findall(r'^NEEDED = "(.+)"$', (unpacked / "penstock_server/launch.py").read_text(), re.M)
    assert re.match(rf"torch=={re.escape(needed)}\.\d+$", re.findall(r"torch==[\d.]+", (ROOT / "deploy/setup.sh").read_text())[0])


def test_no_torch_is_looked_for_in_the_current_folder(unpacked: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "here/lib").mkdir(parents=True)
    (tmp_path / "here/lib/libtorch_cpu.so").touch()
    (tmp_path / "here/version.py").write_text("__version__ = '2.11.0'\n")

    def complaint(environment: dict[str, str]) -> str:
        command: list[pathlib.Path | str] = [sys.executable, "-B", unpacked / "bin/penstockd", "--version"]
        done = subprocess.run(command, env=environment, cwd=tmp_path / "here", capture_output=True, text=True)
        assert done.returncode == 1, done.stdout
        return done.stderr

    assert " has none: " in complaint({})
    (tmp_path / "module").mkdir()
    (tmp_path / "module/torch.py").touch()
    assert " has none: " in complaint({"PYTHONPATH": str(tmp_path / "module")}), "a module has no libraries"
    (tmp_path / "site/torch/lib").mkdir(parents=True)
    (tmp_path / "site/torch/lib/libtorch_cpu.so").touch()
    assert f"and {tmp_path}/site/torch is of an unknown version: " in complaint({"PYTHONPATH": str(tmp_path / "site")})


def test_the_command_line_of_debian_needs_what_it_says(packages: pathlib.Path, tmp_path: pathlib.Path) -> None:
    found = [*packages.glob("penstock_*.deb")]
    if not found:
        pytest.skip("deploy/package.sh makes Debian's packages")
    subprocess.run(["dpkg-deb", "--extract", str(found[0]), str(tmp_path)], check=True)
    header = subprocess.run(["readelf", "--dynamic", f"{tmp_path}/usr/bin/penstock"], capture_output=True, text=True, check=True).stdout
    needed = {name for name in re.findall(r"\(NEEDED\).*\[(.+)\]", header) if not BASE.match(name)}
    assert needed == {"libisal.so.2"} and str(ROOT) not in header
    depends = subprocess.run(["dpkg-deb", "--field", str(found[0]), "Depends"], capture_output=True, text=True, check=True).stdout
    assert "libisal2" in depends


def test_the_record_and_the_bill_name_every_file(server_wheel: pathlib.Path) -> None:
    with zipfile.ZipFile(server_wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    for name, digest, size in csv.reader(contents[f"{SERVER}.dist-info/RECORD"].decode().splitlines()):
        if name.endswith("RECORD"):
            continue
        told = base64.urlsafe_b64encode(hashlib.sha256(contents[name]).digest()).rstrip(b"=").decode()
        assert (digest, size) == (f"sha256={told}", str(len(contents[name]))), name
    bill = json.loads(contents[f"{SERVER}.dist-info/sboms/penstock_server.spdx.json"])
    listed = {file["fileName"].removeprefix("./"): file["checksums"][0]["checksumValue"] for file in bill["files"]}
    itself = {f"{SERVER}.dist-info/{name}" for name in ("RECORD", "WHEEL", "sboms/penstock_server.spdx.json")}
    assert listed == {name: hashlib.sha256(contents[name]).hexdigest() for name in contents.keys() - itself}
    spdx.check(bill, {name: text for name, text in contents.items() if name not in itself})
    names = {package["name"] for package in bill["packages"]}
    assert {"penstock", "libucx0", "libcli11-dev", "nlohmann-json3-dev", "prometheus-cpp-dev", "torch", "nvidia_cuda_runtime", "nvidia_cuda_crt"} <= names
    assert "penstock_server/lib/libpenstock_cuda.so" in contents
    if os.environ.get("PENSTOCK_PACKAGES"):
        assert {"libgrpc-dev", "libprotobuf-dev", "libabsl-dev", "libssl-dev", "libsqlite3-dev"} <= names
    prefix = f"{SERVER}.dist-info/licenses/"
    texts = {name.removeprefix(prefix): text for name, text in contents.items() if name.startswith(prefix)}
    assert {name.partition("/")[0] for name in texts} == {"LICENSE", "common-licenses", *names} - {"penstock", "base-files"}
    named = {name.decode() for name in re.findall(rb"/usr/share/common-licenses/([\w.-]*\w)", b"".join(texts.values()))}
    assert "common-licenses/LGPL-2.1" in texts, "libnuma is under it, and names LGPL"
    there = {name for name in named if pathlib.Path("/usr/share/common-licenses", name).exists()}
    assert {name for name in there if f"common-licenses/{name}" not in texts} == set()
    assert b"/build/deps/" not in contents["penstock_server/bin/penstockd"], "the folders of the build machine are out"


def test_the_other_packages_have_bills_too(packages: pathlib.Path, unpacked: pathlib.Path) -> None:
    files = {str(path.relative_to(unpacked)): path.read_bytes() for path in unpacked.rglob("*") if path.is_file()}
    archive = json.loads(files.pop("sbom.spdx.json"))
    spdx.check(archive, files)
    (client,) = packages.glob("penstock-*.whl")
    info = f"penstock-{VERSION}.dist-info"
    with zipfile.ZipFile(client) as wheel:
        files = {name: wheel.read(name) for name in wheel.namelist() if name not in (f"{info}/RECORD", f"{info}/WHEEL")}
    bill = json.loads(files.pop(f"{info}/sboms/penstock.spdx.json"))
    spdx.check(bill, files)
    assert archive["documentNamespace"] != bill["documentNamespace"]


def test_the_folder_of_the_sources_is_in_no_file(packages: pathlib.Path, server_wheel: pathlib.Path, unpacked: pathlib.Path) -> None:
    if not os.environ.get("PENSTOCK_PACKAGES"):
        pytest.skip("the preset portable leaves it out")
    with zipfile.ZipFile(server_wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    contents |= {str(path): path.read_bytes() for path in unpacked.rglob("*") if path.is_file()}
    assert [name for name, text in contents.items() if str(ROOT).encode() in text] == []


def test_the_client_is_what_pip_would_build(packages: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (ours,) = packages.glob("penstock-*-py3-none-any.whl")
    ignored = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", ".mypy_cache")
    shutil.copytree(ROOT / "client/python", tmp_path / "source", ignore=ignored)  # pip writes beside the sources
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run([*pip, "--wheel-dir", str(tmp_path), str(tmp_path / "source")], check=True)
    (theirs,) = tmp_path.glob(ours.name)

    def described(wheel: pathlib.Path) -> tuple[dict[str, bytes], set[str]]:
        with zipfile.ZipFile(wheel) as archive:
            code = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
            metadata = archive.read(f"penstock-{VERSION}.dist-info/METADATA").decode().partition("\n\n")[0]
        needs = re.findall(r"^(?:Name|Version|Requires-Dist|Requires-Python|Provides-Extra): .*", metadata, re.M)
        return code, {re.sub(r"[\s'\"()]", "", need) for need in needs}

    assert described(ours) == described(theirs)


def test_no_torch_is_asked_for(packages: pathlib.Path) -> None:
    """pip would bring 4.7 GB of CUDA."""
    for wheel in packages.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            (metadata,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
        assert [line for line in metadata.splitlines() if line.startswith("Requires-Dist: torch") and "extra ==" not in line] == []


def test_what_others_have_put_there_has_no_checksum(tmp_path: pathlib.Path) -> None:
    for name in ("notes.txt", "penstock_0.1.0.deb"):
        (tmp_path / name).touch()
    done = pack(tmp_path, "--shared", "--with", str(tmp_path / "penstock_0.1.0.deb"))
    assert done.returncode == 0, done.stderr
    named = {line.split()[1] for line in (tmp_path / "SHA256SUMS").read_text().splitlines()}
    assert named == {path.name for path in tmp_path.iterdir()} - {"SHA256SUMS", "notes.txt"}


def test_the_checksums_are_those_of_the_packages(packages: pathlib.Path) -> None:
    subprocess.run(["sha256sum", "--check", "--quiet", "--strict", "SHA256SUMS"], cwd=packages, check=True)
    named = {line.split()[1] for line in (packages / "SHA256SUMS").read_text().splitlines()}
    assert named == {path.name for path in packages.iterdir()} - {"SHA256SUMS"}


def test_packing_again_gives_the_same_bytes(packages: pathlib.Path, tmp_path: pathlib.Path) -> None:
    if os.environ.get("PENSTOCK_PACKAGES"):
        pytest.skip("tests/deploy/packages.py packs a portable build twice")
    done = pack(tmp_path, "--shared", umask=0o077, **OTHERWISE)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "SHA256SUMS").read_text() == (packages / "SHA256SUMS").read_text()


def test_a_build_that_shows_its_grpc_is_refused(packages: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = pack(tmp_path / "out")
    assert not [*(tmp_path / "out").glob("penstock_server*")], "nothing is left of what failed"
    assert done.returncode == 1 and re.search(r"penstockd exports .*: is .* of the preset portable\?", done.stderr), done.stderr
