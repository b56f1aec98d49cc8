"""Make batches; write, verify, damage and reopen logs, for tests of storage."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from broker_lite.config import TopicConfig
from broker_lite.model import NO_EPOCH, PartitionKey
from broker_lite.record import format as fmt
from broker_lite.record.batch import BatchHeader, read_header
from broker_lite.record.crc32c import crc32c
from broker_lite.storage.log import Log, LogAppendInfo
from broker_lite.storage.manager import LogManager
from broker_lite.storage.reader import read_failure
from broker_lite.storage.scan import CorruptRange
from support.memory_files import MemFile, MemFiles

KEY = PartitionKey("topicAAAAAAAAAAAAAAAAA", 3)
DATA = "/data"
FOLDER = f"{DATA}/{KEY.topic_id}-{KEY.partition}"
RWF_DONTCACHE = 0x80
"""A flag of pwritev2 since Linux 6.14; Python has no constant for it."""
SMALL = TopicConfig(
    segment_bytes=4096, max_message_bytes=4096, index_interval_bytes=256, file_delete_delay_ms=10
)


def batch(
    rows: int = 1,
    *,
    size: int = 120,
    timestamp: int = 1000,
    producer: tuple[int, int, int] = (-1, -1, -1),
    attributes: int = 0,
    fill: int = 0x55,
) -> bytearray:
    """Return a batch of ``size`` bytes with a valid CRC and a body that cannot be decoded."""
    header = (0, size - 12, -1, fmt.MAGIC_ROWS, 0, attributes, rows - 1, timestamp, timestamp)
    data = bytearray(fmt.HEADER.pack(*header, *producer, rows))
    data += bytes([fill]) * (size - len(data))
    data[fmt.POSITION_CRC : fmt.CRC_FROM] = crc32c(bytes(data[fmt.CRC_FROM :])).to_bytes(4, "big")
    return data


def append(
    log: Log, data: bytearray | None = None, *, epoch: int = 1, now_ms: int = 0
) -> LogAppendInfo:
    data = batch() if data is None else data
    return log.append_as_leader(data, read_header(data), epoch, now_ms)


def stored(log: Log) -> list[BatchHeader]:
    """Read a log from start to end, check each batch, and return the batch headers."""
    found, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        piece = log.reader.read(offset, 1 << 20, log.log_end_offset)
        data, at = piece.read(), 0
        assert len(data) == piece.length and piece.length > 0
        while at < len(data):
            header = read_header(data, at)
            assert header.crc == crc32c(data[at + fmt.CRC_FROM : at + header.size_bytes])
            found.append(header)
            at += header.size_bytes
        assert found[-1].next_offset == piece.next_offset
        offset = piece.next_offset
    return found


def verify(log: Log, start: int, end: int) -> list[CorruptRange]:
    """Return the ranges of a log from ``start`` to ``end`` whose batches fail a check of checksum,
    offset order, length or leader epoch. Raise StorageError for an unreadable file."""
    reader, damage = log.reader, []
    start, end = max(start, reader.log_start_offset), min(end, reader.log_end_offset)
    try:
        for item in reader.checked_batches(start, end):
            if isinstance(item, CorruptRange):
                damage.append(item)
                continue
            segment, batch = item
            header, epoch = batch.header, reader.epoch_at(batch.header.base_offset)
            if epoch not in (NO_EPOCH, header.leader_epoch):
                reason = f"leader epoch {header.leader_epoch}, not {epoch}"
                at = (header.base_offset, header.next_offset, segment.base_offset, batch.position)
                damage.append(CorruptRange(reader.key, *at, header.size_bytes, reason, False))
    except OSError as error:
        raise read_failure(str(reader.key), error) from error
    return damage


def offsets(log: Log) -> list[int]:
    return [header.base_offset for header in stored(log)]


class Disk:
    """A data directory in memory, its log manager, and methods that damage its files."""

    def __init__(self, config: TopicConfig = SMALL, files: MemFiles | None = None) -> None:
        self.files = files or MemFiles(now_ms=lambda: self.now_ms)
        self.config = config
        self.now_ms = 0
        self.manager: LogManager
        self.start()
        self.manager.create(KEY, config)

    def start(self) -> Log | None:
        self.manager = LogManager(self.files, DATA, default_config=self.config)
        self.manager.data.start()
        self.manager.open_all(self.now_ms)
        return self.manager.get(KEY)

    @property
    def log(self) -> Log:
        log = self.manager.get(KEY)
        assert log is not None
        return log

    def write(self, count: int = 1, *, flush: bool = True, checkpoint: bool = False) -> None:
        for _ in range(count):
            append(self.log, now_ms=self.now_ms)
        if flush:
            self.log.flush()
        if checkpoint:
            self.manager.checkpoint()

    def fill(self, usable: int = 0) -> None:
        """Limit the free space of the simulated disk to ``usable`` bytes."""
        self.files.capacity_bytes = None
        total, free = self.files.space(DATA)
        self.files.capacity_bytes = total - free + usable

    def kill(self) -> None:
        """Kill the process that uses the disk; the page cache survives."""
        self.files.kill()

    def reopen_all(self) -> None:
        """Kill the process that uses the disk, and start a new process that loads all logs."""
        self.files.kill()
        self.start()

    def reopen(self, *, clean: bool = False) -> Log:
        if clean:
            self.manager.close_clean()
        self.files.kill()
        self.start()
        return self.log

    def lives(self) -> Iterator[Log]:
        """Yield the open log, then the log reopened after a clean stop, then reopened after a
        crash."""
        yield self.log
        yield self.reopen(clean=True)
        yield self.reopen()

    # The methods below damage the files of a stopped broker.

    def names(self, suffix: str = "") -> list[str]:
        return [name for name in self.files.list_dir(FOLDER) if name.endswith(suffix)]

    def open(self, name: str) -> MemFile:
        return self.files.open(f"{FOLDER}/{name}", writable=True)

    def content(self, name: str) -> bytes:
        file = self.open(name)
        return file.pread(0, file.size)

    def replace(self, name: str, data: bytes) -> None:
        file = self.open(name)
        file.truncate(0)
        file.append([data])

    def flip(self, name: str, position: int) -> None:
        data = bytearray(self.content(name))
        data[position] ^= 0xFF
        self.replace(name, bytes(data))

    def shrink(self, name: str, count: int) -> None:
        file = self.open(name)
        file.truncate(file.size - count)

    def grow(self, name: str, data: bytes) -> None:
        self.open(name).append([data])

    def remove(self, name: str) -> None:
        self.files.remove(f"{FOLDER}/{name}")

    def state(self) -> dict[str, bytes]:
        return {name: self.content(name) for name in self.names()}


def segment_name(base: int, suffix: str = ".log") -> str:
    return f"{base:020d}{suffix}"


def epochs(log: Log) -> Iterator[tuple[int, int]]:
    yield from log.leader_epochs.entries


ENOSPC, EIO = errno.ENOSPC, errno.EIO
