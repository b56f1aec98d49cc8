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
"""A participant of a transaction: a partition to which it writes, or the name of a group for which
it commits offsets."""


class Resumed(NamedTuple):
    """The coordinator has loaded the record of the transactional id. Timeouts restart."""


class Init(NamedTuple):
    """An InitProducerId request. ``expected`` is the producer id and epoch that a producer names
    when it recovers from an error (KIP-360). It is None for a new producer."""

    token: int
    timeout_ms: int
    expected: tuple[int, int] | None = None


class Add(NamedTuple):
    """An AddPartitionsToTxn or AddOffsetsToTxn request.

    ``version`` is the transaction version. With ``verify_only``, the coordinator only checks
    whether the transaction contains the participants (KIP-890). ``connection`` is the number of the
    client's connection. A broker's request has None, and is never parked.
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
    """An EndTxn request. ``version`` is the transaction version. With version 1 (requests before
    EndTxn 5) the producer keeps its epoch. With version 2 it gets a higher epoch."""

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
    """The log refused the record of the ``effects.Persist`` with this number. The record is
    certainly not in the log."""

    number: int
    error: LogbusError


class ProducerIdReady(NamedTuple):
    """The producer id that ``effects.FetchProducerId`` requested is reserved."""

    producer_id: int


class ProducerIdFailed(NamedTuple):
    """The request for a new producer id (``effects.FetchProducerId``) failed with ``error``."""

    error: LogbusError


class ParticipantDone(NamedTuple):
    """A participant of transaction ``number`` has its marker, or no longer exists."""

    number: int
    participant: Participating


class Abandon(NamedTuple):
    """The shell has answered the request with this token itself. If the request is parked, drop
    it."""

    token: int


class TransactionTick(NamedTuple):
    """A timer event. It is due at ``Transaction.deadline_ms``."""


class Expire(NamedTuple):
    """Delete the transactional id if its last change was before this wall time and no transaction
    is open.
    """

    before_ms: int


class Deposed(NamedTuple):
    """This broker no longer coordinates the transactional id. Answer all requests with
    ``error``."""

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
