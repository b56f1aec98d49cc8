"""The inputs and outputs of ``sinks.SinkPartition.step``.

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
    """A task attempt starts to write. ``task`` and ``attempt`` are Spark's numbers. ``partitions``
    are the partitions to which it may write, if they are few.
    """

    token: int
    sink: str
    run: str
    batch: int
    task: int
    attempt: int
    timeout_ms: int
    partitions: frozenset[PartitionKey] = frozenset()


class KeepBatch(NamedTuple):
    """A task attempt is still writing."""

    token: int
    sink: str
    run: str
    batch: int


class EndBatch(NamedTuple):
    """The driver ends a batch. ``winners`` are the attempts to commit; ``rows`` is their total
    number of rows. An abort with ``winners`` ends only these attempts; a failed task sends it.
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
    """All partitions of a row of ``SendSinkMarkers`` have their marker, or no longer exist."""

    producer_id: int
    epoch: int


class AbandonSinkRequest(NamedTuple):
    """The shell has answered this request itself; if it is parked, it must not be carried out
    later.
    """

    token: int


class ExpireSinks(NamedTuple):
    """Delete heads that were last used before this day (days since 1970 by the wall clock), and
    heads of one-time writes that were last used before this monotonic time.
    """

    before_day: int
    before_ms: int


class SinksLoaded(NamedTuple):
    """The coordinator has loaded the records; timeouts restart."""


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
    """Append a sink's head; None deletes it. Answer with Persisted or RecordRefused."""

    number: int
    sink: str
    head: SinkHead | None


class PersistSlot(NamedTuple):
    """Append a slot; None deletes it. Answer with Persisted or RecordRefused."""

    number: int
    producer_id: int
    slot: SinkSlot | None


class SlotMarkers(NamedTuple):
    """The markers of one attempt; ``epoch`` is the raised epoch."""

    producer_id: int
    epoch: int
    is_commit: bool
    partitions: frozenset[PartitionKey]


class SendSinkMarkers(NamedTuple):
    """Write these markers, and retry without a time limit. Report each row with SlotMarked."""

    sink: str
    rows: tuple[SlotMarkers, ...]


class FetchSlotId(NamedTuple):
    """Reserve a producer id. Answer with ProducerIdReady or ProducerIdFailed."""


class SinkResult(NamedTuple):
    """The answer to a request. The answer to a JoinBatch has the producer id and epoch to write
    with, or NO_PRODUCER if the batch is committed already.
    """

    error: LogbusError | None = None
    producer_id: int = NO_PRODUCER
    epoch: int = -1


class SinkReply(NamedTuple):
    """Answer the request with this token."""

    token: int
    result: SinkResult


SinkEffect = PersistHead | PersistSlot | SendSinkMarkers | FetchSlotId | SinkReply
