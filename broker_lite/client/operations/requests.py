"""Operations (generators that yield requests) for metadata and producer ids, and those that send a
given request, with retries, to any broker or to the leaders of partitions.

An operation retries retriable errors until ``deadline_ms`` on the clock of ``Cluster``, and then
returns or raises the error. Before a retry it refreshes the metadata if they may be outdated. See
also ``offset_requests``, ``group_requests`` and ``admin_requests``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

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
    SaslAuthenticationError,
    TlsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnsupportedSaslMechanismError,
    error_for,
    error_of,
)
from broker_lite.model import NAME_LENGTH_MAX, NULL_TOPIC_ID, Endpoint, TopicPartition
from broker_lite.security import acls
from broker_lite.security.denials import named
from broker_lite.wire.calls import cluster as cluster_calls
from broker_lite.wire.calls import producers

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

T = TypeVar("T")
PerPartition = dict[TopicPartition, T | LogbusError]


def view_of(answer: cluster_calls.MetadataResponse, user: str = "") -> ClusterView:
    """Convert a broker's metadata response to a ``ClusterView``. ``user`` is the client's user
    name, for error messages."""
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

    Store the metadata in ``cluster``, and return the new view. If no broker answers, raises the
    login or TLS error of one of them, else NoBrokersError."""
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
    """Return whether ``result`` is an error after which the same request may succeed.

    Kafka calls UnknownTopicIdError retriable, but the same request would have the same unknown
    id."""
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
    """Send a request that any broker can answer, and return the response. See
    ``ask_any_broker``."""
    operation = ask_any_broker(cluster, exchange, check, deadline_ms, attempt_ms=attempt_ms)
    answer, _ = yield from operation
    return answer


def ask_any_broker(
    cluster: Cluster,
    exchange: Exchange[T],
    check: Callable[[T], LogbusError | None],
    deadline_ms: float,
    *,
    attempt_ms: float = float("inf"),
) -> Operation[tuple[T, Endpoint]]:
    """Send a request that any broker can answer. Return the response, and the address of the broker
    that sent it.

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
                return answer, endpoint
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
        # The broker answers CLUSTER_AUTHORIZATION_FAILED to a user who may write to no topic. Name
        # this cause: the code alone suggests a missing permission on the cluster.
        return ClusterAuthorizationError(
            "the user may write to no topic; a user with ALTER on the cluster can allow it with: "
            "logbus acl add USER write --topic NAME"
        )
    return error_for(code)
