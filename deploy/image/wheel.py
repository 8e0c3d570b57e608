"""The wheel with the programs, as deploy/package.sh makes it: its files, and what its own bill of materials says of them."""

from __future__ import annotations

import hashlib
import json
import pathlib
import re
import zipfile

from bill import Package
from origins import Problem

CUDA_MODULE = "libpenstock_cuda.so"
_INSIDE = "penstock_server"


def _check_sum(path: pathlib.Path) -> None:
    """Of a wheel among its like, as deploy/package.sh leaves it."""
    sums = path.parent / "SHA256SUMS"
    if not sums.exists():
        return
    told = {name: digest for digest, name in (line.split() for line in sums.read_text("utf-8").splitlines())}
    if hashlib.sha256(path.read_bytes()).hexdigest() != told.get(path.name):
        raise Problem(f"{path.name} is not the file that {sums} names: make the packages again")


class Wheel:
    """A wheel's files, unpacked into `folder`, which must be empty and outlive it."""

    def __init__(self, path: pathlib.Path, folder: pathlib.Path) -> None:
        match = re.match(rf"{_INSIDE}-([\d.]+)-", path.name)
        if not match or not path.is_file():
            raise Problem(f"{path} is no wheel of penstock_server: deploy/package.sh makes one")
        _check_sum(path)
        self.version = match[1]
        self._folder = folder
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
        self._info = folder / f"{_INSIDE}-{self.version}.dist-info"
        bill = json.loads((self._info / "sboms" / f"{_INSIDE}.spdx.json").read_text("utf-8"))
        packages = {one["SPDXID"]: (one["name"], one["versionInfo"]) for one in bill["packages"]}
        names = {one["SPDXID"]: one["fileName"].removeprefix("./") for one in bill["files"]}
        self._package_of: dict[str, Package] = {}
        self._linked_into: dict[str, list[Package]] = {}
        for relation in bill["relationships"]:
            kind, one, other = (relation[key] for key in ("relationshipType", "spdxElementId", "relatedSpdxElement"))
            if kind == "CONTAINS":
                self._package_of.setdefault(names[other], packages[one])
            elif kind == "GENERATED_FROM":
                self._package_of[names[one]] = packages[other]
            elif kind == "STATIC_LINK":
                self._linked_into.setdefault(names[one], []).append(packages[other])

    def program(self, name: str) -> pathlib.Path:
        return self._folder / _INSIDE / "bin" / name

    def library(self, name: str) -> pathlib.Path | None:
        path = self._folder / _INSIDE / "lib" / name
        return path if path.exists() else None

    def libraries(self) -> list[pathlib.Path]:
        """What the programs load or open by name, but for the CUDA module."""
        return [path for path in sorted((self._folder / _INSIDE / "lib").iterdir()) if path.name != CUDA_MODULE]

    def holds(self, path: pathlib.Path) -> bool:
        return path.is_relative_to(self._folder)

    def package_of(self, path: pathlib.Path) -> Package:
        """Where a file of the wheel, or a licence in it, is from."""
        return self._package_of[str(path.relative_to(self._folder))]

    def linked_into(self, path: pathlib.Path) -> list[Package]:
        """The packages whose archives or headers are inside a file."""
        return self._linked_into.get(str(path.relative_to(self._folder)), [])

    def licences_of(self, package: str) -> list[pathlib.Path]:
        """The texts of the licence of a package, none if it is of no file in the wheel."""
        licences = self._info / "licenses"
        return [licences / "LICENSE"] if package == "penstock" else sorted((licences / package).glob("*"))
