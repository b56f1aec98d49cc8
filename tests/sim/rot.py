"""Bits that flip on a disk: in segments, indexes, snapshots and checkpoints, one disk at a time.

Of a segment only what is committed, flushed and below the recovery point is struck, and only while
another disk of the ISR has it whole: behind the recovery point nobody can tell a flipped bit from a
write that a power cut tore. Where topics have one replica nothing guards, so nothing is struck. The
leader epoch of a batch, which no checksum covers, is left alone. A log's first batch is struck more
often than chance would: what is cut there leaves nothing behind it.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from sim.process import DIRECTORY, Process

from broker_lite.errors import LogbusError
from broker_lite.model import PartitionKey
from broker_lite.record.batch import BatchHeader
from broker_lite.record.format import HEADER_BYTES, LENGTH_PREFIX_BYTES, POSITION_MAGIC
from broker_lite.storage import MemFiles, paths
from broker_lite.storage.checkpoint import CorruptCheckpoint, read_offsets
from broker_lite.storage.scan import walk_batches

if TYPE_CHECKING:
    from sim.cluster import SimCluster

CHECKPOINTS = (paths.RECOVERY_POINTS, paths.LOG_STARTS)

FIRST_OF_ALL = 0.25
"""How often the first batch of a log is the one that is struck."""
LEADER_EPOCH_BYTES = range(LENGTH_PREFIX_BYTES, POSITION_MAGIC)
BESIDE = (paths.INDEX, paths.TIME_INDEX, paths.SNAPSHOT)


class Rot:
    """What is struck now, of one cluster."""

    def __init__(self, cluster: SimCluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self.directory_id = ""
        """The struck disk, until it is whole again."""
        self.keys: list[PartitionKey] = []
        """Whose segments may be struck."""
        self.struck: dict[int, dict[PartitionKey, range]] = {}
        """Every log that was ever struck, by broker, and the offsets of its batch that was last."""
        self.struck_disks: set[str] = set()
        """Every disk that was ever struck."""
        self.own_disks: set[str] = set()
        """Directories that brokers come back with."""
        self.struck_at: tuple[PartitionKey, range] | None = None
        """The batch that was struck last, until somebody has begun to read inside of it."""
        self._process_number = -1

    def strike(self, process: Process) -> None:
        """Flip a bit on this broker's disk, if no other is struck still."""
        logs, files = process.logs, process.files
        if self._cluster.options.replication_factor == 1:
            return
        if logs is None or logs.directory_id == self.directory_id or not self._is_whole():
            return
        if self._rng.random() < 0.7:
            self._strike_log(process.broker_id, logs.directory_id, files)
        else:
            self._strike_beside(logs.directory_id, files)
        self._process_number = process.number

    def _strike_log(self, broker_id: int, directory_id: str, files: MemFiles) -> None:
        checker = self._cluster.checker
        try:
            points = read_offsets(files, DIRECTORY, paths.RECOVERY_POINTS)
        except CorruptCheckpoint:
            return
        keys = [
            key
            for key, point in points.items()
            if key in self.keys
            and point
            and checker.true_end(key)
            and self._is_elsewhere(key, directory_id)
            # The recovery points name a deleted log until their next write.
            and files.exists(paths.partition_dir(DIRECTORY, key))
        ]
        if not keys:
            return
        key = self._rng.choice(keys)
        end = min(points[key], checker.true_end(key))
        is_first = self._rng.random() < FIRST_OF_ALL
        found = _a_batch(files, paths.partition_dir(DIRECTORY, key), end, self._rng, is_first)
        if found is None:
            return
        path, position, header = found
        size = header.size_bytes
        # Half of the bits in the header, which is much smaller than the body.
        within = self._rng.randrange(HEADER_BYTES if self._rng.random() < 0.5 else size)
        if within in LEADER_EPOCH_BYTES:
            return
        files.flip(path, position + within, self._rng.randrange(8))
        self._is_struck(directory_id, f"{key.topic_id[:3]}-{key.partition}", position + within)
        offsets = range(header.base_offset, header.next_offset)
        self.struck.setdefault(broker_id, {})[key] = offsets
        self.struck_at = key, offsets

    def _is_elsewhere(self, key: PartitionKey, directory_id: str) -> bool:
        """Whether another of the ISR has it whole, on a disk that its broker keeps."""
        checker = self._cluster.checker
        state = checker.state(key)
        gone = checker.bad_disks | {directory_id}
        return state is not None and any(
            replica.directory_id not in gone and replica.directory_id in self.own_disks
            for replica in state.isr
        )

    def _strike_beside(self, directory_id: str, files: MemFiles) -> None:
        """Indexes, snapshots of producers and checkpoints."""
        found = [f"{DIRECTORY}/{name}" for name in CHECKPOINTS]
        for name in files.list_dir(DIRECTORY):
            if paths.parse_partition_dir(name) is not None:
                directory = f"{DIRECTORY}/{name}"
                found += [
                    f"{directory}/{inner}"
                    for inner in files.list_dir(directory)
                    if inner == paths.LEADER_EPOCHS or inner.endswith(BESIDE)
                ]
        found = [path for path in found if files.exists(path) and files.size(path)]
        if found:
            path = self._rng.choice(found)
            position = self._rng.randrange(files.size(path))
            files.flip(path, position, self._rng.randrange(8))
            self._is_struck(directory_id, path.rpartition("/")[2], position)

    def _is_struck(self, directory_id: str, what: str, position: int) -> None:
        self.directory_id = directory_id
        self.struck_disks.add(directory_id)
        self._cluster.trace("flipped", directory_id, what, position)
        self._cluster.count("bits flipped")

    def _is_whole(self) -> bool:
        """Whether what was struck last is known to be whole again, or gone for good."""
        if not self.directory_id or self.directory_id in self._cluster.checker.bad_disks:
            return True
        for process in self._cluster.processes.values():
            logs = process.logs
            if logs is None or logs.directory_id != self.directory_id or not process.serving:
                continue
            # What lies beside the logs is read when a process begins, and written anew.
            if process.number == self._process_number or self.damage(process):
                return False
            self.directory_id = ""
            self._cluster.count("bits repaired")
            return True
        return False

    def damage(self, process: Process) -> str:
        """What is not whole of this broker's logs."""
        for key in self.keys:
            log = process.log(key)
            if log is None:
                continue
            try:
                found = log.verify(0, self._cluster.checker.true_end(key))
            except LogbusError as error:
                return f"{key}: {error!r}"
            if found:
                return f"{key}: {found[0]}"
        return ""


def _a_batch(
    files: MemFiles, directory: str, end: int, rng: random.Random, is_first: bool
) -> tuple[str, int, BatchHeader] | None:
    """A batch below ``end``, the first or any one: its file, where it is, and its header."""
    parsed = map(paths.parse_segment_file, files.list_dir(directory))
    bases = [found[0] for found in parsed if found and found[1] == paths.LOG and found[0] < end]
    if not bases:
        return None
    base = bases[0] if is_first else rng.choice(bases)
    path = paths.segment_file(directory, base, paths.LOG)
    file, spans = files.open(path), []
    for found in walk_batches(file, 0, file.size, base):
        header = found.header
        if header.next_offset > end:
            break
        spans.append((path, found.position, header))
        if header.next_offset == end:
            break  # What a power cut tore may lie behind.
    if not spans:
        return None
    return spans[0] if is_first else rng.choice(spans)
