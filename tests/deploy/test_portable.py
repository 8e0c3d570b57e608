"""The preset portable, configured and not built: what is compiled does not depend on whether the compiler cache ran, and what is
linked in is known."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest
from conftest import ROOT

sys.path[:0] = [str(ROOT / "deploy" / "image"), str(ROOT / "deploy" / "package")]

import debian  # noqa: E402
from contents import Contents  # noqa: E402
from programs import CUDA_MODULE, PROGRAMS, builds_cuda, check_linked, headers_of_cuda, headers_of_torch, inside_of  # noqa: E402

from origins import Problem  # noqa: E402


@pytest.fixture(scope="module")
def build() -> Iterator[pathlib.Path]:
    """A folder beside build/portable, configured and not built."""
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build", prefix="portable-") as folder:
        subprocess.run(["cmake", "--preset", "portable", "-B", folder], cwd=ROOT, capture_output=True, check=True)
        yield pathlib.Path(folder)


@pytest.mark.parametrize("room", ["client/lib", "engine/device", "proto"])
def test_places_in_the_code_are_the_same_with_the_cache_and_without(build: pathlib.Path, tmp_path: pathlib.Path, room: str) -> None:
    """Of files that are generated, and of one that is not."""
    if not shutil.which("ccache"):
        pytest.skip("no ccache here")
    told = subprocess.run(["ninja", "-C", str(build), "-t", "compdb"], capture_output=True, text=True, check=True).stdout
    command = next(one["command"] for one in json.loads(told) if re.search(rf" -o {room}/CMakeFiles/\S+\.o ", one["command"]))
    assert "ccache" in command
    (build / "proto/penstock").mkdir(parents=True, exist_ok=True)
    (build / "proto/penstock/probe.pb.h").write_text("inline const char* Generated() { return __FILE__; }\n")
    source = build / "penstock_probe.cc"
    source.write_text(
        '#include "penstock/probe.pb.h"\n'
        "const char* Told() { return Generated(); }\nconst char* Here() { return __FILE__; }\n"
    )
    include = f"-I{build}/proto"
    if include not in command:
        command = command.replace(" -O2", f" {include} -O2", 1)
    places = []
    for name, environment in (("without", {"CCACHE_DISABLE": "1"}), ("with", {"CCACHE_DIR": str(tmp_path / "cache")})):
        out = tmp_path / f"{name}.o"
        words = shlex.split(re.sub(r" -o \S+ -c \S+", "", re.sub(r" -M[DTF]( [^- ]\S*)?", "", command)))
        subprocess.run([*words, "-o", str(out), "-c", str(source)], cwd=build, env={**os.environ, **environment}, check=True)
        places.append(sorted(re.findall(rb"[\w./-]*(?:probe\.pb\.h|penstock_probe\.cc)(?=\0)", out.read_bytes().partition(b".symtab")[0])))
    assert places[0] == places[1]
    assert {*places[0]} >= {b"proto/penstock/probe.pb.h"}, "no name of the build folder"


LINKED = {"libgrpc-dev", "libgrpc++-dev", "libprotobuf-dev", "libabsl-dev", "libssl-dev", "libsqlite3-dev"}


def test_what_is_linked_in_is_told(build: pathlib.Path) -> None:
    """From the build's graph, which names it also before anything is built."""
    server = contents_of(build, {"bin/penstockd": PROGRAMS["penstockd"]})
    linked = server.linked_into("bin/penstockd")
    assert {*LINKED, "torch", "libcli11-dev", "nlohmann-json3-dev", "prometheus-cpp-dev", "zlib1g-dev"} <= {name for name, _ in linked}
    assert {name for name, _ in linked} == {name for name, _ in server.licences()}
    assert {path.name for path in server.licences()[("torch", "2.11.0")]} == {"LICENSE", "NOTICE"}
    tool = contents_of(build, {"bin/penstock": PROGRAMS["penstock"]})
    names = {name for name, _ in tool.linked_into("bin/penstock")}
    assert LINKED <= names and not {"torch", "prometheus-cpp-dev"} & names


def contents_of(build: pathlib.Path, programs: dict[str, str]) -> Contents:
    sources = {name: build / target for name, target in programs.items()}
    return Contents(build, sources, {name: inside_of(build, target) for name, target in programs.items()})


def test_the_copyright_of_the_command_line_names_it(build: pathlib.Path) -> None:
    rights = debian.copyright_of("penstock", debian.linked("penstock", build, shared=False))
    assert LINKED <= set(re.findall(r"^(\S+) [\d.:~+\w-]+\n=+\n", rights, re.M))


@pytest.mark.parametrize("script", ["debian.py", "pack.py"])
def test_the_scripts_start_by_themselves(script: str) -> None:
    """Each finds the modules of the other folder."""
    command = ["/usr/bin/python3", "-B", str(ROOT / "deploy/package" / script), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", env={})
    assert done.returncode == 0 and "--build" in done.stdout, done.stderr


def test_a_link_that_names_none_is_refused(build: pathlib.Path) -> None:
    check_linked(build, PROGRAMS["penstock"])
    other = pathlib.Path(os.environ["PENSTOCK_BUILD"])
    with pytest.raises(Problem, match=r"the link of client/cli/penstock names no libabsl_base\.a, .*libssl\.a"):
        check_linked(other, PROGRAMS["penstock"])
    with pytest.raises(Problem, match="of the preset portable"):
        debian.linked("penstock", other, shared=False)


def test_the_module_of_an_earlier_build_is_not_packed(build: pathlib.Path) -> None:
    """The build's graph decides, not what lies there."""
    configure = ["cmake", "--preset", "portable", "-B", str(build)]
    subprocess.run([*configure, "-D", "PENSTOCK_CUDA=OFF"], cwd=ROOT, capture_output=True, check=True)
    (build / CUDA_MODULE).parent.mkdir(parents=True, exist_ok=True)
    (build / CUDA_MODULE).touch()
    assert not builds_cuda(build)
    subprocess.run([*configure, "-D", "PENSTOCK_CUDA=ON"], cwd=ROOT, capture_output=True, check=True)
    assert builds_cuda(build)


def test_the_module_holds_headers_of_cuda(build: pathlib.Path) -> None:
    inside = [*headers_of_torch(build), *headers_of_cuda(build)]
    module = Contents(build, {"lib/module": build / CUDA_MODULE}, {"lib/module": inside})
    names = {name for name, _ in module.linked_into("lib/module")}
    assert names == {"torch", "nvidia_cuda_runtime", "nvidia_cuda_crt"}
    texts = [path.read_text() for paths in module.licences().values() for path in paths]
    assert len(module.licences()) == len(names) and any("NVIDIA CUDA Toolkit" in text for text in texts)
