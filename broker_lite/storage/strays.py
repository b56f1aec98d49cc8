"""Strays: logs that the metadata do not assign to this broker, first renamed, later deleted.

A log becomes a stray if its topic was deleted or its replica reassigned while the broker was down,
or if ZooKeeper was restored from an older state. Its directory's new name contains the time of the
renaming. It becomes a partition again when the metadata assign it to the broker again. The broker
deletes it after ``stray.retention.ms``; the command ``logbus storage strays`` can delete it
earlier. ``LogManager`` calls this module on its own thread."""

from __future__ import annotations

from collections.abc import Mapping

from broker_lite.model import PartitionKey
from broker_lite.storage import paths
from broker_lite.storage.checkpoint import sync_names
from broker_lite.storage.directory import SPACE_ERRORS, DataDirectory, remove_tree


class Strays:
    """The stray logs of one data directory. With ``retention_ms`` -1, they are never deleted."""

    def __init__(self, data: DataDirectory, retention_ms: int) -> None:
        self._data = data
        self._retention_ms = retention_ms
        self._since: dict[PartitionKey, list[int]] = {}
        """The times (ms) at which each partition's stray logs were renamed. A partition has several
        if a power cut has undone the deletion of one."""
        self._left: set[PartitionKey] = set()
        """Partitions whose stray log is not renamed yet, because the disk was full: its directory's
        name still lacks ``.stray``."""

    @property
    def count(self) -> int:
        return sum(map(len, self._since.values()))

    def register(self, name: str) -> bool:
        """Remember a stray log if ``name`` is the name of its directory. Return whether it is."""
        stray = paths.parse_stray_dir(name)
        if stray is not None:
            self._since.setdefault(stray[0], []).append(stray[1])
        return stray is not None

    def of(self, offsets: Mapping[PartitionKey, int]) -> dict[PartitionKey, int]:
        """Return those offsets of a checkpoint file (recovery points or log starts) that belong to
        stray logs. A new version of the file must keep them."""
        return {key: offsets[key] for key in (*self._since, *self._left) if key in offsets}

    def set_aside(self, key: PartitionKey, now_ms: int) -> None:
        """Rename the directory of a partition whose log has become a stray. Raises StorageError if
        the disk fails.

        On a full disk the directory keeps its name until the broker starts again."""
        data, target = self._data, paths.stray_dir(self._data.path, key, now_ms)
        with data.guard(f"setting {key} aside"):
            try:
                data.files.rename(paths.partition_dir(data.path, key), target)
            except OSError as error:
                if error.errno in SPACE_ERRORS:
                    self._left.add(key)
                    return
                raise
            self._since.setdefault(key, []).append(now_ms)
            data.files.sync_dir(data.path)

    def take_back(self, key: PartitionKey) -> bool:
        """Rename a partition's newest stray log back to the partition's directory. Return whether
        there was one. Raises StorageError."""
        if key in self._left:
            self._left.discard(key)
            return True
        if key not in self._since:
            return False
        data, since_ms = self._data, max(self._since[key])
        with data.guard(f"taking {key} back", spare_full=True):
            try:
                data.files.rename(
                    paths.stray_dir(data.path, key, since_ms), paths.partition_dir(data.path, key)
                )
            except FileNotFoundError:
                # An operator has deleted this stray log: look for another one.
                self._forget(key, since_ms)
                return self.take_back(key)
            sync_names(data.files, data.path)
        self._forget(key, since_ms)
        return True

    def delete_due(self, now_ms: int) -> int:
        """Delete the stray logs past their retention time, and return their number.

        A later call retries failed deletions."""
        if self._retention_ms < 0:
            return 0
        count = 0
        strays = [(key, since_ms) for key, times in self._since.items() for since_ms in times]
        for key, since_ms in strays:
            if since_ms + self._retention_ms <= now_ms:
                path = paths.stray_dir(self._data.path, key, since_ms)
                if remove_tree(self._data.files, path) or not self._data.files.exists(path):
                    self._forget(key, since_ms)
                    count += 1
        return count

    def _forget(self, key: PartitionKey, since_ms: int) -> None:
        self._since[key].remove(since_ms)
        if not self._since[key]:
            del self._since[key]
