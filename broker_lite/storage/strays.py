"""Strays: logs that the metadata do not assign to this broker, first renamed, later deleted.

A log becomes a stray if its topic was deleted or its replica reassigned while the broker was down,
or if ZooKeeper was restored from an older state. Its directory's new name contains the time of the
renaming. It becomes a partition again when the metadata assign it to the broker again. The broker
deletes it after ``stray.retention.ms``; the command ``logbus storage strays`` can delete it
earlier. ``LogManager`` calls this module on its own thread."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from broker_lite.model import PartitionKey
from broker_lite.storage import paths
from broker_lite.storage.checkpoint import sync_names
from broker_lite.storage.directory import SPACE_ERRORS, DataDirectory, remove_tree


class Strays:
    """The strays of one data directory. With ``retention_ms`` -1, they are never deleted."""

    def __init__(self, data: DataDirectory, retention_ms: int) -> None:
        self._data = data
        self._retention_ms = retention_ms
        self._since: dict[PartitionKey, int] = {}
        self._left: set[PartitionKey] = set()
        """Strays that are not renamed yet, because the disk was full; their directories still have
        partitions' names."""

    @property
    def keys(self) -> Collection[PartitionKey]:
        return self._since.keys()

    def register(self, name: str) -> bool:
        """Record the stray with this directory name. Return False if the name is not a stray's."""
        stray = paths.parse_stray_dir(name)
        if stray is not None:
            self._since[stray[0]] = stray[1]
        return stray is not None

    def of(self, offsets: Mapping[PartitionKey, int]) -> dict[PartitionKey, int]:
        """Return those offsets of a checkpoint that belong to strays. A rewritten checkpoint must
        keep them."""
        return {key: offsets[key] for key in (*self._since, *self._left) if key in offsets}

    def set_aside(self, key: PartitionKey, now_ms: int) -> None:
        """Rename a partition's directory to a stray. Raises StorageError if the disk fails.

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
            self._since[key] = now_ms
            data.files.sync_dir(data.path)

    def take_back(self, key: PartitionKey) -> bool:
        """Rename a stray back to its partition. Return whether there was one. Raises
        StorageError."""
        if key in self._left:
            self._left.discard(key)
            return True
        since_ms = self._since.get(key)
        if since_ms is None:
            return False
        data = self._data
        with data.guard(f"taking {key} back", spare_full=True):
            try:
                data.files.rename(
                    paths.stray_dir(data.path, key, since_ms), paths.partition_dir(data.path, key)
                )
            except FileNotFoundError:
                del self._since[key]  # An operator has deleted the stray log.
                return False
            sync_names(data.files, data.path)
        del self._since[key]
        return True

    def delete_due(self, now_ms: int) -> int:
        """Delete the strays past their retention time, and return their number.

        A later call retries failed deletions."""
        if self._retention_ms < 0:
            return 0
        count = 0
        for key, since_ms in tuple(self._since.items()):
            if since_ms + self._retention_ms <= now_ms:
                path = paths.stray_dir(self._data.path, key, since_ms)
                if remove_tree(self._data.files, path) or not self._data.files.exists(path):
                    del self._since[key]
                    count += 1
        return count
