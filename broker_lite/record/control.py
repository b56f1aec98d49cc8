"""Encode and decode control batches: the markers that commit or abort a producer's transaction in
one partition.

A marker is a batch of rows with one record, which takes one offset. The record's key is a version
and a type (0 abort, 1 commit). Its value is a version and the coordinator epoch. Applications never
receive markers."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from broker_lite.model import NO_OFFSET
from broker_lite.record import format as fmt
from broker_lite.record.batch import BatchHeader, Buffer, read_header, set_crc

_ABORT, _COMMIT = 0, 1
_RECORD = struct.Struct(">BbBBBhhBhiB")
"""Layout of a marker's record: length, attributes, timestamp and offset deltas, key length, key
(version, type), value length, value (version, coordinator epoch), header count."""
_LENGTH, _KEY_LENGTH, _VALUE_LENGTH = 2 * (_RECORD.size - 1), 2 * 4, 2 * 6
"""The three lengths in the record of a transaction marker, as zigzag varints of one byte. Such a
byte is twice the encoded number."""
MARKER_BYTES = fmt.HEADER_BYTES + _RECORD.size


class Marker(NamedTuple):
    """A marker that a transaction's coordinator asks the leader of a partition to write, to end the
    transaction of one producer in the partition."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    raises_epoch: bool = False
    """Whether ``producer_epoch`` is one higher than in the batches of the transaction, as in
    transaction version 2."""
    transaction_number: int = -1
    """The number of the transaction, which its coordinator counts for each transactional id; -1 if
    unknown. The log does not store it."""
    last_offset: int = NO_OFFSET
    """The ``OpenTransaction.last_offset`` of the transaction to end. The log refuses the marker if
    the transaction has ended or has a later batch. -1 ends any open transaction."""


class OpenTransaction(NamedTuple):
    """A transaction without a marker in a partition's log.

    ``first_offset`` and ``last_offset`` are the base offsets of its first and its last batch.
    ``coordinator_epoch`` is that of the producer's last marker in the log, or -1."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    first_offset: int
    last_offset: int

    def marker(self, is_commit: bool) -> Marker:
        """Return a marker that ends this transaction, and no later one of the same producer."""
        return Marker(
            self.producer_id,
            self.producer_epoch,
            max(self.coordinator_epoch, 0),
            is_commit,
            last_offset=self.last_offset,
        )


class EndOfTransaction(NamedTuple):
    """The decoded content of a transaction marker."""

    is_commit: bool
    coordinator_epoch: int


def encode_markers(
    markers: Sequence[Marker], base_offset: int, leader_epoch: int, now_ms: int
) -> tuple[bytearray, tuple[BatchHeader, ...]]:
    """Encode a control batch for each marker, with ascending offsets from ``base_offset`` on.
    Return the batches in one buffer, and their headers."""
    buffer = bytearray(len(markers) * MARKER_BYTES)
    view = memoryview(buffer)
    headers = []
    for index, marker in enumerate(markers):
        one = view[index * MARKER_BYTES : (index + 1) * MARKER_BYTES]
        fmt.HEADER.pack_into(
            one, 0, base_offset + index, MARKER_BYTES - fmt.LENGTH_PREFIX_BYTES, leader_epoch,
            fmt.MAGIC_ROWS, 0, fmt.ATTRIBUTES_OF_TRANSACTIONS, 0, now_ms, now_ms,
            marker.producer_id, marker.producer_epoch, -1, 1,
        )  # fmt: skip
        kind = _COMMIT if marker.is_commit else _ABORT
        _RECORD.pack_into(
            one, fmt.HEADER_BYTES, _LENGTH, 0, 0, 0, _KEY_LENGTH, 0, kind, _VALUE_LENGTH, 0,
            marker.coordinator_epoch, 0,
        )  # fmt: skip
        set_crc(one)
        headers.append(read_header(one))
    return buffer, tuple(headers)


def decode_marker(batch: Buffer, header: BatchHeader) -> EndOfTransaction | None:
    """Decode a control batch. Return None if it is neither an abort marker nor a commit marker."""
    if header.size_bytes != MARKER_BYTES or len(batch) < MARKER_BYTES:
        return None
    length, _, _, _, key_length, _, kind, value_length, _, coordinator_epoch, _ = (
        _RECORD.unpack_from(batch, fmt.HEADER_BYTES)
    )
    if (length, key_length, value_length) != (_LENGTH, _KEY_LENGTH, _VALUE_LENGTH):
        return None
    return EndOfTransaction(kind == _COMMIT, coordinator_epoch) if kind in (0, 1) else None
