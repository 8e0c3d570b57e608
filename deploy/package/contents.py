"""The packages that the files of a portable build, and what is inside of them, are from; and their licences."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping

from programs import configured

from bill import Package  # of deploy/image, which programs.py has put on the path
from origins import Origins, Problem, project_version

# The headers of a CUDA toolkit that no package manager has installed.
TOOLKIT = "cuda-toolkit"
_OF_A_TOOLKIT = {"host_defines.h", "cuda_runtime_api.h"}


class Contents:
    """
    Args:
        build: its folder; what lies in it is ours.
        sources: where files are from, by any names.
        inside: what is compiled and linked into them, by the same names.
    """

    def __init__(
        self, build: pathlib.Path, sources: Mapping[str, pathlib.Path], inside: Mapping[str, list[pathlib.Path]]
    ) -> None:
        self._build, self._sources, self._inside = build, sources, inside
        self._files = {str(path): path for path in [*sources.values(), *(path for paths in inside.values() for path in paths)]}
        self._origins = Origins(self._files, project_version(), build)

    def package_of(self, name: str) -> Package:
        return self._from(self._sources[name])

    def linked_into(self, name: str) -> list[Package]:
        return sorted({self._from(path) for path in self._inside.get(name, [])})

    def licences(self) -> dict[Package, list[pathlib.Path]]:
        """The texts, of each package but ours."""
        texts = {}
        for path in self._files.values():
            package = self._from(path)
            if package[0] == TOOLKIT:
                texts[package] = self._licences_of_cuda(path)
            elif package[0] != "penstock" and package not in texts:
                texts[package] = self._origins.licences_of(package[0], _site_of(path))
        return dict(sorted(texts.items()))

    def _from(self, path: pathlib.Path) -> Package:
        try:
            return self._origins.package_of(path)
        except Problem:
            number = re.search(r"cuda-(\d+\.\d+)", str(path.resolve()))
            if path.name not in _OF_A_TOOLKIT or not number:
                raise
            return TOOLKIT, number[1]

    def _licences_of_cuda(self, header: pathlib.Path) -> list[pathlib.Path]:
        """One agreement is that of all parts of CUDA."""
        for folder in header.resolve().parents:
            if (agreement := folder / "EULA.txt").is_file():
                return [agreement]
        runtime = configured(self._build, "LibTorch_CUDA_HEADERS") / "cuda_runtime_api.h"
        if not (site := _site_of(runtime)):
            raise Problem(f"the licence of {header} is missing: no EULA.txt in the folders above it")
        return self._origins.licences_of(self._origins.package_of(runtime)[0], site)


def _site_of(path: pathlib.Path) -> pathlib.Path | None:
    """The site-packages that a file is in."""
    return next((folder for folder in path.parents if folder.name == "site-packages"), None)
