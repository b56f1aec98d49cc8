"""A data directory: its lock, its identity, its health, and what is waiting to be unlinked.

``meta.properties`` holds a random directory id, the cluster it serves (set once) and a counter that
every start raises, so that a rolled-back or copied directory is noticed. After a failed fsync
nothing here is trusted again: ``fail`` is for good, and every later append or flush of any of its
logs raises StorageError. Called from disk threads; what they share is assigned whole, or locked.
"""

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
"""Faults that pass when somebody makes room."""
RESERVE_BYTES = 1 << 20
"""The size of the reserve file. No append may use this space: on a full disk, a start and the
epochs of leaders are written in it."""
ROOM_BYTES = 8 << 20
"""A full disk has room again when this many bytes are usable."""
_RESERVE_STEP = 64 << 10


def random_directory_id() -> str:
    """Sixteen random bytes as 22 characters."""
    return base64.urlsafe_b64encode(os.urandom(16))[:22].decode("ascii")


class DataDirectory:
    """One data directory, locked by this process while it is open."""

    def __init__(
        self, files: Files, path: str, *, random_id: Callable[[], str] = random_directory_id
    ) -> None:
        self.files = files
        self.path = path
        self.directory_id = ""
        self.cluster_id = ""
        self.start_counter = 0
        self.was_clean = False
        self.failure = ""
        self.is_full = False
        """Whether a write found no space and there is no room since."""
        self.recovery_points: dict[PartitionKey, int] = {}
        self.log_starts: dict[PartitionKey, int] = {}
        self.refused = RefusedBatches()
        self.warnings: list[str] = []
        self.unknown: set[str] = set()
        """Checkpoints that were found damaged, until they are written anew."""
        self._random_id = random_id
        self._lock: Lock | None = None
        self._trash: dict[str, int] = {}
        """When what was renamed is to go, by its name. Retention adds hundreds at once."""
        self._checkpoints = threading.Lock()
        self._reserve = threading.Lock()

    # -- start and end -------------------------------------------------------------------------

    def start(self) -> None:
        """Lock, read and count this start durably; the clean-shutdown marker is gone on return.

        Raises DirectoryLockedError, or StorageError where the directory cannot be used.
        """
        try:
            self._make()
            self._lock = self.files.lock(f"{self.path}/{paths.LOCK}")
        except BlockingIOError:
            raise DirectoryLockedError(
                f"log.dir {self.path} is in use by another broker; stop it or name another folder"
            ) from None
        except OSError as error:
            raise StorageError(f"log.dir {self.path} cannot be used: {error}") from error
        try:
            self._take_marker()
            if self.files.space(self.path)[1] < RESERVE_BYTES:
                self._free_reserve()
            self._load_identity()
            self.start_counter += 1
            self._save_identity()
            self.recovery_points = self._read_offsets(paths.RECOVERY_POINTS)
            self.log_starts = self._read_offsets(paths.LOG_STARTS)
        except OSError as error:
            self.release()
            raise StorageError(f"log.dir {self.path} cannot be used: {error}") from error
        except BaseException:
            self.release()
            raise

    def _make(self) -> None:
        """Make the directory so that a power cut cannot take it, and all in it, away."""
        path, missing = self.path, []
        while path and not self.files.exists(path):
            missing.append(path)
            path = path.rpartition("/")[0]
        self.files.make_dir(self.path)
        for made in missing:
            above = made.rpartition("/")[0]
            self.files.sync_dir(above or ("/" if made.startswith("/") else "."))

    def _take_marker(self) -> None:
        marker = f"{self.path}/{paths.CLEAN_MARKER}"
        self.was_clean = self.files.exists(marker)
        if self.was_clean:
            self.files.remove(marker)
            self.files.sync_dir(self.path)

    def write_marker(self) -> None:
        """Say that everything before this is on disk: the last act of a clean stop."""
        data = f"start.counter={self.start_counter}\n".encode()
        write_atomic(self.files, self.path, paths.CLEAN_MARKER, data)

    def release(self) -> None:
        """Give the lock back."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    # -- identity ------------------------------------------------------------------------------

    def _load_identity(self) -> None:
        data = read_whole(self.files, f"{self.path}/{paths.META}")
        if data is None:
            held = [n for n in self.files.list_dir(self.path) if paths.parse_partition_dir(n)]
            if held:
                raise StorageError(
                    f"log.dir {self.path} holds {len(held)} partitions but no {paths.META}; "
                    "restore that file or name an empty folder"
                )
            self.directory_id = self._random_id()
            return
        try:
            found = dict(line.split("=", 1) for line in decode_lines(data))
            self.directory_id = found["directory.id"]
            self.cluster_id = found["cluster.id"]
            self.start_counter = int(found["start.counter"])
        except (CorruptCheckpoint, KeyError, ValueError) as error:
            raise StorageError(
                f"{self.path}/{paths.META} is damaged ({error}); restore it from a copy"
            ) from None

    def _save_identity(self) -> None:
        lines = [
            f"directory.id={self.directory_id}",
            f"cluster.id={self.cluster_id}",
            f"start.counter={self.start_counter}",
        ]
        write_atomic(self.files, self.path, paths.META, encode_lines(lines))

    def adopt_cluster(self, cluster_id: str) -> None:
        """Bind to a cluster, once; raises InconsistentClusterIdError if bound to another."""
        if self.cluster_id == cluster_id:
            return
        if self.cluster_id:
            raise InconsistentClusterIdError(
                f"log.dir {self.path} belongs to cluster {self.cluster_id}, not to {cluster_id}; "
                "name that cluster's ZooKeeper, or another log.dir"
            )
        self.cluster_id = cluster_id
        with self.guard("binding the directory to its cluster"):
            self._save_identity()

    # -- health --------------------------------------------------------------------------------

    @property
    def failed(self) -> bool:
        return bool(self.failure)

    def fail(self, reason: str) -> StorageError:
        """Stop the directory for good; returns the error to raise."""
        self.failure = self.failure or reason
        return StorageError(f"log.dir {self.path} has stopped: {self.failure}")

    def check(self) -> None:
        """Raise StorageError if the directory has stopped."""
        if self.failure:
            raise StorageError(f"log.dir {self.path} has stopped: {self.failure}")

    def guard(self, doing: str, *, spare_full: bool = False) -> _Guard:
        """A block in which an OSError stops the directory.

        ``spare_full``: not a full disk, where nothing that was promised hangs on the block.
        """
        return _Guard(self, doing, spare_full)

    def full(self, doing: str, error: OSError) -> StorageError | None:
        """The error to raise where only space is missing; None for any other fault."""
        if error.errno not in SPACE_ERRORS:
            return None
        self.is_full = True
        return StorageError(f"log.dir {self.path} is full ({doing}); free some space")

    # -- room ----------------------------------------------------------------------------------

    def has_room(self) -> bool:
        """Whether appends are taken; looks at the disk only while it is full."""
        if self.is_full and self.files.space(self.path)[1] >= ROOM_BYTES:
            self.is_full = False
        return not self.is_full

    def check_room(self) -> None:
        """Raise StorageError while the disk is full."""
        if not self.has_room():
            raise StorageError(
                f"log.dir {self.path} is full; free some space: appends are taken again when "
                f"{ROOM_BYTES >> 20} MiB are usable"
            )

    def write_in_reserve(self, write: Callable[[], None]) -> None:
        """Run a small write; if there is no space for it, free the reserve for it. OSError."""
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
        """Make the reserve where it is missing or short; a full disk is passed over."""
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
        """Write as much of the reserve as there is space for."""
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

    # -- checkpoints ---------------------------------------------------------------------------

    def _read_offsets(self, name: str) -> dict[PartitionKey, int]:
        try:
            return read_offsets(self.files, self.path, name)
        except CorruptCheckpoint as error:
            self.warnings.append(f"{self.path}/{name} is damaged and was ignored: {error}")
            self.unknown.add(name)
            return {}

    def save_recovery_points(self, current: Callable[[], dict[PartitionKey, int]]) -> None:
        """Replace the recovery points; nothing is written when none changed.

        ``current`` is asked under the lock, so that what is written is never older than a
        truncation that was announced by ``lower_recovery_point``.
        """
        with self._checkpoints:
            self._write_recovery_points(current())

    def lower_recovery_point(self, key: PartitionKey, offset: int) -> None:
        """On disk on return: a truncated log must not look damaged after a crash."""
        with self._checkpoints:
            if self.recovery_points.get(key, 0) > offset:
                self._write_recovery_points({**self.recovery_points, key: offset})

    def _write_recovery_points(self, points: dict[PartitionKey, int]) -> None:
        if points != self.recovery_points or paths.RECOVERY_POINTS in self.unknown:
            with self.guard("writing recovery points", spare_full=True):
                write_offsets(self.files, self.path, paths.RECOVERY_POINTS, points)
            self.recovery_points = points
            self.unknown.discard(paths.RECOVERY_POINTS)

    def save_log_starts(self, current: Callable[[], dict[PartitionKey, int]]) -> None:
        """Replace the log start offsets; nothing is written when none changed."""
        with self._checkpoints:
            self._write_log_starts(current())

    def raise_log_start(self, key: PartitionKey, offset: int) -> None:
        """On disk on return: deleted records must not come back after a crash."""
        with self._checkpoints:
            if self.log_starts.get(key, 0) < offset:
                self._write_log_starts({**self.log_starts, key: offset})

    def set_log_start(self, key: PartitionKey, offset: int) -> None:
        """On disk on return, higher or lower: the log begins anew there."""
        with self._checkpoints:
            if self.log_starts.get(key, 0) != offset:
                self._write_log_starts({**self.log_starts, key: offset})

    def _write_log_starts(self, starts: dict[PartitionKey, int]) -> None:
        if starts != self.log_starts or paths.LOG_STARTS in self.unknown:
            with self.guard("writing log start offsets", spare_full=True):
                write_offsets(self.files, self.path, paths.LOG_STARTS, starts)
            self.log_starts = starts
            self.unknown.discard(paths.LOG_STARTS)

    def forget_offsets(self, key: PartitionKey) -> None:
        """On disk on return: a log that is made anew has nothing of one that was there before."""
        with self._checkpoints:
            for held, write in (
                (self.recovery_points, self._write_recovery_points),
                (self.log_starts, self._write_log_starts),
            ):
                if key in held:
                    write({other: offset for other, offset in held.items() if other != key})

    # -- deleted files -------------------------------------------------------------------------

    def discard(self, path: str, due_ms: int) -> None:
        """Rename to ``.deleted`` now, unlink when ``empty_trash`` passes ``due_ms``.

        A full disk may have no room for a new name: what is to go then goes at once. A partition
        that came back may go again while what it was before waits still.
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
            self._trash[target] = due_ms

    def empty_trash(self, now_ms: int) -> int:
        """Unlink what is due; how many names went. What fails waits for the next start."""
        removed = 0
        for path in [path for path, due_ms in list(self._trash.items()) if due_ms <= now_ms]:
            try:
                removed += remove_tree(self.files, path)
            finally:
                del self._trash[path]
        return removed


class _Guard:
    """See ``DataDirectory.guard``."""

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
    """Unlink a file, or a directory with its files; False if it could not be."""
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
