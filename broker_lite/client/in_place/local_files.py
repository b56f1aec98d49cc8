"""Read a range of a segment file of a broker on the same machine.

A broker may answer a fetch from its own machine (``machine_id``) with file positions instead of
records. A reader with permission to open the file reads it directly. The file is not memory-mapped.
Its bytes are copied once, then walked and checked like received bytes. So a truncated or rewritten
file looks corrupt, and the caller fetches the range from the broker. All errors are OSError. One
thread uses an object.
"""

from __future__ import annotations

import errno
import os
import stat

from broker_lite.client.in_place.disk_parts import DIRECT, NOWAIT, DiskParts, is_in_memory
from broker_lite.client.received import WalkResult, walk
from broker_lite.client.transport.received_buffers import received_buffers
from broker_lite.model import TopicPartition
from broker_lite.record.format import HEADER_BYTES
from broker_lite.record.walker import BatchWalker
from broker_lite.wire.fetch import StoredRange

FILE_BYTES = 64 << 20
"""Maximum bytes of one range. A range takes no memory. After a range, the reader asks the broker
again, which knows the log's new end."""
READ_BYTES = 1 << 20
"""Approximate bytes of one read, small enough for the processor's cache."""
AHEAD_BYTES = 8 << 20
"""Bytes that the reader lets the kernel read ahead in a file that is not cached."""
_AHEAD_STEP = 128 << 10
"""Bytes of one read-ahead call to the kernel, whose default limit is 128 KiB."""
PASSING_BYTES_MAX = 4 << 20
"""Maximum bytes of a batch that direct I/O reads. A larger batch is read through the page cache."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_NOTHING = memoryview(b"")


class LocalRange:
    """A file range of a broker's segment file, which one thread reads sequentially. Raises OSError
    if the file cannot be opened.

    With ``reads_once``, bytes read from the disk do not stay in the page cache. A backlog then
    reuses a few MB of memory and evicts no pages of other readers. Pages that were cached before
    stay cached. Readers of the same cold backlog each read the disk.

    ``reads_once`` uses direct I/O (``DiskParts``). Without O_DIRECT, pages are dropped after the
    read, in stretches of ``AHEAD_BYTES``; a partly cached stretch is dropped as a whole.
    """

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
        """Stretches of the file that were read from the disk and are still in the page cache."""
        self._stored = stored
        self._may_pass_cache = reads_once and DIRECT != 0
        self._parts: DiskParts | None = None
        self._rest = _NOTHING
        """Undecoded bytes at the end of the last part: the begin of a batch."""
        self._fd = _open(stored)
        if self._may_pass_cache:
            # A probe of the page cache must not load more pages than the one that it tests.
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)

    @property
    def is_read(self) -> bool:
        """Return whether ``read`` has returned the whole range."""
        return self._position >= self._end

    def read(self) -> WalkResult:
        """Return the next whole batches.

        The result has no batch if ``damage`` is set or the file ends before the range does.
        """
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
        # The buffer also holds the next batch's header: its size sets the next read.
        self._batch_bytes = self._walker.needed_bytes
        return walked

    def _walk(self, data: memoryview) -> WalkResult:
        return walk(data, self._walker, self._tp)

    def _advance(self, walked: WalkResult) -> int:
        """Advance past the batches of ``walked``, and return their size in bytes."""
        size = sum(batch.header.size_bytes for batch in walked.batches)
        self._position += size
        self._drop_cached(self._position)
        return size

    def _passes_cache(self) -> bool:
        """Return whether to use direct I/O, because some of the next bytes are not cached.

        The first bytes of a range are often cached, because the broker has looked up its start.
        """
        if self._parts is None and self._may_pass_cache:
            last = min(self._position + READ_BYTES, self._end) - 1
            begins = is_in_memory(self._fd, self._position)
            if not begins or not is_in_memory(self._fd, last):
                self._pass_cache(last, begins)
        return self._parts is not None

    def _pass_cache(self, looked_at: int, begins_in_memory: bool) -> None:
        try:
            fd = _open(self._stored, DIRECT)
        except OSError:  # The file system does not support direct I/O, or the file was removed.
            self._may_pass_cache = False
            return
        if begins_in_memory:  # The probe at ``looked_at`` has started to read its page.
            page = looked_at - looked_at % _PAGE_BYTES
            self._brought.append((page, min(page + _PAGE_BYTES, self._end)))
        self._parts = DiskParts(
            self._fd, fd, self._position, self._end, probed=not begins_in_memory
        )

    def _read_parts(self) -> WalkResult | None:
        """Return the next batches by direct I/O.

        On a read error or an oversized batch, return None and use the page cache from then on.
        """
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
        """Read bytes into ``buffer``, and return their number. Cached bytes are read at once. For
        other bytes, start a read-ahead and read from the disk."""
        try:
            count = os.preadv(self._fd, [buffer], position, NOWAIT)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EOPNOTSUPP):
                raise
            count = 0
        if count == len(buffer):
            return count
        self._read_ahead(position + count, len(buffer) - count)
        return count + os.preadv(self._fd, [buffer[count:]], position + count)

    def _read_ahead(self, position: int, at_least: int) -> None:
        start = max(self._ahead_until, position)
        stop = min(position + max(AHEAD_BYTES, at_least), self._end)
        for at in range(start, stop, _AHEAD_STEP):
            os.posix_fadvise(self._fd, at, _AHEAD_STEP, os.POSIX_FADV_WILLNEED)
        if self._reads_once and start < stop:
            self._brought.append((start, stop))
        self._ahead_until = max(start, stop)

    def _drop_cached(self, until: int) -> None:
        """Drop pages of whole stretches before ``until`` from the page cache, beginning where the
        previous call ended."""
        while self._brought and self._brought[0][1] <= until:
            start, stop = self._brought.pop(0)
            start -= start % _PAGE_BYTES
            os.posix_fadvise(self._fd, start, stop - start, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        self._leave_parts()
        if self._fd >= 0:
            self._drop_cached(self._end)
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _open(stored: StoredRange, how: int = 0) -> int:
    """Open the broker's file. Raises OSError if the path names a file with another device or
    inode."""
    flags = how | os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(stored.path, flags)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) != (
        stored.device,
        stored.inode,
    ):
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, "the path now names another file", stored.path)
    return fd
