"""Prepare offset ranges of a log for a fetch answer: find them, load them into the page cache,
check their CRCs, and convert column batches to rows for clients that read only rows.

A column batch is a batch in logbus's own column format. ``prepare`` may read the disk, so it runs
on read threads. ``read_resident`` reads only the page cache and runs on the event loop's thread.

A read needs memory for ``CHUNK_BYTES`` or one batch, whichever is larger. Converted rows take at
most ``TRANSCODED_BYTES_MAX``. For a batch that needs more, ``prepare`` raises ``OversizedBatch``;
the caller then reserves the memory and calls again."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from broker_lite.errors import CorruptMessageError, LogbusError, UndecodableBatchError
from broker_lite.model import NO_EPOCH
from broker_lite.record.batch import BatchHeader, check_crc, decompressed_bytes
from broker_lite.record.walker import BadBatch, BatchWalker, WalkPolicy
from broker_lite.storage.reader import LogReader, LogSlice, read_failure
from broker_lite.storage.scan import walk_range
from broker_lite.wire.fetch import AbortedTransaction, FileRange, HasFileno, Part, StoredRange

CHUNK_BYTES = 1 << 20
"""Bytes that one read of a segment file loads."""
PROBE_STEP_BYTES = 256 << 10
"""Distance in bytes between the positions that ``is_resident`` probes in the page cache.

The kernel loads and evicts pages in runs of about this size (readahead)."""
TRANSCODED_BYTES_MAX = 4 << 20
"""Maximum bytes of the rows that were converted from logbus's column format for one answer.

They stay in memory until the client has received them."""
COPIED_BYTES_MAX = 16 << 10
"""A range of at most this many bytes is copied into the answer, which costs less than
``sendfile``."""
COPIED_TOTAL_MAX = 256 << 10
"""Maximum bytes copied into one answer for all its partitions; ``sendfile`` sends further
ranges."""
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
STORED_BYTES_MIN = 256 << 10
"""A range of at least this many bytes is answered with its place in a segment file.

A client on the same machine then reads the file itself. For a smaller range, opening the file costs
more than sending the bytes."""


class WantedRange(NamedTuple):
    """A range that a fetch asks for: a partition's batches from ``offset`` to below ``end_offset``.

    The range has at most ``max_bytes`` bytes."""

    reader: LogReader
    offset: int
    end_offset: int
    max_bytes: int
    check: bool
    """Whether to check CRCs: the client does not, and the broker did not do so recently."""
    rows_only: bool
    """Whether to convert column batches (logbus's own format) to rows, for a client that reads only
    rows."""
    lists_aborted: bool = False
    """Whether to list the aborted transactions of the range, for a client with read_committed."""
    by_file: bool = False
    """Whether a large range may be answered with its place in a segment file.

    The client is then on this machine, reads logbus's column format, and can open the segment
    files."""


class Prepared(NamedTuple):
    """A range of one partition that can be sent without a disk read."""

    parts: tuple[Part, ...] = ()
    """The bytes, or ranges of segment files, to send."""
    length: int = 0
    """Number of bytes in the range."""
    checked_end: int = -1
    """The offset after the last batch whose CRC this read has checked; -1 if it checked none."""
    error: LogbusError | None = None
    error_offset: int = -1
    """The fetch offset at which ``error`` occurred; -1 without an error."""
    stored: StoredRange | None = None
    """The range's place in a segment file, if the client reads the range from this file;
    ``parts`` is then empty."""
    file: HasFileno | None = None
    """The open segment file that ``stored`` names."""
    next_offset: int = -1
    """The offset after the last batch of the range."""
    aborted: Sequence[AbortedTransaction] = ()
    """The aborted transactions with records in the range."""
    transcoded: int = 0
    """Number of column batches (logbus's own format) that were converted to rows for ``parts``."""


class OversizedBatch(Exception):
    """The first batch of a fetch is in logbus's column format. Decompressed for the conversion to
    rows, it is larger than the fetch allows."""

    def __init__(self, decompressed: int) -> None:
        super().__init__(f"a batch of columns decompresses to {decompressed} bytes")
        self.decompressed = decompressed
        """Bytes of the decompressed batch. With a ``transcoded_max`` of this size, ``prepare``
        succeeds."""


def prepare(
    requested: list[WantedRange], max_bytes: int, transcoded_max: int = TRANSCODED_BYTES_MAX
) -> list[Prepared]:
    """Return the ranges of one fetch, in order, with at most ``max_bytes`` bytes in all.

    The first range has at least one batch, even a larger one. Raises OversizedBatch if this batch
    must be converted to rows and decompresses to more than ``transcoded_max`` bytes."""
    try:
        return _prepare_all(requested, max_bytes, transcoded_max)
    finally:
        if transcoded_max > TRANSCODED_BYTES_MAX:
            _release_memory()


def _release_memory() -> None:
    """Return the memory of a large conversion to the operating system; Arrow would keep it in a
    pool."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()


def _prepare_all(
    requested: list[WantedRange], max_bytes: int, transcoded_max: int
) -> list[Prepared]:
    prepared: list[Prepared] = []
    left, may_copy = max_bytes, COPIED_TOTAL_MAX
    for row in requested:
        is_first = left == max_bytes
        if left <= 0:
            prepared.append(Prepared())
            continue
        try:
            first_max = transcoded_max if is_first else 0
            copied_max = min(may_copy, COPIED_BYTES_MAX)
            one = _prepare(row, min(row.max_bytes, left), first_max, copied_max)
            one = _with_aborted(row, one)
        except LogbusError as error:
            one = Prepared(error=error, error_offset=row.offset)
        except OSError as error:
            # Fail this partition only; the other partitions of the fetch are still answered.
            failed = read_failure(f"{row.reader.key} from offset {row.offset}", error)
            one = Prepared(error=failed, error_offset=row.offset)
        prepared.append(one)
        left -= one.length
        if one.length <= COPIED_BYTES_MAX:
            may_copy -= one.length
    return prepared


def read_resident(requested: list[WantedRange], max_bytes: int) -> list[Prepared] | None:
    """Return the ranges of one fetch from the page cache, without disk reads and CRC checks.

    Return None if a range is not in the page cache or cannot be read: call ``prepare`` on a read
    thread instead."""
    prepared: list[Prepared] = []
    left, may_copy = max_bytes, COPIED_TOTAL_MAX
    for row in requested:
        if left <= 0:
            prepared.append(Prepared())
            continue
        try:
            one = row.reader.read(
                row.offset, min(row.max_bytes, left), row.end_offset, left == max_bytes
            )
        except LogbusError:
            return None
        left -= one.length
        if row.by_file and one.length >= STORED_BYTES_MIN:
            prepared.append(_with_aborted(row, _by_file(one)))
            continue
        part = _resident_part(one, min(may_copy, COPIED_BYTES_MAX)) if one.length else b""
        if part is None:
            return None
        if not isinstance(part, FileRange):
            may_copy -= one.length
        parts = (part,) if one.length else ()
        prepared.append(
            _with_aborted(row, Prepared(parts, one.length, next_offset=one.next_offset))
        )
    return prepared


def _with_aborted(row: WantedRange, prepared: Prepared) -> Prepared:
    if not row.lists_aborted or not prepared.length:
        return prepared
    entries = row.reader.aborted_in(row.offset, prepared.next_offset)
    return prepared._replace(
        aborted=[AbortedTransaction(one.producer_id, one.first_offset) for one in entries]
    )


def _resident_part(log_slice: LogSlice, copied_max: int) -> Part | None:
    """Return a range as bytes, or, above ``copied_max`` bytes, as a range of the segment file.

    Return None if sending it would read the disk."""
    if log_slice.length > copied_max:
        if not is_start_resident(log_slice.file, log_slice.position):
            return None
        return FileRange(log_slice.file, log_slice.position, log_slice.length)
    copied = bytearray(log_slice.length)
    try:
        if (
            os.preadv(log_slice.file.fileno(), [copied], log_slice.position, _NOWAIT)
            != log_slice.length
        ):
            return None
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            return None
        return FileRange(log_slice.file, log_slice.position, log_slice.length)
    return copied


def _prepare(row: WantedRange, max_bytes: int, first_max: int, copied_max: int) -> Prepared:
    """Prepare one range of at most ``max_bytes`` bytes.

    With ``first_max`` above 0 the range has at least one batch, even one larger than ``max_bytes``.
    If this first batch must be converted to rows, it may decompress to ``first_max`` bytes. A range
    of at most ``copied_max`` bytes is copied into memory; a larger one is sent from the file."""
    log_slice = row.reader.read(row.offset, max_bytes, row.end_offset, first_max > 0)
    if log_slice.length == 0:
        return Prepared()
    if row.check or row.rows_only:
        walked = _walk(row, log_slice, max_bytes, first_max)
        if row.by_file and walked.length >= STORED_BYTES_MIN:
            shorter = log_slice._replace(length=walked.length, next_offset=walked.next_offset)
            return _by_file(shorter, walked.checked_end)
        return walked
    if row.by_file and log_slice.length >= STORED_BYTES_MIN:
        return _by_file(log_slice)
    return Prepared(
        (_part(log_slice, copied_max),), log_slice.length, next_offset=log_slice.next_offset
    )


def _part(log_slice: LogSlice, copied_max: int) -> Part:
    """Return a range as bytes, or, above ``copied_max`` bytes, as a range of the segment file.

    Load a file range into the page cache before returning it."""
    if log_slice.length <= copied_max:
        copied = log_slice.file.pread(log_slice.position, log_slice.length)
        if len(copied) == log_slice.length:
            return copied
    if not is_resident(log_slice.file, log_slice.position, log_slice.length):
        _warm(log_slice)
    return FileRange(log_slice.file, log_slice.position, log_slice.length)


def _by_file(log_slice: LogSlice, checked_end: int = -1) -> Prepared:
    """Return the place of the range in the segment file. The client, on this machine, reads the
    range there."""
    status = os.fstat(log_slice.file.fileno())
    path = os.path.abspath(log_slice.file.path)
    stored = StoredRange(path, status.st_dev, status.st_ino, log_slice.position, log_slice.length)
    return Prepared(
        (),
        log_slice.length,
        checked_end,
        stored=stored,
        file=log_slice.file,
        next_offset=log_slice.next_offset,
    )


def is_resident(file: HasFileno, position: int, length: int) -> bool:
    """Return whether a range of a file is in the page cache, judged by one byte in each
    ``PROBE_STEP_BYTES``.

    Return False too if a read fails or the kernel lacks non-blocking file reads (RWF_NOWAIT)."""
    probe = bytearray(1)
    end = position + length - 1
    try:
        for at in (*range(position, end, PROBE_STEP_BYTES), end):
            if os.preadv(file.fileno(), [probe], at, _NOWAIT) != 1:
                return False
    except OSError:
        return False
    return True


def is_start_resident(file: HasFileno, position: int) -> bool:
    """Return whether the first page of a range is in the page cache.

    The kernel evicts the oldest pages first, so in a range of recent appends, the later pages are
    then in the page cache, too."""
    try:
        return os.preadv(file.fileno(), [bytearray(1)], position, _NOWAIT) == 1
    except BlockingIOError:
        return False
    except OSError as error:
        return error.errno == errno.EOPNOTSUPP


def _warm(log_slice: LogSlice) -> None:
    end = log_slice.position + log_slice.length
    for position in range(log_slice.position, end, CHUNK_BYTES):
        log_slice.file.pread(position, min(CHUNK_BYTES, end - position))


def _walk(row: WantedRange, log_slice: LogSlice, max_bytes: int, first_max: int) -> Prepared:
    """Check the batches of the range one by one. For a client that reads only rows, convert those
    in logbus's column format."""
    out = _Parts(log_slice)
    checked_end = next_offset = -1
    transcoded = 0
    walker = BatchWalker(
        WalkPolicy(orders_epochs=False, checks_crc=row.check),
        row.offset,
        position=log_slice.position,
        end=log_slice.position + log_slice.length,
    )
    try:
        for batch in walk_range(log_slice.file, walker, CHUNK_BYTES):
            header = batch.header
            if row.check or header.is_columns:
                _check(row, header)
            if row.rows_only and header.is_columns:
                if not row.check:
                    check_crc(batch.buffer, header)
                with _undecodable(row, header):
                    size = decompressed_bytes(batch.buffer, header)
                if (out.length or not first_max) and out.length + size > max_bytes:
                    break
                if size > max(max_bytes, first_max):
                    raise OversizedBatch(size)
                rows = _as_rows(row, batch.buffer, header)
                if out.length and out.length + len(rows) > max_bytes:
                    break
                out.add_bytes(rows)
                transcoded += 1
            else:
                if out.length and out.length + header.size_bytes > max_bytes:
                    break
                out.add_range(batch.position, header.size_bytes)
            next_offset = header.next_offset
            if row.check:
                checked_end = header.next_offset
    except (BadBatch, CorruptMessageError) as error:
        # Return the intact batches before the corrupt one. The client's next fetch starts at the
        # corrupt batch and gets the error.
        if not out.length:
            row.reader.check_present(log_slice.segment, row.offset)
            damage = error if isinstance(error, LogbusError) else CorruptMessageError(str(error))
            return Prepared(error=damage, error_offset=row.offset)
    return Prepared(
        tuple(out.parts), out.length, checked_end, next_offset=next_offset, transcoded=transcoded
    )


def _as_rows(row: WantedRange, columns: memoryview, header: BatchHeader) -> bytearray:
    # Import here: the conversion to rows loads pyarrow and numpy, which takes long. Most brokers
    # never convert.
    from broker_lite.record.transcode import columns_to_rows

    with _undecodable(row, header):
        return columns_to_rows(columns, header)


@contextlib.contextmanager
def _undecodable(row: WantedRange, header: BatchHeader) -> Iterator[None]:
    """Raise UndecodableBatchError for a column batch that has a correct CRC but cannot be decoded.

    Its producer encoded it wrongly; no disk damaged it."""
    try:
        yield
    except CorruptMessageError as error:
        raise UndecodableBatchError(
            f"the batch of {row.reader.key} with offsets {header.base_offset} to "
            f"{header.last_offset} has a correct CRC, but its producer wrote columns that cannot "
            f"be decoded: {error.message}; "
            f"continue reading at offset {header.next_offset}"
        ) from error


def _check(row: WantedRange, header: BatchHeader) -> None:
    """Raise CorruptMessageError unless the batch's offsets and leader epoch agree with the log.

    The CRC covers neither the base offset nor the leader epoch."""
    base, following = header.base_offset, header.next_offset
    if following > row.end_offset:
        raise CorruptMessageError(
            f"a batch of {row.reader.key} has offsets {base} to {following - 1}, beyond the end of "
            f"the readable range, {row.end_offset}"
        )
    # If the log start offset is inside the batch, look up the epoch there, not at the base offset:
    # the leader epoch file has no entry before the log start.
    epoch = row.reader.epoch_at(max(base, row.reader.log_start_offset))
    if epoch not in (NO_EPOCH, header.leader_epoch):
        raise CorruptMessageError(
            f"the batch of {row.reader.key} at offset {base} has leader epoch "
            f"{header.leader_epoch}; the epoch file says {epoch}"
        )


class _Parts:
    """Collects the bytes and file ranges of one partition's answer, and merges adjacent file
    ranges."""

    __slots__ = ("_file", "_from", "_to", "length", "parts")

    def __init__(self, log_slice: LogSlice) -> None:
        self._file = log_slice.file
        self._from = self._to = -1
        self.length = 0
        self.parts: list[Part] = []

    def add_range(self, position: int, length: int) -> None:
        self.length += length
        if self.parts and self._to == position:
            self.parts[-1] = FileRange(self._file, self._from, position + length - self._from)
        else:
            self._from = position
            self.parts.append(FileRange(self._file, position, length))
        self._to = position + length

    def add_bytes(self, data: bytes | bytearray) -> None:
        self.length += len(data)
        self.parts.append(data)
        self._from = self._to = -1
