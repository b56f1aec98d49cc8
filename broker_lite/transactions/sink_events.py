"""The inputs and outputs of ``sinks.SinkPartition.step``, the state machine of Spark's exactly-once
sinks.

A *sink* is the target of one Spark query, and a *run* is one start of the query. Spark runs each
task of a micro-batch in one or more *attempts*. Each attempt writes with a *slot*: a producer id
from a pool. A sink's *head* is the record of its last committed batch.

A token identifies one request and is never reused. Each request gets exactly one ``SinkReply``, at
once or later, unless ``AbandonSinkRequest`` withdraws the request."""

from __future__ import annotations

from typing import NamedTuple

from broker_lite.errors import LogbusError
from broker_lite.model import NO_PRODUCER, PartitionKey
from broker_lite.transactions.events import (
    Deposed,
    Persisted,
    ProducerIdFailed,
    ProducerIdReady,
    RecordRefused,
    TransactionTick,
)
from broker_lite.transactions.sink_records import ProducerPair, SinkHead, SinkSlot


class JoinBatch(NamedTuple):
    """A task attempt of micro-batch ``batch`` is about to write and asks for a producer id.

    ``task`` and ``attempt`` are Spark's numbers. ``partitions`` lists the partitions to which the
    attempt may write; empty if they are too many to list."""

    token: int
    sink: str
    run: str
    batch: int
    task: int
    attempt: int
    timeout_ms: int
    partitions: frozenset[PartitionKey] = frozenset()


class KeepBatch(NamedTuple):
    """A heartbeat: a task attempt of the batch is still writing."""

    token: int
    sink: str
    run: str
    batch: int


class EndBatch(NamedTuple):
    """Spark's driver commits or aborts a batch, or a failed task aborts its own attempt.

    In a commit, ``winners`` are the producer ids and epochs of the attempts to commit, and ``rows``
    is their total number of rows. In an abort, ``winners`` are instead the attempts to abort; if it
    is empty, all attempts of batches up to ``batch`` are aborted."""

    token: int
    sink: str
    run: str
    batch: int
    is_commit: bool
    winners: frozenset[ProducerPair] = frozenset()
    rows: int = 0


class AddToSlot(NamedTuple):
    """The leader of a partition asks to add these partitions to an attempt's transaction. With
    ``verify_only``, it only asks whether the transaction contains them."""

    token: int
    sink: str
    producer_id: int
    epoch: int
    partitions: frozenset[PartitionKey]
    verify_only: bool = False


class SlotMarked(NamedTuple):
    """All commit or abort markers of one task attempt (``SlotMarkers``) are written. A deleted
    partition counts as written."""

    producer_id: int
    epoch: int


class AbandonSinkRequest(NamedTuple):
    """The caller has answered the request with this token itself, for example at its time limit. If
    the request is still waiting (parked), drop it."""

    token: int


class ExpireSinks(NamedTuple):
    """Delete the records of unused sinks.

    A sink is deleted if it was last used before ``before_day`` (days since 1970, wall clock). The
    sink of a batch write, which no later run continues, is also deleted if it was last used before
    ``before_ms`` (monotonic clock; this time is kept only in memory)."""

    before_day: int
    before_ms: int


class SinksLoaded(NamedTuple):
    """The coordinator has loaded the partition's records from ``__transaction_state``. The timeouts
    of all sinks start again."""


SinkRequest = JoinBatch | KeepBatch | EndBatch | AddToSlot
SinkEvent = (
    SinkRequest
    | Persisted
    | RecordRefused
    | ProducerIdReady
    | ProducerIdFailed
    | SlotMarked
    | AbandonSinkRequest
    | ExpireSinks
    | SinksLoaded
    | TransactionTick
    | Deposed
)


class PersistHead(NamedTuple):
    """Append ``head``, the record of a sink's last committed batch, to ``__transaction_state``. A
    ``head`` of None deletes the record. The event Persisted or RecordRefused with the same
    ``number`` reports the result."""

    number: int
    sink: str
    head: SinkHead | None


class PersistSlot(NamedTuple):
    """Append the state of a slot to ``__transaction_state``, or a tombstone if ``slot`` is None. A
    slot is a producer id for attempts of Spark tasks. The event Persisted or RecordRefused with the
    same ``number`` reports the result."""

    number: int
    producer_id: int
    slot: SinkSlot | None


class SlotMarkers(NamedTuple):
    """The commit or abort markers of one task attempt. ``epoch`` is the epoch of the markers, one
    higher than that of the attempt's records."""

    producer_id: int
    epoch: int
    is_commit: bool
    partitions: frozenset[PartitionKey]


class SendSinkMarkers(NamedTuple):
    """Write commit or abort markers: each of ``rows`` has those of one task attempt. The caller
    retries without a time limit and reports each attempt with the event SlotMarked."""

    sink: str
    rows: tuple[SlotMarkers, ...]


class FetchSlotId(NamedTuple):
    """Reserve a producer id for attempts of Spark tasks. The event ProducerIdReady or
    ProducerIdFailed reports the result."""


class SinkResult(NamedTuple):
    """The answer to a request about a sink. For a JoinBatch, it has the attempt's producer id and
    epoch, or NO_PRODUCER if the batch is already committed."""

    error: LogbusError | None = None
    producer_id: int = NO_PRODUCER
    epoch: int = -1


class SinkReply(NamedTuple):
    """Send ``result`` as the answer to the request that has this ``token``."""

    token: int
    result: SinkResult


SinkEffect = PersistHead | PersistSlot | SendSinkMarkers | FetchSlotId | SinkReply
