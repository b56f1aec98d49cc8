"""The inputs of ``transaction.Transaction.step``.

The shell (``server/coordinators/transaction_coordinator.py``) creates the events on one thread. A
token identifies one request and is never reused. Each request gets exactly one
``effects.TransactionReply``, at once or later, unless ``Abandon`` withdraws it.
"""

from __future__ import annotations

from typing import NamedTuple

from broker_lite.errors import LogbusError
from broker_lite.model import PartitionKey

Participating = PartitionKey | str
"""A participant of a transaction: a partition, or a group by its name."""


class Resumed(NamedTuple):
    """The coordinator has loaded the id's record; timeouts restart."""


class Init(NamedTuple):
    """InitProducerId. ``expected`` is the producer id and epoch of a producer that recovers from an
    error (KIP-360), None for a new producer.
    """

    token: int
    timeout_ms: int
    expected: tuple[int, int] | None = None


class Add(NamedTuple):
    """AddPartitionsToTxn or AddOffsetsToTxn.

    ``version`` is the transaction version. ``verify_only``: answer whether the participants belong
    to the transaction, and change nothing. ``connection`` is the number of the client's connection,
    None for a request of a broker, which is never parked.
    """

    token: int
    producer_id: int
    epoch: int
    partitions: frozenset[PartitionKey] = frozenset()
    groups: frozenset[str] = frozenset()
    version: int = 2
    verify_only: bool = False
    connection: int | None = None


class End(NamedTuple):
    """EndTxn. ``version`` 1 (before EndTxn 5) keeps the epoch."""

    token: int
    producer_id: int
    epoch: int
    is_commit: bool
    version: int = 2
    connection: int | None = None


class Persisted(NamedTuple):
    """The record of the ``effects.Persist`` with this number is committed."""

    number: int


class RecordRefused(NamedTuple):
    """The log refused the record of the ``effects.Persist`` with this number; it is certainly not
    in the log.
    """

    number: int
    error: LogbusError


class ProducerIdReady(NamedTuple):
    """The id that ``effects.FetchProducerId`` requested."""

    producer_id: int


class ProducerIdFailed(NamedTuple):
    """No producer id could be reserved."""

    error: LogbusError


class ParticipantDone(NamedTuple):
    """A participant has the marker of ``effects.SendMarkers``, or no longer exists."""

    number: int
    participant: Participating


class Abandon(NamedTuple):
    """The shell has answered this request itself; if it is parked, it must not be carried out
    later.
    """

    token: int


class TransactionTick(NamedTuple):
    """A timer event, due when ``Transaction.deadline_ms`` is reached."""


class Expire(NamedTuple):
    """Delete the transactional id if its last change was before this wall time and no transaction
    is open.
    """

    before_ms: int


class Deposed(NamedTuple):
    """This broker no longer coordinates the id: answer all requests with ``error``."""

    error: LogbusError


TransactionEvent = (
    Resumed
    | Init
    | Add
    | End
    | Persisted
    | RecordRefused
    | ProducerIdReady
    | ProducerIdFailed
    | ParticipantDone
    | Abandon
    | TransactionTick
    | Expire
    | Deposed
)
