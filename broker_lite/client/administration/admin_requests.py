"""Operations (generators that yield requests) for topics, settings, groups and data directories.

Requests that change the cluster go to the controller, and are repeated if another broker becomes
controller. If a response is lost, the change may have happened, so the retry takes errors such as
TOPIC_ALREADY_EXISTS for success."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from broker_lite.client.operations.bounds import check_offsets
from broker_lite.client.operations.cluster import Cluster, ClusterView, backoff_ms, group_by_topic
from broker_lite.client.operations.group_requests import on_coordinator
from broker_lite.client.operations.requests import (
    PerPartition,
    on_any_broker,
    per_partition,
    refresh,
    view_of,
)
from broker_lite.client.transport.steps import (
    CallExchange,
    Exchange,
    Operation,
    Pause,
    Send,
    SendAll,
)
from broker_lite.config import value_text
from broker_lite.errors import (
    GroupIdNotFoundError,
    InvalidPartitionsError,
    InvalidTopicError,
    LogbusError,
    NoBrokersError,
    NonEmptyGroupError,
    RequestTimedOutError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
    error_for,
    error_of,
)
from broker_lite.model import NAME_LENGTH_MAX, NO_BROKER, Endpoint, TopicPartition, is_valid_name
from broker_lite.wire.calls import cluster as cluster_calls
from broker_lite.wire.calls import configs, group_removal, groups, log_dirs, topics

SETTINGS_WAIT_MS = 3_000
"""Milliseconds for which ``alter_configs`` waits until all brokers have applied a change."""

CHECK_MS = 20.0
"""Milliseconds between two checks of whether every broker has applied a change."""

LIST_ATTEMPT_MS = 5_000
"""Milliseconds after which ``list_groups`` asks all live brokers again if one has not answered: its
groups may have another coordinator by then."""

T = TypeVar("T")
V = TypeVar("V")


def on_controller(
    cluster: Cluster,
    exchange: Exchange[T],
    check: Callable[[T, bool], LogbusError | None],
    deadline_ms: float,
) -> Operation[T]:
    """Send a request to the controller and return the response.

    After a retriable error, look the controller up again and retry. ``check`` receives a response,
    and whether an earlier attempt may have taken effect; it returns an error, or None for
    success."""
    attempt, is_repeat = 0, False
    while True:
        problem: LogbusError | None
        try:
            endpoint = yield from _controller(cluster, attempt > 0, deadline_ms)
            answer: T = yield Send(endpoint, exchange, max(1.0, deadline_ms - cluster.now_ms()))
            problem = check(answer, is_repeat)
            if problem is None:
                return answer
        except LogbusError as error:
            problem = error
        is_repeat = is_repeat or not problem.definite
        pause = backoff_ms(attempt)
        # Do not retry for an unknown topic: the controller creates topics, so it knows them all.
        is_final = isinstance(problem, UnknownTopicOrPartitionError) or not problem.retriable
        if is_final or cluster.now_ms() + pause >= deadline_ms:
            raise problem
        yield Pause(pause)
        attempt += 1


def _no_topic(name: str) -> UnknownTopicOrPartitionError:
    return UnknownTopicOrPartitionError(f"topic {name!r} does not exist")


def _controller(cluster: Cluster, renew: bool, deadline_ms: float) -> Operation[Endpoint]:
    if renew or cluster.view.controller_id not in cluster.view.brokers:
        yield from refresh(cluster, (), deadline_ms)
    known = cluster.view.brokers.get(cluster.view.controller_id)
    # If the cluster has no controller, ask any broker, which answers with the error to raise.
    return known if known is not None else cluster.candidates()[0]


def creatable_topic(
    name: str, partitions: int, replication_factor: int, config: Mapping[str, object] | None
) -> topics.CreatableTopic:
    """Return the topic for ``create_topic``. -1 selects the brokers' defaults. ``config`` has
    settings as text or Python values. Raises InvalidTopicError if the name is not allowed."""
    if not is_valid_name(name):
        raise InvalidTopicError(
            f"topic name {name!r}: give 1 to {NAME_LENGTH_MAX} letters, digits, '.', '_', '-'"
        )
    rows = tuple((key, value_text(value)) for key, value in (config or {}).items())
    return topics.CreatableTopic(name, partitions, replication_factor, configs=rows)


def create_topic(
    cluster: Cluster,
    topic: topics.CreatableTopic,
    deadline_ms: float,
    *,
    validate_only: bool = False,
    if_not_exists: bool = False,
) -> Operation[str]:
    """Create a topic, wait until every live broker lists it with leaders, and return its id.

    Raises TopicExistsError; with ``if_not_exists``, returns the id of the existing topic."""
    topic_id = ""

    def check(answer: topics.CreateTopicsResponse, is_repeat: bool) -> LogbusError | None:
        nonlocal topic_id
        row = answer.topics[0]
        topic_id = row.topic_id
        error = error_of(row.error_code, row.error_message)
        if is_repeat and isinstance(error, TopicExistsError):
            topic_id = ""
            return None
        return error

    call = topics.CreateTopicsRequest(
        (topic,), max(1, int(deadline_ms - cluster.now_ms())), validate_only
    )
    try:
        yield from on_controller(cluster, CallExchange(call), check, deadline_ms)
    except TopicExistsError:
        if not if_not_exists:
            raise
        return (yield from refresh(cluster, (topic.name,), deadline_ms)).topic_id(topic.name)
    if not validate_only:
        visible = yield from _await_everywhere(
            cluster,
            topic.name,
            lambda view: (
                bool(view.partitions_of(topic.name))
                and all(view.leader(tp) is not None for tp in view.partitions_of(topic.name))
            ),
            deadline_ms,
        )
        topic_id = topic_id or visible.topic_id(topic.name)
    return topic_id


def _await_everywhere(
    cluster: Cluster, topic: str, is_done: Callable[[ClusterView], bool], deadline_ms: float
) -> Operation[ClusterView]:
    """Wait until ``is_done`` returns true for the topic's metadata from each live broker.

    Brokers that do not answer are ignored: they load all metadata from ZooKeeper when they return.
    Raises RequestTimedOutError after the deadline."""
    attempt = 0
    exchange = CallExchange(cluster_calls.MetadataRequest((topic,)))
    yield from refresh(cluster, (topic,), deadline_ms)
    while True:
        brokers = list(cluster.view.brokers.values())
        answers = yield SendAll([Send(endpoint, exchange, 5000) for endpoint in brokers])
        views = [view_of(answer) for answer in answers if not isinstance(answer, LogbusError)]
        if views and all(is_done(view) for view in views):
            return cluster.learn(views[-1], everything=False)
        pause = min(50.0, backoff_ms(attempt, 2))
        if cluster.now_ms() + pause >= deadline_ms:
            raise RequestTimedOutError(
                f"topic {topic!r} was changed, but not every broker has applied the change yet; "
                "describe the topic again in a few seconds"
            )
        yield Pause(pause)
        attempt += 1


def delete_topic(
    cluster: Cluster, name: str, deadline_ms: float, *, if_exists: bool = False
) -> Operation[None]:
    """Delete a topic and wait until no live broker lists it.

    Raises UnknownTopicOrPartitionError, unless ``if_exists``."""

    def check(answer: topics.DeleteTopicsResponse, is_repeat: bool) -> LogbusError | None:
        row = answer.responses[0]
        error = error_of(row.error_code, row.error_message)
        if isinstance(error, UnknownTopicOrPartitionError):
            error = None if is_repeat else _no_topic(name)
        return error

    view = yield from refresh(cluster, (name,), deadline_ms)
    topic_id = view.topic_id(name)
    call = topics.DeleteTopicsRequest((name,))
    try:
        yield from on_controller(cluster, CallExchange(call), check, deadline_ms)
    except UnknownTopicOrPartitionError:
        if not if_exists:
            raise
        return
    yield from _await_everywhere(
        cluster,
        name,
        lambda view: not view.partitions_of(name) or view.topic_id(name) != topic_id,
        deadline_ms,
    )


def create_partitions(
    cluster: Cluster, name: str, count: int, deadline_ms: float, *, validate_only: bool
) -> Operation[None]:
    """Raise a topic's number of partitions to ``count``, and wait until every live broker lists all
    of them with leaders."""

    def check(answer: topics.CreatePartitionsResponse, is_repeat: bool) -> LogbusError | None:
        row = answer.results[0]
        error = error_of(row.error_code, row.error_message)
        if isinstance(error, UnknownTopicOrPartitionError):
            return _no_topic(name)
        if is_repeat and isinstance(error, InvalidPartitionsError):
            return None
        return error

    rows = (topics.PartitionsToCreate(name, count),)
    call = topics.CreatePartitionsRequest(rows, validate_only=validate_only)
    yield from on_controller(cluster, CallExchange(call), check, deadline_ms)
    if validate_only:
        return
    yield from _await_everywhere(
        cluster,
        name,
        lambda view: (
            len(view.partitions_of(name)) >= count
            and all(view.leader(tp) is not None for tp in view.partitions_of(name))
        ),
        deadline_ms,
    )


def alter_configs(
    cluster: Cluster,
    topic: str,
    changes: Mapping[str, str | None],
    deadline_ms: float,
    *,
    validate_only: bool,
) -> Operation[None]:
    """Change a topic's settings, and wait until the live brokers apply them. None resets a setting
    to its default."""

    def check(answer: configs.IncrementalAlterConfigsResponse, _: bool) -> LogbusError | None:
        row = answer.responses[0]
        error = error_of(row.error_code, row.error_message)
        return _no_topic(topic) if isinstance(error, UnknownTopicOrPartitionError) else error

    resource = configs.AlterConfigsResource(configs.RESOURCE_TOPIC, topic, _alterations(changes))
    call = configs.IncrementalAlterConfigsRequest((resource,), validate_only)
    yield from on_controller(cluster, CallExchange(call), check, deadline_ms)
    if not validate_only:
        yield from _await_settings(cluster, topic, changes, deadline_ms)


def alter_broker_configs(
    cluster: Cluster, broker_id: int, changes: Mapping[str, str | None], deadline_ms: float
) -> Operation[None]:
    """Change those settings of a broker that ZooKeeper stores. None removes a setting."""

    def check(answer: configs.IncrementalAlterConfigsResponse, _: bool) -> LogbusError | None:
        row = answer.responses[0]
        return error_of(row.error_code, row.error_message)

    resource = configs.AlterConfigsResource(
        configs.RESOURCE_BROKER, str(broker_id), _alterations(changes)
    )
    call = configs.IncrementalAlterConfigsRequest((resource,), False)
    yield from on_controller(cluster, CallExchange(call), check, deadline_ms)


def _alterations(changes: Mapping[str, str | None]) -> tuple[configs.AlterableConfig, ...]:
    return tuple(
        configs.AlterableConfig(
            key, configs.OPERATION_DELETE if value is None else configs.OPERATION_SET, value
        )
        for key, value in changes.items()
    )


def _await_settings(
    cluster: Cluster, topic: str, changes: Mapping[str, str | None], deadline_ms: float
) -> Operation[None]:
    """Wait, SETTINGS_WAIT_MS at most, until all answering brokers report the changed settings."""
    until_ms = min(deadline_ms, cluster.now_ms() + SETTINGS_WAIT_MS)
    resource = configs.ConfigResource(configs.RESOURCE_TOPIC, topic, tuple(changes))
    exchange = CallExchange(configs.DescribeConfigsRequest((resource,)))
    attempt = 0
    while True:
        answers = yield from on_every_broker(cluster, exchange, until_ms)
        good = [answer for answer in answers.values() if not isinstance(answer, LogbusError)]
        if all(_has_settings(answer, changes) for answer in good):
            return
        pause = min(50.0, backoff_ms(attempt, 2))
        if cluster.now_ms() + pause >= until_ms:
            return
        yield Pause(pause)
        attempt += 1


def _has_settings(
    answer: configs.DescribeConfigsResponse, changes: Mapping[str, str | None]
) -> bool:
    for row in answer.results:
        for item in row.configs:
            value = changes.get(item.name)
            is_own = item.config_source == configs.SOURCE_TOPIC
            if item.name in changes and (is_own, item.value if is_own else None) != (
                value is not None,
                value,
            ):
                return False
    return True


def describe_configs(
    cluster: Cluster, resources: Sequence[configs.ConfigResource], deadline_ms: float
) -> Operation[list[configs.DescribeConfigsResult]]:
    """Return the settings of topics and brokers. Each broker is asked for its own settings.

    Raises NoBrokersError if a broker is not live."""
    results: list[configs.DescribeConfigsResult] = []

    def check(answer: configs.DescribeConfigsResponse) -> LogbusError | None:
        for row in answer.results:
            if row.error_code:
                error = error_for(row.error_code, row.error_message)
                if isinstance(error, UnknownTopicOrPartitionError):
                    raise _no_topic(row.resource_name)
                return error
        results.extend(answer.results)
        return None

    def request(rows: Sequence[configs.ConfigResource]) -> CallExchange[Any]:
        return CallExchange(configs.DescribeConfigsRequest(tuple(rows), include_documentation=True))

    of_topics = [row for row in resources if row.resource_type == configs.RESOURCE_TOPIC]
    if of_topics:
        yield from on_any_broker(cluster, request(of_topics), check, deadline_ms)
    of_brokers = [row for row in resources if row.resource_type == configs.RESOURCE_BROKER]
    if of_brokers:
        yield from refresh(cluster, (), deadline_ms)
    for row in of_brokers:
        broker_id = int(row.resource_name) if row.resource_name.isdigit() else NO_BROKER
        endpoint = cluster.view.brokers.get(broker_id)
        if endpoint is None:
            raise NoBrokersError(
                f"broker {row.resource_name!r} is not live; see the live brokers: logbus status"
            )
        answer = yield Send(endpoint, request((row,)))
        error = check(answer)
        if error is not None:
            raise error
    return results


def delete_records(
    cluster: Cluster, before: Mapping[TopicPartition, int], deadline_ms: float
) -> Operation[PerPartition[int]]:
    """Delete each partition's records before an offset (-1: before the high watermark).

    Return the new start offset of each log, or an error."""
    check_offsets(before, at_least=-1)

    def make(group: list[TopicPartition]) -> Exchange[Any]:
        rows = tuple(
            topics.DeleteRecordsTopic(
                name,
                tuple(topics.DeleteRecordsPartition(tp.partition, before[tp]) for tp in tps),
            )
            for name, tps in group_by_topic(group).items()
        )
        return CallExchange(topics.DeleteRecordsRequest(rows))

    def read(
        answer: topics.DeleteRecordsResponse, group: list[TopicPartition]
    ) -> PerPartition[int]:
        return {
            TopicPartition(topic.name, row.partition_index): error_for(row.error_code)
            if row.error_code
            else row.low_watermark
            for topic in answer.topics
            for row in topic.partitions
        }

    return per_partition(cluster, before, make, read, deadline_ms)


def on_every_broker(
    cluster: Cluster, exchange: Exchange[T], deadline_ms: float
) -> Operation[dict[int, T | LogbusError]]:
    """Send a request to all live brokers. Return each response or error, by broker id."""
    view = yield from refresh(cluster, (), deadline_ms)
    ids = list(view.brokers)
    answers = yield SendAll(
        [
            Send(view.brokers[each], exchange, max(1.0, deadline_ms - cluster.now_ms()))
            for each in ids
        ]
    )
    return dict(zip(ids, answers))


def await_applied(
    cluster: Cluster,
    writer: Endpoint,
    exchange: Exchange[T],
    read: Callable[[T], V],
    is_applied: Callable[[V], bool],
    *,
    changed: str,
    deadline_ms: float,
) -> Operation[None]:
    """Wait until all live brokers have applied a change, which the broker at ``writer`` has written
    to ZooKeeper and applied.

    Sends ``exchange`` to every broker again and again. ``read`` returns the changed objects in a
    broker's response, and ``is_applied`` whether they have the change. Another administrator may
    have changed the objects since: a broker with the same objects as ``writer`` has applied both
    changes. Raises RequestTimedOutError, whose message names the objects by the text ``changed``,
    or the error of a broker."""
    while True:
        answers = yield from on_every_broker(cluster, exchange, deadline_ms)
        objects = {each: read(_answered(answer)) for each, answer in answers.items()}
        # ``writer`` may be the address of a load balancer, not of a broker. Then ``newest`` is
        # empty.
        newest = [objects[each] for each in objects if cluster.view.brokers.get(each) == writer]
        if all(is_applied(each) or each in newest for each in objects.values()):
            return
        if cluster.now_ms() >= deadline_ms:
            raise RequestTimedOutError(
                f"{changed} changed, but not every broker has applied the change yet; look again "
                "in a few seconds"
            )
        yield Pause(CHECK_MS)


def _answered(answer: T | LogbusError) -> T:
    if isinstance(answer, LogbusError):
        raise answer
    return answer


def list_groups(
    cluster: Cluster, deadline_ms: float, *, with_types: bool = True
) -> Operation[list[groups.ListedGroup]]:
    """Return all groups, each once, sorted by name.

    A broker lists only the groups that it coordinates, so the request goes to all live brokers. If
    a broker does not answer in time, its error is raised, with the broker's id. Apache Kafka
    supports ``with_types`` from 3.8 on."""
    call = groups.ListGroupsRequest() if with_types else groups.ListUntypedGroupsRequest()
    attempt = 0
    while True:
        until_ms = min(deadline_ms, cluster.now_ms() + LIST_ATTEMPT_MS)
        try:
            answers = yield from on_every_broker(cluster, CallExchange(call), until_ms)
            return _all_groups(answers)
        except LogbusError as error:
            pause = backoff_ms(attempt)
            if not error.retriable or cluster.now_ms() + pause >= deadline_ms:
                raise
        yield Pause(pause)
        attempt += 1


def _all_groups(
    answers: Mapping[int, groups.ListGroupsResponse | LogbusError],
) -> list[groups.ListedGroup]:
    listed: dict[str, groups.ListedGroup] = {}
    for broker_id, answer in answers.items():
        if isinstance(answer, LogbusError) or answer.error_code:
            error = answer if isinstance(answer, LogbusError) else error_for(answer.error_code)
            raise type(error)(f"broker {broker_id} did not list its groups: {error.message}")
        listed.update((row.group_id, row) for row in answer.groups)
    return [listed[name] for name in sorted(listed)]


def describe_groups(
    cluster: Cluster, names: Iterable[str], deadline_ms: float
) -> Operation[dict[str, groups.DescribedGroup]]:
    """Return the descriptions of groups by name, each from the group's coordinator."""
    described: dict[str, groups.DescribedGroup] = {}
    for name in names:
        answer = yield from on_coordinator(
            cluster,
            name,
            CallExchange(groups.DescribeGroupsRequest((name,))),
            lambda answer: error_of(answer.groups[0].error_code, answer.groups[0].error_message),
            deadline_ms,
        )
        described[name] = answer.groups[0]
    return described


def delete_group(cluster: Cluster, group: str, deadline_ms: float) -> Operation[None]:
    """Delete a group that has no members, and its committed offsets.

    An attempt without a response may have deleted the group. A later error that the group does not
    exist then counts as success."""

    def check(answer: group_removal.DeleteGroupsResponse) -> LogbusError | None:
        code = answer.results[0].error_code if answer.results else -1
        return error_of(code, _group_problem(group, code))

    request = CallExchange(group_removal.DeleteGroupsRequest((group,)))
    tried: list[LogbusError] = []
    try:
        yield from on_coordinator(cluster, group, request, check, deadline_ms, unanswered=tried)
    except GroupIdNotFoundError:
        if not tried:
            raise


def delete_offsets(
    cluster: Cluster, group: str, partitions: Sequence[TopicPartition], deadline_ms: float
) -> Operation[PerPartition[None]]:
    """Delete a group's committed offsets of these partitions. Return an error, or None, for each.

    An offset cannot be deleted while a member subscribes to the partition's topic."""
    topics = tuple(
        group_removal.OffsetDeleteTopic(name, tuple(tp.partition for tp in tps))
        for name, tps in group_by_topic(partitions).items()
    )

    def check(answer: group_removal.OffsetDeleteResponse) -> LogbusError | None:
        code = answer.error_code
        return error_of(code, _group_problem(group, code))

    request = CallExchange(group_removal.OffsetDeleteRequest(group, topics))
    answer = yield from on_coordinator(cluster, group, request, check, deadline_ms)
    return {
        TopicPartition(topic.name, row.partition_index): error_of(row.error_code)
        for topic in answer.topics
        for row in topic.partitions
    }


def _group_problem(group: str, code: int) -> str:
    """Return an error message for an error code of a group's coordinator, which sends no text."""
    return {
        GroupIdNotFoundError.code: f"there is no group {group!r}; see: logbus groups list",
        NonEmptyGroupError.code: f"group {group!r} has live members; stop them first",
    }.get(code, f"group {group!r}")


def describe_log_dirs(
    cluster: Cluster, deadline_ms: float, *, with_sizes: bool = True
) -> Operation[dict[int, log_dirs.DescribeLogDirsResponse | LogbusError]]:
    """Return the data directories of every live broker by broker id; without ``with_sizes``, they
    list no partitions."""
    call = log_dirs.DescribeLogDirsRequest(None if with_sizes else ())
    return on_every_broker(cluster, CallExchange(call), deadline_ms)
