"""The events that ``transaction.Transaction.step`` accepts: requests, timer events and results.

The caller, ``server/coordinators/transaction_coordinator.py``, does the I/O and creates the events
on one thread. A token identifies one request and is never reused. Each request gets exactly one
``effects.TransactionReply``, at once or later, unless ``Abandon`` withdraws the request. A request
is *parked* while it waits for the end of a transaction or of a write."""

from __future__ import annotations

from typing import NamedTuple

from broker_lite.errors import LogbusError
from broker_lite.model import PartitionKey

Participating = PartitionKey | str
"""A participant of a transaction: a partition to which it writes, or the name of a group for which
it commits offsets."""


class Resumed(NamedTuple):
    """The coordinator has loaded the record of the transactional id from ``__transaction_state``.
    The transaction's timeout starts again."""


class Init(NamedTuple):
    """An InitProducerId request. ``expected`` is the producer id and epoch of a producer that
    recovers from an error (KIP-360), or None for a new producer."""

    token: int
    timeout_ms: int
    expected: tuple[int, int] | None = None


class Add(NamedTuple):
    """An AddPartitionsToTxn or AddOffsetsToTxn request.

    ``version`` is the transaction version. With ``verify_only``, the coordinator only checks
    whether the transaction contains the partitions and groups (KIP-890). ``connection`` is the
    number of the client's connection, or None for a request from a broker, which is answered at
    once and never waits."""

    token: int
    producer_id: int
    epoch: int
    partitions: frozenset[PartitionKey] = frozenset()
    groups: frozenset[str] = frozenset()
    version: int = 2
    verify_only: bool = False
    connection: int | None = None


class End(NamedTuple):
    """An EndTxn request. ``version`` is the transaction version: with version 1 (EndTxn before
    version 5) the producer keeps its epoch, with version 2 each end of a transaction raises it."""

    token: int
    producer_id: int
    epoch: int
    is_commit: bool
    version: int = 2
    connection: int | None = None


class Persisted(NamedTuple):
    """The record of the ``effects.Persist`` with this number is committed in the log."""

    number: int


class RecordRefused(NamedTuple):
    """The log refused the record of the ``effects.Persist`` with this number, and certainly does
    not contain it."""

    number: int
    error: LogbusError


class ProducerIdReady(NamedTuple):
    """The producer id that ``effects.FetchProducerId`` asked for."""

    producer_id: int


class ProducerIdFailed(NamedTuple):
    """The request for a new producer id (``effects.FetchProducerId``) failed with ``error``."""

    error: LogbusError


class ParticipantDone(NamedTuple):
    """A participant (partition or group) of transaction ``number`` has written its marker, or was
    deleted."""

    number: int
    participant: Participating


class Abandon(NamedTuple):
    """The caller has answered the request with this token itself, for example at its time limit. If
    the request is still waiting (parked), drop it."""

    token: int


class TransactionTick(NamedTuple):
    """A timer event, sent at the time ``Transaction.deadline_ms``."""


class Expire(NamedTuple):
    """Delete the transactional id if it last changed before ``before_ms`` (wall clock) and has no
    open transaction."""

    before_ms: int


class Deposed(NamedTuple):
    """This broker is no longer the coordinator of the transactional id: all requests are answered
    with ``error``."""

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
