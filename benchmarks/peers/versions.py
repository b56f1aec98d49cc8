"""Which versions met, for the results."""

from __future__ import annotations

import importlib.metadata
import subprocess

import broker_lite
from peers import fetch
from peers.servers import KAFKA_VERSION

_PACKAGES = ("pyspark", "pyarrow", "confluent-kafka", "uvloop")


def found() -> dict[str, str]:
    """What runs here, by name; what is missing is left out."""
    versions = {"logbus": broker_lite.__version__, "kafka": KAFKA_VERSION}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    try:
        command = [fetch.java(), "-version"]
    except fetch.Cannot:
        return versions
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    versions["java"] = said.split('"')[1] if '"' in said else said[:40]
    return versions
