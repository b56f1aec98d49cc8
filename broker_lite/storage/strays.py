"""Partitions of topics that the metadata does not know: set aside, not deleted.

Their topic was deleted while the broker was away, or ZooKeeper was restored from an older state;
nothing tells which. A stray is its partition's directory under another name, with the time when it
was set aside. It comes back when its topic does, and goes for good after a long time, or by
``logbus storage strays``. Called as ``LogManager`` is, who makes it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from broker_lite.model import PartitionKey
from broker_lite.storage import paths
from broker_lite.storage.checkpoint import sync_names
from broker_lite.storage.directory import SPACE_ERRORS, DataDirectory, remove_tree


class Strays:
    """The strays of one data directory. ``retention_ms`` -1: they are kept for ever."""

    def __init__(self, data: DataDirectory, retention_ms: int) -> None:
        self._data = data
        self._retention_ms = retention_ms
        self._since: dict[PartitionKey, int] = {}
        self._left: set[PartitionKey] = set()
        """Those for whose new names a full disk had no room: they are where they were."""

    @property
    def keys(self) -> Collection[PartitionKey]:
        return self._since.keys()

    def found(self, name: str) -> bool:
        """Note what a start finds in the directory; False if the name is no stray's."""
        stray = paths.parse_stray_dir(name)
        if stray is not None:
            self._since[stray[0]] = stray[1]
        return stray is not None

    def of(self, offsets: Mapping[PartitionKey, int]) -> dict[PartitionKey, int]:
        """A checkpoint's rows of strays: they are kept as long."""
        return {key: offsets[key] for key in (*self._since, *self._left) if key in offsets}

    def set_aside(self, key: PartitionKey, now_ms: int) -> None:
        """StorageError if the disk fails. A full one lets it be where it is till the next start."""
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
        """Whether there was one, which is in its place again. StorageError."""
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
                del self._since[key]  # deleted by hand meanwhile
                return False
            sync_names(data.files, data.path)
        del self._since[key]
        return True

    def delete_due(self, now_ms: int) -> int:
        """Unlink what was set aside long enough ago; how many. What fails waits for a next time."""
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
