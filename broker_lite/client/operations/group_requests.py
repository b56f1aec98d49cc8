"""Operations (generators that yield requests) for a group's coordinator: find it, fetch and commit
offsets.

If another broker becomes the coordinator, an operation retries there, until ``deadline_ms`` on the
clock of ``Cluster``. The package ``membership`` has the requests of group members (join, sync,
heartbeat)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from broker_lite.client.operations.bounds import check_commits
from broker_lite.client.operations.cluster import Cluster, backoff_ms, group_by_topic
from broker_lite.client.operations.requests import (
    METADATA_TIMEOUT_MS,
    PerPartition,
    may_retry,
    on_any_broker,
    with_missing,
)
from broker_lite.client.transport.steps import CallExchange, Exchange, Operation, Pause, Send
from broker_lite.errors import (
    ConcurrentTransactionsError,
    LogbusError,
    NotCoordinatorError,
    UnknownMemberIdError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
    error_for,
    error_of,
)
from broker_lite.model import NULL_TOPIC_ID, CommittedOffset, Endpoint, TopicPartition
from broker_lite.wire.calls import groups

COMMIT_ATTEMPTS = 4
"""Maximum number of attempts to commit an offset if the coordinator does not know the topic."""

MARKERS_MS = 20
"""First pause (ms) before a retry if the coordinator still writes the end markers of the producer's
previous transaction."""

NO_MEMBER = ("", -1, None)
"""The member id, generation and instance id with which a client that is not a member commits."""

T = TypeVar("T")


def group_kind(cluster: Cluster, group: str, deadline_ms: float) -> Operation[str]:
    """Return a group's type from its coordinator: "Classic"; "Native" if it coordinates through
    ZooKeeper; "" if unknown."""
    request = CallExchange(groups.ListGroupsRequest())
    answer = yield from on_coordinator(cluster, group, request, answer_error, deadline_ms)
    return next((row.group_type for row in answer.groups if row.group_id == group), "")


def on_coordinator(
    cluster: Cluster,
    key: str | CachedCoordinator,
    exchange: Exchange[T],
    check: Callable[[T], LogbusError | None],
    deadline_ms: float,
    *,
    unanswered: list[LogbusError] | None = None,
) -> Operation[T]:
    """Send a request to a coordinator, and return the response. If another broker becomes the
    coordinator, send the request there.

    ``key`` is the name of a group, or a ``CachedCoordinator``. ``check`` returns the
    error in a response, or None. If the coordinator may have executed a request that
    failed, its error is added to ``unanswered``."""
    attempt = 0
    while True:
        is_sent = False
        try:
            if isinstance(key, CachedCoordinator):
                endpoint = yield from key.find(cluster, deadline_ms)
            else:
                endpoint = yield from find_coordinator(cluster, key, deadline_ms)
            is_sent = True
            answer: T = yield Send(endpoint, exchange, max(1.0, deadline_ms - cluster.now_ms()))
            problem = check(answer)
            if problem is None:
                return answer
        except LogbusError as error:
            problem = error
        pause = backoff_ms(attempt)
        if isinstance(problem, ConcurrentTransactionsError):
            pause = backoff_ms(attempt, MARKERS_MS)
        elif isinstance(key, CachedCoordinator):
            key.endpoint = None
        if not problem.retriable or cluster.now_ms() + pause >= deadline_ms:
            raise problem
        if unanswered is not None and is_sent and not isinstance(problem, NotCoordinatorError):
            unanswered.append(problem)
        yield Pause(pause)
        attempt += 1


def answer_error(answer: Any) -> LogbusError | None:
    """Return the error of a response with a single ``error_code``, or None for success."""
    return error_of(answer.error_code)


class CachedCoordinator:
    """Caches the address of the coordinator of a transactional id, or of Spark's sink.

    ``key`` is the transactional id or the sink's. ``endpoint`` is None until the look-up."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.endpoint: Endpoint | None = None

    def find(self, cluster: Cluster, deadline_ms: float) -> Operation[Endpoint]:
        """Return the coordinator's address, looked up if it is unknown."""
        if self.endpoint is None:
            self.endpoint = yield from find_coordinator(
                cluster, self.key, deadline_ms, groups.KEY_TYPE_TRANSACTION
            )
        return self.endpoint


def find_coordinator(
    cluster: Cluster, key: str, deadline_ms: float, key_type: int = groups.KEY_TYPE_GROUP
) -> Operation[Endpoint]:
    """Return the coordinator of ``key``: a group, or a transactional id (KEY_TYPE_TRANSACTION)."""

    def check(answer: groups.FindCoordinatorResponse) -> LogbusError | None:
        if not answer.coordinators:
            return error_for(15)
        row = answer.coordinators[0]
        return error_of(row.error_code, row.error_message)

    answer = yield from on_any_broker(
        cluster,
        CallExchange(groups.FindCoordinatorRequest((key,), key_type=key_type)),
        check,
        deadline_ms,
        attempt_ms=METADATA_TIMEOUT_MS,
    )
    row = answer.coordinators[0]
    return Endpoint(row.host, row.port)


def committed(
    cluster: Cluster,
    group: str,
    tps: Iterable[TopicPartition] | None,
    deadline_ms: float,
    former: set[str] | None = None,
    *,
    unstable: set[TopicPartition] | None = None,
) -> Operation[PerPartition[CommittedOffset]]:
    """Return a group's committed offset, or an error, for each of the partitions ``tps`` (None:
    all).

    A partition without a committed offset is missing from the result. Topics that were recreated
    after the commit are added to ``former``. Partitions for which an open transaction has a newer
    offset (KIP-447) are added to ``unstable``, and missing from the result."""
    topics = None
    asked = [] if tps is None else list(tps)
    if tps is not None:
        topics = tuple(
            groups.OffsetFetchTopic(name, tuple(tp.partition for tp in rows))
            for name, rows in group_by_topic(asked).items()
        )
    requested = (groups.OffsetFetchGroup(group, topics),)
    exchange = CallExchange(groups.OffsetFetchRequest(requested, unstable is not None))
    offsets: PerPartition[CommittedOffset] = {}
    uncommitted: set[TopicPartition] = set()

    def check(answer: groups.OffsetFetchResponse) -> LogbusError | None:
        offsets.clear()
        uncommitted.clear()
        if unstable is not None:
            unstable.clear()
        for each in answer.groups:
            if each.error_code:
                return error_for(each.error_code)
        rows = [
            (topic.name, row)
            for each in answer.groups
            for topic in each.topics
            for row in topic.partitions
        ]
        for name, row in rows:
            tp = TopicPartition(name, row.partition_index)
            if row.error_code:
                error = error_for(row.error_code)
                if unstable is not None and isinstance(error, UnstableOffsetCommitError):
                    unstable.add(tp)
                elif error.retriable and not isinstance(error, UnknownTopicOrPartitionError):
                    return error
                else:
                    offsets[tp] = error
            elif row.committed_offset >= 0:
                offsets[tp] = CommittedOffset(
                    row.committed_offset,
                    row.committed_leader_epoch,
                    row.metadata or "",
                    row.topic_id,
                    row.commit_ms,
                )
            else:
                uncommitted.add(tp)
                if row.topic_id != NULL_TOPIC_ID and former is not None:
                    former.add(name)
        return None

    yield from on_coordinator(cluster, group, exchange, check, deadline_ms)
    # The response lists even partitions without an offset: a missing partition is an error.
    known = uncommitted if unstable is None else uncommitted | unstable
    return with_missing(offsets, (tp for tp in asked if tp not in known))


def stable(
    cluster: Cluster,
    group: str,
    tps: Iterable[TopicPartition],
    *,
    until_ms: float,
    deadline_ms: float,
    former: set[str] | None = None,
) -> Operation[tuple[PerPartition[CommittedOffset], set[TopicPartition]]]:
    """Return the result of ``committed``, and the partitions whose offset is unstable: an open
    transaction may still change it.

    Wait for these transactions to end, until ``until_ms``. A reader that began at the present
    offset would process records again that the transaction has processed."""
    unstable: set[TopicPartition] = set()
    partitions, attempt = list(tps), 0
    while True:
        offsets = yield from committed(
            cluster, group, partitions, deadline_ms, former, unstable=unstable
        )
        pause = backoff_ms(attempt)
        if not unstable or cluster.now_ms() + pause >= until_ms:
            return offsets, unstable
        yield Pause(pause)
        attempt += 1


def commit_offsets(
    cluster: Cluster,
    group: str,
    commits: Mapping[TopicPartition, CommittedOffset],
    deadline_ms: float,
    member: tuple[str, int, str | None] = NO_MEMBER,
) -> Operation[PerPartition[None]]:
    """Commit offsets of a group. Return None or an error for each partition.

    ``member`` is the committing member's id, generation and instance id. Without it, the commit
    succeeds only while the group has no members. The error is UnknownTopicIdError if an offset has
    the id of a topic that was recreated since."""
    done: PerPartition[None] = {}

    def check(answer: groups.OffsetCommitResponse) -> LogbusError | None:
        for topic in answer.topics:
            for row in topic.partitions:
                tp = TopicPartition(topic.name, row.partition_index)
                error = error_of(row.error_code)
                if isinstance(error, UnknownTopicIdError) and tp in commits:
                    error = other_topic(tp, commits[tp])
                elif isinstance(error, UnknownMemberIdError) and member == NO_MEMBER:
                    error = UnknownMemberIdError(
                        f"group {group!r} has members, and only they may commit; stop them, or "
                        "commit to another group"
                    )
                elif may_retry(error) and not isinstance(error, UnknownTopicOrPartitionError):
                    return error
                done[tp] = error
        return None

    check_commits(commits)
    pending = commits
    for attempt in range(COMMIT_ATTEMPTS):
        exchange = CallExchange(
            groups.OffsetCommitRequest(
                group,
                topics_to_commit(pending),
                generation_id_or_member_epoch=member[1],
                member_id=member[0],
                group_instance_id=member[2],
            )
        )
        yield from on_coordinator(cluster, group, exchange, check, deadline_ms)
        # Retry unknown topics: the coordinator may learn of a new topic later than the leader of
        # its partition.
        pending = {
            tp: row
            for tp, row in pending.items()
            if isinstance(done.get(tp), (UnknownTopicIdError, UnknownTopicOrPartitionError))
        }
        pause = backoff_ms(attempt)
        if not pending or cluster.now_ms() + pause >= deadline_ms:
            break
        if attempt + 1 < COMMIT_ATTEMPTS:
            yield Pause(pause)
    return with_missing(done, commits)


def topics_to_commit(
    commits: Mapping[TopicPartition, CommittedOffset],
) -> tuple[groups.OffsetCommitTopic, ...]:
    """Return offsets grouped by topic, for an OffsetCommit or TxnOffsetCommit request."""
    topics: dict[tuple[str, str], list[groups.OffsetToCommit]] = {}
    for tp, row in commits.items():
        topics.setdefault((tp.topic, row.topic_id), []).append(
            groups.OffsetToCommit(tp.partition, row.offset, row.leader_epoch, row.metadata)
        )
    return tuple(
        groups.OffsetCommitTopic(name, tuple(rows), topic_id)
        for (name, topic_id), rows in topics.items()
    )


def other_topic(tp: TopicPartition, commit: CommittedOffset) -> UnknownTopicIdError:
    """Return the error for the commit of an offset of a topic that has been recreated."""
    return UnknownTopicIdError(
        f"topic {tp.topic!r} was deleted and recreated: offset {commit.offset} of {tp} belongs to "
        f"the deleted topic (id {commit.topic_id}) and was not committed"
    )
