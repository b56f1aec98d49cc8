"""All logs of one data directory: open, create, find, delete, checkpoint, close.

Logs write on their own disk threads; this object's methods may be called from any one thread at a
time but for ``get``, ``logs`` and ``usage``, which are safe everywhere. ``delete`` and closing must
not run beside an append to the same log. Keeps no clock: callers pass ``now_ms``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from broker_lite.config import DAY, TopicConfig
from broker_lite.errors import StorageError
from broker_lite.model import PartitionKey
from broker_lite.storage import paths
from broker_lite.storage.directory import (
    DataDirectory,
    random_directory_id,
    remove_tree,
)
from broker_lite.storage.files import Files
from broker_lite.storage.log import Log
from broker_lite.storage.recovery import RecoveryReport, create_log, open_log
from broker_lite.storage.refused_batches import RefusedBatches
from broker_lite.storage.strays import Strays


class LogUsage(NamedTuple):
    """What a partition takes and holds."""

    key: PartitionKey
    size_bytes: int
    segment_count: int
    log_start_offset: int
    log_end_offset: int


class LogManager:
    """The logs under one data directory, which this process holds the lock of."""

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
        self._data = DataDirectory(files, directory.rstrip("/"), random_id=random_id)
        self._default_config = default_config or TopicConfig()
        self._producer_expiration_ms = producer_expiration_ms
        self._logs: dict[PartitionKey, Log] = {}
        self._strays = Strays(self._data, stray_retention_ms)
        self._opened = False
        self._doubted: frozenset[PartitionKey] = frozenset()
        self.reports: dict[PartitionKey, RecoveryReport] = {}
        """What opening each log found; kept for the broker's log and metrics."""

    # -- the directory -------------------------------------------------------------------------

    @property
    def directory(self) -> str:
        return self._data.path

    @property
    def refused(self) -> RefusedBatches:
        """The batches that producers are to send again."""
        return self._data.refused

    @property
    def directory_id(self) -> str:
        """Random, given once; 22 characters."""
        return self._data.directory_id

    @property
    def cluster_id(self) -> str:
        """Empty until ``adopt_cluster``."""
        return self._data.cluster_id

    @property
    def start_counter(self) -> int:
        """1 at the first start; raised, on disk, by every ``lock``."""
        return self._data.start_counter

    @property
    def was_clean(self) -> bool:
        """Whether the process before closed the directory properly."""
        return self._data.was_clean

    @property
    def failed(self) -> bool:
        """Whether the directory has stopped, for good; ``failure`` says why."""
        return self._data.failed

    @property
    def is_full(self) -> bool:
        """Whether the disk is full: appends are refused until ``has_room``."""
        return self._data.is_full

    def has_room(self) -> bool:
        """Look whether a full disk has room again."""
        return self._data.has_room()

    @property
    def failure(self) -> str:
        return self._data.failure

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was found damaged and ignored at the start."""
        return tuple(self._data.warnings)

    @property
    def doubted(self) -> frozenset[PartitionKey]:
        """Logs that at the start may have missed what was flushed, or had again what was deleted:
        they are damaged, or the checkpoints are that say what was promised of all of them."""
        return self._doubted

    def lock(self, now_ms: int = 0) -> None:
        """Take the directory: lock, identity, start counter. Nothing else works before.

        Raises DirectoryLockedError, or StorageError where it cannot be read or written.
        """
        self._data.start()

    def adopt_cluster(self, cluster_id: str) -> None:
        """Bind the directory to a cluster, once. Raises InconsistentClusterIdError."""
        self._data.adopt_cluster(cluster_id)

    def space(self) -> tuple[int, int]:
        """Total and usable bytes of the disk."""
        return self._files.space(self._data.path)

    # -- logs ----------------------------------------------------------------------------------

    @property
    def logs(self) -> Mapping[PartitionKey, Log]:
        """A copy, so that it may be walked while logs come and go."""
        return self._logs.copy()

    def get(self, key: PartitionKey) -> Log | None:
        return self._logs.get(key)

    def open_all(
        self, now_ms: int, configs: Mapping[str, TopicConfig] | None = None
    ) -> dict[PartitionKey, Log]:
        """Open every partition found, with the config of its topic id or the default.

        Raises StorageError if the disk fails; damage is in each log's ``corruption``.
        """
        with self._data.guard("listing the data directory"):
            names = self._files.list_dir(self._data.path)
        for name in names:
            if name.endswith((paths.DELETED, paths.TEMPORARY)):
                remove_tree(self._files, f"{self._data.path}/{name}")
            elif self._strays.found(name):
                continue
            elif (key := paths.parse_partition_dir(name)) is not None:
                config = (configs or {}).get(key.topic_id, self._default_config)
                self._logs[key], self.reports[key] = open_log(
                    key,
                    self._data,
                    now_ms,
                    clean=self._data.was_clean,
                    config=config,
                    producer_expiration_ms=self._producer_expiration_ms,
                )
        self._opened = True
        self._make_reserve()
        self._doubted = frozenset(
            key
            for key, log in self._logs.items()
            if self._data.unknown or log.corruption or self.reports[key].torn_whole
        )
        return dict(self._logs)

    def create(self, key: PartitionKey, config: TopicConfig | None = None, now_ms: int = 0) -> Log:
        """The log of a partition, made if it is not there; on disk on return. StorageError."""
        assert self._opened, "open_all first: the partition may be there"
        log = self._logs.get(key)
        if log is None:
            self._data.check()
            config = config or self._default_config
            if self._strays.take_back(key):
                log, self.reports[key] = open_log(
                    key,
                    self._data,
                    now_ms,
                    clean=False,
                    config=config,
                    producer_expiration_ms=self._producer_expiration_ms,
                )
            else:
                self._data.forget_offsets(key)
                log = create_log(
                    key,
                    self._data,
                    config=config,
                    producer_expiration_ms=self._producer_expiration_ms,
                )
            self._logs[key] = log
        return log

    def delete(self, key: PartitionKey, now_ms: int) -> None:
        """Forget a partition; its files go after the delay. Nothing if it is not there."""
        log = self._logs.pop(key, None)
        if log is None:
            return
        log.retire()
        with self._data.guard(f"deleting {key}"):
            self._data.discard(log.directory, now_ms + log.config.file_delete_delay_ms)
            self._files.sync_dir(self._data.path)
        self.checkpoint(now_ms)

    @property
    def stray_count(self) -> int:
        """Partitions that are set aside."""
        return len(self._strays.keys)

    def set_aside(self, key: PartitionKey, now_ms: int) -> None:
        """Forget a partition but keep its files, till ``tick`` finds them older than the strays'
        retention; ``create`` takes them back. Nothing if it is not there."""
        log = self._logs.pop(key, None)
        if log is None:
            return
        log.retire()
        self._strays.set_aside(key, now_ms)
        self.checkpoint(now_ms)

    def usage(self) -> list[LogUsage]:
        """Each log's size and offsets."""
        return [
            LogUsage(
                key, log.size_bytes, log.segment_count, log.log_start_offset, log.log_end_offset
            )
            for key, log in self.logs.items()
        ]

    # -- time passing --------------------------------------------------------------------------

    def checkpoint(self, now_ms: int = 0) -> None:
        """Write recovery points and log starts if any changed.

        A full disk is passed over: an older point only makes the next start longer. Other faults
        stop the directory (StorageError).
        """
        assert self._opened, "open_all first: its recovery points would be lost"
        self._data.check()
        try:
            self._data.save_recovery_points(self._recovery_points)
            self._data.save_log_starts(self._log_starts)
        except StorageError:
            self._data.check()

    def _recovery_points(self) -> dict[PartitionKey, int]:
        kept = self._strays.of(self._data.recovery_points)
        return kept | {key: log.flushed_end for key, log in self.logs.items()}

    def _log_starts(self) -> dict[PartitionKey, int]:
        return self._strays.of(self._data.log_starts) | {
            key: log.log_start_offset for key, log in self.logs.items() if log.log_start_offset
        }

    def tick(self, now_ms: int) -> int:
        """Unlink deleted files and strays that are due; how many names went. Makes the reserve,
        from which a full disk is started."""
        if not self._data.failed:
            self._make_reserve()
        return self._data.empty_trash(now_ms) + self._strays.delete_due(now_ms)

    def _make_reserve(self) -> None:
        with self._data.guard("making the reserve"):
            self._data.make_reserve()

    # -- the end -------------------------------------------------------------------------------

    def close_clean(self, now_ms: int = 0) -> None:
        """Flush and save everything, then the marker, then give the lock back.

        Raises StorageError, without a marker, if anything could not be saved.
        """
        try:
            if self._data.failed:
                raise StorageError(f"log.dir {self._data.path} has stopped: {self._data.failure}")
            for log in self._logs.values():
                log.close()
            self.checkpoint(now_ms)
            with self._data.guard("writing the clean-shutdown marker"):
                self._data.write_marker()
        finally:
            self.close()

    def close(self) -> None:
        """Give the lock back as it is; the next start will recover."""
        self._data.release()
