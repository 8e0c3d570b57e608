"""What assemble.py makes of a small wheel and a small torch: each image twice with the same bytes, CUDA where it belongs, and what
is missing named."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from conftest import ROOT
from image_tree import files_of
from test_manifests import project_version

sys.path[:0] = [str(ROOT / "deploy" / "image"), str(ROOT / "deploy" / "package")]

from archives import Entry, WheelName, write_wheel  # noqa: E402

from bill import Bill  # noqa: E402

ASSEMBLE = ROOT / "deploy" / "image" / "assemble.py"
VERSION = project_version()
KEEP_OWNER = () if os.geteuid() == 0 else ("--keep-owner",)
LINKED = ("libgrpc-small", "1.51")
# Libraries by their path in site-packages, and what they need.
TORCH = {
    "torch/lib/libc10.so": (),
    "torch/lib/libtorch_cpu.so": ("libc10.so", "libcudart.so.13", "libcupti.so.13"),
    "torch/lib/libc10_cuda.so": ("libc10.so",),
    "torch/lib/libtorch_cuda.so": ("libtorch_cpu.so", "libc10_cuda.so", "libcublas.so.13"),
    "torch/lib/libtorch_cuda_linalg.so": ("libtorch_cuda.so",),
    "torch/lib/libcaffe2_nvrtc.so": ("libcuda.so.1",),
    "torch/lib/libtorch_python.so": ("libtorch_cpu.so",),
    "nvidia/cu13/lib/libcudart.so.13": (),
    "nvidia/cu13/lib/libcupti.so.13": (),
    "nvidia/cu13/lib/libcublas.so.13": (),
    "nvidia/cu13/lib/libcufile_rdma.so.1": ("librdmacm_of_nobody.so.1",),
    "nvidia/cudnn/lib/libcudnn_ops.so.9": (),
    "nvidia/nvshmem/lib/nvshmem_transport_ibrc.so.3": ("libmlx5_of_nobody.so.1",),
}
WHEEL = {
    "bin/penstockd": ("libtorch_cpu.so", "libsmall.so.1", "libc.so.6"),
    "bin/penstock": ("libsmall.so.1", "libc.so.6"),
    "lib/libsmall.so.1": ("libc.so.6",),
    "lib/libopened.so.0": (),
    "lib/libpenstock_cuda.so": ("libtorch_cuda.so",),
}
SMALL_CUDA = {"libcudart.so.13", "libcupti.so.13"}
ONLY_CUDA = {
    "libpenstock_cuda.so", "libtorch_cuda.so", "libtorch_cuda_linalg.so", "libc10_cuda.so", "libcaffe2_nvrtc.so", "libcublas.so.13",
    "libcudnn_ops.so.9",
}  # fmt: skip


def make_library(path: pathlib.Path, needed: tuple[str, ...], scratch: pathlib.Path) -> None:
    """A file in the format of libraries that names others, whether they exist or not."""
    link = ["cc", "-shared", "-nostdlib", "-Wl,--no-as-needed,--build-id=none", "-x", "c", "/dev/null", "-x", "none"]
    for name in needed:
        if not (scratch / name).exists():
            named = [*link, f"-Wl,-soname,{name}", "-o", str(scratch / name)]
            subprocess.run(named, check=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([*link, f"-Wl,-soname,{path.name}", "-o", str(path), *(str(scratch / name) for name in needed)], check=True)


class Small:
    """A wheel and a site-packages, a few kilobytes each."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self.site = folder, folder / "site-packages"
        scratch = folder / "named"
        scratch.mkdir(parents=True)
        for name, needed in TORCH.items():
            make_library(self.site / name, needed, scratch)
        for distribution, top in (("torch-2.11.0", "torch/"), ("nvidia_small-13.0", "nvidia/")):
            info = self.site / f"{distribution}.dist-info"
            (info / "licenses").mkdir(parents=True)
            (info / "licenses" / "LICENSE").write_text(f"the licence of {distribution}\n")
            names = [*(name for name in TORCH if name.startswith(top)), f"{info.name}/licenses/LICENSE"]
            (info / "RECORD").write_text("".join(f"{name},,\n" for name in names))
        for name, needed in WHEEL.items():
            make_library(folder / name, needed, scratch)
        self.wheel = self.write(set(WHEEL), "wheel")

    def write(self, names: set[str], where: str) -> pathlib.Path:
        """A wheel with these of the files."""
        name = WheelName("penstock_server", VERSION, "py3-none-any")
        bill = Bill("small", ("penstock", VERSION), "a test")
        files: dict[str, Entry] = {}
        for inside in sorted(names):
            contents = (self.folder / inside).read_bytes()
            files[f"penstock_server/{inside}"] = Entry(contents, executable=True)
            package = ("libsmall", "1.0") if "small" in inside else ("penstock", VERSION)
            bill.add_file(f"penstock_server/{inside}", contents, package, [LINKED] if inside.startswith("bin/") else [])
        licences = {"LICENSE": "ours", "libsmall/copyright": "its", f"{LINKED[0]}/copyright": "linked"}
        for inside, text in licences.items():
            files[f"{name.info}/licenses/{inside}"] = Entry(text.encode())
            of = {"LICENSE": ("penstock", VERSION), "libsmall/copyright": ("libsmall", "1.0")}.get(inside, LINKED)
            bill.add_file(f"{name.info}/licenses/{inside}", text.encode(), of)
        files[f"{name.info}/sboms/penstock_server.spdx.json"] = Entry(bill.text(0).encode())
        (self.folder / where).mkdir()
        return write_wheel(self.folder / where, name, files, 0)

    def assemble(
        self, target: str, out: pathlib.Path, wheel: pathlib.Path | None = None, umask: int = 0o022
    ) -> subprocess.CompletedProcess[str]:
        command = ["/usr/bin/python3", "-B", str(ASSEMBLE), target, "--wheel", str(wheel or self.wheel), "--out", str(out)]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
        command += ["--torch", str(self.site), *KEEP_OWNER]
        return subprocess.run(command, env=environment, umask=umask, capture_output=True, text=True)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    for tool in ("cc", "strip", "readelf", "ldconfig"):
        if not shutil.which(tool):
            pytest.skip(f"no {tool} here")
    yield Small(tmp_path_factory.mktemp("small"))


@pytest.mark.parametrize("target", ["cli", "daemon-cpu", "daemon"])
def test_two_assemblies_give_the_same_bytes(small: Small, tmp_path: pathlib.Path, target: str) -> None:
    """In folders with other names, with another umask, from copies with other times."""
    again = Small(tmp_path / "elsewhere")
    one, two = small.assemble(target, tmp_path / "one"), again.assemble(target, tmp_path / "a/longer/name", umask=0o077)
    assert one.returncode == 0 and two.returncode == 0, one.stderr + two.stderr
    assert files_of(tmp_path / "one") == files_of(tmp_path / "a/longer/name")
    assert one.stdout == two.stdout and one.stdout.startswith(f"{target}: ")
    assert {int(line.split()[3]) for line in files_of(tmp_path / "one").values()} == {1700000000}


def test_cuda_is_in_one_image_only(small: Small, tmp_path: pathlib.Path) -> None:
    libraries = {}
    for target in ("cli", "daemon-cpu", "daemon"):
        done = small.assemble(target, tmp_path / target)
        assert done.returncode == 0, done.stderr
        libraries[target] = {path.name for path in (tmp_path / target / "usr/lib/penstock").iterdir()}
    assert libraries["cli"] == {"libsmall.so.1"}
    assert libraries["daemon-cpu"] == {"libsmall.so.1", "libopened.so.0", "libtorch_cpu.so", "libc10.so"} | SMALL_CUDA
    # Without what only other networks need, whose libraries nobody has.
    assert libraries["daemon"] == libraries["daemon-cpu"] | ONLY_CUDA


def test_the_programs_are_those_of_the_wheel(small: Small, tmp_path: pathlib.Path) -> None:
    assert small.assemble("daemon", tmp_path / "image").returncode == 0
    for name in WHEEL:
        inside = f"usr/bin/{name[4:]}" if name.startswith("bin/") else f"usr/lib/penstock/{name[4:]}"
        assert (tmp_path / "image" / inside).read_bytes() == (small.folder / name).read_bytes(), name


def test_what_the_wheel_says_of_itself_is_passed_on(small: Small, tmp_path: pathlib.Path) -> None:
    assert small.assemble("daemon-cpu", tmp_path / "image").returncode == 0
    documents = tmp_path / "image/usr/share/doc"
    bill = json.loads((documents / "penstock/sbom.spdx.json").read_text())
    packages = {one["SPDXID"]: (one["name"], one["versionInfo"]) for one in bill["packages"]}
    assert {LINKED, ("libsmall", "1.0"), ("penstock", VERSION), ("torch", "2.11.0"), ("nvidia_small", "13.0")} <= {*packages.values()}
    names = {one["SPDXID"]: one["fileName"] for one in bill["files"]}
    related = {
        (names.get(one["spdxElementId"]), packages.get(one["relatedSpdxElement"]))
        for one in bill["relationships"]
        if one["relationshipType"] == "STATIC_LINK"
    }
    assert related == {("./usr/bin/penstockd", LINKED), ("./usr/bin/penstock", LINKED)}
    for name, text in (("penstock/LICENSE", "ours"), ("libsmall/copyright", "its"), (f"{LINKED[0]}/copyright", "linked")):
        assert (documents / name).read_text() == text
    assert (documents / "torch/LICENSE").read_text() == "the licence of torch-2.11.0\n"
    assert (documents / "libc6/copyright").exists()


def test_what_is_missing_is_named(small: Small, tmp_path: pathlib.Path) -> None:
    without = small.write(set(WHEEL) - {"lib/libpenstock_cuda.so"}, "without-cuda")
    done = small.assemble("daemon", tmp_path / "one", without)
    assert done.returncode == 1 and "the wheel has no CUDA module" in done.stderr, done.stderr
    assert small.assemble("daemon-cpu", tmp_path / "two", without).returncode == 0

    done = small.assemble("cli", tmp_path / "three", tmp_path / "penstock-0.1.0-py3-none-any.whl")
    assert done.returncode == 1 and "is no wheel of penstock_server" in done.stderr, done.stderr

    torn = Small(tmp_path / "torn")
    (torn.site / "nvidia/cu13/lib/libcublas.so.13").rename(tmp_path / "libcublas")
    done = torn.assemble("daemon", tmp_path / "four")
    assert done.returncode == 1 and "libcublas.so.13 is in none of the wheels" in done.stderr, done.stderr


def test_nothing_is_left_of_what_failed(small: Small, tmp_path: pathlib.Path) -> None:
    done = small.assemble("daemon", tmp_path / "image", small.write({"bin/penstockd", "bin/penstock", "lib/libsmall.so.1"}, "torn"))
    assert done.returncode == 1 and [*tmp_path.iterdir()] == [], done.stderr


def test_a_wheel_that_is_not_what_its_sums_say_is_refused(small: Small, tmp_path: pathlib.Path) -> None:
    wheel = tmp_path / small.wheel.name
    shutil.copyfile(small.wheel, wheel)
    subprocess.run(f"sha256sum {wheel.name} > SHA256SUMS", shell=True, cwd=tmp_path, check=True)
    assert small.assemble("cli", tmp_path / "good", wheel).returncode == 0
    with open(wheel, "ab") as end:
        end.write(b"more")
    done = small.assemble("cli", tmp_path / "bad", wheel)
    assert done.returncode == 1 and "is not the file that" in done.stderr, done.stderr


def test_a_library_without_a_licence_is_refused(tmp_path: pathlib.Path) -> None:
    small = Small(tmp_path / "small")
    (small.site / "nvidia_small-13.0.dist-info/licenses/LICENSE").unlink()
    done = small.assemble("daemon-cpu", tmp_path / "image")
    assert done.returncode == 1 and "the licence of nvidia_small is missing" in done.stderr, done.stderr


def test_licences_that_others_name_are_there(small: Small, tmp_path: pathlib.Path) -> None:
    """Debian's texts name them at their place in Debian."""
    assert small.assemble("cli", tmp_path / "image").returncode == 0
    told = (tmp_path / "image/usr/share/doc/libc6/copyright").read_text()
    assert "/usr/share/common-licenses/LGPL-2.1" in told
    assert (tmp_path / "image/usr/share/common-licenses/LGPL-2.1").read_text().lstrip().startswith("GNU LESSER")


def test_owners_are_given_by_root_alone(small: Small, tmp_path: pathlib.Path) -> None:
    if os.geteuid() != 0:
        command = [sys.executable, "-B", str(ASSEMBLE), "cli", "--wheel", str(small.wheel), "--out", str(tmp_path / "image")]
        done = subprocess.run([*command, "--torch", str(small.site)], capture_output=True, text=True)
        assert done.returncode == 1 and "run this as root" in done.stderr, done.stderr
        return
    assert small.assemble("daemon-cpu", tmp_path / "image").returncode == 0
    assert (tmp_path / "image/var/lib/penstock").stat().st_uid == 65532
