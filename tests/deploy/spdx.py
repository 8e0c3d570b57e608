"""What SPDX 2.3 asks of a document in JSON, as far as ours have it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

ID = re.compile(r"SPDXRef-[A-Za-z0-9.-]+")
RELATIONS = {"DESCRIBES", "CONTAINS", "GENERATED_FROM", "STATIC_LINK"}


def check(bill: dict[str, Any], files: Mapping[str, bytes]) -> None:
    """That the bill is one, and names these files by their paths, and no other."""
    assert (bill["spdxVersion"], bill["dataLicense"], bill["SPDXID"]) == ("SPDX-2.3", "CC0-1.0", "SPDXRef-DOCUMENT")
    assert bill["name"] and re.fullmatch(r"urn:penstock:[\w.~-]+:[0-9a-f]{32}", bill["documentNamespace"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", bill["creationInfo"]["created"])
    assert all(re.fullmatch(r"Tool: \S+", creator) for creator in bill["creationInfo"]["creators"])

    ids = [element["SPDXID"] for element in [*bill["packages"], *bill["files"]]]
    assert len(ids) == len({*ids}) and all(ID.fullmatch(one) for one in ids)
    relations = [(one["relationshipType"], one["spdxElementId"], one["relatedSpdxElement"]) for one in bill["relationships"]]
    assert len(relations) == len({*relations}) and {kind for kind, _, _ in relations} <= RELATIONS
    assert {one for _, *both in relations for one in both} == {*ids, "SPDXRef-DOCUMENT"}, "each is related to another"
    ((_, _, subject),) = (relation for relation in relations if relation[0] == "DESCRIBES")

    sums = []
    for file in bill["files"]:
        assert file["fileName"].startswith("./")
        told = {one["algorithm"]: one["checksumValue"] for one in file["checksums"]}
        contents = files[file["fileName"][2:]]
        assert told == {"SHA1": hashlib.sha1(contents).hexdigest(), "SHA256": hashlib.sha256(contents).hexdigest()}
        sums.append(told["SHA1"])
        assert file["licenseConcluded"] and file["licenseInfoInFiles"] and file["copyrightText"]
    assert {file["fileName"][2:] for file in bill["files"]} == files.keys()
    contained = [other for kind, one, other in relations if kind == "CONTAINS" and one == subject]
    assert sorted(contained) == sorted(file["SPDXID"] for file in bill["files"])

    for package in bill["packages"]:
        for field in ("name", "versionInfo", "downloadLocation", "licenseConcluded", "licenseDeclared", "copyrightText"):
            assert package[field], (package["name"], field)
        # Only what has been looked at file by file may contain any.
        assert package["filesAnalyzed"] == (package["SPDXID"] == subject)
        verification = package.get("packageVerificationCode", {}).get("packageVerificationCodeValue")
        wanted = hashlib.sha1("".join(sorted(sums)).encode()).hexdigest()
        assert verification == (wanted if package["filesAnalyzed"] else None)
