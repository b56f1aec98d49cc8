"""All logs of one data directory: open, create, find, delete, checkpoint and close.

Logs write on their own disk threads. One thread at a time may call ``LogManager``, except ``get``
and ``logs``, which any thread may. ``delete`` and the close methods must not run beside an append
to the same log. No method reads a clock: callers pass ``now_ms``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker_lite.config import DAY, TopicConfig
from broker_lite.errors import StorageError
from broker_lite.model import PartitionKey
from broker_lite.storage import paths
from broker_lite.storage.directory import DataDirectory, random_directory_id, remove_tree
from broker_lite.storage.files import Files
from broker_lite.storage.log import Log
from broker_lite.storage.recovery import RecoveryReport, create_log, open_log
from broker_lite.storage.strays import Strays


class LogManager:
    """The logs of one data directory, whose lock this process holds."""

    def __init__(
        self,
        files: Files,
        directory: str,
        *,
        default_config: TopicConfig | None = None,
        producer_expiration_ms: int = DAY,
        stray_retention_ms: int = 7 * DAY,
        random_id: Callable[[], str] = random_directory_id,
    ) -> None:
        self._files = files
        self.data = DataDirectory(files, directory.rstrip("/"), random_id=random_id)
        """The data directory. The caller must ``start`` it before it calls ``open_all``."""
        self._default_config = default_config or TopicConfig()
        self._producer_expiration_ms = producer_expiration_ms
        self._logs: dict[PartitionKey, Log] = {}
        self._strays = Strays(self.data, stray_retention_ms)
        self._opened = False
        self.suspect_logs: frozenset[PartitionKey] = frozenset()
        """The logs that may have lost flushed records, or still contain deleted ones.

        At a start, these are the corrupt logs, or all if a checkpoint of the directory is damaged.
        """
        self.reports: dict[PartitionKey, RecoveryReport] = {}
        """The recovery report of each log, for log lines and metrics."""

    # Methods that open, create, delete and list logs.

    @property
    def logs(self) -> Mapping[PartitionKey, Log]:
        """A copy of the logs by partition, safe to iterate while logs are created or deleted."""
        return self._logs.copy()

    def get(self, key: PartitionKey) -> Log | None:
        return self._logs.get(key)

    def open_all(self, now_ms: int) -> dict[PartitionKey, Log]:
        """Open every partition in the directory, with the default settings of topics.

        Raises StorageError if the disk fails. Damage raises nothing: each log lists its damaged
        ranges in ``corruption``."""
        with self.data.guard("listing the data directory"):
            names = self._files.list_dir(self.data.path)
        for name in names:
            if name.endswith((paths.DELETED, paths.TEMPORARY)):
                remove_tree(self._files, f"{self.data.path}/{name}")
            elif self._strays.register(name):
                continue
            elif (key := paths.parse_partition_dir(name)) is not None:
                self._open(key, now_ms, self._default_config, clean=self.data.was_clean)
        self._opened = True
        self._make_reserve()
        is_damaged = self.data.recovery_points.is_damaged or self.data.log_starts.is_damaged
        self.suspect_logs = frozenset(
            key
            for key, log in self._logs.items()
            if is_damaged or log.reader.corruption or self.reports[key].torn_whole
        )
        return dict(self._logs)

    def create(self, key: PartitionKey, config: TopicConfig | None = None, now_ms: int = 0) -> Log:
        """Return a partition's log. If there is none, restore the partition's stray (a log that
        ``set_aside`` renamed) or create an empty log.

        The new directory name is synced. Raises StorageError."""
        assert self._opened, "call open_all first: the partition may exist"
        log = self._logs.get(key)
        if log is None:
            self.data.check()
            config = config or self._default_config
            if self._strays.take_back(key):
                return self._open(key, now_ms, config, clean=False)
            self.data.recovery_points.forget(key)
            self.data.log_starts.forget(key)
            log = self._logs[key] = create_log(
                key,
                self.data,
                config=config,
                producer_expiration_ms=self._producer_expiration_ms,
            )
        return log

    def _open(self, key: PartitionKey, now_ms: int, config: TopicConfig, *, clean: bool) -> Log:
        log, self.reports[key] = open_log(
            key,
            self.data,
            now_ms,
            clean=clean,
            config=config,
            producer_expiration_ms=self._producer_expiration_ms,
        )
        self._logs[key] = log
        return log

    def delete(self, key: PartitionKey, now_ms: int) -> None:
        """Delete a partition's log, if any; ``tick`` unlinks it after ``file.delete.delay.ms``."""
        log = self._logs.pop(key, None)
        if log is None:
            return
        log.retire()
        with self.data.guard(f"deleting {key}"):
            self.data.discard(log.directory, now_ms, log.config.file_delete_delay_ms)
            self._files.sync_dir(self.data.path)
        self.checkpoint()

    @property
    def stray_count(self) -> int:
        """The number of strays: logs that the metadata do not assign to this broker."""
        return self._strays.count

    def set_aside(self, key: PartitionKey, now_ms: int) -> None:
        """Close a partition's log, if any, and make it a stray: rename its directory.

        A stray is a log that the metadata do not assign to this broker. ``create`` makes it a
        partition again; ``tick`` deletes it after its retention time."""
        log = self._logs.pop(key, None)
        if log is None:
            return
        log.retire()
        self._strays.set_aside(key, now_ms)
        self.checkpoint()

    # Methods that the broker calls periodically.

    def checkpoint(self) -> None:
        """Write recovery points and log start offsets, if any of them changed.

        A full disk is ignored: an older recovery point only makes the next start longer. Any other
        error fails the directory and raises StorageError."""
        assert self._opened, "call open_all first: a checkpoint now would lose recovery points"
        self.data.check()
        try:
            self.data.recovery_points.save(self._recovery_points)
            self.data.log_starts.save(self._log_starts)
        except StorageError:
            self.data.check()

    def _recovery_points(self) -> dict[PartitionKey, int]:
        points = self._strays.of(self.data.recovery_points.offsets)
        return points | {key: log.flushed_end for key, log in self.logs.items()}

    def _log_starts(self) -> dict[PartitionKey, int]:
        return self._strays.of(self.data.log_starts.offsets) | {
            key: log.log_start_offset for key, log in self.logs.items() if log.log_start_offset
        }

    def tick(self, now_ms: int) -> int:
        """Unlink the deleted files and strays (logs of no replica of this broker) that are due.
        Return their number.

        Also restores the reserve file (space for small files on a full disk) if it is missing."""
        if not self.data.failed:
            self._make_reserve()
        return self.data.empty_trash(now_ms) + self._strays.delete_due(now_ms)

    def _make_reserve(self) -> None:
        with self.data.guard("making the reserve"):
            self.data.make_reserve()

    # Methods that close the data directory.

    def close_clean(self) -> None:
        """Flush and save all logs, write the clean-shutdown marker, and release the lock.

        Raises StorageError, without the marker, if a log or file could not be saved."""
        try:
            self.data.check()
            for log in self._logs.values():
                log.close()
            self.checkpoint()
            with self.data.guard("writing the clean-shutdown marker"):
                self.data.write_marker()
        finally:
            self.close()

    def close(self) -> None:
        """Release the lock without saving any log. The next start then runs recovery."""
        self.data.release()
