"""Walk the batches of a log: bytes in, batches out, each held to the policy of its log.

``BatchWalker`` remembers where a log goes on, so one walker walks buffer after buffer. The first 21
bytes of a batch are outside its CRC, so the walker compares them with what the log must hold: the
offset that comes next, and a leader epoch that does not fall. Positions move by base offset + last
offset delta + 1, never by the record count. Called by brokers for files and for what followers
fetch, by clients for answers and for files in place; pure, one thread at a time.
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
"""A control record whose key has type 0, abort: its length, attributes, differences of time and
offset, the key's length, its version and its type. Kafka does not compress control batches."""


class WalkPolicy(NamedTuple):
    """What a walk demands of the batches of a log, and which of them it marks as void.

    ``allows_gaps``: offsets may be missing between batches, as in what compaction leaves in Kafka;
    in logbus's own logs a gap is corruption. ``orders_epochs``: leader epochs do not fall.
    ``checks_crc``: compute the CRC of every batch. ``leader_epoch``: no batch is of a later one
    (-1: not known). ``aborted``: (producer id, first offset) of the aborted transactions in reach,
    as a fetch with read_committed lists them.
    """

    allows_gaps: bool = False
    orders_epochs: bool = True
    checks_crc: bool = False
    leader_epoch: int = NO_EPOCH
    aborted: Sequence[tuple[int, int]] = ()


class LogBatch(NamedTuple):
    """A batch of a log: its header, exactly its bytes (none in a walk over headers), the position
    of its first byte. ``is_void``: no reader may see its rows, or it has none. It is a control
    batch, it belongs to an aborted transaction, or compaction left only its header."""

    header: BatchHeader
    buffer: memoryview = _NO_BYTES
    position: int = 0
    is_void: bool = False


_new_batch = partial(tuple.__new__, LogBatch)
"""As ``LogBatch(...)``, in a third of the time."""


class BadBatch(Exception):
    """The bytes at ``position`` are not the batch that begins with or holds ``offset``.

    ``header`` is set when only the checksum is wrong, so that a reader can step over the batch.
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
    """Walks one log from ``offset`` on, whose bytes begin at ``position`` and stop at ``end``.

    The first batch may begin before ``offset``, which it must hold, unless ``at_boundary``.
    ``epoch``: no batch is of an earlier leader epoch. All but ``end`` move with each batch.
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
        """Of the batch that the last buffer ended in; 0 where not even its header was there."""
        self.policy = policy
        self._aborting = sorted(policy.aborted, key=lambda row: row[1], reverse=True)
        """Aborted transactions that begin later: the next one last."""
        self._aborted_ids: set[int] = set()
        """Producers whose aborted transaction is open at ``offset``."""

    def walk(self, data: Buffer, *, headers_only: bool = False) -> Iterator[LogBatch]:
        """Yield the whole batches of ``data``, which begins at ``position``.

        ``headers_only``: also those of which ``data`` holds only the header, all without bytes.
        Raises BadBatch, behind the good batches, for bytes that break the policy.
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
                    reason = f"offsets {base} to {following - 1} do not continue"
                    raise BadBatch(position, expected, reason)
            if orders_epochs and (epoch < self.epoch or epoch > latest >= 0):
                reason = f"leader epoch {epoch} is out of place after epoch {self.epoch}"
                raise BadBatch(position, expected, reason)
            if position + length > end:
                raise BadBatch(position, expected, f"the batch is cut: it takes {length} bytes")
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
        """Whether a batch belongs to an aborted transaction, which its abort marker ends."""
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
