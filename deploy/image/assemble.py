#!/usr/bin/env python3
"""Puts the files of an image into a folder: programs, the libraries that they load, and nothing else.

Usage: assemble.py TARGET --build FOLDER --out FOLDER [--version V] [--no-strip]

TARGET is daemon-cpu, daemon (with CUDA) or cli; --build is the build folder of a preset. The Dockerfile calls this in its
build stage; the tests call it without a container engine. There is no shell, package manager or compiler in the result.

What it guarantees, or it ends with a sentence:
  complete      every library that a program or library names, or opens by its name, is there, found by the image's own
                linker cache
  small         daemon-cpu has no CUDA library but the two that LibTorch's CPU part names itself
  reproducible  the same inputs give the same names, modes, owners, times (SOURCE_DATE_EPOCH, default 0) and bytes
  accounted     a bill of materials (SPDX 2.3, JSON) names each file with its checksum and each package with its version
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from bill import Bill
from origins import Origins, Problem, libraries_of, library_in_cache, project_version, run

USER = 65532
HOME = "home/penstock"
# LibTorch's CPU part names these two; everything else of CUDA belongs to the target daemon.
SMALL_CUDA = {"libcudart.so.13", "libcupti.so.13"}
CUDA_NAME = re.compile(r"^lib(cu|nccl|nvrtc|nvJitLink|nvshmem|nvToolsExt|torch_cuda|c10_cuda|torch_nvshmem|penstock_cuda)")
PROGRAMS = {
    "daemon-cpu": ("server/penstockd", "client/cli/penstock"),
    "daemon": ("server/penstockd", "client/cli/penstock"),
    "cli": ("client/cli/penstock",),
}
# What a daemon opens by name, where ranks use it. TCP is a part of UCX itself; its plugins, for other networks, stay out.
OPENED_BY_NAME = ("libucp.so.0", "libucs.so.0")
# Where state, scratch files and the configuration are mounted; mount points must exist under a read-only root.
MOUNT_POINTS = {
    "daemon": ("etc/penstock", "etc/penstock-tls", "etc/penstock-identities", "etc/penstock-tokens", HOME, "tmp", "var/lib/penstock", "var/cache/penstock"),
    "cli": (HOME, "tmp"),
}


class Image:
    def __init__(self, target: str, build: pathlib.Path, out: pathlib.Path, version: str, strip: bool) -> None:
        self.target, self.build, self.out, self.version, self.strip = target, build, out, version, strip
        self.sources: dict[str, pathlib.Path] = {}  # path in the image to where it came from
        self.origins = Origins(self.sources, version)

    def folder(self, name: str, mode: int = 0o755) -> None:
        path = self.out / name
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(mode)

    def copy(self, source: pathlib.Path, name: str, mode: int) -> None:
        goal = self.out / name
        self.folder(str(pathlib.Path(name).parent))
        shutil.copyfile(source.resolve(), goal)
        goal.chmod(mode)
        if self.strip and goal.read_bytes()[:4] == b"\x7fELF":
            run("strip", "--strip-unneeded", "--remove-section=.comment", str(goal))
        if name.startswith("usr/bin/") or goal.name.startswith("libpenstock"):
            self.forget_build_paths(goal)
        self.sources[name] = source

    @staticmethod
    def forget_build_paths(file: pathlib.Path) -> None:
        """Takes out the folders of the build machine: in the image the linker's cache knows where libraries are."""
        with tempfile.NamedTemporaryFile("w", suffix=".cmake") as script:
            script.write(f'file(RPATH_REMOVE FILE "{file}")\n')
            script.flush()
            run("cmake", "-P", script.name)

    def text(self, name: str, text: str) -> None:
        self.folder(str(pathlib.Path(name).parent))
        (self.out / name).write_text(text)
        (self.out / name).chmod(0o644)

    def add_skeleton(self) -> None:
        # As Debian merges its folders, so that an image can also be laid over another one.
        for link in ("lib", "lib64", "bin", "sbin"):
            self.folder(f"usr/{link}")
            (self.out / link).symlink_to(f"usr/{link}")
        kind = "cli" if self.target == "cli" else "daemon"
        for name in MOUNT_POINTS[kind]:
            self.folder(name)
        (self.out / "tmp").chmod(0o1777)
        for name in (HOME, "var/lib/penstock", "var/cache/penstock"):
            if (self.out / name).exists() and os.geteuid() == 0:
                os.chown(self.out / name, USER, USER)
        for name in ("dev", "dev/shm", "proc", "sys", "run"):
            self.folder(name)
        self.text("etc/passwd", f"root:x:0:0:root:/:/\npenstock:x:{USER}:{USER}:Penstock:/{HOME}:/\n")
        self.text("etc/group", f"root:x:0:\npenstock:x:{USER}:\n")
        self.text("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
        self.text("etc/os-release", f'NAME=Penstock\nID=penstock\nVERSION_ID="{self.version}"\nID_LIKE=debian\n')

    def add_programs(self) -> None:
        needed: dict[str, pathlib.Path] = {}
        files = [self.build / program for program in PROGRAMS[self.target]]
        for file in files:
            if not file.exists():
                raise Problem(f"{file.name} is not built: deploy/build.sh PRESET penstockd penstock")
            self.copy(file, f"usr/bin/{file.name}", 0o755)
        if self.target == "daemon":
            files += self.cuda_parts(needed)
        if self.target != "cli":
            files += self.opened_by_name(needed)
        for file in files:
            needed.update(libraries_of(file))
        for name, path in sorted(needed.items()):
            self.copy(path, self.place_of(name, path), 0o755)
        (self.out / "etc/ld.so.conf").write_text("/usr/lib/penstock\n/usr/lib/x86_64-linux-gnu\n")
        (self.out / "etc/ld.so.conf").chmod(0o644)
        self.folder("var/cache/ldconfig")
        run("ldconfig", "-r", str(self.out), "-X", "-f", "/etc/ld.so.conf", "-C", "/etc/ld.so.cache")
        shutil.rmtree(self.out / "var/cache/ldconfig")

    @staticmethod
    def opened_by_name(needed: dict[str, pathlib.Path]) -> list[pathlib.Path]:
        for name in OPENED_BY_NAME:
            needed[name] = library_in_cache(name)
        return [needed[name] for name in OPENED_BY_NAME]

    def cuda_parts(self, needed: dict[str, pathlib.Path]) -> list[pathlib.Path]:
        """LibTorch's CUDA part and the module that opens it; the wheels' libraries come whole: some are opened by name."""
        module = self.build / "engine/device/libpenstock_cuda.so"
        if not module.exists():
            raise Problem("libpenstock_cuda.so is not built: use the preset cuda where a CUDA toolkit is")
        torch = next((path.parent for name, path in libraries_of(module).items() if name == "libtorch_cuda.so"))
        needed[module.name] = module
        for path in sorted(torch.glob("libtorch_cuda*.so")) + sorted((torch.parents[1] / "nvidia").glob("*/lib/*.so.*")):
            needed[path.name] = path
        return [module]

    @staticmethod
    def place_of(name: str, path: pathlib.Path) -> str:
        if name.startswith("ld-linux"):
            return f"usr/lib64/{name}"
        ours = "site-packages" in path.parts or name.startswith("libpenstock")
        return f"usr/lib/penstock/{name}" if ours else f"usr/lib/x86_64-linux-gnu/{name}"

    def add_licences(self, root: pathlib.Path) -> None:
        self.copy(root / "LICENSE", "usr/share/doc/penstock/LICENSE", 0o644)
        for name, source in sorted(self.sources.items()):
            if "site-packages" in source.parts:
                site = pathlib.Path(*source.parts[: source.parts.index("site-packages") + 1])
                for licence in sorted(site.glob("torch-*.dist-info/licenses/*")) + sorted(
                    site.glob("nvidia_*.dist-info/**/License.txt")
                ):
                    wheel = next(part for part in licence.parts if part.endswith(".dist-info")).split("-")[0]
                    self.copy(licence, f"usr/share/doc/{wheel}/{licence.name}", 0o644)
                break
        for package in sorted({self.origins.package_of(source)[0] for source in self.sources.values()}):
            copyright_file = pathlib.Path("/usr/share/doc") / package / "copyright"
            if copyright_file.exists():
                self.copy(copyright_file, f"usr/share/doc/{package}/copyright", 0o644)

    def write_bill(self, epoch: int) -> None:
        bill = Bill(f"penstock-{self.target}-{self.version}", f"urn:penstock:{self.target}:{self.version}", "deploy/image/assemble.py")
        for name, source in sorted(self.sources.items()):
            bill.add_file(f"/{name}", (self.out / name).read_bytes(), self.origins.package_of(source))
        self.text("usr/share/doc/penstock/sbom.spdx.json", bill.text(epoch))

    def check(self) -> None:
        cuda = {p.name for p in self.out.rglob("*.so*") if CUDA_NAME.match(p.name)} - SMALL_CUDA
        if self.target != "daemon" and cuda:
            raise Problem(f"{self.target} would hold CUDA: {', '.join(sorted(cuda))}")
        cached = set(re.findall(r"^\t(\S+) \(", run("ldconfig", "-r", str(self.out), "-p", "-C", "/etc/ld.so.cache"), re.M))
        for file in sorted(self.out.rglob("*")):
            if file.is_symlink() or not file.is_file() or file.read_bytes()[:4] != b"\x7fELF":
                continue
            header = run("readelf", "--dynamic", str(file))
            for name in re.findall(r"\(NEEDED\).*\[(.+)\]", header):
                if name not in cached and not name.startswith("ld-linux"):
                    raise Problem(f"{file.relative_to(self.out)} needs {name}, which is not in the image")

    def settle(self, epoch: int) -> None:
        for path in [*self.out.rglob("*"), self.out]:
            os.utime(path, (epoch, epoch), follow_symlinks=False)

    def size(self) -> int:
        return sum(p.stat().st_size for p in self.out.rglob("*") if p.is_file() and not p.is_symlink())


def main() -> int:
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description="Assembles the files of an image in a folder.")
    parser.add_argument("target", choices=sorted(PROGRAMS))
    parser.add_argument("--build", type=pathlib.Path, required=True, help="build folder of a preset")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the root of the image; must not exist")
    parser.add_argument("--version", default=project_version())
    parser.add_argument("--no-strip", action="store_true", help="keep symbol tables (90 MB of LibTorch's)")
    arguments = parser.parse_args()
    if arguments.out.exists():
        print(f"assemble: --out must not exist yet, got {arguments.out}", file=sys.stderr)
        return 2
    image = Image(arguments.target, arguments.build, arguments.out, arguments.version, not arguments.no_strip)
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    try:
        image.add_skeleton()
        image.add_programs()
        image.add_licences(root)
        image.write_bill(epoch)
        image.check()
        image.settle(epoch)
    except Problem as problem:
        print(f"assemble: {problem}", file=sys.stderr)
        return 1
    print(f"{arguments.target}: {image.size() / 1e6:.1f} MB in {len(image.sources)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
