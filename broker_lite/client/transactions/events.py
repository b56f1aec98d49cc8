"""Events and effects of the transaction machine. The machine answers each call of a user, which is
an event, with one ``AnswerCall``."""

from __future__ import annotations

from typing import NamedTuple

from broker_lite.client.producing.batches import ProducerIdentity
from broker_lite.errors import LogbusError


class BeginCall(NamedTuple):
    """The user calls ``begin``."""


class CommitCall(NamedTuple):
    """The user calls ``commit``."""


class AbortCall(NamedTuple):
    """The user calls ``abort``."""


class OffsetsCall(NamedTuple):
    """The user calls ``send_offsets``."""

    group: str


Call = BeginCall | CommitCall | AbortCall | OffsetsCall


class Initialized(NamedTuple):
    """InitProducerId returned a producer id and epoch."""

    identity: ProducerIdentity
    version: int
    """The cluster's transaction version, 1 or 2."""


class InitFailed(NamedTuple):
    """InitProducerId failed with a final error or timed out."""

    error: LogbusError


class SendFailed(NamedTuple):
    """The transaction has lost records, because a batch failed or a partition could not be
    added."""

    error: LogbusError


class Delivered(NamedTuple):
    """Every record that was sent is acknowledged."""


class OffsetsSent(NamedTuple):
    """The coordinator answered TxnOffsetCommit. With ``error`` None, it has stored the offsets."""

    error: LogbusError | None = None


class Ended(NamedTuple):
    """EndTxn succeeded. ``identity`` is the producer id and epoch for the next transaction; None in
    transaction version 1."""

    identity: ProducerIdentity | None = None


class EndFailed(NamedTuple):
    """EndTxn failed. With a final error, the coordinator refused it. With a retriable error, it
    timed out, and its outcome is unknown."""

    error: LogbusError


Event = Call | Initialized | InitFailed | SendFailed | Delivered | OffsetsSent | Ended | EndFailed


class Initialize(NamedTuple):
    """Send InitProducerId. ``expected`` is this producer's present identity (KIP-360)."""

    expected: ProducerIdentity | None


class OpenSends(NamedTuple):
    """Number batches under this identity, and accept calls of ``send``."""

    identity: ProducerIdentity
    version: int


class ShutSends(NamedTuple):
    """Make ``send`` raise ``error``. Pass all records that are not in a batch yet to the sender."""

    error: LogbusError


class AwaitDelivery(NamedTuple):
    """Report ``Delivered`` once every record is acknowledged."""


class DiscardSends(NamedTuple):
    """Fail all records that brokers have not acknowledged."""

    error: LogbusError


class CommitOffsets(NamedTuple):
    """Send the offsets of the present ``OffsetsCall`` with TxnOffsetCommit. With transaction
    version 1, send AddOffsetsToTxn first."""

    identity: ProducerIdentity
    version: int


class SendEnd(NamedTuple):
    """Send EndTxn, which commits or aborts the transaction."""

    identity: ProducerIdentity
    version: int
    committed: bool


class AnswerCall(NamedTuple):
    """Answer the user's present call. With ``error`` None, the call succeeded."""

    error: LogbusError | None = None


Effect = (
    Initialize
    | OpenSends
    | ShutSends
    | AwaitDelivery
    | DiscardSends
    | CommitOffsets
    | SendEnd
    | AnswerCall
)
