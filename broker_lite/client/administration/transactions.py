"""Administration of transactions: list and describe transactions, find hanging ones, end one.

A transaction hangs in a partition if it is open in the partition's log, but no coordinator will
write its end marker there. Either no coordinator knows the producer id, or the producer's
transaction has ended or does not include the partition. The partition's last stable offset then
never advances past it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from broker_lite.client.administration.admin_requests import on_every_broker
from broker_lite.client.operations.cluster import Cluster, group_by_topic
from broker_lite.client.operations.group_requests import CachedCoordinator, on_coordinator
from broker_lite.client.operations.requests import PerPartition, per_partition, raise_first
from broker_lite.client.transport.steps import CallExchange, Exchange, Operation
from broker_lite.errors import (
    InvalidTxnStateError,
    LogbusError,
    TransactionalIdNotFoundError,
    error_for,
    error_of,
)
from broker_lite.model import TopicPartition
from broker_lite.wire.calls import broker_transactions as markers
from broker_lite.wire.calls import transaction_admin as calls
from broker_lite.wire.calls.transactions import TxnTopic

OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
"""The states of a transaction for which its coordinator will still write end markers."""
COMMITTED_STATES = ("PrepareCommit", "CompleteCommit")
"""The states of a transaction whose commit is decided."""


WITHOUT_EPOCH_BUMP = 1
"""Transaction version in an administrator's marker. From version 2 on, a marker must have a higher
epoch than the producer (KIP-890)."""


class TransactionListing(NamedTuple):
    """A transactional id with its state, its producer id, and its coordinator's broker id."""

    transactional_id: str
    state: str
    producer_id: int
    coordinator: int


class TransactionDescription(NamedTuple):
    """The state of a transactional id, as its coordinator reports it.

    ``start_ms`` is when its open transaction began, in ms since 1970; -1 if none is open.
    ``version`` is the version of its last transaction. In version 2 the end of a transaction raises
    ``producer_epoch``."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    partitions: tuple[TopicPartition, ...]
    version: int = 2


class OpenInLog(NamedTuple):
    """A transaction that is open in a partition's log, as the partition's leader reports it.

    Until the transaction ends, the last stable offset cannot advance past ``start_offset``."""

    tp: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_append_ms: int


class Holder(NamedTuple):
    """An open transaction of a partition, which holds back the last stable offset.

    ``owner`` is the producer's transaction at its coordinator, or None if no coordinator knows it.
    ``since_ms`` is when the transaction began (ms since 1970), or, if it hangs, the time of its
    last batch."""

    row: OpenInLog
    owner: TransactionDescription | None
    since_ms: int

    @property
    def is_hanging(self) -> bool:
        """Whether no coordinator will write the transaction's end marker to this partition."""
        return is_hanging(
            self.row, {} if self.owner is None else {self.row.producer_id: self.owner}
        )

    @property
    def is_commit(self) -> bool:
        """Whether the coordinator has committed the transaction, so that its missing marker is a
        commit marker.

        The coordinator knows the outcome only of a producer's last transaction. In version 1
        earlier transactions may have the same epoch: the last one then stands for them."""
        row, owner = self.row, self.owner
        if owner is None or owner.state not in COMMITTED_STATES:
            return False
        is_part = owner.state == "CompleteCommit" or row.tp in owner.partitions
        return is_part and row.producer_epoch == owner.producer_epoch - (owner.version >= 2)

    @property
    def outcome(self) -> str:
        """The outcome that ``end`` writes: "commit" or "abort"."""
        return "commit" if self.is_commit else "abort"


def list_transactions(
    cluster: Cluster, deadline_ms: float, producer_ids: tuple[int, ...] = ()
) -> Operation[list[TransactionListing]]:
    """Return all transactional ids, or those of the given producers, sorted by name.

    If a broker does not answer, raises its error."""
    request = calls.ListTransactionsRequest(producer_id_filters=producer_ids)
    answers = yield from on_every_broker(cluster, CallExchange(request), deadline_ms)
    listings = []
    for broker_id, answer in answers.items():
        if isinstance(answer, LogbusError) or answer.error_code:
            error = answer if isinstance(answer, LogbusError) else error_for(answer.error_code)
            raise type(error)(f"broker {broker_id} does not list transactions: {error.message}")
        listings += [
            TransactionListing(
                row.transactional_id, row.transaction_state, row.producer_id, broker_id
            )
            for row in answer.transaction_states
        ]
    return sorted(listings)


def describe_transaction(
    cluster: Cluster, transactional_id: str, deadline_ms: float
) -> Operation[TransactionDescription]:
    """Return the state of a transactional id. Raises TransactionalIdNotFoundError."""

    def check(answer: calls.DescribeTransactionsResponse) -> LogbusError | None:
        code = answer.transaction_states[0].error_code
        if code == TransactionalIdNotFoundError.code:
            return TransactionalIdNotFoundError(
                f"no coordinator knows the transactional id {transactional_id!r}; see: logbus "
                "transactions list"
            )
        return error_of(code)

    answer = yield from on_coordinator(
        cluster,
        CachedCoordinator(transactional_id),
        CallExchange(calls.DescribeTransactionsRequest((transactional_id,))),
        check,
        deadline_ms,
    )
    row = answer.transaction_states[0]
    return TransactionDescription(
        row.transactional_id,
        row.transaction_state,
        row.producer_id,
        row.producer_epoch,
        row.transaction_timeout_ms,
        row.transaction_start_time_ms,
        tuple(
            sorted(
                TopicPartition(topic.topic, each)
                for topic in row.topics
                for each in topic.partitions
            )
        ),
        answer.transaction_versions[0] if answer.transaction_versions else 2,
    )


def open_in_logs(
    cluster: Cluster, tps: Iterable[TopicPartition], deadline_ms: float
) -> Operation[list[OpenInLog]]:
    """Return the transactions that are open in these partitions' logs, from their leaders."""

    def make(group: list[TopicPartition]) -> Exchange[Any]:
        return CallExchange(calls.DescribeProducersRequest(_topics(group)))

    def read(
        answer: calls.DescribeProducersResponse, group: list[TopicPartition]
    ) -> PerPartition[list[OpenInLog]]:
        rows_by_tp: PerPartition[list[OpenInLog]] = dict.fromkeys(
            group, error_for(-1, "the broker's response lacks the partition; try again")
        )
        for topic in answer.topics:
            for row in topic.partitions:
                tp = TopicPartition(topic.name, row.partition_index)
                if row.error_code:
                    rows_by_tp[tp] = error_for(row.error_code, row.error_message)
                    continue
                rows_by_tp[tp] = [
                    OpenInLog(
                        tp,
                        each.producer_id,
                        each.producer_epoch,
                        each.coordinator_epoch,
                        each.current_txn_start_offset,
                        each.last_timestamp,
                    )
                    for each in row.active_producers
                    if each.current_txn_start_offset >= 0
                ]
        return rows_by_tp

    open_by_tp = yield from per_partition(cluster, tps, make, read, deadline_ms)
    rows = [row for listed in raise_first(open_by_tp).values() for row in listed]
    return sorted(rows, key=lambda row: (row.tp, row.start_offset))


def owners(
    cluster: Cluster, rows: Iterable[OpenInLog], deadline_ms: float
) -> Operation[dict[int, TransactionDescription]]:
    """Return the transactions of the producers in ``rows``, as their coordinators describe them, by
    producer id."""
    producer_ids = {row.producer_id for row in rows}
    descriptions: dict[int, TransactionDescription] = {}
    if not producer_ids:
        return descriptions
    listed = yield from list_transactions(cluster, deadline_ms, tuple(sorted(producer_ids)))
    for each in listed:
        try:
            descriptions[each.producer_id] = yield from describe_transaction(
                cluster, each.transactional_id, deadline_ms
            )
        except TransactionalIdNotFoundError:
            # The transactional id has expired since it was listed, so it has no open transaction.
            continue
    return descriptions


def is_hanging(row: OpenInLog, known: Mapping[int, TransactionDescription]) -> bool:
    """Return whether a transaction hangs: no coordinator will write its end marker to the
    partition.

    ``known`` has the transactions of producers by producer id, from ``owners``."""
    owner = known.get(row.producer_id)
    return owner is None or owner.state not in OPEN_STATES or row.tp not in owner.partitions


def open_at(
    cluster: Cluster, tp: TopicPartition, start_offset: int, deadline_ms: float
) -> Operation[Holder]:
    """Return the open transaction that begins at an offset, with its coordinator's description.

    Raises InvalidTxnStateError if no open transaction begins there."""
    rows = yield from open_in_logs(cluster, (tp,), deadline_ms)
    row = next((row for row in rows if row.start_offset == start_offset), None)
    if row is None:
        raise InvalidTxnStateError(
            f"{tp} has no open transaction that begins at offset {start_offset}; see: "
            "logbus transactions hanging"
        )
    known = yield from owners(cluster, (row,), deadline_ms)
    return _holder(row, known)


def hanging(
    cluster: Cluster, tps: Iterable[TopicPartition], before_ms: int, deadline_ms: float
) -> Operation[list[Holder]]:
    """Return the hanging transactions (those that no coordinator will end) whose last batch was
    appended before ``before_ms``."""
    rows = yield from open_in_logs(cluster, tps, deadline_ms)
    rows = [row for row in rows if row.last_append_ms < before_ms]
    known = yield from owners(cluster, rows, deadline_ms)
    rows = [row for row in rows if is_hanging(row, known)]
    if not rows:
        return []
    # Ask the leaders again: a transaction that has ended since the first request is not hanging.
    again = yield from open_in_logs(cluster, {row.tp for row in rows}, deadline_ms)
    still = {(row.tp, row.producer_id, row.start_offset) for row in again}
    return [
        _holder(row, known) for row in rows if (row.tp, row.producer_id, row.start_offset) in still
    ]


def holders(
    cluster: Cluster, tps: Iterable[TopicPartition], deadline_ms: float
) -> Operation[list[Holder]]:
    """Return each partition's oldest open transaction, which holds back the last stable offset. The
    oldest of all comes first."""
    first: dict[TopicPartition, OpenInLog] = {}
    for row in (yield from open_in_logs(cluster, tps, deadline_ms)):
        first.setdefault(row.tp, row)
    known = yield from owners(cluster, first.values(), deadline_ms)
    holding = [_holder(row, known) for row in first.values()]
    return sorted(holding, key=lambda holder: (holder.since_ms, holder.row.tp))


def _holder(row: OpenInLog, known: Mapping[int, TransactionDescription]) -> Holder:
    owner = known.get(row.producer_id)
    start_ms = -1 if owner is None or is_hanging(row, known) else owner.start_ms
    return Holder(row, owner, start_ms if start_ms >= 0 else row.last_append_ms)


def end(cluster: Cluster, holder: Holder, deadline_ms: float) -> Operation[None]:
    """Write the end marker of a hanging transaction to its partition, without its coordinator: a
    commit marker if the coordinator has committed the transaction, otherwise an abort marker."""
    row = holder.row
    marker = markers.TransactionMarker(
        row.producer_id,
        row.producer_epoch,
        holder.is_commit,
        (markers.MarkedTopic(row.tp.topic, (row.tp.partition,)),),
        max(0, row.coordinator_epoch),
        WITHOUT_EPOCH_BUMP,
    )

    def read(
        answer: markers.WriteTxnMarkersResponse, _: list[TopicPartition]
    ) -> PerPartition[None]:
        return {
            TopicPartition(each.name, each.partition): error_of(each.error_code)
            for each in answer.rows
        }

    def make(_: list[TopicPartition]) -> Exchange[Any]:
        return CallExchange(markers.WriteTxnMarkersRequest((marker,)))

    done = yield from per_partition(cluster, (row.tp,), make, read, deadline_ms)
    raise_first(done)


def _topics(tps: Iterable[TopicPartition]) -> tuple[TxnTopic, ...]:
    return tuple(
        TxnTopic(name, tuple(tp.partition for tp in rows))
        for name, rows in group_by_topic(sorted(tps)).items()
    )
