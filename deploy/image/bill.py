"""A software bill of materials: SPDX 2.3 as JSON, each file with its checksum and each package with its version."""

from __future__ import annotations

import datetime
import hashlib
import json
import re


class Bill:
    """Collects files and packages; the same ones in the same order give the same text.

    Args:
        name, namespace: of the document.
        tool: what made it.
    """

    def __init__(self, name: str, namespace: str, tool: str) -> None:
        self._name, self._namespace, self._tool = name, namespace, tool
        self._files: list[dict[str, object]] = []
        self._packages: dict[str, dict[str, object]] = {}
        self._relations: list[tuple[str, str, str]] = []

    def add_package(self, package: tuple[str, str]) -> str:
        """Name and version; returns its id."""
        name, version = package
        spdx = f"SPDXRef-Package-{re.sub('[^A-Za-z0-9.-]', '-', name)}"
        self._packages[name] = {
            "SPDXID": spdx,
            "name": name,
            "versionInfo": version,
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False,
        }
        return spdx

    def add_file(self, name: str, contents: bytes, package: tuple[str, str]) -> str:
        """A file and the package that it is from; returns its id."""
        spdx = f"SPDXRef-File-{hashlib.sha256(name.lstrip('/').encode()).hexdigest()[:16]}"
        checksum = {"algorithm": "SHA256", "checksumValue": hashlib.sha256(contents).hexdigest()}
        self._files.append({"SPDXID": spdx, "fileName": name, "checksums": [checksum]})
        self._relations.append((self.add_package(package), "CONTAINS", spdx))
        return spdx

    def add_link(self, file: str, package: tuple[str, str]) -> None:
        """A package whose archive or headers are inside the file with this id."""
        self._relations.append((file, "STATIC_LINK", self.add_package(package)))

    def text(self, epoch: int) -> str:
        created = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        document = {
            "spdxVersion": "SPDX-2.3",
            "dataLicense": "CC0-1.0",
            "SPDXID": "SPDXRef-DOCUMENT",
            "name": self._name,
            "documentNamespace": self._namespace,
            "creationInfo": {"created": created, "creators": [f"Tool: {self._tool}"]},
            "packages": [self._packages[name] for name in sorted(self._packages)],
            "files": self._files,
            "relationships": [
                {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}
                for one, kind, other in self._relations
            ],
        }
        return json.dumps(document, indent=1) + "\n"
