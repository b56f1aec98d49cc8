"""Operations (generators that yield requests) of a transactional producer.

They begin a transaction, add partitions and offsets, commit or abort. Requests go to the
coordinator of the transactional id, or of the group whose offsets are committed, or to its
successor, until the monotonic time ``deadline_ms``. ``version`` is the cluster's transaction
version, 1 or 2 (KIP-890)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from broker_lite.client.operations.bounds import check_commits
from broker_lite.client.operations.cluster import Cluster, group_by_topic
from broker_lite.client.operations.group_requests import (
    COMMIT_ATTEMPTS,
    NO_MEMBER,
    CachedCoordinator,
    answer_error,
    on_coordinator,
    other_topic,
    topics_to_commit,
)
from broker_lite.client.operations.requests import may_retry
from broker_lite.client.transport.steps import CallExchange, Operation
from broker_lite.errors import (
    LogbusError,
    OperationNotAttemptedError,
    UnknownServerError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    error_for,
)
from broker_lite.model import NO_EPOCH, NO_PRODUCER, CommittedOffset, TopicPartition
from broker_lite.wire.calls import cluster as cluster_calls
from broker_lite.wire.calls import groups, producers, transactions

FEATURE = "transaction.version"
"""The cluster feature, in ApiVersions, whose level is the transaction version."""
NO_IDENTITY = (NO_PRODUCER, NO_EPOCH)


class OffsetsToCommit(NamedTuple):
    """Offsets that a transaction commits for a group.

    ``member`` is the member id, generation and instance id of the consumer that read the records
    (KIP-447)."""

    group: str
    rows: Mapping[TopicPartition, CommittedOffset]
    member: tuple[str, int, str | None] = NO_MEMBER


def initialize(
    cluster: Cluster,
    known: CachedCoordinator,
    *,
    timeout_ms: int,
    expected: tuple[int, int] | None,
    deadline_ms: float,
) -> Operation[tuple[int, int, int]]:
    """Send InitProducerId for a transactional id. Return producer id, epoch and transaction
    version.

    The coordinator aborts an open transaction of the id. If ``expected`` is None, it fences all
    earlier producers with this id. Otherwise ``expected`` is the caller's producer id and epoch,
    and a caller that has been fenced itself is refused (KIP-360)."""
    versions = CallExchange(cluster_calls.ApiVersionsRequest("logbus", "1"))
    features = yield from on_coordinator(cluster, known, versions, answer_error, deadline_ms)
    levels = {row.name: row.max_version for row in features.finalized_features}
    request = CallExchange(
        producers.InitProducerIdRequest(known.key, timeout_ms, *(expected or NO_IDENTITY))
    )
    answer = yield from on_coordinator(cluster, known, request, answer_error, deadline_ms)
    return answer.producer_id, answer.producer_epoch, max(1, levels.get(FEATURE, 1))


def add_partitions(
    cluster: Cluster,
    known: CachedCoordinator,
    identity: tuple[int, int],
    tps: Iterable[TopicPartition],
    deadline_ms: float,
) -> Operation[None]:
    """Add partitions to the open transaction, as transaction version 1 requires before a
    partition's first batch."""
    topics = tuple(
        transactions.TxnTopic(name, tuple(tp.partition for tp in rows))
        for name, rows in group_by_topic(sorted(tps)).items()
    )

    request = transactions.AddPartitionsToTxnRequest(known.key, *identity, topics)
    yield from on_coordinator(cluster, known, CallExchange(request), added_error, deadline_ms)


def added_error(answer: transactions.AddPartitionsToTxnResponse) -> LogbusError | None:
    """Return the error that explains why the coordinator added no partition, or None if it added
    all.

    If one partition is refused, the others get OPERATION_NOT_ATTEMPTED. If several are refused,
    prefer an error that is not retriable, because a retry would fail too."""
    errors = [
        error_for(
            row.partition_error_code,
            f"cannot add {topic.name}-{row.partition_index} to the transaction: "
            f"{error_for(row.partition_error_code).message}",
        )
        for topic in answer.results_by_topic_v3_and_below
        for row in topic.results_by_partition
        if row.partition_error_code
    ]
    return min(
        errors,
        key=lambda error: (isinstance(error, OperationNotAttemptedError), error.retriable),
        default=None,
    )


def commit_offsets(
    cluster: Cluster,
    known: CachedCoordinator,
    identity: tuple[int, int],
    offsets: OffsetsToCommit,
    deadline_ms: float,
    *,
    version: int,
) -> Operation[None]:
    """Add a group's offsets to the open transaction, to be committed with it."""
    check_commits(offsets.rows)
    kind = transactions.TxnOffsetCommitRequest
    if version == 1:
        kind = transactions.OldTxnOffsetCommitRequest
        added = CallExchange(
            transactions.AddOffsetsToTxnRequest(known.key, *identity, offsets.group)
        )
        yield from on_coordinator(cluster, known, added, answer_error, deadline_ms)
    member_id, generation, instance_id = offsets.member
    request = kind(
        known.key,
        offsets.group,
        *identity,
        topics_to_commit(offsets.rows),
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance_id,
    )
    errors: Sequence[LogbusError] = ()
    attempts = 0

    def check(answer: groups.OffsetCommitResponse) -> LogbusError | None:
        nonlocal errors, attempts
        attempts += 1
        codes = {
            TopicPartition(topic.name, row.partition_index): row.error_code
            for topic in answer.topics
            for row in topic.partitions
        }
        # If the response lacks a partition, the coordinator has not committed the partition's
        # offset.
        codes = dict.fromkeys(offsets.rows, UnknownServerError.code) | codes
        errors = [_named(tp, code, offsets.rows) for tp, code in codes.items() if code]
        retriable = [error for error in errors if may_retry(error)]
        if attempts >= COMMIT_ATTEMPTS:
            retriable = [
                error for error in retriable if not isinstance(error, UnknownTopicOrPartitionError)
            ]
        return retriable[0] if len(retriable) == len(errors) and retriable else None

    yield from on_coordinator(cluster, offsets.group, CallExchange(request), check, deadline_ms)
    if errors:
        raise errors[0]


def _named(
    tp: TopicPartition, code: int, rows: Mapping[TopicPartition, CommittedOffset]
) -> LogbusError:
    error = error_for(code)
    if isinstance(error, UnknownTopicIdError) and tp in rows:
        return other_topic(tp, rows[tp])
    return type(error)(f"{tp}: {error.message}")


def end(
    cluster: Cluster,
    known: CachedCoordinator,
    identity: tuple[int, int],
    deadline_ms: float,
    *,
    version: int,
    committed: bool,
) -> Operation[tuple[int, int] | None]:
    """Commit or abort the transaction. Return the next producer id and epoch; None in transaction
    version 1.

    ``identity`` is the transaction's producer id and epoch. A repeated request gets the same
    answer."""
    kind = transactions.EndOldTxnRequest if version == 1 else transactions.EndTxnRequest
    request = CallExchange(kind(known.key, *identity, committed))
    answer = yield from on_coordinator(cluster, known, request, answer_error, deadline_ms)
    if answer.producer_id == NO_PRODUCER:
        return None
    return answer.producer_id, answer.producer_epoch
