"""The build backend: setuptools', with a bill of materials in the wheel and reproducible bytes.

PEP 517 backend of ``pyproject.toml``. ``build_wheel`` adds a CycloneDX file (PEP 770,
``*.dist-info/sboms/``) that names every dependency, and writes the archive again with sorted names,
one timestamp (``SOURCE_DATE_EPOCH``, default 1980) and plain permissions. Two builds of one commit
with the same tools are equal, whatever the checkout's times and the user's umask.
"""

from __future__ import annotations

import base64
import csv
import datetime
import email.parser
import hashlib
import io
import json
import os
import re
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403  (every other hook is setuptools')

SBOM = "sboms/pyspark-logbus.cdx.json"
EPOCH_1980 = 315_532_800
"""The earliest time that a zip archive can hold, in seconds."""


def build_wheel(
    wheel_directory: str,
    config_settings: Mapping[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build the wheel and return its file name."""
    name: str = build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
    path = Path(wheel_directory, name)
    with zipfile.ZipFile(path) as archive:
        files = {each.filename: archive.read(each) for each in archive.infolist()}
        scripts = {each.filename for each in archive.infolist() if each.external_attr >> 16 & 0o100}
    info = next(each.partition("/")[0] for each in files if each.endswith(".dist-info/METADATA"))
    files[f"{info}/{SBOM}"] = sbom(files[f"{info}/METADATA"].decode("utf-8"))
    files[f"{info}/RECORD"] = record(files, f"{info}/RECORD")
    write(path, files, scripts)
    return name


def seconds() -> int:
    """Return the build's time in seconds since 1970."""
    return max(int(os.environ.get("SOURCE_DATE_EPOCH", EPOCH_1980)), EPOCH_1980)


def write(path: Path, files: Mapping[str, bytes], scripts: set[str]) -> None:
    """Write the archive. ``scripts`` are executable."""
    moment = datetime.datetime.fromtimestamp(seconds(), datetime.UTC)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        # The file RECORD must be the last one in a wheel.
        for name in sorted(files, key=lambda each: (each.endswith("/RECORD"), each)):
            entry = zipfile.ZipInfo(name, moment.timetuple()[:6])
            entry.external_attr = (0o100755 if name in scripts else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            archive.writestr(entry, files[name], compresslevel=9)


def record(files: Mapping[str, bytes], own: str) -> bytes:
    """Return RECORD: the hash and the size of every file."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for name in sorted(files):
        if name != own:
            digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=")
            rows.writerow((name, f"sha256={digest.decode()}", len(files[name])))
    rows.writerow((own, "", ""))
    return text.getvalue().encode()


def sbom(metadata: str) -> bytes:
    """Return the bill of materials for a wheel's METADATA: CycloneDX 1.6, JSON."""
    facts = email.parser.HeaderParser().parsestr(metadata)
    name, version = facts["Name"], facts["Version"]
    own = f"pkg:pypi/{name}@{version}"
    parts = list(components(facts.get_all("Requires-Dist") or []))
    moment = datetime.datetime.fromtimestamp(seconds(), datetime.UTC)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, own)}",
        "version": 1,
        "metadata": {
            "timestamp": moment.isoformat().replace("+00:00", "Z"),
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": name,
                "version": version,
                "purl": own,
                "licenses": [{"license": {"id": facts["License-Expression"] or facts["License"]}}],
            },
        },
        "components": parts,
        "dependencies": [{"ref": own, "dependsOn": [part["bom-ref"] for part in parts]}],
    }
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


def components(requirements: list[str]) -> Iterator[dict[str, Any]]:
    """Yield a component for each dependency. An extra's dependency is optional. The installed
    version depends on the machine, so the range stands in a property."""
    found: dict[str, dict[str, Any]] = {}
    for requirement in requirements:
        text, _, marker = (part.strip() for part in requirement.partition(";"))
        matched = re.match(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*\(?([^)]*)\)?$", text)
        assert matched, requirement
        name = re.sub(r"[-_.]+", "-", matched[1]).lower()
        extra = re.search(r"extra == ['\"]([^'\"]+)['\"]", marker)
        if name == "pyspark-logbus":
            # This is an extra that includes other extras of this package, not a dependency.
            continue
        purl = f"pkg:pypi/{name}"
        part = found.setdefault(
            purl,
            {"type": "library", "bom-ref": purl, "name": name, "purl": purl, "properties": []},
        )
        if extra is None:
            part["scope"] = "required"
        part.setdefault("scope", "optional")
        of = f"extra {extra[1]}" if extra else "always"
        part["properties"].append({"name": f"logbus:requires ({of})", "value": text})
    yield from (found[purl] for purl in sorted(found))
