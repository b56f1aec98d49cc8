"""Stored ranges read out of a broker's files, where reader and broker are on one machine.

A fetch that proves to come from this machine (``machine_id``) may be answered by where the records
are stored; whoever may open that file reads it here, and the bytes pass no socket. Nothing is
mapped: bytes are copied once, then walked and checked like received ones, so a file that is cut or
written anew meanwhile is found out as damage, and the caller asks the broker for the bytes. Errors
are OSError. One object is used by one thread.
"""

from __future__ import annotations

import errno
import os
import stat

from broker_lite.client.in_place.disk_parts import DIRECT, NOWAIT, DiskParts, is_in_memory
from broker_lite.client.received import Walked, walk
from broker_lite.client.transport.rooms import received_rooms
from broker_lite.model import TopicPartition
from broker_lite.record.format import HEADER_BYTES
from broker_lite.record.walker import BatchWalker
from broker_lite.wire.fetch import StoredRange

FILE_BYTES = 64 << 20
"""Of one answer: it costs no memory, so only as little as keeps a query's reads near its end."""
READ_BYTES = 1 << 20
"""Whole batches of about so much are read at once: what stays in the cache is cheap to check."""
AHEAD_BYTES = 8 << 20
"""How far ahead a file that is not in memory is asked of its disk."""
_AHEAD_STEP = 128 << 10
"""What the kernel reads ahead for one call, unless it was told otherwise."""
PASSING_BYTES_MAX = 4 << 20
"""Of a batch that is read past the page cache."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_NOTHING = memoryview(b"")


class LocalRange:
    """One open range, read from its beginning on. OSError where the file is not to be had.

    ``reads_once``: what has to come from the disk does not stay in memory. A backlog then costs the
    memory of a few MB over and over, and pushes out nothing that others read; what was in memory
    before stays there, and readers of one cold backlog each read the disk. It comes past the page
    cache (``DiskParts``); where the file system does not have that it is let go of again once it
    was read, by stretches of ``AHEAD_BYTES``: of one that was in memory in part all of it goes.
    """

    def __init__(
        self,
        stored: StoredRange,
        walker: BatchWalker,
        where: TopicPartition,
        *,
        reads_once: bool = False,
    ) -> None:
        self._walker = walker
        self._where = where
        self._position = stored.position
        self._end = stored.position + stored.length
        self._asked = stored.position
        self._batch_bytes = 0
        self._reads_once = reads_once
        self._brought: list[tuple[int, int]] = []
        """Stretches that were not in memory before, and are not let go yet."""
        self._stored = stored
        self._may_pass_cache = reads_once and DIRECT != 0
        self._parts: DiskParts | None = None
        self._rest = _NOTHING
        """Of the parts: what lies at the position and is not a whole batch yet."""
        self._fd = _open(stored)
        if self._may_pass_cache:  # a look at what is in memory brings in no more than it looks at
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)

    @property
    def is_read(self) -> bool:
        """Whether all of it was handed out."""
        return self._position >= self._end

    def read(self) -> Walked:
        """The next whole batches, at least one; none where ``damage`` says why, or the file ends
        before the range does."""
        if self._passes_cache():
            found = self._read_parts()
            if found is not None:
                return found
        size = max(READ_BYTES // max(self._batch_bytes, 1), 1) * self._batch_bytes + HEADER_BYTES
        data = self._pread(size if self._batch_bytes else READ_BYTES)
        found = self._walk(data)
        needed = self._walker.needed_bytes
        if not found.batches and len(data) < needed <= self._end - self._position:
            found = self._walk(self._pread(needed + HEADER_BYTES))
        self._advance(found)
        # The next batch's header came too: what it says is how much to read, if it is alone.
        self._batch_bytes = self._walker.needed_bytes
        return found

    def _walk(self, data: memoryview) -> Walked:
        return walk(data, self._walker, self._where)

    def _advance(self, found: Walked) -> int:
        """Move behind the batches; how many bytes they take."""
        taken = sum(batch.header.size_bytes for batch in found.batches)
        self._position += taken
        self._let_go(self._position)
        return taken

    def _passes_cache(self) -> bool:
        """Whether what is next is to be read past the page cache: some of it is not there. (A
        broker that looks up where a range begins leaves the first pages of it there.)"""
        if self._parts is None and self._may_pass_cache:
            last = min(self._position + READ_BYTES, self._end) - 1
            begins = is_in_memory(self._fd, self._position)
            if not begins or not is_in_memory(self._fd, last):
                self._pass_cache(last, begins)
        return self._parts is not None

    def _pass_cache(self, looked_at: int, begins_in_memory: bool) -> None:
        try:
            fd = _open(self._stored, DIRECT)
        except OSError:  # not this file system, or nobody has this name for it any more
            self._may_pass_cache = False
            return
        if begins_in_memory:  # the look at the byte there began to read its page
            page = looked_at - looked_at % _PAGE_BYTES
            self._brought.append((page, min(page + _PAGE_BYTES, self._end)))
        self._parts = DiskParts(
            self._fd, fd, self._position, self._end, probed=not begins_in_memory
        )

    def _read_parts(self) -> Walked | None:
        """None, and all is read by way of the cache from here on, where the disk does not give it
        this way or a batch is too large to be put together of parts."""
        assert self._parts is not None
        data = self._rest
        while True:
            found = self._walk(data)
            needed = max(HEADER_BYTES, self._walker.needed_bytes)
            if found.batches or not len(data) < needed <= self._end - self._position:
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
        self._rest = data[self._advance(found) :]
        if not self._parts.is_under_way:
            self._leave_parts()
        return found

    def _leave_parts(self) -> None:
        if self._parts is not None:
            self._parts.close()
        self._parts, self._rest = None, _NOTHING

    def _pread(self, size: int) -> memoryview:
        size = min(size, self._end - self._position)
        buffer = received_rooms.take(size)
        done = 0
        while done < size:
            count = self._read_into(buffer[done:], self._position + done)
            if count == 0:
                break
            done += count
        return buffer[:done]

    def _read_into(self, buffer: memoryview, position: int) -> int:
        """What is in memory at once; else from the disk, which is told what comes next."""
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
        start = max(self._asked, position)
        stop = min(position + max(AHEAD_BYTES, at_least), self._end)
        for at in range(start, stop, _AHEAD_STEP):
            os.posix_fadvise(self._fd, at, _AHEAD_STEP, os.POSIX_FADV_WILLNEED)
        if self._reads_once and start < stop:
            self._brought.append((start, stop))
        self._asked = max(start, stop)

    def _let_go(self, until: int) -> None:
        """Of whole stretches only, from the page that the one before ended in."""
        while self._brought and self._brought[0][1] <= until:
            start, stop = self._brought.pop(0)
            start -= start % _PAGE_BYTES
            os.posix_fadvise(self._fd, start, stop - start, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Idempotent."""
        self._leave_parts()
        if self._fd >= 0:
            self._let_go(self._end)
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _open(stored: StoredRange, how: int = 0) -> int:
    """The very file that the broker has open, not another one that has its name here or now."""
    flags = how | os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(stored.path, flags)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) != (
        stored.device,
        stored.inode,
    ):
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, "another file has this name", stored.path)
    return fd
