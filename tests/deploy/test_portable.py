"""The preset portable: what is compiled does not depend on whether the compiler cache ran."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator

import pytest
from conftest import ROOT


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
        compiling = re.sub(r" -o \S+ -c \S+", f" -o {out} -c {source}", re.sub(r" -M[DTF]( [^- ]\S*)?", "", command))
        subprocess.run(compiling, shell=True, cwd=build, env={**os.environ, **environment}, check=True)
        places.append(sorted(re.findall(rb"[\w./-]*(?:probe\.pb\.h|penstock_probe\.cc)(?=\0)", out.read_bytes().partition(b".symtab")[0])))
    assert places[0] == places[1]
    assert {*places[0]} >= {b"proto/penstock/probe.pb.h"}, "no name of the build folder"
