"""``LocalRange``: reads records from a segment file of a broker on the same machine.

A broker may answer a fetch that names its own machine (``machine_id``) with a position in its
segment file. A reader that can open the file (``segment_file``) reads it directly. The bytes are
copied once (the file is not memory-mapped), then split and checked like bytes from the network. If
the broker truncated or rewrote the file during the read, the bytes look corrupt, and the caller
fetches the records from the broker. Every error raised is an OSError. Only one thread may use a
``LocalRange``."""

from __future__ import annotations

import errno
import os

from broker_lite.client.in_place.disk_parts import DIRECT, NOWAIT, DiskParts, is_in_memory
from broker_lite.client.in_place.segment_file import SegmentFile
from broker_lite.client.received import WalkResult, walk
from broker_lite.client.transport.received_buffers import received_buffers
from broker_lite.model import TopicPartition
from broker_lite.record.format import HEADER_BYTES
from broker_lite.record.walker import BatchWalker
from broker_lite.wire.fetch import StoredRange

FILE_BYTES = 64 << 20
"""Maximum bytes that a reader on the broker's machine reads from segment files after one fetch.

The reader then fetches again, and so learns of records that have arrived since."""
READ_BYTES = 1 << 20
"""Approximate bytes of one read, small enough for the processor's cache."""
AHEAD_BYTES = 8 << 20
"""Bytes that the kernel reads ahead for the reader if the file is not in the page cache."""
_AHEAD_STEP = 128 << 10
"""Bytes of one call to make the kernel read ahead. By default the kernel ignores larger
requests."""
PASSING_BYTES_MAX = 4 << 20
"""Batches larger than this (bytes) are read through the page cache, not with direct I/O: the space
for a batch's beginning in a direct buffer (``FRONT_BYTES``) is not larger."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_NOTHING = memoryview(b"")


class LocalRange:
    """Reads a range of a broker's segment file, batch by batch. Raises OSError if the file cannot
    be opened.

    With ``reads_once``, bytes read from the disk do not stay in the page cache, so that a reader of
    a long backlog evicts no pages of other readers. Uncached bytes are read with direct I/O
    (``DiskParts``), so two readers of a backlog both read it from the disk. Cached pages stay
    cached. Without O_DIRECT, the reader evicts pages after the read, ``AHEAD_BYTES`` at a time,
    even pages that were cached before."""

    def __init__(
        self,
        stored: StoredRange,
        walker: BatchWalker,
        tp: TopicPartition,
        *,
        reads_once: bool = False,
    ) -> None:
        self._walker = walker
        self._tp = tp
        self._position = stored.position
        self._end = stored.position + stored.length
        self._ahead_until = stored.position
        self._batch_bytes = 0
        self._reads_once = reads_once
        self._brought: list[tuple[int, int]] = []
        """Ranges that this reader brought into the page cache, to be evicted after they are
        read."""
        self._may_pass_cache = reads_once and DIRECT != 0
        self._parts: DiskParts | None = None
        self._rest = _NOTHING
        """The last disk read's undecoded bytes: the beginning of a batch."""
        self._file = SegmentFile(stored, may_pass_cache=self._may_pass_cache)
        if self._may_pass_cache:
            # Turn off readahead: ``is_in_memory`` should bring only the page that it tests into the
            # page cache.
            os.posix_fadvise(self._file.fd, 0, 0, os.POSIX_FADV_RANDOM)

    @property
    def is_read(self) -> bool:
        """Whether ``read`` has returned the whole range."""
        return self._position >= self._end

    def read(self) -> WalkResult:
        """Return the next whole batches of the range.

        The result has no batches if the bytes are corrupt (``damage``) or the file ends before the
        range does."""
        if self._passes_cache():
            walked = self._read_parts()
            if walked is not None:
                return walked
        size = max(READ_BYTES // max(self._batch_bytes, 1), 1) * self._batch_bytes + HEADER_BYTES
        data = self._pread(size if self._batch_bytes else READ_BYTES)
        walked = self._walk(data)
        needed = self._walker.needed_bytes
        if not walked.batches and len(data) < needed <= self._end - self._position:
            walked = self._walk(self._pread(needed + HEADER_BYTES))
        self._advance(walked)
        # The buffer also has the header of the next batch. The batch length in this header
        # determines how many bytes the next read takes.
        self._batch_bytes = self._walker.needed_bytes
        return walked

    def _walk(self, data: memoryview) -> WalkResult:
        return walk(data, self._walker, self._tp)

    def _advance(self, walked: WalkResult) -> int:
        size = sum(batch.header.size_bytes for batch in walked.batches)
        self._position += size
        self._drop_cached(self._position)
        return size

    def _passes_cache(self) -> bool:
        """Return whether to read the next bytes with direct I/O, because some are not in the page
        cache.

        Tests the last byte too: the first is often cached, because the broker reads it to find the
        range."""
        if self._parts is None and self._may_pass_cache:
            last = min(self._position + READ_BYTES, self._end) - 1
            begins = is_in_memory(self._file.fd, self._position)
            if not begins or not is_in_memory(self._file.fd, last):
                self._pass_cache(last, begins)
        return self._parts is not None

    def _pass_cache(self, looked_at: int, begins_in_memory: bool) -> None:
        try:
            fd = self._file.open_direct()
        except OSError:
            # Read the open descriptor through the page cache: the file system does not support
            # direct I/O, or the file was removed and cannot be opened again.
            self._may_pass_cache = False
            return
        # The test whether ``looked_at`` is in the page cache may itself have read that page into
        # the cache: drop the page later.
        if begins_in_memory:
            page = looked_at - looked_at % _PAGE_BYTES
            self._brought.append((page, min(page + _PAGE_BYTES, self._end)))
        self._parts = DiskParts(
            self._file.fd, fd, self._position, self._end, probed=not begins_in_memory
        )

    def _read_parts(self) -> WalkResult | None:
        """Return the next batches, read with direct I/O.

        After a read error, or before a batch larger than PASSING_BYTES_MAX, return None; the range
        is then read through the page cache."""
        assert self._parts is not None
        data = self._rest
        while True:
            walked = self._walk(data)
            needed = max(HEADER_BYTES, self._walker.needed_bytes)
            if walked.batches or not len(data) < needed <= self._end - self._position:
                break
            try:
                more = self._parts.take(data) if needed <= PASSING_BYTES_MAX else None
            except OSError:
                more = None
            if more is None:
                self._may_pass_cache = False
                self._leave_parts()
                return None
            if len(more) == len(data):
                break
            data = more
        self._rest = data[self._advance(walked) :]
        if not self._parts.is_under_way:
            self._leave_parts()
        return walked

    def _leave_parts(self) -> None:
        if self._parts is not None:
            self._parts.close()
        self._parts, self._rest = None, _NOTHING

    def _pread(self, size: int) -> memoryview:
        size = min(size, self._end - self._position)
        buffer = received_buffers.take(size)
        done = 0
        while done < size:
            count = self._read_into(buffer[done:], self._position + done)
            if count == 0:
                break
            done += count
        return buffer[:done]

    def _read_into(self, buffer: memoryview, position: int) -> int:
        """Read bytes at ``position`` into ``buffer``, and return their number.

        If some of them are not in the page cache, make the kernel read ahead, and wait for the
        disk."""
        try:
            count = os.preadv(self._file.fd, [buffer], position, NOWAIT)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EOPNOTSUPP):
                raise
            count = 0
        if count == len(buffer):
            return count
        self._read_ahead(position + count, len(buffer) - count)
        return count + os.preadv(self._file.fd, [buffer[count:]], position + count)

    def _read_ahead(self, position: int, at_least: int) -> None:
        start = max(self._ahead_until, position)
        stop = min(position + max(AHEAD_BYTES, at_least), self._end)
        for at in range(start, stop, _AHEAD_STEP):
            os.posix_fadvise(self._file.fd, at, _AHEAD_STEP, os.POSIX_FADV_WILLNEED)
        if self._reads_once and start < stop:
            self._brought.append((start, stop))
        self._ahead_until = max(start, stop)

    def _drop_cached(self, until: int) -> None:
        """Evict the ranges before ``until`` that this reader brought into the page cache."""
        while self._brought and self._brought[0][1] <= until:
            start, stop = self._brought.pop(0)
            start -= start % _PAGE_BYTES
            os.posix_fadvise(self._file.fd, start, stop - start, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        self._leave_parts()
        if self._file.fd >= 0:
            self._drop_cached(self._end)
        self._file.close()
