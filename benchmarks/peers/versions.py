"""Describe the environment of a result: the machine, the commit and the versions."""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import broker_lite
from broker_lite.errors import MissingDependencyError
from broker_lite.local.zookeeper import find_jars
from peers import fetch
from peers.servers import KAFKA_VERSION

_PACKAGES = ("pyspark", "pyarrow", "confluent-kafka", "uvloop")


def machine() -> dict[str, Any]:
    """Return the facts about this machine that a reader of the results needs, but not its name."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": _commit(),
        "cpus": os.cpu_count(),
        "memory_gb": round(memory / 1e9, 1),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 1),
    }


@functools.cache
def _commit() -> str:
    """Return the commit of the checkout, with a mark if the checkout has uncommitted changes.

    Return "" outside a repository.
    """
    try:
        head = _git("rev-parse", "--short=10", "HEAD")
        # Do not count changes of results and pages as a changed checkout, because each run writes
        # them.
        changed = _git("diff", "--quiet", "HEAD", "--", ":/", ":!/benchmarks/results*",
                       ":!/benchmarks/*.md")  # fmt: skip
    except OSError:
        return ""
    if head.returncode:
        return ""
    return head.stdout.strip() + (", changed" if changed.returncode else "")


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )


@functools.cache
def found() -> dict[str, str]:
    """Return the versions of installed programs and packages by name."""
    versions = {"logbus": broker_lite.__version__, "kafka": KAFKA_VERSION}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    with contextlib.suppress(MissingDependencyError):
        for path in find_jars().glob("zookeeper-[0-9]*.jar"):
            versions["zookeeper"] = path.stem.removeprefix("zookeeper-")
    try:
        command = [fetch.java(), "-version"]
    except fetch.Cannot:
        return versions
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    versions["java"] = said.split('"')[1] if '"' in said else said[:40]
    return versions
