"""The programs of a portable build and the shared libraries that they carry, made to find each other wherever they stand."""

from __future__ import annotations

import pathlib
import re
import shlex
import shutil
import sys
from collections.abc import Iterator

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "image"))

from origins import Problem, libraries_of, library_in_cache, needed_by, run  # noqa: E402

PROGRAMS = {"penstockd": "server/penstockd", "penstock": "client/cli/penstock"}
# Compiled in from headers, so that no link names them.
HEADERS_OF = ("/usr/include/CLI/CLI.hpp", "/usr/include/nlohmann/json.hpp")
HEADERS_OF_DAEMON = ("/usr/include/prometheus/metric_family.h",)
CUDA_MODULE = "engine/device/libpenstock_cuda.so"
# What cmake/Portable.cmake links from archives, at least; libabsl_* besides.
LINKED = {"libgrpc++.a", "libgrpc.a", "libprotobuf.a", "libssl.a", "libcrypto.a", "libsqlite3.a", "libabsl_base.a"}
# What a daemon opens by name, where ranks use it. TCP is a part of UCX itself; its plugins, for other networks, stay out.
OPENED_BY_NAME = ("libucp.so.0", "libucs.so.0")
# Every system with glibc has them: what the tag manylinux allows, and no more than we need.
SYSTEM = {
    "ld-linux-x86-64.so.2", "libc.so.6", "libdl.so.2", "libgcc_s.so.1", "libm.so.6", "libpthread.so.0", "librt.so.1",
    "libstdc++.so.6",
}  # fmt: skip
# The newest symbols of a system that the tag manylinux_2_36 promises: Debian 12's.
NEWEST = {"GLIBC": (2, 36), "GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)}
# Of torch, which stands beside the package in site-packages or is named by LD_LIBRARY_PATH.
LIBRARIES = "$ORIGIN/../lib:$ORIGIN/../lib/penstock"  # of the package, and of an image
TORCH = "$ORIGIN/../../torch/lib"
CUDA_RUNTIME = "$ORIGIN/../../nvidia/cu13/lib"
# Symbols that must stay inside: another gRPC, protobuf or Abseil of the process would bind to them.
HIDDEN = re.compile(r" (?:grpc_|gpr_|upb_|SSL_|sqlite3_|_ZNK?4grpc|_ZNK?9grpc_core|_ZNK?6google8protobuf|_ZNK?4absl)")


class Programs:
    """Copies of the programs and of what they carry, in `folder`/bin and `folder`/lib.

    `sources` tells where each file is from, by its name in `folder`; `inside` what is compiled and linked into those of ours:
    archives, and one header of each package.
    """

    def __init__(self, build: pathlib.Path, folder: pathlib.Path) -> None:
        self.build, self.folder = build, folder
        self.sources: dict[str, pathlib.Path] = {}
        self.inside: dict[str, list[pathlib.Path]] = {}

    def collect(self) -> None:
        (self.folder / "bin").mkdir(parents=True)
        (self.folder / "lib").mkdir()
        for name, target in PROGRAMS.items():
            if not (self.build / target).exists():
                raise Problem(f"{name} is not built: deploy/build.sh portable penstockd penstock")
            self._add(self.build / target, f"bin/{name}", f"{LIBRARIES}:{TORCH}" if name == "penstockd" else LIBRARIES)
            self._carry(self.build / target)
            self.inside[f"bin/{name}"] = inside_of(self.build, target)
        for name in OPENED_BY_NAME:
            self._add(library_in_cache(name), f"lib/{name}", "$ORIGIN")
            self._carry(library_in_cache(name))
        module = self.build / CUDA_MODULE
        if not builds_cuda(self.build) or not module.exists():
            raise Problem(f"{module.name} is not built: deploy/build.sh portable penstockd")
        self._add(module, f"lib/{module.name}", f"$ORIGIN:{TORCH}:{CUDA_RUNTIME}")
        self.inside[f"lib/{module.name}"] = [*headers_of_torch(self.build), *headers_of_cuda(self.build)]

    def _add(self, source: pathlib.Path, name: str, paths: str) -> None:
        goal = self.folder / name
        shutil.copyfile(source.resolve(), goal)
        goal.chmod(0o755)
        run("strip", "--strip-unneeded", "--remove-section=.comment", str(goal))
        run("patchelf", "--set-rpath", paths, str(goal))
        self.sources[name] = source

    def _carry(self, program: pathlib.Path) -> None:
        """Adds what the program loads and neither the system nor torch has."""
        found = libraries_of(program)
        waiting = [program]
        while waiting:
            for name in needed_by(waiting.pop()):
                path = found.get(name)
                if name in SYSTEM or f"lib/{name}" in self.sources or path is None or "site-packages" in path.parts:
                    continue
                self._add(path, f"lib/{name}", "$ORIGIN")
                waiting.append(path)

    def check_complete(self) -> None:
        """That each file loads only what is there, in versions that are."""
        for name in self.sources:
            file = self.folder / name
            for needed in needed_by(file):
                carried = f"lib/{needed}" in self.sources or needed in SYSTEM
                if not carried and not (self._uses_torch(name) and of_torch(needed)):
                    raise Problem(f"{name} needs {needed}, which would not be there")
            versions = list(versions_of(file))
            if "libc.so.6" in needed_by(file) and not any(kind == "GLIBC" for kind, _ in versions):
                raise Problem(f"{name} needs libc.so.6, and readelf names no version of its symbols")
            for kind, version in versions:
                if kind in NEWEST and version > NEWEST[kind]:
                    raise Problem(f"{name} needs {kind}_{'.'.join(map(str, version))}, which is newer than Debian 12's")

    def check_apart(self) -> None:
        """That gRPC and the like are linked from archives, and no program shows another library of its process what it could
        take for its own."""
        for name, target in PROGRAMS.items():
            exported = HIDDEN.search(run("nm", "--dynamic", "--defined-only", str(self.folder / "bin" / name)))
            if exported:
                raise Problem(f"{name} exports {exported[0].strip()}...: is {self.build} of the preset portable?")
            check_linked(self.build, target)

    @staticmethod
    def _uses_torch(name: str) -> bool:
        return name in ("bin/penstockd", "lib/libpenstock_cuda.so")


def archives_of(build: pathlib.Path, target: str) -> list[pathlib.Path]:
    """The archives of Debian's that the link of a target names."""
    link = shlex.split(run("ninja", "-C", str(build), "-t", "commands", target).splitlines()[-1])
    return sorted({pathlib.Path(word) for word in link if word.startswith(("/usr/", "/lib/")) and word.endswith(".a")})


def check_linked(build: pathlib.Path, target: str) -> None:
    """That we see what is linked in: else its licences would be missing without a word."""
    missing = LINKED - {path.name for path in archives_of(build, target)}
    if missing:
        raise Problem(f"the link of {target} names no {', '.join(sorted(missing))}: is {build} of the preset portable?")


def inside_of(build: pathlib.Path, target: str) -> list[pathlib.Path]:
    """What a program holds of others."""
    inside = [*archives_of(build, target), *map(pathlib.Path, HEADERS_OF)]
    if target == PROGRAMS["penstockd"]:
        inside += [*map(pathlib.Path, HEADERS_OF_DAEMON), *headers_of_torch(build)]
    return inside


def builds_cuda(build: pathlib.Path) -> bool:
    """Whether the daemon of this build comes with the CUDA module; a file of an earlier configuration may lie there."""
    return f" -o {CUDA_MODULE} " in run("ninja", "-C", str(build), "-t", "commands", PROGRAMS["penstockd"])


def headers_of_torch(build: pathlib.Path) -> list[pathlib.Path]:
    return [configured(build, "LibTorch_CPU_LIBRARY").parents[1] / "include/ATen/ATen.h"]


def headers_of_cuda(build: pathlib.Path) -> list[pathlib.Path]:
    return [
        configured(build, "LibTorch_CUDA_HEADERS") / "cuda_runtime_api.h",
        configured(build, "LibTorch_CRT_HEADERS") / "crt/host_defines.h",
    ]


def configured(build: pathlib.Path, name: str) -> pathlib.Path:
    found = re.search(rf"^{name}:\w+=(/.+)$", (build / "CMakeCache.txt").read_text("utf-8"), re.M)
    if not found:
        raise Problem(f"{build}/CMakeCache.txt has no {name}")
    return pathlib.Path(found[1])


def of_torch(library: str) -> bool:
    return bool(re.match(r"lib(torch_cpu|torch_cuda|torch|c10|c10_cuda|cudart)\.so", library))


def versions_of(file: pathlib.Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The kinds and numbers of the symbol versions that a file asks of its libraries."""
    text = run("readelf", "--version-info", str(file)).partition("Version needs")[2]
    for kind, number in sorted(set(re.findall(r"Name: ([A-Z]+)_([\d.]+)\b", text))):
        yield kind, tuple(int(part) for part in number.split("."))
