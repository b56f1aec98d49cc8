"""Read the batches of a log file: headers alone, or whole batches with their checksums.

``BatchWalker`` checks the bytes, chunk by chunk. ``resync`` finds the next valid batch after a bad
one. The functions only read, through an open file, on any thread."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from broker_lite.errors import CorruptMessageError
from broker_lite.model import NO_EPOCH, PartitionKey
from broker_lite.record import format as fmt
from broker_lite.record.batch import BatchHeader, check_crc, read_header
from broker_lite.record.crc32c import crc32c
from broker_lite.record.walker import BadBatch, BatchWalker, LogBatch, WalkPolicy
from broker_lite.storage.files import File

HEADERS_CHUNK_BYTES = 256 << 10
FAR_CHUNK_BYTES = 4 << 10
"""Bytes that ``walk_headers`` reads next, in place of a whole chunk, if the last batch ends more
than this number of bytes after the bytes read so far."""
BATCHES_CHUNK_BYTES = 4 << 20
SECTOR = 512
_OWN_LOG = WalkPolicy()

# Offsets stay below 2^48, so a batch begins with two zero bytes; its magic is the 17th byte.
_CANDIDATE = re.compile(rb"(?=\x00\x00.{14}[\x02\x41])", re.DOTALL)


class CorruptRange(NamedTuple):
    """A corrupt range: the offsets whose bytes failed a check, and the position of these bytes.

    With ``unreadable``, the batch header is broken or missing, so that no reader can skip to the
    next batch. Otherwise only the checksum or the leader epoch is wrong."""

    key: PartitionKey
    first_offset: int
    next_offset: int
    segment_base: int
    position: int
    length: int
    reason: str
    unreadable: bool

    def __str__(self) -> str:
        return (
            f"partition {self.key.partition} of topic {self.key.topic_id}: offsets "
            f"{self.first_offset} to {self.next_offset - 1} are corrupt ({self.reason}; byte "
            f"{self.position} of segment {self.segment_base})"
        )


def walk_headers(
    file: File,
    position: int,
    end: int,
    expected: int,
    epoch: int = NO_EPOCH,
    *,
    policy: WalkPolicy = _OWN_LOG,
    chunk_bytes: int = HEADERS_CHUNK_BYTES,
) -> Iterator[LogBatch]:
    """Yield each batch from byte ``position`` to byte ``end`` of the file, without its body.

    The first must have the offset ``expected``. ``policy`` names the checks. Raises BadBatch at the
    first batch that fails a check or is cut off."""
    walker = BatchWalker(
        policy, expected, epoch=epoch, at_boundary=True, position=position, end=end
    )
    size = chunk_bytes
    while position < end:
        data = file.pread(position, min(size, end - position))
        yield from walker.walk(data, headers_only=True)
        if walker.position == position:
            raise BadBatch(position, walker.offset, "the batch is cut within its header")
        is_far = walker.position > position + len(data) + FAR_CHUNK_BYTES
        size = FAR_CHUNK_BYTES if is_far else chunk_bytes
        position = walker.position


def walk_batches(
    file: File, position: int, end: int, expected: int, epoch: int = NO_EPOCH
) -> Iterator[LogBatch]:
    """Yield the batches that ``walk_headers`` yields, and check the checksum of each."""
    policy = _OWN_LOG._replace(checks_crc=True)
    walker = BatchWalker(
        policy, expected, epoch=epoch, at_boundary=True, position=position, end=end
    )
    return walk_range(file, walker)


def walk_range(
    file: File, walker: BatchWalker, chunk_bytes: int = BATCHES_CHUNK_BYTES
) -> Iterator[LogBatch]:
    """Yield the batches from ``walker.position`` to ``walker.end``. Read the bytes in chunks."""
    while walker.position < walker.end:
        position = walker.position
        size = min(max(chunk_bytes, walker.needed_bytes), walker.end - position)
        yield from walker.walk(file.pread(position, size))
        if walker.position == position and size >= walker.needed_bytes:
            raise BadBatch(position, walker.offset, "the file ends within the batch")


def read_batch(file: File, position: int, end: int) -> tuple[BatchHeader, bytes] | None:
    """Return the batch at ``position``, whatever its offset; None if its checksum is wrong."""
    head = file.pread(position, min(fmt.HEADER_BYTES, end - position))
    try:
        header = read_header(head)
    except CorruptMessageError:
        return None
    if header.size_bytes > end - position:
        return None
    data = file.pread(position, header.size_bytes)
    if crc32c(memoryview(data)[fmt.CRC_FROM :]) != header.crc:
        return None
    return header, data


def resync(file: File, position: int, end: int, offset: int) -> LogBatch | None:
    """Return the first valid batch at or after ``position`` with a base offset of at least
    ``offset``, or None.

    A record may itself contain the bytes of a batch, so a found batch counts only if another batch
    continues it, or the file ends after it."""
    while position < end:
        data = file.pread(position, min(BATCHES_CHUNK_BYTES + fmt.HEADER_BYTES, end - position))
        for match in _CANDIDATE.finditer(data):
            at = match.start()
            if at >= BATCHES_CHUNK_BYTES:
                break
            whole = read_batch(file, position + at, end)
            if whole is None or whole[0].base_offset < offset:
                continue
            header, after = whole[0], position + at + whole[0].size_bytes
            if after == end or _continues(file, after, end, header.next_offset):
                return LogBatch(header, position=position + at)
        position += BATCHES_CHUNK_BYTES
    return None


def _continues(file: File, position: int, end: int, expected: int) -> bool:
    whole = read_batch(file, position, end)
    return whole is not None and whole[0].base_offset == expected


def is_whole(file: File, bad: BadBatch, end: int) -> bool:
    """Return whether a bad batch was written completely and damaged later.

    True if all its bytes are present or valid batches follow it, and none of its sectors is all
    zeros. A sector of zeros means that a power cut interrupted the write."""
    if bad.header is not None:
        beyond = bad.position + bad.header.size_bytes
    else:
        again = resync(file, bad.position + 1, end, bad.offset + 1)
        if again is None:
            return False
        beyond = again.position
    # A small batch may contain no whole sector, so also check the first sector that begins after
    # it.
    for at in range(-(-bad.position // SECTOR) * SECTOR, min(beyond + SECTOR, end), SECTOR):
        if not file.pread(at, min(SECTOR, end - at)).strip(b"\x00"):
            return False
    return True


def continuing_headers(
    key: PartitionKey, buffer: memoryview, end_offset: int, leader_epoch: int, *, may_overlap: bool
) -> list[BatchHeader]:
    """Return the checked headers of a leader's batches that continue a log ending at
    ``end_offset``.

    Stops before a batch with an epoch above ``leader_epoch`` and before an incomplete batch. With
    ``may_overlap`` the first batch may begin before ``end_offset``. Raises CorruptMessageError."""
    headers: list[BatchHeader] = []
    walker = BatchWalker(_OWN_LOG, end_offset, epoch=0, at_boundary=not may_overlap)
    try:
        for batch in walker.walk(buffer):
            if batch.header.leader_epoch > leader_epoch:
                break
            check_crc(batch.buffer, batch.header)
            headers.append(batch.header)
    except BadBatch as bad:
        raise CorruptMessageError(
            f"{key}: the leader sent a bad batch at offset {bad.offset}: {bad.reason}"
        ) from None
    return headers
