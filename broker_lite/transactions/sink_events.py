"""The inputs and outputs of ``sinks.SinkPartition.step``, the state machine of Spark's sinks.

Spark runs a task in one or more *attempts*. Each attempt writes with a *slot*, a producer id.

A token identifies one request and is never reused. Each request gets exactly one ``SinkReply``, at
once or later, unless ``AbandonSinkRequest`` withdraws it.
"""

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
    """A task attempt of micro-batch ``batch`` starts to write. ``task`` and ``attempt`` are Spark's
    numbers. ``partitions`` are the partitions to which the attempt may write, unless they are too
    many to list."""

    token: int
    sink: str
    run: str
    batch: int
    task: int
    attempt: int
    timeout_ms: int
    partitions: frozenset[PartitionKey] = frozenset()


class KeepBatch(NamedTuple):
    """A heartbeat: a task attempt is still writing."""

    token: int
    sink: str
    run: str
    batch: int


class EndBatch(NamedTuple):
    """Spark's driver commits or aborts a batch, or a failed task aborts its attempt.

    In a commit, ``winners`` are the attempts to commit, and ``rows`` is their total number of rows.
    An abort without ``winners`` ends all attempts of batches up to ``batch``. With ``winners`` it
    ends only these attempts.
    """

    token: int
    sink: str
    run: str
    batch: int
    is_commit: bool
    winners: frozenset[ProducerPair] = frozenset()
    rows: int = 0


class AddToSlot(NamedTuple):
    """A partition leader verifies that an attempt may write to these partitions, and adds them."""

    token: int
    sink: str
    producer_id: int
    epoch: int
    partitions: frozenset[PartitionKey]
    verify_only: bool = False


class SlotMarked(NamedTuple):
    """All markers of one ``SlotMarkers`` are written, or their partitions no longer exist."""

    producer_id: int
    epoch: int


class AbandonSinkRequest(NamedTuple):
    """The shell has answered the request with this token itself. If the request is parked, drop
    it."""

    token: int


class ExpireSinks(NamedTuple):
    """Delete the heads of unused sinks.

    Heads last used before ``before_day`` (days since 1970, wall clock) are deleted. Batch writes
    never continue, so their heads are deleted if last used before ``before_ms`` (monotonic clock).
    """

    before_day: int
    before_ms: int


class SinksLoaded(NamedTuple):
    """The coordinator has loaded the records of the partition. Timeouts restart."""


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
    """Append a sink's head to the state topic; None deletes it. Answer with Persisted or
    RecordRefused."""

    number: int
    sink: str
    head: SinkHead | None


class PersistSlot(NamedTuple):
    """Append a slot to the state topic; None deletes it. Answer with Persisted or RecordRefused."""

    number: int
    producer_id: int
    slot: SinkSlot | None


class SlotMarkers(NamedTuple):
    """The markers of one attempt. ``epoch`` is one higher than the epoch of the attempt's
    records."""

    producer_id: int
    epoch: int
    is_commit: bool
    partitions: frozenset[PartitionKey]


class SendSinkMarkers(NamedTuple):
    """Write the markers of all ``rows``, and retry without a time limit. Report each row with
    SlotMarked."""

    sink: str
    rows: tuple[SlotMarkers, ...]


class FetchSlotId(NamedTuple):
    """Reserve a producer id. Answer with ProducerIdReady or ProducerIdFailed."""


class SinkResult(NamedTuple):
    """The answer to a request. For a JoinBatch, it contains the attempt's producer id and epoch, or
    NO_PRODUCER if the batch is already committed."""

    error: LogbusError | None = None
    producer_id: int = NO_PRODUCER
    epoch: int = -1


class SinkReply(NamedTuple):
    """Answer the request that has ``token`` with ``result``."""

    token: int
    result: SinkResult


SinkEffect = PersistHead | PersistSlot | SendSinkMarkers | FetchSlotId | SinkReply
