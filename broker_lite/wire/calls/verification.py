"""AddPartitionsToTxn v5, with which the leader of a partition asks a transaction's coordinator
whether the transaction includes the partition.

In transaction version 2 the coordinator adds a missing partition; in version 1 the client must have
added it. The *state partition* is the partition of ``__transaction_state`` whose leader is the
coordinator. In tagged fields of logbus, the request has each topic's id, and the answer has the
transaction's number, the state partition and its leader epoch."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from broker_lite.model import NO_EPOCH
from broker_lite.wire.api import ApiKey
from broker_lite.wire.calls.transactions import AddedTopic
from broker_lite.wire.layout import CodeAfterThrottle, DeclaredCall, Int16, Int32, Int64, InTag
from broker_lite.wire.primitives import Reader, Writer, put_tag, uuid_bytes

TAG_ASKED_TOPIC_ID = 10000
"""Number of a tagged field in each topic of an AddPartitionsToTxn request. The field has the
topic's id."""
TAG_VERIFIED = 10000
"""Number of a tagged field in each transaction of the answer to AddPartitionsToTxn. The field has
the transaction's number, the coordinator's partition of ``__transaction_state``, and the leader
epoch of that partition."""
_VERIFIED = struct.Struct(">qii")
NO_TRANSACTION = -1


class AskedTopic(NamedTuple):
    """The partitions of one topic in an AddPartitionsToTxn request. The id distinguishes a
    recreated topic from the former topic of that name, which the transaction may include."""

    name: str
    partitions: tuple[Int32, ...]
    topic_id: InTag[str]

    def put_tags(self, writer: Writer) -> None:
        put_tag(writer, TAG_ASKED_TOPIC_ID, uuid_bytes(self.topic_id))


class AskedTransaction(NamedTuple):
    """A transaction, and the partitions that it should include. With ``verify_only``, the
    coordinator refuses missing partitions; otherwise it adds them."""

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    verify_only: bool
    topics: Sequence[AskedTopic]


class VerifiedTransaction(NamedTuple):
    """The answer to AddPartitionsToTxn for one transaction, with an error code for each partition.
    ``coordinator_epoch`` is the leader epoch of ``state_partition``, the coordinator's partition of
    ``__transaction_state``."""

    transactional_id: str
    topic_results: Sequence[AddedTopic]
    number: InTag[int] = NO_TRANSACTION
    state_partition: InTag[int] = -1
    coordinator_epoch: InTag[int] = NO_EPOCH

    def put_tags(self, writer: Writer) -> None:
        put_tag(writer, TAG_VERIFIED, _VERIFIED.pack(*self[2:]))

    def with_tags(self, reader: Reader) -> VerifiedTransaction:
        verified = reader.tags().get(TAG_VERIFIED)
        if verified is None:
            return self
        return VerifiedTransaction(*self[:2], *Reader(verified).unpack(_VERIFIED))


class VerifiedPartitions(NamedTuple):
    """The answer to a broker's AddPartitionsToTxn request. ``error_code`` is not 0 if the whole
    request failed."""

    error_code: CodeAfterThrottle
    results_by_transaction: Sequence[VerifiedTransaction] = ()


@dataclass(frozen=True, slots=True)
class VerifyPartitionsRequest(DeclaredCall[VerifiedPartitions]):
    """Check that several transactions include the given partitions, or add these to them. Each
    transactional id occurs once."""

    API_KEY: ClassVar[int] = ApiKey.ADD_PARTITIONS_TO_TXN
    VERSION: ClassVar[int] = 5

    transactions: Sequence[AskedTransaction]
