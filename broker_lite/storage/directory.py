"""A data directory (``log.dir``): its lock, identity, failure, checkpoints and deleted files.

``meta.properties`` holds a random directory id, the cluster's id (set once) and the start counter:
how often a broker started on the directory. ZooKeeper has the counter too; a lower one on disk
reveals a directory that was copied or restored from a backup.

After a failed fsync the directory fails permanently (``fail``): every later append or flush of its
logs raises StorageError. Several disk threads share a directory, so attributes change by single
assignments or under a lock."""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import threading
from collections.abc import Callable

from broker_lite.errors import DirectoryLockedError, InconsistentClusterIdError, StorageError
from broker_lite.model import PartitionKey
from broker_lite.storage import paths
from broker_lite.storage.checkpoint import (
    CorruptCheckpoint,
    decode_lines,
    encode_lines,
    read_offsets,
    read_whole,
    write_atomic,
    write_offsets,
)
from broker_lite.storage.files import Files, Lock
from broker_lite.storage.refused_batches import RefusedBatches

SPACE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full disk. The errors end once an operator frees space."""
RESERVE_BYTES = 1 << 20
"""Bytes of the reserve file, whose space appends cannot use.

On a full disk the broker deletes it to write the counter of broker starts, a new leader epoch or a
log start offset."""
SPACE_BYTES_MIN = 8 << 20
"""Usable bytes that a full directory needs to accept appends again."""
_RESERVE_STEP = 64 << 10


def random_directory_id() -> str:
    """Return sixteen random bytes as 22 characters of base64."""
    return base64.urlsafe_b64encode(os.urandom(16))[:22].decode("ascii")


class DataDirectory:
    """One data directory, locked by this process between ``start`` and ``release``."""

    def __init__(
        self, files: Files, path: str, *, random_id: Callable[[], str] = random_directory_id
    ) -> None:
        self.files = files
        self.path = path
        self.directory_id = ""
        """The directory's random id of 22 characters, set at the first start."""
        self.cluster_id = ""
        """The id of the cluster; empty until ``adopt_cluster`` sets it."""
        self.start_counter = 0
        """How often a broker started on the directory, 1 at the first start."""
        self.was_clean = False
        """Whether the previous process wrote the clean-shutdown marker."""
        self.failure = ""
        self.is_full = False
        """Whether the disk is full: from a write that found no space until ``has_space`` finds
        enough."""
        self.recovery_points = OffsetCheckpoint(self, paths.RECOVERY_POINTS, in_reserve=False)
        # Let this checkpoint use the space of the reserve file: a deletion of records, which frees
        # space on a full disk, writes the checkpoint.
        self.log_starts = OffsetCheckpoint(self, paths.LOG_STARTS, in_reserve=True)
        self.refused = RefusedBatches()
        """Batches refused with a retriable error. Later batches of their producers get it too."""
        self.warnings: list[str] = []
        """Warnings about damaged files that ``start`` ignored."""
        self._random_id = random_id
        self._lock: Lock | None = None
        self._trash: dict[str, tuple[int, int]] = {}
        """The files that ``discard`` renamed, by new path: the time in ms of the renaming, and the
        time from which the file may be unlinked."""
        self.checkpoints = threading.RLock()
        """The lock of both offset checkpoints.

        A log that changes its log start offset holds the lock until the offset has changed in
        memory too. Otherwise a concurrent save could write the former offset again."""
        self._reserve = threading.Lock()

    # Methods that open and release the directory.

    def start(self) -> None:
        """Lock the directory, read its identity and checkpoints, and raise the counter of
        starts on disk.

        Deletes the clean-shutdown marker, so that the next start after a crash runs recovery.
        Raises DirectoryLockedError, or StorageError if the directory cannot be used."""
        try:
            self._make()
            self._lock = self.files.lock(f"{self.path}/{paths.LOCK}")
        except BlockingIOError:
            raise DirectoryLockedError(
                f"log.dir {self.path} is in use by another broker. Stop it, or set another log.dir."
            ) from None
        except OSError as error:
            raise StorageError(f"log.dir {self.path} cannot be used: {error}") from error
        try:
            self._take_marker()
            if self.space()[1] < RESERVE_BYTES:
                self._free_reserve()
            self._load_identity()
            self.start_counter += 1
            self._save_identity()
            self.recovery_points.load()
            self.log_starts.load()
        except OSError as error:
            self.release()
            raise StorageError(f"log.dir {self.path} cannot be used: {error}") from error
        except BaseException:
            self.release()
            raise

    def _make(self) -> None:
        """Create the directory and its missing parents, so that they survive a power cut."""
        path, missing = self.path, []
        while path and not self.files.exists(path):
            missing.append(path)
            path = path.rpartition("/")[0]
        self.files.make_dir(self.path)
        for created in missing:
            above = created.rpartition("/")[0]
            self.files.sync_dir(above or ("/" if created.startswith("/") else "."))

    def _take_marker(self) -> None:
        marker = f"{self.path}/{paths.CLEAN_MARKER}"
        self.was_clean = self.files.exists(marker)
        if self.was_clean:
            self.files.remove(marker)
            self.files.sync_dir(self.path)

    def write_marker(self) -> None:
        """Write the clean-shutdown marker, the last step of a clean stop, after all syncs."""
        data = f"start.counter={self.start_counter}\n".encode()
        write_atomic(self.files, self.path, paths.CLEAN_MARKER, data)

    def release(self) -> None:
        """Release the lock of the directory."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    # Methods that load and save the directory's identity.

    def _load_identity(self) -> None:
        data = read_whole(self.files, f"{self.path}/{paths.META}")
        if data is None:
            partition_dirs = [
                n for n in self.files.list_dir(self.path) if paths.parse_partition_dir(n)
            ]
            if partition_dirs:
                raise StorageError(
                    f"log.dir {self.path} holds {len(partition_dirs)} partitions but no "
                    f"{paths.META}; restore that file, or set log.dir to an empty folder"
                )
            self.directory_id = self._random_id()
            return
        try:
            properties = dict(line.split("=", 1) for line in decode_lines(data))
            self.directory_id = properties["directory.id"]
            self.cluster_id = properties["cluster.id"]
            self.start_counter = int(properties["start.counter"])
        except (CorruptCheckpoint, KeyError, ValueError) as error:
            raise StorageError(
                f"{self.path}/{paths.META} is damaged: {error}. Restore it from a copy."
            ) from None

    def _save_identity(self) -> None:
        lines = [
            f"directory.id={self.directory_id}",
            f"cluster.id={self.cluster_id}",
            f"start.counter={self.start_counter}",
        ]
        write_atomic(self.files, self.path, paths.META, encode_lines(lines))

    def adopt_cluster(self, cluster_id: str) -> None:
        """Record the id of the cluster to which the directory now belongs.

        Raises InconsistentClusterIdError if it already belongs to another one."""
        if self.cluster_id == cluster_id:
            return
        if self.cluster_id:
            raise InconsistentClusterIdError(
                f"log.dir {self.path} belongs to cluster {self.cluster_id}, not to {cluster_id}; "
                "set zookeeper.connect to that cluster's ZooKeeper, or set another log.dir"
            )
        self.cluster_id = cluster_id
        with self.guard("binding the directory to its cluster"):
            self._save_identity()

    # Methods that report failures of the directory.

    @property
    def failed(self) -> bool:
        """Whether the directory has failed permanently, for the reason ``failure``."""
        return bool(self.failure)

    def fail(self, reason: str) -> StorageError:
        """Mark the directory as failed permanently, and return the error to raise."""
        self.failure = self.failure or reason
        return self._stopped()

    def _stopped(self) -> StorageError:
        return StorageError(
            f"log.dir {self.path} has stopped: {self.failure}. Check the disk, then restart the "
            "broker."
        )

    def check(self) -> None:
        """Raise StorageError if the directory has failed."""
        if self.failure:
            raise self._stopped()

    def guard(self, doing: str, *, spare_full: bool = False) -> _Guard:
        """Return a context manager that fails the directory if its block raises OSError.

        It converts the error to StorageError, which names the operation ``doing``. With
        ``spare_full``, a full disk raises StorageError without failing the directory: use it only
        for writes that protect no acknowledged data."""
        return _Guard(self, doing, spare_full)

    def full(self, doing: str, error: OSError) -> StorageError | None:
        """Return the StorageError to raise if ``error`` means a full disk, else None. Its message
        names the operation ``doing``."""
        if error.errno not in SPACE_ERRORS:
            return None
        self.is_full = True
        return StorageError(f"log.dir {self.path} is full ({doing}). Free some space.")

    # Methods that check the free space and maintain the reserve file.

    def space(self) -> tuple[int, int]:
        """Return the total and the usable bytes of the disk."""
        return self.files.space(self.path)

    def has_space(self) -> bool:
        """Return whether the directory accepts appends.

        After an append failed for lack of space, this asks the file system for its free space."""
        if self.is_full and self.space()[1] >= SPACE_BYTES_MIN:
            self.is_full = False
        return not self.is_full

    def check_space(self) -> None:
        """Raise StorageError while the disk is full."""
        if not self.has_space():
            raise StorageError(
                f"log.dir {self.path} is full. Free some space: appends resume when "
                f"{SPACE_BYTES_MIN >> 20} MiB are usable"
            )

    def write_in_reserve(self, write: Callable[[], None]) -> None:
        """Call ``write``, which writes a small file. If the disk is full, free the space of the
        reserve file and call ``write`` again.

        Raises OSError."""
        try:
            write()
        except OSError as error:
            if error.errno not in SPACE_ERRORS:
                raise
            with self._reserve:
                self._free_reserve()
                try:
                    write()
                finally:
                    self._fill_reserve()

    def make_reserve(self) -> None:
        """Create the reserve file if it is missing or too small. On a full disk, its space is freed
        for small files.

        If the disk is full now, the file becomes smaller, without an error."""
        path = f"{self.path}/{paths.RESERVE}"
        with self._reserve:
            if self.files.exists(path) and (self.is_full or self.files.size(path) >= RESERVE_BYTES):
                return
            self._fill_reserve()

    def _free_reserve(self) -> None:
        self.is_full = True
        with contextlib.suppress(FileNotFoundError):
            self.files.remove(f"{self.path}/{paths.RESERVE}")

    def _fill_reserve(self) -> None:
        """Write a new reserve file, up to ``RESERVE_BYTES``, as large as the disk has space for."""
        path = f"{self.path}/{paths.RESERVE}"
        with contextlib.suppress(FileNotFoundError):
            self.files.remove(path)
        file = self.files.create(path)
        try:
            for _ in range(RESERVE_BYTES // _RESERVE_STEP):
                file.append([bytes(_RESERVE_STEP)])
            file.datasync()
        except OSError as error:
            if error.errno not in SPACE_ERRORS:
                raise

    # Methods that delete files after a delay.

    def discard(self, path: str, now_ms: int, delay_ms: int) -> None:
        """Rename a file or directory to ``.deleted``. ``empty_trash`` unlinks it after
        ``delay_ms``.

        If the disk is too full for the rename, delete the file at once. If the partition was
        deleted before and the new name exists already, add a number to the name.
        """
        target = path + paths.DELETED
        count = 1
        while target in self._trash:
            count += 1
            target = f"{path}.{count}{paths.DELETED}"
        try:
            self.files.rename(path, target)
        except OSError as error:
            if error.errno not in SPACE_ERRORS:
                raise
            remove_tree(self.files, path)
        else:
            self._trash[target] = now_ms, now_ms + delay_ms

    def empty_trash(self, now_ms: int) -> int:
        """Unlink the files that ``discard`` renamed and whose delay is over. Return their number.

        If the clock was set back, the delay counts as over: it could last for years otherwise. If a
        deletion fails, the next broker start retries it.
        """
        removed = 0
        trash = list(self._trash.items())
        for path in [path for path, (at_ms, due_ms) in trash if not at_ms <= now_ms < due_ms]:
            try:
                removed += remove_tree(self.files, path)
            finally:
                del self._trash[path]
        return removed


class OffsetCheckpoint:
    """A file with an offset of each partition: its recovery point, or its log start offset.

    With ``in_reserve``, a write to a full disk uses the space of the reserve file."""

    def __init__(self, directory: DataDirectory, name: str, *, in_reserve: bool) -> None:
        self.offsets: dict[PartitionKey, int] = {}
        """The offsets in the file. A partition without an entry has offset 0."""
        self.is_damaged = False
        """Whether ``load`` found the file damaged, so that the offsets are unknown until it is
        rewritten."""
        self._directory = directory
        self._name = name
        self._in_reserve = in_reserve

    def get(self, key: PartitionKey) -> int:
        return self.offsets.get(key, 0)

    def load(self) -> None:
        """Read the file. If it is damaged, add a warning to the directory's ``warnings``."""
        directory = self._directory
        try:
            self.offsets = read_offsets(directory.files, directory.path, self._name)
        except CorruptCheckpoint as error:
            path = f"{directory.path}/{self._name}"
            directory.warnings.append(f"{path} is damaged and was ignored: {error}")
            self.is_damaged = True

    def save(self, current: Callable[[], dict[PartitionKey, int]]) -> None:
        """Replace all offsets, if one has changed, and sync.

        ``current`` returns the offsets. It runs under the lock of the checkpoints: otherwise an
        older offset could overwrite an offset that a truncation has just lowered."""
        with self._directory.checkpoints:
            self._write(current())

    def put(self, key: PartitionKey, offset: int) -> None:
        """Set the offset of a partition, lower or higher than before, and sync."""
        with self._directory.checkpoints:
            if self.get(key) != offset:
                self._write({**self.offsets, key: offset})

    def lower(self, key: PartitionKey, offset: int) -> None:
        """Lower a partition's offset to ``offset``, unless it is lower already, and sync.

        Truncations lower the recovery point before they cut the log: recovery reports a log that
        ends below its recovery point as damaged."""
        with self._directory.checkpoints:
            self.put(key, min(self.get(key), offset))

    def forget(self, key: PartitionKey) -> None:
        """Remove a deleted log's offset, and sync: a new log of the partition must not get it."""
        with self._directory.checkpoints:
            if key in self.offsets:
                self._write({one: at for one, at in self.offsets.items() if one != key})

    def _write(self, offsets: dict[PartitionKey, int]) -> None:
        directory = self._directory
        if offsets == self.offsets and not self.is_damaged:
            return

        def write() -> None:
            write_offsets(directory.files, directory.path, self._name, offsets)

        with directory.guard(f"writing {self._name}", spare_full=True):
            if self._in_reserve:
                directory.write_in_reserve(write)
            else:
                write()
        self.offsets = offsets
        self.is_damaged = False


class _Guard:
    """The context manager of ``DataDirectory.guard``."""

    __slots__ = ("_directory", "_doing", "_spare_full")

    def __init__(self, directory: DataDirectory, doing: str, spare_full: bool) -> None:
        self._directory = directory
        self._doing = doing
        self._spare_full = spare_full

    def __enter__(self) -> None:
        self._directory.check()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            if self._spare_full and (full := self._directory.full(self._doing, error)):
                raise full from error
            raise self._directory.fail(f"{self._doing}: {error}") from error


def remove_tree(files: Files, path: str) -> bool:
    """Unlink a file, or a directory with its files. Return False if an error prevents it."""
    try:
        try:
            names = files.list_dir(path)
        except NotADirectoryError:
            files.remove(path)
            return True
        for name in names:
            files.remove(f"{path}/{name}")
        files.remove_dir(path)
    except OSError:
        return False
    return True
