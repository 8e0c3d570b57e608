#!/usr/bin/env python3
"""Puts the files of an image into a folder: the programs of a wheel, the libraries that they load, and nothing else.

Usage: assemble.py TARGET --wheel FILE --out FOLDER [--torch SITE-PACKAGES] [--no-strip] [--keep-owner]

TARGET is daemon-cpu, daemon (with CUDA) or cli; --wheel is the penstock_server of deploy/package.sh, so that images and packages
hold the same programs, byte for byte; --torch is where torch is installed, and for the target daemon the wheels of
cuda-wheels.txt (default: build/deps/venv's). The Dockerfile calls this in its last build stages; the tests call it without a
container engine. There is no shell, package manager or compiler in the result.

What it guarantees, or it ends with a sentence:
  complete      every library that a program or library names, or opens by its name, is there, found by the image's own
                linker cache
  small         daemon-cpu has no CUDA library but the two that LibTorch's CPU part names itself
  reproducible  the same inputs give the same names, modes, owners, times (SOURCE_DATE_EPOCH) and bytes
  accounted     a bill of materials (SPDX 2.3, JSON) names each file but itself with its checksums and each package
                with its version; the licences of all of them are there
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import shutil
import sys
import tempfile

from bill import Bill, Package
from origins import COMMON_LICENCES, ROOT, Origins, Problem, common_licences, epoch, library_in_cache, needed_by, run
from wheel import CUDA_MODULE, Wheel

USER = 65532
HOME = "home/penstock"
# LibTorch's CPU part names these two; everything else of CUDA belongs to the target daemon.
SMALL_CUDA = {"libcudart.so.13", "libcupti.so.13"}
CUDA_NAME = re.compile(r"^lib(cu|nccl|nvrtc|nvJitLink|nvshmem|nvToolsExt|torch_cuda|c10_cuda|torch_nvshmem|penstock_cuda)")
# The container's runtime brings them, in the version of the machine's driver.
OF_THE_DRIVER = {"libcuda.so.1", "libnvidia-ml.so.1"}
# Parts of CUDA's libraries for networks and launchers that no image has: nothing of LibTorch's opens them on one machine.
FOR_OTHER_NETWORKS = re.compile(r"^(nvshmem_(bootstrap|transport)_|libcufile_rdma)")
PROGRAMS = {"daemon-cpu": ("penstockd", "penstock"), "daemon": ("penstockd", "penstock"), "cli": ("penstock",)}
# Where state, scratch files and the configuration are mounted; mount points must exist under a read-only root.
MOUNT_POINTS = {
    "daemon": ("etc/penstock", "etc/penstock-tls", "etc/penstock-identities", "etc/penstock-tokens", HOME, "tmp", "var/lib/penstock", "var/cache/penstock"),
    "cli": (HOME, "tmp"),
}


class Image:
    def __init__(self, target: str, wheel: Wheel, site: pathlib.Path, out: pathlib.Path, strip: bool) -> None:
        self.target, self.wheel, self.site, self.out, self.strip = target, wheel, site, out, strip
        self.sources: dict[str, pathlib.Path] = {}  # path in the image to where it came from
        self.origins = Origins(self.sources, wheel.version)  # nothing outside of the wheel is ours

    def folder(self, name: str) -> None:
        path = self.out / name
        if not path.is_dir():
            if path != self.out:
                self.folder(str(path.parent.relative_to(self.out)))
            path.mkdir()
            path.chmod(0o755)  # whatever the umask is

    def copy(self, source: pathlib.Path, name: str, mode: int) -> None:
        goal = self.out / name
        self.folder(str(pathlib.Path(name).parent))
        shutil.copyfile(source.resolve(), goal)
        goal.chmod(mode)
        if self.strip and not self.wheel.holds(source) and goal.read_bytes()[:4] == b"\x7fELF":
            run("strip", "--strip-unneeded", "--remove-section=.comment", str(goal))
        self.sources[name] = source

    def text(self, name: str, text: str) -> None:
        self.folder(str(pathlib.Path(name).parent))
        (self.out / name).write_text(text, encoding="utf-8")
        (self.out / name).chmod(0o644)

    def add_skeleton(self, keep_owner: bool) -> None:
        self.out.mkdir(parents=True)
        self.out.chmod(0o755)
        # As Debian merges its folders, so that an image can also be laid over another one.
        for link in ("lib", "lib64", "bin", "sbin"):
            self.folder(f"usr/{link}")
            (self.out / link).symlink_to(f"usr/{link}")
        kind = "cli" if self.target == "cli" else "daemon"
        for name in MOUNT_POINTS[kind]:
            self.folder(name)
        (self.out / "tmp").chmod(0o1777)
        for name in (HOME, "var/lib/penstock", "var/cache/penstock"):
            if (self.out / name).exists() and not keep_owner:
                self.give(self.out / name)
        for name in ("dev", "dev/shm", "proc", "sys", "run"):
            self.folder(name)
        self.text("etc/passwd", f"root:x:0:0:root:/:/\npenstock:x:{USER}:{USER}:Penstock:/{HOME}:/\n")
        self.text("etc/group", f"root:x:0:\npenstock:x:{USER}:\n")
        self.text("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
        self.text("etc/os-release", f'NAME=Penstock\nID=penstock\nVERSION_ID="{self.wheel.version}"\nID_LIKE=debian\n')

    @staticmethod
    def give(folder: pathlib.Path) -> None:
        try:
            os.chown(folder, USER, USER)
        except PermissionError:
            raise Problem(f"folders of an image belong to user {USER}, which root alone can say: run this as root") from None

    def add_programs(self) -> None:
        waiting = [self.wheel.program(name) for name in PROGRAMS[self.target]]
        for program in waiting:
            self.copy(program, f"usr/bin/{program.name}", 0o755)
        found: dict[str, pathlib.Path] = {}
        if self.target != "cli":
            found = {path.name: path for path in self.wheel.libraries()}
        if self.target == "daemon":
            found.update({path.name: path for path in self.cuda_parts()})
        waiting += found.values()
        while waiting:
            for name in needed_by(waiting.pop()):
                if name not in found and name not in OF_THE_DRIVER:
                    found[name] = self.library(name)
                    waiting.append(found[name])
        for name, path in sorted(found.items()):
            self.copy(path, self.place_of(name, path), 0o755)
        self.text("etc/ld.so.conf", "/usr/lib/penstock\n/usr/lib/x86_64-linux-gnu\n")
        self.folder("var/cache/ldconfig")
        run("ldconfig", "-r", str(self.out), "-X", "-f", "/etc/ld.so.conf", "-C", "/etc/ld.so.cache")
        (self.out / "etc/ld.so.cache").chmod(0o644)
        shutil.rmtree(self.out / "var/cache/ldconfig")

    def library(self, name: str) -> pathlib.Path:
        """Where a library is that a program of the wheel, or another library, names."""
        if path := self.wheel.library(name):
            return path
        for path in (self.site / "torch/lib" / name, *sorted(self.site.glob(f"nvidia/*/lib/{name}"))):
            if path.exists():
                return path
        if CUDA_NAME.match(name):  # never that of a toolkit of this machine
            raise Problem(f"{name} is in none of the wheels of {self.site}: install those of deploy/image/cuda-wheels.txt")
        return library_in_cache(name)

    def cuda_parts(self) -> list[pathlib.Path]:
        """LibTorch's CUDA part and the module that opens it; CUDA's libraries come whole: some are opened by name."""
        module = self.wheel.library(CUDA_MODULE)
        if module is None:
            raise Problem("the wheel has no CUDA module: it is none that deploy/package.sh has made")
        torch = self.site / "torch/lib"
        parts = [*sorted(torch.glob("libtorch_cuda*.so")), *torch.glob("libcaffe2_nvrtc.so")]
        parts += sorted(self.site.glob("nvidia/*/lib/*.so.*"))
        return [module, *(path for path in parts if not FOR_OTHER_NETWORKS.match(path.name))]

    def place_of(self, name: str, path: pathlib.Path) -> str:
        if name.startswith("ld-linux"):
            return f"usr/lib64/{name}"
        ours = self.wheel.holds(path) or path.is_relative_to(self.site)
        return f"usr/lib/penstock/{name}" if ours else f"usr/lib/x86_64-linux-gnu/{name}"

    def package_of(self, source: pathlib.Path) -> Package:
        return self.wheel.package_of(source) if self.wheel.holds(source) else self.origins.package_of(source)

    def linked_into(self, source: pathlib.Path) -> list[Package]:
        return self.wheel.linked_into(source) if self.wheel.holds(source) else []

    def add_licences(self) -> None:
        """Of each package, and of the common ones those that they name: the image is no Debian, where they would be."""
        packages = {"penstock"}
        for source in self.sources.values():
            packages |= {name for name, _ in (self.package_of(source), *self.linked_into(source))}
        texts = []
        for package in sorted(packages):
            for licence in self.wheel.licences_of(package) or self.origins.licences_of(package, self.site):
                name = "LICENSE" if package == "penstock" else licence.name
                self.copy(licence, f"usr/share/doc/{package}/{name}", 0o644)
                texts.append(licence.read_text("utf-8", "replace"))
        for path in common_licences(texts):
            self.copy(path, f"{COMMON_LICENCES[1:]}/{path.name}", 0o644)

    def write_bill(self, epoch: int) -> None:
        bill = Bill(f"penstock-{self.target}-{self.wheel.version}", ("penstock", self.wheel.version), "deploy/image/assemble.py")
        for name, source in sorted(self.sources.items()):
            bill.add_file(name, (self.out / name).read_bytes(), self.package_of(source), sorted(self.linked_into(source)))
        for path in sorted(self.out.rglob("*")):
            name = str(path.relative_to(self.out))
            if path.is_file() and not path.is_symlink() and name not in self.sources:
                bill.add_file(name, path.read_bytes(), ("penstock", self.wheel.version))
        self.text("usr/share/doc/penstock/sbom.spdx.json", bill.text(epoch))

    def check(self) -> None:
        cuda = {p.name for p in self.out.rglob("*.so*") if CUDA_NAME.match(p.name)} - SMALL_CUDA
        if self.target != "daemon" and cuda:
            raise Problem(f"{self.target} would hold CUDA: {', '.join(sorted(cuda))}")
        cached = set(re.findall(r"^\t(\S+) \(", run("ldconfig", "-r", str(self.out), "-p", "-C", "/etc/ld.so.cache"), re.M))
        for file in sorted(self.out.rglob("*")):
            if file.is_symlink() or not file.is_file() or file.read_bytes()[:4] != b"\x7fELF":
                continue
            for name in needed_by(file):
                if name not in cached | OF_THE_DRIVER and not name.startswith("ld-linux"):
                    raise Problem(f"{file.relative_to(self.out)} needs {name}, which is not in the image")

    def settle(self, epoch: int) -> None:
        for path in [*self.out.rglob("*"), self.out]:
            os.utime(path, (epoch, epoch), follow_symlinks=False)

    def size(self) -> int:
        return sum(p.stat().st_size for p in self.out.rglob("*") if p.is_file() and not p.is_symlink())


def installed_torch() -> pathlib.Path:
    return next((ROOT / "build/deps/venv/lib").glob("python3*/site-packages"), pathlib.Path("/nowhere"))


def main() -> int:
    parser = argparse.ArgumentParser(description="Assembles the files of an image in a folder.")
    parser.add_argument("target", choices=sorted(PROGRAMS))
    parser.add_argument("--wheel", type=pathlib.Path, required=True, help="penstock_server-*.whl")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the root of the image; must not exist")
    parser.add_argument("--torch", type=pathlib.Path, default=installed_torch(), help="the site-packages with torch")
    parser.add_argument("--no-strip", action="store_true", help="keep symbol tables (90 MB of LibTorch's)")
    parser.add_argument("--keep-owner", action="store_true", help="leave all files to who runs this: no image for others")
    arguments = parser.parse_args()
    if arguments.out.exists():
        print(f"assemble: --out must not exist yet, got {arguments.out}", file=sys.stderr)
        return 2
    # The folder has its name only when all of it is there.
    beside = arguments.out.with_name(f".{arguments.out.name}.new")
    shutil.rmtree(beside, ignore_errors=True)
    with tempfile.TemporaryDirectory() as unpacked:
        try:
            seconds = epoch()
            wheel = Wheel(arguments.wheel, pathlib.Path(unpacked))
            image = Image(arguments.target, wheel, arguments.torch.resolve(), beside, not arguments.no_strip)
            image.add_skeleton(arguments.keep_owner)
            image.add_programs()
            image.add_licences()
            image.write_bill(seconds)
            image.check()
            image.settle(seconds)
            size = image.size()
            beside.rename(arguments.out)
        except Problem as problem:
            print(f"assemble: {problem}", file=sys.stderr)
            return 1
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    print(f"{arguments.target}: {size / 1e6:.1f} MB in {len(image.sources)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
