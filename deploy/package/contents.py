"""The packages that the files of a portable build, and what is inside of them, are from; and their licences."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Mapping

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "image"))

from bill import Package  # noqa: E402
from origins import Origins, project_version  # noqa: E402


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
        self._sources, self._inside = sources, inside
        self._files = {str(path): path for path in [*sources.values(), *(path for paths in inside.values() for path in paths)]}
        self._origins = Origins(self._files, project_version(), build)

    def package_of(self, name: str) -> Package:
        return self.package_of_file(self._sources[name])

    def package_of_file(self, path: pathlib.Path) -> Package:
        return self._origins.package_of(path)

    def linked_into(self, name: str) -> list[Package]:
        return sorted({self._origins.package_of(path) for path in self._inside.get(name, [])})

    def licences(self) -> dict[Package, list[pathlib.Path]]:
        """The texts, of each package but ours."""
        texts = {}
        for path in self._files.values():
            package = self._origins.package_of(path)
            if package[0] != "penstock" and package not in texts:
                texts[package] = self._origins.licences_of(package[0], _site_of(path))
        return dict(sorted(texts.items()))


def _site_of(path: pathlib.Path) -> pathlib.Path | None:
    """The site-packages that a file is in."""
    return next((folder for folder in path.parents if folder.name == "site-packages"), None)
