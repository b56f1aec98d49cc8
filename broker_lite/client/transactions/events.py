"""Events and effects (operations to carry out) of the state machine of a transactional producer
(``machine``).

A call of the user, such as ``commit``, is an event. The machine answers each call with one
``AnswerCall``, possibly after other events."""

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
    """InitProducerId timed out, or failed with an error that is not retriable."""

    error: LogbusError


class SendFailed(NamedTuple):
    """Records of the transaction could not be written.

    A batch failed, or AddPartitionsToTxn failed."""

    error: LogbusError


class Delivered(NamedTuple):
    """Every record that was sent in the transaction is acknowledged."""


class OffsetsSent(NamedTuple):
    """TxnOffsetCommit was answered.

    If ``error`` is None, the group's coordinator has stored the offsets for the transaction."""

    error: LogbusError | None = None


class Ended(NamedTuple):
    """EndTxn succeeded.

    ``identity`` is the next transaction's producer id and epoch; None in transaction version 1,
    whose response has none."""

    identity: ProducerIdentity | None = None


class EndFailed(NamedTuple):
    """EndTxn failed.

    If ``error`` is retriable, the transaction's outcome is unknown; otherwise the coordinator
    refused the request."""

    error: LogbusError


Event = Call | Initialized | InitFailed | SendFailed | Delivered | OffsetsSent | Ended | EndFailed


class Initialize(NamedTuple):
    """Send InitProducerId. ``expected`` is the present producer id and epoch (KIP-360), or None if
    there is none yet."""

    expected: ProducerIdentity | None


class OpenSends(NamedTuple):
    """Let ``send`` accept records, and send them under this producer id and epoch."""

    identity: ProducerIdentity
    version: int


class ShutSends(NamedTuple):
    """Make ``send`` raise ``error``. Pass the records collected so far to the sender: they belong
    to the ending transaction."""

    error: LogbusError


class AwaitDelivery(NamedTuple):
    """Wait until every record is acknowledged, then report ``Delivered`` to the state machine."""


class DiscardSends(NamedTuple):
    """Fail all records that are not acknowledged yet, with ``error``."""

    error: LogbusError


class CommitOffsets(NamedTuple):
    """Send the user's offsets with TxnOffsetCommit; in transaction version 1, after
    AddOffsetsToTxn."""

    identity: ProducerIdentity
    version: int


class SendEnd(NamedTuple):
    """Send EndTxn to commit (``committed``) or abort the transaction."""

    identity: ProducerIdentity
    version: int
    committed: bool


class AnswerCall(NamedTuple):
    """End the user's call: the call raises ``error``, or returns if ``error`` is None."""

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
