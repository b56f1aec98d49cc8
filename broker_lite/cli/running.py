"""Which clusters ``logbus up`` holds on this machine: a record each, found again by directory.

A record is what ``cluster.json`` of the cluster's directory says. It stands in ``clusters/`` of the
user's data folder, so that a cluster that was started later hides no earlier one, and the last one
also in the file where clients look (``client.discovery``). A record alone proves nothing: a cluster
runs while the process that holds it does. Any process of the user may call these functions.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from broker_lite.client import discovery
from broker_lite.errors import NoClusterError
from broker_lite.local import process
from broker_lite.local.cluster import write_json

Facts = dict[str, Any]

_FOLDER = "clusters"


def alive() -> list[Facts]:
    """The clusters that run, in the order of their start."""
    found = []
    for path in _records():
        facts = discovery.read_cluster(path)
        if facts is not None and is_held(facts):
            found.append(facts)
    return found


def is_held(facts: Facts) -> bool:
    """Whether the process that ``logbus up`` left to hold the cluster still runs."""
    holder = int(facts.get("pid") or 0)
    marks: dict[str, str] = facts.get("processes") or {}
    return process.is_running(holder, marks.get(str(holder), ""))


def find(directory: Path | None) -> Facts:
    """The facts of the cluster in ``directory``; without one of that which ``up`` started last, of
    those that run, or else of the last that ran.

    Raises NoClusterError that names those that run.
    """
    if directory is not None:
        facts = discovery.read_cluster(directory / "cluster.json")
        if facts is None:
            others = alive()
            cure = f"these run: {names(others)}" if others else "start one with: logbus up"
            raise NoClusterError(f"no cluster was started in {directory}; {cure}")
        return facts
    last = discovery.read_cluster(discovery.last_cluster_path())
    if last is not None and is_held(last):
        return last
    for facts in (*reversed(alive()), last):
        if facts is not None:
            return facts
    raise NoClusterError("no cluster was started by 'logbus up'; start one with: logbus up")


def names(clusters: Sequence[Facts]) -> str:
    """Clusters as a person names them to ``status`` and ``down``."""
    return ", ".join(f"--dir {facts['directory']}" for facts in clusters)


def is_same(one: Facts, other: Facts) -> bool:
    """Whether both are about one start of one cluster: its processes may have been replaced."""

    def start(facts: Facts) -> tuple[object, ...]:
        pid = facts.get("pid")
        return facts.get("directory"), pid, (facts.get("processes") or {}).get(str(pid))

    return start(one) == start(other)


def remember(facts: Facts) -> None:
    """Record a cluster that was started; records of those that were killed go."""
    with contextlib.suppress(OSError):
        for path in _records():
            recorded = discovery.read_cluster(path)
            if recorded is None or not is_held(recorded):
                path.unlink(missing_ok=True)
        write_json(_record(facts), facts)
        write_json(discovery.last_cluster_path(), facts)


def update(facts: Facts) -> None:
    """Replace the records of this cluster, whose processes have changed; who started last stays."""
    with contextlib.suppress(OSError):
        for path in (_record(facts), discovery.last_cluster_path()):
            recorded = discovery.read_cluster(path)
            if recorded is not None and is_same(recorded, facts):
                made = path.stat()
                write_json(path, facts)
                os.utime(path, ns=(made.st_atime_ns, made.st_mtime_ns))


def forget(facts: Facts) -> None:
    """Remove the records of this cluster, and only of this one; clients are sent to the one that
    was started last of those that still run."""
    for path in (_record(facts), Path(facts["directory"], "cluster.json")):
        _remove(path, facts)
    left = [other for other in alive() if not is_same(other, facts)]
    last = discovery.last_cluster_path()
    recorded = discovery.read_cluster(last)
    if left and (recorded is None or is_same(recorded, facts)):
        with contextlib.suppress(OSError):
            write_json(last, left[-1])
    _remove(last, facts)


def _remove(path: Path, facts: Facts) -> None:
    recorded = discovery.read_cluster(path)
    if recorded is not None and is_same(recorded, facts):
        with contextlib.suppress(OSError):
            path.unlink()


def _record(facts: Facts) -> Path:
    directory = str(facts["directory"]).encode("utf-8", "surrogateescape")
    return _folder() / f"{hashlib.sha256(directory).hexdigest()[:16]}.json"


def _records() -> list[Path]:
    """Oldest first."""
    dated = []
    for path in _folder().glob("*.json"):
        with contextlib.suppress(OSError):
            dated.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(dated)]


def _folder() -> Path:
    return discovery.data_directory() / _FOLDER
