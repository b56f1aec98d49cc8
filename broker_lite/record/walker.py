"""Walk the batches of a log and check each against the log's policy.

``BatchWalker`` keeps the next offset, so one walker handles consecutive buffers. The CRC does not
cover the first 21 bytes of a batch, so the walker checks them: the offset must continue the log,
and the leader epoch must not fall. The next offset is base offset + last offset delta + 1, because
the record count does not include gaps. Brokers walk their files and replica fetches, clients walk
answers and local files. A walker serves one thread at a time.
"""

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
"""Pattern of the first bytes of an abort marker (key type 0): length, attributes, timestamp and
offset deltas, key length, version, type. Kafka never compresses control batches."""


class WalkPolicy(NamedTuple):
    """The checks of a walk, and the aborted transactions whose batches it marks as void.

    - ``allows_gaps``: offsets may be missing between batches, as after Kafka's compaction. In
      logbus's own logs a gap is corruption.
    - ``orders_epochs``: leader epochs must not fall.
    - ``checks_crc``: the walk computes every batch's CRC.
    - ``leader_epoch``: the maximum leader epoch of a batch (-1 if unknown).
    - ``aborted``: (producer id, first offset) of aborted transactions, as a read_committed fetch
      lists them.
    """

    allows_gaps: bool = False
    orders_epochs: bool = True
    checks_crc: bool = False
    leader_epoch: int = NO_EPOCH
    aborted: Sequence[tuple[int, int]] = ()


class LogBatch(NamedTuple):
    """A batch of a log: its header, its bytes (none in a walk over headers) and its position.

    With ``is_void``, readers must skip the batch. It is a control batch, a batch of an aborted
    transaction, or a header without records after compaction.
    """

    header: BatchHeader
    buffer: memoryview = _NO_BYTES
    position: int = 0
    is_void: bool = False


_new_batch = partial(tuple.__new__, LogBatch)
"""A function that creates a ``LogBatch`` in a third of the time of ``LogBatch(...)``."""


class BadBatch(Exception):
    """The bytes at ``position`` are not a valid batch that starts at or contains ``offset``.

    ``header`` is set if only the checksum is wrong, so that a reader can skip the batch.
    """

    def __init__(
        self, position: int, offset: int, reason: str, header: BatchHeader | None = None
    ) -> None:
        super().__init__(f"offset {offset} at byte {position}: {reason}")
        self.position = position
        self.offset = offset
        self.reason = reason
        self.header = header


class BatchWalker:
    """A walk over one log from ``offset`` on. Its bytes start at ``position`` and stop at ``end``.

    Unless ``at_boundary``, the first batch may start before ``offset`` but must contain it.
    ``epoch`` is the minimum leader epoch. All values but ``end`` advance with each batch.
    """

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
        """Size in bytes of the batch that the last buffer contained only in part. 0 if even the
        batch's header was incomplete."""
        self.policy = policy
        self._aborting = sorted(policy.aborted, key=lambda row: row[1], reverse=True)
        """Aborted transactions that begin after the walker's offset, in descending order of their
        first offset."""
        self._aborted_ids: set[int] = set()
        """Producer ids whose aborted transaction is open at ``offset``."""

    def walk(self, data: Buffer, *, headers_only: bool = False) -> Iterator[LogBatch]:
        """Yield the whole batches of ``data``, which starts at ``position``.

        With ``headers_only``, batches have no bytes, and a last batch with only its header present
        is yielded too. Raises BadBatch after the valid batches if bytes violate the policy.
        """
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
        """Return whether a batch belongs to an aborted transaction. An abort marker ends the
        transaction."""
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
