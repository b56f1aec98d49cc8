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
from broker_lite.wire.layout import CodeAfterThrottle, DeclaredCall, Int16, Int32, Int64, InTag
from broker_lite.wire.primitives import Reader, Writer, put_tag

TAG_ADD_GROUP = 10000
"""Number of a tagged field of logbus in AddOffsetsToTxn between brokers.

In the request, the field is one byte: 1 to verify that the transaction includes the group, 0 to
add the group. In the answer, the field has the number of the transaction, the coordinator's
partition of ``__transaction_state``, and the leader epoch of that partition."""

_VERIFIED = struct.Struct(">qii")


class AddGroupResponse(NamedTuple):
    """The answer to a broker's AddOffsetsToTxn request.

    ``number`` counts the transactions of the transactional id. ``coordinator_epoch`` is the leader
    epoch of ``state_partition``, the partition of __transaction_state that holds the id."""

    error_code: CodeAfterThrottle
    number: InTag[int] = NO_TRANSACTION
    state_partition: InTag[int] = -1
    coordinator_epoch: InTag[int] = NO_EPOCH

    def put_tags(self, writer: Writer) -> None:
        put_tag(writer, TAG_ADD_GROUP, _VERIFIED.pack(*self[1:]))

    def with_tags(self, reader: Reader) -> AddGroupResponse:
        verified = reader.tags().get(TAG_ADD_GROUP)
        if verified is None:
            return self
        return AddGroupResponse(self.error_code, *Reader(verified).unpack(_VERIFIED))


@dataclass(frozen=True, slots=True)
class AddGroupRequest(DeclaredCall[AddGroupResponse]):
    """Add a group to an open transaction or, with ``verify_only``, only ask whether the transaction
    includes it. The group's coordinator sends this request to the transaction's coordinator."""

    API_KEY: ClassVar[int] = ApiKey.ADD_OFFSETS_TO_TXN
    VERSION: ClassVar[int] = 4

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    group_id: str
    verify_only: InTag[bool]

    def put_tags(self, writer: Writer) -> None:
        put_tag(writer, TAG_ADD_GROUP, bytes([self.verify_only]))


class EndGroupOffsetsResponse(NamedTuple):
    error_code: Int16


@dataclass(frozen=True, slots=True)
class EndGroupOffsetsRequest(DeclaredCall[EndGroupOffsetsResponse]):
    """End a transaction in one group: commit its pending offsets if ``committed``, otherwise drop
    them. The transaction's coordinator sends this request to the group's coordinator.

    ``producer_epoch`` is the producer's epoch during the transaction, not its next epoch. The
    group's coordinator refuses a ``coordinator_epoch`` lower than the highest that it knows for
    ``state_partition``, the sender's partition of ``__transaction_state``."""

    API_KEY: ClassVar[int] = ApiKey.END_GROUP_OFFSETS
    VERSION: ClassVar[int] = 0

    group_id: str
    producer_id: Int64
    producer_epoch: Int16
    number: Int64
    state_partition: Int32
    coordinator_epoch: Int32
    committed: bool
