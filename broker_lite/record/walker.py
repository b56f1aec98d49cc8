"""Go through the batches of a log in order, and check each of them.

``BatchWalker`` remembers the next offset, so the bytes of the log can be given to it in several
buffers, one after the other. It checks what the CRC of a batch does not cover: the offsets must
continue those of the batch before, and the leader epoch must not be lower. A ``WalkPolicy`` selects
the checks. Only one thread at a time may use a walker."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from broker_lite.errors import CorruptMessageError
from broker_lite.model import NO_EPOCH
from broker_lite.record import format as fmt
from broker_lite.record.batch import BatchHeader, Buffer, read_header
from broker_lite.record.crc32c import crc32c

_NO_BYTES = memoryview(b"")
_VARINT = rb"[\x80-\xff]*[\x00-\x7f]"
_ABORT_MARKER = re.compile(_VARINT + rb"." + _VARINT * 2 + rb"\x08..\x00\x00", re.DOTALL)
"""Pattern of the first bytes of the record in an abort marker: length, attributes, timestamp and
offset deltas, key length, version, type (0). Kafka never compresses markers."""


class WalkPolicy(NamedTuple):
    """What a ``BatchWalker`` checks, and which transactions it treats as aborted.

    - ``allows_gaps``: offsets may be missing between batches, as after Kafka's compaction. In
      logbus's own logs, a gap means that the log is corrupt.
    - ``orders_epochs``: the leader epoch of a batch must not be lower than that of the batch
      before.
    - ``checks_crc``: the CRC of every batch must be correct.
    - ``leader_epoch``: the maximum leader epoch that a batch may have, or -1 if it is unknown.
    - ``aborted``: the aborted transactions, as pairs of producer id and first offset, as a fetch
      with read_committed returns them."""

    allows_gaps: bool = False
    orders_epochs: bool = True
    checks_crc: bool = False
    leader_epoch: int = NO_EPOCH
    aborted: Sequence[tuple[int, int]] = ()


class LogBatch(NamedTuple):
    """A batch of a log: its header, its bytes (none with ``headers_only``) and its position.

    Readers must skip a batch with ``is_void``, which has no records for applications: a control
    batch, a batch of an aborted transaction, or one whose records compaction has all removed."""

    header: BatchHeader
    buffer: memoryview = _NO_BYTES
    position: int = 0
    is_void: bool = False


_new_batch = partial(tuple.__new__, LogBatch)
"""Creates a ``LogBatch`` in a third of the time of ``LogBatch(...)``."""


class BadBatch(Exception):
    """Raised if the bytes at ``position`` are not a valid batch that contains ``offset``, the next
    offset of the log. ``header`` is set only if nothing but the checksum is wrong; a reader can
    then skip the batch."""

    def __init__(
        self, position: int, offset: int, reason: str, header: BatchHeader | None = None
    ) -> None:
        super().__init__(f"offset {offset} at byte {position}: {reason}")
        self.position = position
        self.offset = offset
        self.reason = reason
        self.header = header


class BatchWalker:
    """Goes through the batches of one log, from ``offset`` on.

    ``position`` is the position of the next batch in the log, in bytes, and ``end`` the position at
    which the walk ends. If ``at_boundary``, the first batch must begin with ``offset``; otherwise
    that batch may begin earlier and contain ``offset``. ``epoch`` is the minimum leader epoch of
    the next batch. The walker updates all these attributes except ``end`` after each
    batch."""

    __slots__ = (
        "_aborted_ids", "_aborting", "at_boundary", "end", "epoch", "needed_bytes",
        "offset", "policy", "position",
    )  # fmt: skip

    def __init__(
        self,
        policy: WalkPolicy,
        offset: int,
        *,
        epoch: int = NO_EPOCH,
        at_boundary: bool = False,
        position: int = 0,
        end: int = sys.maxsize,
    ) -> None:
        self.offset = offset
        self.epoch = epoch
        self.at_boundary = at_boundary
        self.position = position
        self.end = end
        self.needed_bytes = 0
        """The size in bytes of the batch within which the last buffer ended; 0 if the buffer ended
        after a batch or within a header."""
        self.policy = policy
        self._aborting = sorted(policy.aborted, key=lambda row: row[1], reverse=True)
        """The aborted transactions that the walker has not reached yet, in descending order of
        their first offset."""
        self._aborted_ids: set[int] = set()
        """The ids of the producers with an aborted transaction that began before ``offset`` and
        whose abort marker is still to come."""

    def walk(self, data: Buffer, *, headers_only: bool = False) -> Iterator[LogBatch]:
        """Yield the complete batches in ``data``, the bytes of the log from ``position`` on.

        With ``headers_only``, yield the batches without their bytes; ``data`` may then end after
        the header of its last batch. Raises BadBatch, after the valid batches, if a batch fails a
        check."""
        allows_gaps, orders_epochs, checks_crc, latest, aborted = self.policy
        view = memoryview(data)
        at, size, end = 0, len(view), self.end
        self.needed_bytes = 0
        while size - at >= fmt.HEADER_BYTES:
            position, expected = self.position, self.offset
            try:
                header = read_header(view, at)
            except CorruptMessageError as error:
                raise BadBatch(position, expected, error.message) from None
            base, epoch = header.base_offset, header.leader_epoch
            following = base + header.last_offset_delta + 1
            length = header.length + fmt.LENGTH_PREFIX_BYTES
            stop = at + length
            if base != expected:
                if allows_gaps and following <= expected and not self.at_boundary:
                    at, self.position = stop, position + length
                    continue
                holds = base < expected < following and not self.at_boundary
                if not holds and not (allows_gaps and base > expected):
                    wrong = f"the batch has offsets {base} to {following - 1}"
                    reason = f"{wrong}, where offset {expected} must follow"
                    raise BadBatch(position, expected, reason)
            if orders_epochs and (epoch < self.epoch or epoch > latest >= 0):
                limit = f" to {latest}" if latest >= 0 else " and above"
                reason = f"the batch has leader epoch {epoch}; valid are {self.epoch}{limit}"
                raise BadBatch(position, expected, reason)
            if position + length > end:
                reason = f"the batch is cut: {end - position} of its {length} bytes are present"
                raise BadBatch(position, expected, reason)
            if headers_only:
                buffer = _NO_BYTES
            elif stop > size:
                self.needed_bytes = length
                return
            else:
                buffer = view[at:stop]
                if checks_crc and crc32c(buffer[fmt.CRC_FROM :]) != header.crc:
                    raise BadBatch(position, expected, "the checksum is wrong", header)
            is_void = not header.record_count or header.attributes & fmt.ATTRIBUTE_CONTROL != 0
            if aborted and self._is_aborted(header, buffer):
                is_void = True
            self.position, self.offset, self.epoch = position + length, following, epoch
            self.at_boundary = True
            at = stop
            yield _new_batch((header, buffer, position, is_void))

    def _is_aborted(self, header: BatchHeader, buffer: memoryview) -> bool:
        """Return whether a batch belongs to an aborted transaction. After an abort marker, later
        batches of its producer no longer belong to that transaction."""
        aborting, ids = self._aborting, self._aborted_ids
        while aborting and aborting[-1][1] <= header.last_offset:
            ids.add(aborting.pop()[0])
        if header.producer_id not in ids:
            return False
        if header.is_control:
            if crc32c(buffer[fmt.CRC_FROM :]) != header.crc:
                raise BadBatch(self.position, self.offset, "the checksum is wrong", header)
            if _ABORT_MARKER.match(buffer, fmt.HEADER_BYTES):
                ids.discard(header.producer_id)
            return True
        return header.is_transactional
