"""``lag_of_groups``: the lag of many groups with few requests, for ``Admin.lag`` and
``Admin.lag_many``.

It looks up the coordinators of all groups. To each coordinator it sends OffsetFetch and
DescribeGroups, for up to ``GROUPS_AT_ONCE`` groups a request. To each leader it sends ListOffsets
and RecordTimes (logbus's own API, for timestamps of records), for all its partitions. A caller that
repeats the call may pass the earlier result, which saves RecordTimes for unchanged offsets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from broker_lite.client.administration.group_lag import PartitionLag, lag_of, owned_by
from broker_lite.client.administration.query_lease import running
from broker_lite.client.operations import offset_requests, requests
from broker_lite.client.operations.cluster import Cluster, backoff_ms
from broker_lite.client.operations.requests import PerPartition, on_any_broker
from broker_lite.client.transport.steps import CallExchange, Operation, Pause, Send, SendAll
from broker_lite.errors import (
    CoordinatorNotAvailableError,
    GroupIdNotFoundError,
    LogbusError,
    UnknownTopicOrPartitionError,
    error_for,
    error_of,
)
from broker_lite.model import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    CommittedOffset,
    Endpoint,
    ListedOffset,
    TopicPartition,
)
from broker_lite.wire.calls import groups
from broker_lite.wire.calls.groups import DescribedGroupMember

GROUPS_AT_ONCE = 100
"""Maximum number of groups in one OffsetFetch or DescribeGroups request."""
TIMES_AT_ONCE = 2000
"""Maximum number of offsets in all RecordTimes requests that are sent at one time."""
FRESH_MS = 500.0
"""Metadata of all topics is used without a refresh if it is at most this old (ms)."""
TOPIC_ATTEMPTS = 3
"""Maximum number of attempts to list offsets. An attempt fails if a topic is deleted meanwhile."""

DEAD, EMPTY = "Dead", "Empty"
"""The states of a group that does not exist, and of a group without members."""


class GroupLag(NamedTuple):
    """A group's state and members, and its lag in each committed or assigned partition.

    If ``error`` is set, the group could not be read, and the other fields are empty. A group that
    does not exist has the state "Dead"."""

    state: str
    protocol_type: str = ""
    members: tuple[DescribedGroupMember, ...] = ()
    partitions: Mapping[TopicPartition, PartitionLag] = {}
    error: LogbusError | None = None


class _Progress(NamedTuple):
    """A coordinator's report on one group: state, members and committed offsets."""

    state: str
    protocol_type: str
    members: tuple[DescribedGroupMember, ...]
    committed: Mapping[TopicPartition, CommittedOffset]


def lag_of_groups(
    cluster: Cluster,
    names: Iterable[str],
    wall_ms: Callable[[], float],
    deadline_ms: float,
    *,
    empty: Collection[str] = frozenset(),
    before: Mapping[str, GroupLag] = {},
) -> Operation[dict[str, GroupLag]]:
    """Return the lag of each group, by name. ``wall_ms`` returns the time in ms since 1970.

    ``empty`` names groups known to have no members, for which DescribeGroups is not sent.
    ``before`` is an earlier result. The first unread record of a partition is taken from it if the
    committed offset has not changed."""
    progress = yield from _progress(cluster, names, empty, deadline_ms)
    now_ms = wall_ms()
    good = {name: row for name, row in progress.items() if isinstance(row, _Progress)}
    owners = {name: _owners(row, now_ms) for name, row in good.items()}
    tps = {tp for name, row in good.items() for tp in (*row.committed, *owners[name])}
    new = {tp for name, row in good.items() for tp in owners[name] if tp not in row.committed}
    ends, begins = yield from _bounds(cluster, tps, new, deadline_ms)
    starts = {
        name: {
            tp: row.committed[tp].offset if tp in row.committed else begins[tp].offset
            for tp in (*row.committed, *owners[name])
            if tp in ends and (tp in row.committed or tp in begins)
        }
        for name, row in good.items()
    }
    known = _known_unread(before, good)
    unread: dict[TopicPartition, set[int]] = {}
    for of_group in starts.values():
        for tp, start in of_group.items():
            if start < ends[tp].offset and (tp, start) not in known:
                unread.setdefault(tp, set()).add(start)
    times = known | (yield from _first_unread(cluster, unread, deadline_ms))
    lags: dict[str, GroupLag] = {}
    for name, row in progress.items():
        if isinstance(row, LogbusError):
            lags[name] = GroupLag("", error=row)
            continue
        firsts = {
            tp: times[tp, start] for tp, start in starts[name].items() if (tp, start) in times
        }
        partitions = lag_of(
            row.committed,
            starts=starts[name],
            ends={tp: ends[tp] for tp in starts[name]},
            firsts=firsts,
            owners=owners[name],
            now_ms=now_ms,
        )
        lags[name] = GroupLag(row.state, row.protocol_type, row.members, partitions)
    return lags


def _owners(row: _Progress, now_ms: float) -> dict[TopicPartition, str]:
    """Return the group member id, or the Spark query's run id, that reads each partition."""
    queries = running(row.committed, now_ms)
    for member in row.members:
        queries |= dict.fromkeys(owned_by(member), member.member_id)
    return queries


def _known_unread(before: Mapping[str, GroupLag], progress: Mapping[str, _Progress]) -> FirstUnread:
    """Return the first unread records in the result ``before``, without partitions whose committed
    offset or topic id has changed since."""
    known: FirstUnread = {}
    for name, row in progress.items():
        if name not in before:
            continue
        for tp, lag in before[name].partitions.items():
            now = row.committed.get(tp)
            if lag.unread is None or lag.committed is None or now is None:
                continue
            if (lag.committed.offset, lag.committed.topic_id) == (now.offset, now.topic_id):
                known[tp, now.offset] = lag.unread
    return known


def _progress(
    cluster: Cluster, names: Iterable[str], empty: Collection[str], deadline_ms: float
) -> Operation[dict[str, _Progress | LogbusError]]:
    """Return the state, members and committed offsets of groups, or an error.

    After a retriable error, for example because another broker became the coordinator, look the
    coordinator up again and retry."""
    order = list(dict.fromkeys(names))
    progress: dict[str, _Progress | LogbusError] = {}
    pending, attempt = order, 0
    while pending:
        for at in range(0, len(pending), GROUPS_AT_ONCE * 10):
            part = pending[at : at + GROUPS_AT_ONCE * 10]
            homes = yield from _coordinators(cluster, part, deadline_ms)
            progress |= {name: row for name, row in homes.items() if isinstance(row, LogbusError)}
            by_home: dict[Endpoint, list[str]] = {}
            for name, home in homes.items():
                if isinstance(home, Endpoint):
                    by_home.setdefault(home, []).append(name)
            while by_home:
                now = {home: rows[:GROUPS_AT_ONCE] for home, rows in by_home.items()}
                progress |= yield from _fetch_groups(
                    now, empty, max(1.0, deadline_ms - cluster.now_ms())
                )
                by_home = {
                    home: rows[GROUPS_AT_ONCE:]
                    for home, rows in by_home.items()
                    if len(rows) > GROUPS_AT_ONCE
                }
        pending = [name for name in pending if requests.is_retriable(progress[name])]
        pause = backoff_ms(attempt)
        if not pending or cluster.now_ms() + pause >= deadline_ms:
            break
        yield Pause(pause)
        attempt += 1
    return {name: progress[name] for name in order}


def _coordinators(
    cluster: Cluster, names: Sequence[str], deadline_ms: float
) -> Operation[dict[str, Endpoint | LogbusError]]:
    request = groups.FindCoordinatorRequest(tuple(names))
    answer: groups.FindCoordinatorResponse = yield from on_any_broker(
        cluster, CallExchange(request), lambda _: None, deadline_ms
    )
    coordinators: dict[str, Endpoint | LogbusError] = {
        row.key: error_for(row.error_code, row.error_message)
        if row.error_code
        else Endpoint(row.host, row.port)
        for row in answer.coordinators
    }
    return {name: coordinators.get(name) or _unanswered(name) for name in names}


def _unanswered(name: str) -> CoordinatorNotAvailableError:
    return CoordinatorNotAvailableError(f"the broker's response lacks group {name!r}; try again")


def _fetch_groups(
    by_home: Mapping[Endpoint, Sequence[str]], empty: Collection[str], timeout_ms: float
) -> Operation[dict[str, _Progress | LogbusError]]:
    """Fetch, in parallel, the committed offsets of groups, and the descriptions of all but those
    in ``empty``, which have no members. ``by_home`` has the groups of each coordinator."""
    sends = []
    for home, names in by_home.items():
        rows = tuple(groups.OffsetFetchGroup(name) for name in names)
        sends.append(Send(home, CallExchange(groups.OffsetFetchRequest(rows)), timeout_ms))
        described = groups.DescribeGroupsRequest(tuple(n for n in names if n not in empty))
        sends.append(Send(home, CallExchange(described), timeout_ms))
    answers = yield SendAll(sends)
    progress: dict[str, _Progress | LogbusError] = {}
    for number, names in enumerate(by_home.values()):
        offsets, described = answers[2 * number : 2 * number + 2]
        failed = next(
            (each for each in (offsets, described) if isinstance(each, LogbusError)), None
        )
        if failed is not None:
            progress |= dict.fromkeys(names, failed)
            continue
        commits = {row.group_id: row for row in offsets.groups}
        states = {name: _described_empty(name) for name in names if name in empty}
        states |= {row.group_id: row for row in described.groups}
        for name in names:
            if name in commits and name in states:
                progress[name] = _joined(commits[name], states[name])
            else:
                progress[name] = _unanswered(name)
    return progress


def _described_empty(name: str) -> groups.DescribedGroup:
    return groups.DescribedGroup(0, None, name, EMPTY, "", "", ())


def _joined(
    offsets: groups.FetchedOffsetsGroup, described: groups.DescribedGroup
) -> _Progress | LogbusError:
    is_absent = described.error_code == GroupIdNotFoundError.code
    problem = error_of(offsets.error_code)
    if problem is None and not is_absent:
        problem = error_of(described.error_code, described.error_message)
    if problem is not None:
        return problem
    committed: dict[TopicPartition, CommittedOffset] = {}
    for topic in offsets.topics:
        for row in topic.partitions:
            error = error_of(row.error_code)
            if error is not None and not isinstance(error, UnknownTopicOrPartitionError):
                return error
            if row.committed_offset >= 0:
                committed[TopicPartition(topic.name, row.partition_index)] = CommittedOffset(
                    row.committed_offset,
                    row.committed_leader_epoch,
                    row.metadata or "",
                    row.topic_id,
                    row.commit_ms,
                )
    state = DEAD if is_absent else described.group_state
    return _Progress(state, described.protocol_type, described.members, committed)


Offsets = dict[TopicPartition, ListedOffset]
FirstUnread = dict[tuple[TopicPartition, int], ListedOffset | LogbusError]
"""By partition and offset: the first record at or after the offset, or the error of its lookup."""


def _bounds(
    cluster: Cluster, tps: set[TopicPartition], new: set[TopicPartition], deadline_ms: float
) -> Operation[tuple[Offsets, Offsets]]:
    """Return the end offsets of the partitions ``tps``, and the log start offsets of those in
    ``new``. Omit partitions without a leader.

    Topics that are deleted during the call are missing from the result."""
    attempt = 0
    while tps:
        if attempt or cluster.now_ms() - cluster.whole_ms > FRESH_MS:
            yield from requests.refresh(cluster, {tp.topic for tp in tps}, deadline_ms)
        led = sorted(tp for tp in tps if cluster.view.leader(tp) is not None)
        try:
            ends = yield from _listed(cluster, led, LATEST_TIMESTAMP, deadline_ms)
            begins = yield from _listed(
                cluster, [tp for tp in led if tp in new], EARLIEST_TIMESTAMP, deadline_ms
            )
            return ends, begins
        except UnknownTopicOrPartitionError:
            attempt += 1
            if attempt == TOPIC_ATTEMPTS:
                raise
    return {}, {}


def _listed(
    cluster: Cluster, tps: Sequence[TopicPartition], timestamp: int, deadline_ms: float
) -> Operation[Offsets]:
    if not tps:
        return {}
    offsets: PerPartition[ListedOffset] = yield from offset_requests.list_offsets(
        cluster,
        dict.fromkeys(tps, timestamp),
        isolation_level=offset_requests.isolation_code("read_committed"),
        deadline_ms=deadline_ms,
    )
    return {tp: row for tp, row in offsets.items() if isinstance(row, ListedOffset)}


def _first_unread(
    cluster: Cluster, unread: Mapping[TopicPartition, set[int]], deadline_ms: float
) -> Operation[FirstUnread]:
    """Return the first record at or after each offset in ``unread``, or the partition's error."""
    unread_records: FirstUnread = {}
    pairs = [(tp, offset) for tp, offsets in unread.items() for offset in sorted(offsets)]
    for at in range(0, len(pairs), TIMES_AT_ONCE):
        part: dict[TopicPartition, list[int]] = {}
        for tp, offset in pairs[at : at + TIMES_AT_ONCE]:
            part.setdefault(tp, []).append(offset)
        try:
            answers = yield from offset_requests.record_times_of_many(cluster, part, deadline_ms)
        except LogbusError as error:
            answers = dict.fromkeys(part, error)
        for tp, offsets in part.items():
            rows = answers[tp]
            for number, offset in enumerate(offsets):
                unread_records[tp, offset] = rows if isinstance(rows, LogbusError) else rows[number]
    return unread_records
