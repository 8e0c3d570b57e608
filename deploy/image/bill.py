"""A software bill of materials: SPDX 2.3 as JSON, each file with its checksums and each package with its version."""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from collections.abc import Iterable

Package = tuple[str, str]  # name and version


class Bill:
    """Collects files and packages; the same ones in the same order give the same text.

    The document describes one package, `subject`, which contains all files. Each file that is of another package, byte for byte
    or but for its symbols and paths, is GENERATED_FROM it; what is inside of a file from archives and headers is a STATIC_LINK
    of it.

    Args:
        name: of the document.
        subject: name and version of what it describes.
        tool: what made it.
    """

    def __init__(self, name: str, subject: Package, tool: str) -> None:
        self._name, self._tool = name, tool
        self._files: list[dict[str, object]] = []
        self._sums: list[str] = []
        self._packages: dict[Package, dict[str, object]] = {}
        self._relations: list[tuple[str, str, str]] = []
        self._subject, self._subject_id = subject, self.add_package(subject)
        self._packages[subject]["licenseDeclared"] = "Apache-2.0"

    def add_package(self, package: Package) -> str:
        """Returns its id."""
        name, version = package
        spdx = "SPDXRef-Package-" + re.sub("[^A-Za-z0-9.-]", "-", f"{name}-{version}")
        self._packages[package] = self._packages.get(package) or {
            "SPDXID": spdx,
            "name": name,
            "versionInfo": version,
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False,
            "licenseConcluded": "NOASSERTION",
            "licenseDeclared": "NOASSERTION",
            "copyrightText": "NOASSERTION",
        }
        return spdx

    def add_file(self, name: str, contents: bytes, package: Package, linked: Iterable[Package] = ()) -> None:
        """A file by its path in what is described, the package that it is from, and those that are inside of it."""
        name = name.lstrip("/")
        spdx = f"SPDXRef-File-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        sums = {"SHA256": hashlib.sha256(contents).hexdigest(), "SHA1": hashlib.sha1(contents).hexdigest()}
        self._sums.append(sums["SHA1"])
        ours = package == self._subject
        self._files.append(
            {
                "SPDXID": spdx,
                "fileName": f"./{name}",
                "checksums": [{"algorithm": kind, "checksumValue": value} for kind, value in sums.items()],
                "licenseConcluded": "Apache-2.0" if ours and not linked else "NOASSERTION",
                "licenseInfoInFiles": ["NOASSERTION"],
                "copyrightText": "NOASSERTION",
            }
        )
        self._relations.append((self._subject_id, "CONTAINS", spdx))
        if not ours:
            self._relations.append((spdx, "GENERATED_FROM", self.add_package(package)))
        self._relations += [(spdx, "STATIC_LINK", self.add_package(other)) for other in linked]

    def text(self, epoch: int) -> str:
        created = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        if self._files:
            verification = hashlib.sha1("".join(sorted(self._sums)).encode()).hexdigest()
            analyzed = {"packageVerificationCodeValue": verification}
            self._packages[self._subject] |= {"filesAnalyzed": True, "packageVerificationCode": analyzed}
        relations = [("SPDXRef-DOCUMENT", "DESCRIBES", self._subject_id), *self._relations]
        document: dict[str, object] = {
            "spdxVersion": "SPDX-2.3",
            "dataLicense": "CC0-1.0",
            "SPDXID": "SPDXRef-DOCUMENT",
            "name": self._name,
            "creationInfo": {"created": created, "creators": [f"Tool: {self._tool}"]},
            "packages": [self._packages[package] for package in sorted(self._packages)],
            "files": self._files,
            "relationships": [
                {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other} for one, kind, other in relations
            ],
        }
        # One for each content, as no two documents may share it.
        document["documentNamespace"] = f"urn:penstock:{self._name}:{hashlib.sha256(json.dumps(document).encode()).hexdigest()[:32]}"
        return json.dumps(document, indent=1) + "\n"
