"""Two requests between brokers about group offsets that a transaction commits: AddOffsetsToTxn v4
with a tagged field of logbus, and logbus's own EndGroupOffsets v0.

Such offsets are pending until the transaction ends. The group's coordinator holds them; the
transaction's coordinator decides about them. The latter is the leader of one partition of
``__transaction_state``, the state partition."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from broker_lite.model import NO_EPOCH, NO_TRANSACTION
from broker_lite.wire.api import ApiKey
from broker_lite.wire.primitives import Reader, Writer, put_tag

TAG_ADD_GROUP = 10000
"""Number of a tagged field of logbus in AddOffsetsToTxn between brokers.

In the request, the field is one byte: 1 to verify that the transaction includes the group, 0 to
add the group. In the answer, the field has the number of the transaction, the coordinator's
partition of ``__transaction_state``, and the leader epoch of that partition."""

_VERIFIED = struct.Struct(">qii")
_TRANSACTION = struct.Struct(">qhqii?")


class AddGroupResponse(NamedTuple):
    """The answer to a broker's AddOffsetsToTxn request.

    ``number`` counts the transactions of the transactional id. ``coordinator_epoch`` is the leader
    epoch of ``state_partition``, the partition of __transaction_state that holds the id."""

    error_code: int
    number: int = NO_TRANSACTION
    state_partition: int = -1
    coordinator_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class AddGroupRequest:
    """Add a group to an open transaction or, with ``verify_only``, only ask whether the transaction
    includes it. The group's coordinator sends this request to the transaction's coordinator."""

    API_KEY: ClassVar[int] = ApiKey.ADD_OFFSETS_TO_TXN
    VERSION: ClassVar[int] = 4

    transactional_id: str
    producer_id: int
    producer_epoch: int
    group_id: str
    verify_only: bool

    def encode(self, writer: Writer) -> None:
        writer.string(self.transactional_id)
        writer.i64(self.producer_id)
        writer.i16(self.producer_epoch)
        writer.string(self.group_id)
        put_tag(writer, TAG_ADD_GROUP, bytes([self.verify_only]))

    @staticmethod
    def decode(reader: Reader) -> AddGroupResponse:
        reader.i32()  # throttle_time_ms
        code = reader.i16()
        verified = reader.tags().get(TAG_ADD_GROUP)
        if verified is None:
            return AddGroupResponse(code)
        return AddGroupResponse(code, *Reader(verified).unpack(_VERIFIED))


def encode_add_group(response: AddGroupResponse, writer: Writer) -> None:
    """Write the body of the answer to a broker's AddOffsetsToTxn request, in version 3 or 4."""
    code, *verified = response
    writer.i32(0)
    writer.i16(code)
    put_tag(writer, TAG_ADD_GROUP, _VERIFIED.pack(*verified))


class EndGroupOffsetsResponse(NamedTuple):
    error_code: int


@dataclass(frozen=True, slots=True)
class EndGroupOffsetsRequest:
    """End a transaction in one group: commit its pending offsets if ``committed``, otherwise drop
    them. The transaction's coordinator sends this request to the group's coordinator.

    ``producer_epoch`` is the producer's epoch during the transaction, not its next epoch. The
    group's coordinator refuses a ``coordinator_epoch`` lower than the highest that it knows for
    ``state_partition``, the sender's partition of ``__transaction_state``."""

    API_KEY: ClassVar[int] = ApiKey.END_GROUP_OFFSETS
    VERSION: ClassVar[int] = 0

    group_id: str
    producer_id: int
    producer_epoch: int
    number: int
    state_partition: int
    coordinator_epoch: int
    committed: bool

    def encode(self, writer: Writer) -> None:
        writer.string(self.group_id)
        writer.pack(
            _TRANSACTION,
            self.producer_id,
            self.producer_epoch,
            self.number,
            self.state_partition,
            self.coordinator_epoch,
            self.committed,
        )
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> EndGroupOffsetsResponse:
        return reader.ended(EndGroupOffsetsResponse(reader.i16()))

    @staticmethod
    def decode_request(reader: Reader) -> EndGroupOffsetsRequest:
        """Decode an EndGroupOffsets request from the start of its body, on the broker's side."""
        request = EndGroupOffsetsRequest(reader.string(), *reader.unpack(_TRANSACTION))
        return reader.ended(request)


def encode_end_group_offsets(response: EndGroupOffsetsResponse, writer: Writer) -> None:
    """Write the body of the answer to EndGroupOffsets, on the group's coordinator."""
    writer.i16(response.error_code)
    writer.tag_end()
