"""Operations (generators that yield requests) for metadata, log offsets and producer ids.

An operation retries retriable errors until ``deadline_ms`` on the clock of ``Cluster``, and then
returns or raises the error. Before a retry it refreshes the metadata if they may be outdated. See
also ``group_requests`` and ``admin_requests``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from broker_lite.client.operations.bounds import check_offsets, check_times
from broker_lite.client.operations.cluster import (
    Cluster,
    ClusterView,
    PartitionMetadata,
    TopicMetadata,
    backoff_ms,
    group_by_topic,
    unknown_topic,
)
from broker_lite.client.transport.steps import (
    CallExchange,
    Exchange,
    Operation,
    Pause,
    Send,
    SendAll,
)
from broker_lite.errors import (
    ClusterAuthorizationError,
    IllegalSaslStateError,
    InvalidConfigError,
    InvalidTopicError,
    LogbusError,
    NetworkError,
    NoBrokersError,
    OffsetOutOfRangeError,
    SaslAuthenticationError,
    TlsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnsupportedSaslMechanismError,
    UnsupportedVersionError,
    error_for,
    error_of,
)
from broker_lite.model import (
    EARLIEST_TIMESTAMP,
    NAME_LENGTH_MAX,
    NULL_TOPIC_ID,
    Endpoint,
    ListedOffset,
    LogBounds,
    TopicPartition,
)
from broker_lite.security import acls
from broker_lite.security.denials import named
from broker_lite.wire.calls import cluster as cluster_calls
from broker_lite.wire.calls import offsets, producers

METADATA_TIMEOUT_MS = 5_000
"""Time limit (ms) of a request to one broker for metadata, a coordinator or a producer id.

Another broker may answer at once, while this one hangs."""
FIRST_CONTACT_MS = 5_000
"""Milliseconds after which an operation fails if no broker has ever answered this client.

The addresses are probably wrong."""
NOT_ADMITTED = (SaslAuthenticationError, UnsupportedSaslMechanismError, IllegalSaslStateError)
"""Login errors, which are not retried.

A retry would fail too, and brokers answer repeated wrong passwords more and more slowly."""
UNUSABLE_TLS = (TlsError, InvalidConfigError)
"""Errors in the TLS files (certificates, keys) of the client or the broker."""
UNKNOWN_TOPIC_GRACE_MS = 700
"""Milliseconds for which an unknown topic is looked up again: it may be new."""

ISOLATION_LEVELS = {"read_uncommitted": 0, "read_committed": 1}
ANY_TOPIC: Mapping[str, str] = MappingProxyType({})

T = TypeVar("T")
PerPartition = dict[TopicPartition, T | LogbusError]


def view_of(answer: cluster_calls.MetadataResponse, user: str = "") -> ClusterView:
    """Convert a broker's metadata response to a ``ClusterView``. ``user`` is the client's, for
    errors."""
    topics = {}
    for topic in answer.topics:
        error: LogbusError | None = None
        if topic.error_code:
            error = error_for(topic.error_code)
            if isinstance(error, UnknownTopicOrPartitionError):
                error = unknown_topic(topic.name)
            elif isinstance(error, InvalidTopicError):
                error = InvalidTopicError(
                    f"topic name {topic.name[:60]!r}: give 1 to {NAME_LENGTH_MAX} letters, digits, "
                    "dots, underscores or dashes"
                )
            describe, kind = acls.Operation.DESCRIBE, acls.ResourceKind.TOPIC
            error = named(error, user, describe, kind, topic.name)
        rows = tuple(
            PartitionMetadata(
                row.partition_index,
                row.leader_id,
                row.leader_epoch,
                row.replica_nodes,
                row.isr_nodes,
                error_of(row.error_code),
            )
            for row in sorted(topic.partitions, key=lambda row: row.partition_index)
        )
        topics[topic.name] = TopicMetadata(topic.name, topic.topic_id, error, rows)
    return ClusterView(
        answer.cluster_id or "",
        answer.controller_id,
        {row.node_id: Endpoint(row.host, row.port) for row in answer.brokers},
        topics,
        {row.node_id: row.rack for row in answer.brokers if row.rack},
    )


def refresh_once(cluster: Cluster, topics: Iterable[str] | None) -> Operation[ClusterView]:
    """Request the metadata of ``topics`` (None: all) from one broker after another until one
    answers.

    Store them in ``cluster``, and return the new view. If no broker answers, raises the login or
    TLS error of one of them, else NoBrokersError."""
    names = None if topics is None else tuple(dict.fromkeys(topics))
    call = cluster_calls.MetadataRequest(names)
    reasons: list[LogbusError] = []
    for endpoint in cluster.candidates():
        try:
            answer = yield Send(endpoint, CallExchange(call), METADATA_TIMEOUT_MS)
        except LogbusError as error:
            cluster.failed(endpoint)
            reasons.append(error)
            continue
        return cluster.learn(view_of(answer, cluster.user), everything=names is None)
    for reason in reasons:
        if isinstance(reason, (*NOT_ADMITTED, *UNUSABLE_TLS)):
            raise reason
    raise NoBrokersError("no broker answers: " + "; ".join(each.message for each in reasons))


def refresh(
    cluster: Cluster, topics: Iterable[str] | None, deadline_ms: float
) -> Operation[ClusterView]:
    """Repeat ``refresh_once`` until a broker answers, or until the deadline.

    If no broker has ever answered this client, stop after five seconds. A refused login is not
    retried. A TLS error is retried only if a broker has answered before: the settings are then
    right, and a certificate may be about to be replaced."""
    names = None if topics is None else list(topics)
    is_first = not cluster.has_answered
    if is_first:
        deadline_ms = min(deadline_ms, cluster.now_ms() + FIRST_CONTACT_MS)
    attempt = 0
    while True:
        try:
            view = yield from refresh_once(cluster, names)
            return view
        except (NoBrokersError, *UNUSABLE_TLS) as error:
            pause = backoff_ms(attempt)
            is_final = is_first and isinstance(error, UNUSABLE_TLS)
            if is_final or cluster.now_ms() + pause >= deadline_ms:
                raise
        yield Pause(pause)
        attempt += 1


def known_topics(
    cluster: Cluster, names: Sequence[str], deadline_ms: float
) -> Operation[ClusterView]:
    """Return metadata in which all topics ``names`` exist, refreshed if necessary.

    Raises UnknownTopicOrPartitionError, which suggests similar names, if a topic does not exist."""
    grace_ms = min(deadline_ms, cluster.now_ms() + UNKNOWN_TOPIC_GRACE_MS)
    missing: list[str] = []
    attempt = 0
    while True:
        missing = [name for name in names if not _is_known(cluster.view, name)]
        if not missing:
            return cluster.view
        if attempt:
            pause = backoff_ms(attempt)
            if cluster.now_ms() + pause >= grace_ms:
                break
            yield Pause(pause)
        yield from refresh(cluster, missing, deadline_ms)
        attempt += 1
    error = yield from missing_topic(cluster, missing[0])
    raise error


def refreshed_topics(
    cluster: Cluster, names: Sequence[str], deadline_ms: float
) -> Operation[ClusterView]:
    """Return new metadata in which all topics ``names`` exist.

    Raises UnknownTopicOrPartitionError as ``known_topics`` does."""
    yield from refresh(cluster, names, deadline_ms)
    return (yield from known_topics(cluster, names, deadline_ms))


def missing_topic(cluster: Cluster, name: str) -> Operation[LogbusError]:
    """Return the error that says why a topic is missing from the metadata.

    If the topic does not exist, request the names of all topics, to suggest similar names."""
    topic = cluster.view.topics.get(name)
    error = topic.error if topic is not None else None
    if error is not None and not isinstance(error, UnknownTopicOrPartitionError):
        return error
    try:
        view = yield from refresh_once(cluster, None)
    except LogbusError:
        return unknown_topic(name)
    return unknown_topic(name, (each for each in view.topics if _is_known(view, each)))


def _is_known(view: ClusterView, name: str) -> bool:
    topic = view.topics.get(name)
    return topic is not None and topic.error is None


def per_partition(
    cluster: Cluster,
    tps: Iterable[TopicPartition],
    make: Callable[[list[TopicPartition]], Exchange[Any]],
    read: Callable[[Any, list[TopicPartition]], Mapping[TopicPartition, T | LogbusError]],
    deadline_ms: float,
) -> Operation[PerPartition[T]]:
    """Send requests to the leaders of partitions, with retries. Return a result or an error for
    each.

    ``make`` builds the request for the partitions of one leader, ``read`` splits the response by
    partition. UnknownTopicIdError is retried only if a metadata refresh returns another topic id:
    the request then had an outdated one."""
    results: PerPartition[T] = {}
    pending = list(dict.fromkeys(tps))
    topics = list(group_by_topic(pending))
    yield from known_topics(cluster, topics, deadline_ms)
    attempt = 0
    while pending:
        by_leader, errors = cluster.by_leader(pending)
        results.update(errors)
        sends = [
            Send(endpoint, make(group), max(1.0, deadline_ms - cluster.now_ms()))
            for endpoint, group in by_leader.items()
        ]
        answers = yield SendAll(sends)
        for (endpoint, group), answer in zip(by_leader.items(), answers):
            if isinstance(answer, LogbusError):
                cluster.failed(endpoint)
                results.update(dict.fromkeys(group, answer))
            else:
                results.update(read(answer, group))
        pending = [tp for tp in pending if is_retriable(results[tp])]
        pause = backoff_ms(attempt)
        if not pending or cluster.now_ms() + pause >= deadline_ms:
            break
        yield Pause(pause)
        cluster.ask_another()
        view = cluster.view
        yield from refresh(cluster, group_by_topic(pending), deadline_ms)
        pending = [
            tp
            for tp in pending
            if may_retry(results[tp]) or _is_another(view, cluster.view, tp.topic)
        ]
        attempt += 1
        if attempt > 4:
            pending = [
                tp for tp in pending if not isinstance(results[tp], UnknownTopicOrPartitionError)
            ]
    return results


def may_retry(result: Any) -> bool:
    """Return whether ``result`` is an error after which to send the same request again.

    Not after UnknownTopicIdError, although Kafka calls it retriable: the same request has the same
    unknown id."""
    return is_retriable(result) and not isinstance(result, UnknownTopicIdError)


def is_retriable(result: object) -> bool:
    """Return whether a result is an error that a refresh of the metadata may resolve."""
    return isinstance(result, LogbusError) and result.retriable


def _is_another(before: ClusterView, now: ClusterView, topic: str) -> bool:
    """Return whether the topic was recreated between two metadata responses: its id differs."""
    return now.topic_id(topic) not in (before.topic_id(topic), NULL_TOPIC_ID)


def raise_first(results: Mapping[TopicPartition, T | LogbusError]) -> dict[TopicPartition, T]:
    """Return the results of all partitions, or raise the first error, with its partition's name."""
    good: dict[TopicPartition, T] = {}
    for tp, result in results.items():
        if isinstance(result, LogbusError):
            if str(tp) in result.message or repr(tp.topic) in result.message:
                raise result
            raise type(result)(f"{tp}: {result.message}")
        good[tp] = result
    return good


def isolation_code(level: str) -> int:
    """Return an isolation level's number. Raises InvalidConfigError for an unknown level."""
    if level not in ISOLATION_LEVELS:
        raise InvalidConfigError(
            f"isolation.level={level!r}: give one of {', '.join(ISOLATION_LEVELS)}"
        )
    return ISOLATION_LEVELS[level]


def list_offsets(
    cluster: Cluster,
    timestamps: Mapping[TopicPartition, int],
    *,
    isolation_level: int,
    deadline_ms: float,
) -> Operation[PerPartition[ListedOffset]]:
    """Return each partition's offset of the first record at or after a timestamp (ms since 1970).

    -1 stands for the log's end, -2 for its start, -3 for the record with the newest timestamp. See
    ``Admin.list_offsets``."""
    check_times(timestamps)

    def make(group: list[TopicPartition]) -> Exchange[Any]:
        topics = tuple(
            offsets.ListOffsetsTopic(
                name,
                tuple(
                    offsets.ListOffsetsPartition(
                        tp.partition, timestamps[tp], cluster.view.leader_epoch(tp)
                    )
                    for tp in rows
                ),
            )
            for name, rows in group_by_topic(group).items()
        )
        return CallExchange(offsets.ListOffsetsRequest(topics, isolation_level))

    def read(
        answer: offsets.ListOffsetsResponse, group: list[TopicPartition]
    ) -> PerPartition[ListedOffset]:
        offsets_by_tp: PerPartition[ListedOffset] = {}
        for topic in answer.topics:
            for row in topic.partitions:
                tp = TopicPartition(topic.name, row.partition_index)
                offsets_by_tp[tp] = (
                    error_for(row.error_code)
                    if row.error_code
                    else ListedOffset(row.offset, row.timestamp, row.leader_epoch)
                )
        return with_missing(offsets_by_tp, group)

    return per_partition(cluster, timestamps, make, read, deadline_ms)


def offsets_for_bytes(
    cluster: Cluster,
    ranges: Mapping[TopicPartition, tuple[int, int]],
    deadline_ms: float,
    topic_ids: Mapping[str, str] = ANY_TOPIC,
) -> Operation[PerPartition[tuple[int, int]]]:
    """Return the offset ranges that hold about the given number of stored bytes.

    ``ranges`` has (start offset, maximum bytes) for each partition; the result has (end offset,
    bytes of the range). The end is a batch boundary. ``topic_ids`` has the ids that topics must
    have; a topic without an entry may have any."""
    check_offsets({tp: start for tp, (start, _) in ranges.items()})
    answers = yield from _offsets_for_bytes(cluster, ranges, deadline_ms, topic_ids)
    return {
        tp: row if isinstance(row, LogbusError) else (row.end_offset, row.size_bytes)
        for tp, row in answers.items()
    }


def log_bounds(
    cluster: Cluster,
    topic_ids: Mapping[TopicPartition, str],
    max_bytes: int,
    *,
    isolation_level: int,
    deadline_ms: float,
) -> Operation[PerPartition[LogBounds]]:
    """Return each log's start and end offset, and the offset at which its first ``max_bytes`` bytes
    end.

    Each leader receives one request. A leader with an older logbus, which cannot return these
    bounds, gives its partitions UnsupportedVersionError."""
    answers = yield from _offsets_for_bytes(
        cluster,
        dict.fromkeys(topic_ids, (EARLIEST_TIMESTAMP, max_bytes)),
        deadline_ms,
        {tp.topic: topic_id for tp, topic_id in topic_ids.items()},
        isolation_level,
    )
    return {tp: _bounds(tp, row) for tp, row in answers.items()}


def _bounds(tp: TopicPartition, row: offsets.BytesAnswer | LogbusError) -> LogBounds | LogbusError:
    if isinstance(row, OffsetOutOfRangeError):
        # The request asks for offset -2 (EARLIEST_TIMESTAMP), which stands for the start of the
        # log. Only a broker too old to know this answers "out of range", so report the old version.
        return UnsupportedVersionError(
            f"the leader of {tp} cannot return the bounds of a log in one request; "
            "upgrade the brokers"
        )
    if isinstance(row, LogbusError):
        return row
    return LogBounds(row.start_offset, row.latest_offset, row.end_offset, row.size_bytes)


def _offsets_for_bytes(
    cluster: Cluster,
    ranges: Mapping[TopicPartition, tuple[int, int]],
    deadline_ms: float,
    topic_ids: Mapping[str, str],
    isolation_level: int | None = None,
) -> Operation[PerPartition[offsets.BytesAnswer]]:
    def topic_id(name: str) -> str:
        return topic_ids.get(name) or cluster.view.topic_id(name)

    def make(group: list[TopicPartition]) -> Exchange[Any]:
        return CallExchange(
            offsets.OffsetsForBytesRequest(
                tuple(
                    offsets.BytesPartition(topic_id(tp.topic), tp.partition, *ranges[tp])
                    for tp in group
                ),
                isolation_level,
            )
        )

    def read(
        answer: offsets.OffsetsForBytesResponse, group: list[TopicPartition]
    ) -> PerPartition[offsets.BytesAnswer]:
        answers: PerPartition[offsets.BytesAnswer] = {}
        for tp, row in zip(group, answer.answers):
            answers[tp] = error_for(row.error_code) if row.error_code else row
        return with_missing(answers, group)

    return per_partition(cluster, ranges, make, read, deadline_ms)


def record_times(
    cluster: Cluster, after: Mapping[TopicPartition, int], deadline_ms: float
) -> Operation[PerPartition[ListedOffset]]:
    """Return each partition's offset and time (ms since 1970) of the first record from the given
    offset on.

    The offset is -1 if there is no such record yet."""
    times = yield from record_times_of_many(
        cluster, {tp: (offset,) for tp, offset in after.items()}, deadline_ms
    )
    return {tp: rows if isinstance(rows, LogbusError) else rows[0] for tp, rows in times.items()}


def record_times_of_many(
    cluster: Cluster, after: Mapping[TopicPartition, Sequence[int]], deadline_ms: float
) -> Operation[PerPartition[tuple[ListedOffset, ...]]]:
    """Return the results of ``record_times`` for several offsets of each partition, in their order.

    If the lookup of one offset fails, the result of the whole partition is the error."""
    for tp, offsets_asked in after.items():
        for offset in offsets_asked:
            check_offsets({tp: offset})

    def make(group: list[TopicPartition]) -> Exchange[Any]:
        return CallExchange(
            offsets.RecordTimesRequest(
                tuple(
                    offsets.TimePartition(cluster.view.topic_id(tp.topic), tp.partition, offset)
                    for tp in group
                    for offset in after[tp]
                )
            )
        )

    def read(
        answer: offsets.RecordTimesResponse, group: list[TopicPartition]
    ) -> PerPartition[tuple[ListedOffset, ...]]:
        times: PerPartition[tuple[ListedOffset, ...]] = {}
        rows = iter(answer.answers)
        for tp in group:
            own = list(itertools.islice(rows, len(after[tp])))
            if len(own) < len(after[tp]):
                break
            failed = next((row for row in own if row.error_code), None)
            times[tp] = (
                error_for(failed.error_code)
                if failed is not None
                else tuple(ListedOffset(row.offset, row.timestamp) for row in own)
            )
        return with_missing(times, group)

    return per_partition(cluster, after, make, read, deadline_ms)


def with_missing(answers: PerPartition[T], group: Iterable[TopicPartition]) -> PerPartition[T]:
    """Return ``answers`` with an error for each partition that the broker's response lacks."""
    for tp in group:
        if tp not in answers:
            answers[tp] = error_for(-1, f"the broker's response lacks {tp}")
    return answers


def on_any_broker(
    cluster: Cluster,
    exchange: Exchange[T],
    check: Callable[[T], LogbusError | None],
    deadline_ms: float,
    *,
    attempt_ms: float = float("inf"),
) -> Operation[T]:
    """Send a request that any broker can answer, and return the response.

    After a retriable error, or ``attempt_ms`` without a response, try the next broker. ``check``
    returns the error in a response, or None. If no broker has ever answered this client, fail after
    five seconds."""
    attempt = 0
    answers_by_ms = cluster.now_ms() + FIRST_CONTACT_MS
    while True:
        endpoint = cluster.candidates()[0]
        try:
            left_ms = max(1.0, deadline_ms - cluster.now_ms())
            answer: T = yield Send(endpoint, exchange, min(left_ms, attempt_ms))
            problem = check(answer)
            if problem is None:
                return answer
        except LogbusError as error:
            problem = error
        if not problem.retriable:
            raise problem
        cluster.failed(endpoint)
        if isinstance(problem, NetworkError) and not cluster.has_answered:
            deadline_ms = min(deadline_ms, answers_by_ms)
        pause = backoff_ms(attempt)
        if cluster.now_ms() + pause >= deadline_ms:
            raise problem
        yield Pause(pause if attempt >= len(cluster.candidates()) - 1 else 0)
        attempt += 1


def init_producer_id(cluster: Cluster, deadline_ms: float) -> Operation[tuple[int, int]]:
    """Return a new producer id and its epoch, for an idempotent producer without transactions."""
    answer = yield from on_any_broker(
        cluster,
        CallExchange(producers.InitProducerIdRequest()),
        lambda answer: _identity_error(answer.error_code) if answer.error_code else None,
        deadline_ms,
        attempt_ms=METADATA_TIMEOUT_MS,
    )
    return answer.producer_id, answer.producer_epoch


def _identity_error(code: int) -> LogbusError:
    if code == ClusterAuthorizationError.code:
        # The broker answers with this code if the user may write to no topic. The code alone would
        # suggest a missing permission on the cluster.
        return ClusterAuthorizationError(
            "the user may write to no topic; a user with ALTER on the cluster can allow it with: "
            "logbus acl add USER write --topic NAME"
        )
    return error_for(code)
