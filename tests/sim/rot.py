"""Flip bits on disks: in segments, indexes, producer snapshots and checkpoints, one disk at a time.

In a segment, bits flip only in committed and flushed batches below the recovery point, and only
while the disk of another ISR member has the batches intact. Above the recovery point, recovery
cannot distinguish a flipped bit from a write that a power cut tore.

Two things are never damaged: topics with one replica, which have no other copy, and a batch's
leader epoch, which no checksum covers. The first batch of a log is damaged more often than other
batches, to test a truncation there: it leaves an empty log.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from sim.process import DIRECTORY, Process
from support.memory_files import MemFiles
from support.stored import verify

from broker_lite.errors import LogbusError
from broker_lite.model import PartitionKey
from broker_lite.record.batch import BatchHeader
from broker_lite.record.format import HEADER_BYTES, LENGTH_PREFIX_BYTES, POSITION_MAGIC
from broker_lite.storage import paths
from broker_lite.storage.checkpoint import CorruptCheckpoint, read_offsets
from broker_lite.storage.scan import walk_batches

if TYPE_CHECKING:
    from sim.cluster import SimCluster

CHECKPOINTS = (paths.RECOVERY_POINTS, paths.LOG_STARTS)

FIRST_OF_ALL = 0.25
"""Probability that the corrupt batch is the first of its log."""
LEADER_EPOCH_BYTES = range(LENGTH_PREFIX_BYTES, POSITION_MAGIC)
BESIDE = (paths.INDEX, paths.TIME_INDEX, paths.SNAPSHOT)


class Rot:
    """Damages disks of one cluster, and records the present and past damage."""

    def __init__(self, cluster: SimCluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self.directory_id = ""
        """The id of the damaged broker directory, or "" after its repair."""
        self.keys: list[PartitionKey] = []
        """Partitions whose segments may be damaged."""
        self.struck: dict[int, dict[PartitionKey, range]] = {}
        """For each broker, the logs that were damaged, and the offsets of the last damage."""
        self.struck_disks: set[str] = set()
        """Every directory that was ever damaged."""
        self.own_disks: set[str] = set()
        """Ids of the broker directories with which brokers started, except spare directories."""
        self.struck_at: tuple[PartitionKey, range] | None = None
        """The last corrupt batch, until a consumer has started inside it."""
        self._process_number = -1

    def strike(self, process: Process) -> None:
        """Flip a bit on this broker's disk, unless another disk still has damage."""
        logs, files = process.logs, process.files
        if self._cluster.options.replication_factor == 1:
            return
        if logs is None or logs.data.directory_id == self.directory_id or not self._is_whole():
            return
        if self._rng.random() < 0.7:
            self._strike_log(process.broker_id, logs.data.directory_id, files)
        else:
            self._strike_beside(logs.data.directory_id, files)
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
            # The recovery points may still name a log that was deleted since.
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
        # Flip half of the bits in the header, although it is much smaller than the body.
        within = self._rng.randrange(HEADER_BYTES if self._rng.random() < 0.5 else size)
        if within in LEADER_EPOCH_BYTES:
            return
        files.flip(path, position + within, self._rng.randrange(8))
        self._is_struck(directory_id, f"{key.topic_id[:3]}-{key.partition}", position + within)
        offsets = range(header.base_offset, header.next_offset)
        self.struck.setdefault(broker_id, {})[key] = offsets
        self.struck_at = key, offsets

    def _is_elsewhere(self, key: PartitionKey, directory_id: str) -> bool:
        """Return whether the ISR has a replica on a disk other than ``directory_id``,
        neither bad nor spare."""
        checker = self._cluster.checker
        state = checker.state(key)
        gone = checker.bad_disks | {directory_id}
        return state is not None and any(
            replica.directory_id not in gone and replica.directory_id in self.own_disks
            for replica in state.isr
        )

    def _strike_beside(self, directory_id: str, files: MemFiles) -> None:
        """Flip a bit in an index, a producer snapshot or a checkpoint."""
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
        """Return whether the last damaged disk has been repaired or is lost for good."""
        if not self.directory_id or self.directory_id in self._cluster.checker.bad_disks:
            return True
        for process in self._cluster.processes.values():
            logs = process.logs
            if logs is None or logs.data.directory_id != self.directory_id or not process.serving:
                continue
            # The damage to an index or checkpoint ends when another process starts on the disk: it
            # reads and rewrites them.
            if process.number == self._process_number or self.damage(process):
                return False
            self.directory_id = ""
            self._cluster.count("bits repaired")
            return True
        return False

    def damaged(self, process: Process, key: PartitionKey) -> range | None:
        """Return the offsets of a log's first committed batch that ``verify`` refuses, or None."""
        log = process.log(key)
        if log is None or key not in self.keys:
            return None
        found = verify(log, 0, self._cluster.checker.true_end(key))
        return range(found[0].first_offset, found[0].next_offset) if found else None

    def has_whole(self, process: Process, key: PartitionKey, offsets: range) -> bool:
        """Return whether a broker's log has intact batches for these offsets."""
        log = process.log(key)
        if log is None or log.log_end_offset < offsets.stop:
            return False
        return log.log_start_offset <= offsets.start and not verify(
            log, offsets.start, offsets.stop
        )

    def damage(self, process: Process) -> str:
        """Return a description of the first damage in this broker's logs, or an empty string."""
        for key in self.keys:
            log = process.log(key)
            if log is None:
                continue
            try:
                found = verify(log, 0, self._cluster.checker.true_end(key))
            except LogbusError as error:
                return f"{key}: {error!r}"
            if found:
                return f"{key}: {found[0]}"
        return ""


def _a_batch(
    files: MemFiles, directory: str, end: int, rng: random.Random, is_first: bool
) -> tuple[str, int, BatchHeader] | None:
    """Choose a batch below the offset ``end``; return its file, position and header."""
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
            break  # The rest of the file may be a write that a power cut tore.
    if not spans:
        return None
    return spans[0] if is_first else rng.choice(spans)
