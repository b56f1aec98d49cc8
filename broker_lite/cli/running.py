"""The files by which commands find the clusters that ``logbus up`` runs on this machine.

A cluster file (``cluster.json`` in the cluster's folder) has addresses, folder and process ids. The
folder ``clusters/`` in the user's data folder has a copy for each cluster. A further copy describes
the last started cluster, which clients without an address use (``client.discovery``). A cluster
runs while its ``logbus up`` process lives. If that process is killed, its files stay, so functions
that read them check the process. Any process of the user may call these functions."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from broker_lite.client import discovery
from broker_lite.errors import NoClusterError
from broker_lite.local import process
from broker_lite.local.cluster import write_json

Facts = dict[str, Any]
"""The content of a cluster's ``cluster.json``: addresses, folder and processes."""


def alive() -> list[Facts]:
    """Return the running clusters in the order of their start."""
    running = []
    for path in _records():
        facts = discovery.read_cluster(path)
        if facts is not None and is_held(facts):
            running.append(facts)
    return running


def is_held(facts: Facts) -> bool:
    """Return whether the ``logbus up`` process that started the cluster still runs."""
    holder = int(facts.get("pid") or 0)
    marks: dict[str, str] = facts.get("processes") or {}
    return process.is_running(holder, marks.get(str(holder), ""))


def find(directory: Path | None) -> Facts:
    """Return the content of the cluster file in ``directory``; if that is None, of the last
    started cluster that still runs, else of the last started one.

    Raises NoClusterError that names the running clusters, and PermissionError for a folder of
    another user."""
    if directory is not None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            (directory / "cluster.json").stat()
        facts = discovery.read_cluster(directory / "cluster.json")
        if facts is None:
            raise NoClusterError(_why_none(directory))
        return facts
    last = discovery.read_cluster(discovery.last_cluster_path())
    if last is not None and is_held(last):
        return last
    for facts in (*reversed(alive()), last):
        if facts is not None:
            return facts
    folder = discovery.data_directory()
    if not _is_writable(folder):
        raise NoClusterError(
            f"no cluster of 'logbus up' is known: {folder} cannot be written, so 'up' records none "
            "there. Name the cluster's folder with --dir, or start one with: logbus up --dir DIR"
        )
    raise NoClusterError("no cluster of 'logbus up' runs; start one with: logbus up")


def _is_writable(folder: Path) -> bool:
    """Return whether this user may write to the folder, or may create it."""
    # Do not call Path.exists, which would raise an error for a folder that this user may not enter.
    while not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _why_none(directory: Path) -> str:
    """Return the reason why no cluster runs in a folder, with the next step."""
    start = f"logbus up {_dir_option(directory.absolute())}"
    if any(directory.glob("broker-*/")):
        return f"the cluster in {directory} is stopped, its data stay; start it with: {start}"
    if others := alive():
        return f"no cluster runs in {directory}; these run: {names(others)}"
    return f"no cluster runs in {directory}; start one with: {start}"


def is_recorded(facts: Facts) -> bool:
    """Return whether the user's data folder has this cluster's file, by which other commands find
    it; False if the folder is not writable."""
    return any(is_same(facts, other) for other in alive())


def at(servers: str) -> Facts | None:
    """Return the running cluster of this machine with these addresses, or None."""
    for facts in alive():
        if facts.get("bootstrap_servers") == servers:
            return facts
    return None


def names(clusters: Sequence[Facts]) -> str:
    """Return a text with each cluster's option ``--dir FOLDER`` of ``status`` and ``down``, as the
    user types it in the current folder."""
    return ", ".join(_dir_option(Path(facts["directory"])) for facts in clusters)


def _dir_option(folder: Path) -> str:
    return f"--dir {_typed(folder)}"


def _typed(folder: Path) -> str:
    """Return a folder's path for a shell: relative to the current folder or to the home folder, if
    it is below one of them."""
    for find_root, prefix in ((Path.cwd, ""), (Path.home, "~/")):
        # Skip a folder that does not exist: the current folder may have been deleted, and a user
        # may have no home folder.
        with contextlib.suppress(ValueError, OSError, RuntimeError):
            return prefix + shlex.quote(str(folder.relative_to(find_root())))
    return shlex.quote(str(folder))


def is_same(one: Facts, other: Facts) -> bool:
    """Return whether both cluster files come from the same run of ``logbus up``, even if it has
    since restarted brokers or ZooKeeper."""

    def start(facts: Facts) -> tuple[object, ...]:
        pid = facts.get("pid")
        return facts.get("directory"), pid, (facts.get("processes") or {}).get(str(pid))

    return start(one) == start(other)


def remember(facts: Facts) -> None:
    """Store the file about a started cluster, and delete the files about clusters that no longer
    run."""
    with contextlib.suppress(OSError):
        for path in _records():
            recorded = discovery.read_cluster(path)
            if recorded is None or not is_held(recorded):
                path.unlink(missing_ok=True)
        write_json(_record(facts), facts)
        write_json(discovery.last_cluster_path(), facts)


def update(facts: Facts) -> None:
    """Replace the files of a cluster whose processes changed. The files keep their modification
    times, by which the clusters are ordered."""
    with contextlib.suppress(OSError):
        for path in (_record(facts), discovery.last_cluster_path()):
            recorded = discovery.read_cluster(path)
            if recorded is not None and is_same(recorded, facts):
                made = path.stat()
                write_json(path, facts)
                os.utime(path, ns=(made.st_atime_ns, made.st_mtime_ns))


def forget(facts: Facts) -> None:
    """Delete the files about this cluster. Clients without an address then use the running cluster
    that was started last."""
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
    dated = []
    for path in _folder().glob("*.json"):
        with contextlib.suppress(OSError):
            dated.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(dated)]


def _folder() -> Path:
    return discovery.data_directory() / discovery.CLUSTERS
