"""Read the state of a cluster once: brokers, partitions, topics, groups and their lags.

The result is a reading. Most readings copy the values that change slowly, such as sizes, from the
one before."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import NamedTuple

from broker_lite.client.administration.admin import Admin, GroupListing
from broker_lite.client.administration.group_lag import PartitionLag
from broker_lite.client.administration.many_groups import EMPTY, GroupLag
from broker_lite.client.administration.query_lease import lease_of
from broker_lite.errors import RetriableError
from broker_lite.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from broker_lite.observing.group_kinds import NATIVE, SPARK, group_kind
from broker_lite.observing.history import rate
from broker_lite.observing.sample import ClusterSample, take_sample
from broker_lite.observing.verdict import Cause, State, causes, partitions, state_of

WHOLE_S = 30.0
"""Seconds from one whole reading of the cluster's state to the next.

Only a whole reading requests the sizes, the start offsets and the first unread records from the
brokers; other readings copy these slowly changing values from the reading before. A whole reading
costs up to 1.5 times as much as the others."""
GROUPS_MS = 5_000
"""Maximum milliseconds to read the groups. So even if ZooKeeper or a broker does not answer, a new
reading is complete before the console shows the last one as outdated."""
VIEW_S = 0.5
"""If it takes more seconds than this to read the groups, perhaps because a broker has died, the
metadata are read again, so that they show the dead broker."""


class TopicReading(NamedTuple):
    """The figures of a topic in one reading of the cluster's state.

    ``records`` is the number of offsets between the start and the end of the partitions' logs.
    ``size_bytes`` is the sum over all replicas. ``unhealthy`` is the number of unhealthy
    partitions. ``lag`` is the lag in records of the group that is furthest behind, or None if no
    group reads the topic."""

    name: str
    partitions: int
    replicas: int
    records: int
    size_bytes: int
    records_per_s: float
    unhealthy: int
    lag: int | None


class GroupReading(NamedTuple):
    """The figures of a group in one reading of the cluster's state.

    ``lag`` is the number of unread records in all its partitions. ``lag_s`` is the lag in seconds
    of the partition that is furthest behind. Each is None if it is unknown for a partition.
    ``error`` is the reason if the group could not be read, else ""."""

    name: str
    kind: str
    state: str
    members: int
    topics: tuple[str, ...]
    lag: int | None
    lag_s: float | None
    error: str


class ClusterReading(NamedTuple):
    """One reading of a cluster: its state at one time.

    - ``at_ms``: the time of the reading in ms since 1970
    - ``took_s``: how many seconds the reading took
    - ``groups_failure``: the reason why the groups could not be read, or "". With a reason,
      ``groups`` and ``lags`` are those of the reading before.
    - ``whole_ms``: when the sizes and start offsets were last requested (every ``WHOLE_S``
      seconds); other readings repeat them
    - ``starts``, ``ends``: the log start offset and the log end offset of each partition"""

    at_ms: float
    whole_ms: float
    took_s: float
    sample: ClusterSample
    causes: tuple[Cause, ...]
    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    topics: Mapping[str, TopicReading]
    groups: Mapping[str, GroupReading]
    lags: Mapping[str, GroupLag]
    records_per_s: float
    groups_failure: str = ""

    @property
    def state(self) -> State:
        return state_of(self.causes)

    @property
    def size_bytes(self) -> int:
        return sum(row.size_bytes for row in self.topics.values())

    @property
    def lag(self) -> int:
        """The sum of the groups' lags in records. Unknown lags count as 0."""
        return sum(row.lag or 0 for row in self.groups.values())


def take_reading(
    admin: Admin, before: ClusterReading | None = None, *, is_whole: bool = False
) -> ClusterReading:
    """Read the state of the cluster once. Rates are averages since the reading ``before``; without
    it they are 0. Raises NoBrokersError.

    The reading is a whole one if ``before`` is None, if ``is_whole`` is set, or if the last whole
    reading is ``WHOLE_S`` seconds old. Otherwise it takes from ``before`` the sizes and start
    offsets of known partitions and, if a group's committed offset has not changed, the offset and
    timestamp of its first unread record."""
    began, began_ms = time.monotonic(), time.time() * 1000
    is_due = before is None or abs(began_ms - before.whole_ms) >= 1000 * WHOLE_S
    base = None if is_whole or is_due else before
    view = admin.cluster()
    groups, lags, failure = _groups(admin.within(GROUPS_MS), before, base)
    if time.monotonic() - began > VIEW_S:
        # Describing the groups took seconds, probably because a broker was killed. Read the cluster
        # again, so that the new sample shows the broker as dead.
        view = admin.cluster()
    sample = take_sample(admin, None if base is None else base.sample, view=view)
    led = [tp for tp, _ in sample.view.rows if sample.view.leader(tp) is not None]
    starts = {} if base is None else _starts(base, sample)
    starts |= _offsets(admin, [tp for tp in led if tp not in starts], EARLIEST_TIMESTAMP)
    ends = _offsets(admin, led, LATEST_TIMESTAMP)
    at_ms = time.time() * 1000
    whole_ms = began_ms if base is None else base.whole_ms
    problems = causes(sample, failure)
    reading = ClusterReading(
        at_ms, whole_ms, 0.0, sample, tuple(problems), starts, ends, {}, groups, lags, 0.0, failure
    )
    topics = _topics(reading, before)
    total = sum(row.records_per_s for row in topics.values())
    return reading._replace(topics=topics, records_per_s=total, took_s=time.monotonic() - began)


def _groups(
    admin: Admin, before: ClusterReading | None, base: ClusterReading | None
) -> tuple[Mapping[str, GroupReading], Mapping[str, GroupLag], str]:
    """Return the groups, their lags, and an error's message ("" if the brokers answer).

    Without an answer, the groups and lags are those of the reading ``before``. ``base`` is an
    earlier reading: if a partition's committed offset has not changed since, the offset and
    timestamp of its first unread record are taken from ``base``."""
    try:
        listed = admin.list_groups()
        lags = admin.lag_many(
            [row.group for row in listed],
            empty={row.group for row in listed if row.state == EMPTY},
            before={} if base is None else base.lags,
        )
    except RetriableError as error:
        failure = error.message or str(error)
        return ({}, {}, failure) if before is None else (before.groups, before.lags, failure)
    return {row.group: group_reading(row, lags[row.group]) for row in listed}, lags, ""


def _starts(base: ClusterReading, sample: ClusterSample) -> dict[TopicPartition, int]:
    """Return the log start offsets that the earlier reading ``base`` has for topics that still
    exist."""
    ids = {name: topic.topic_id for name, topic in sample.view.topics.items()}
    return {
        tp: start
        for tp, start in base.starts.items()
        if ids.get(tp.topic) == base.sample.view.topic_id(tp.topic)
    }


def _offsets(admin: Admin, tps: list[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
    if not tps:
        return {}
    offsets = admin.list_offsets(dict.fromkeys(tps, timestamp), isolation="read_uncommitted")
    return {tp: row.offset for tp, row in offsets.items()}


def _topics(now: ClusterReading, before: ClusterReading | None) -> dict[str, TopicReading]:
    sizes: dict[str, int] = {}
    for row in now.sample.log_dirs:
        for tp, size in row.partitions.items():
            sizes[tp.topic] = sizes.get(tp.topic, 0) + size
    ill: dict[str, int] = {}
    for health in partitions(now.sample):
        if health.state != "ok":
            ill[health.tp.topic] = ill.get(health.tp.topic, 0) + 1
    lags = topic_lags(now.lags)
    seconds = 0.0 if before is None else (now.at_ms - before.at_ms) / 1000
    readings = {}
    for name, topic in sorted(now.sample.view.topics.items()):
        tps = now.sample.view.partitions_of(name)
        speed = 0.0
        if before is not None:
            speed = sum(
                rate(before.ends[tp], now.ends[tp], seconds)
                for tp in tps
                if tp in now.ends and tp in before.ends
            )
        readings[name] = TopicReading(
            name,
            len(tps),
            max((len(part.replicas) for part in topic.partitions), default=0),
            sum(now.ends[tp] - now.starts.get(tp, 0) for tp in tps if tp in now.ends),
            sizes.get(name, 0),
            speed,
            ill.get(name, 0),
            lags.get(name),
        )
    return readings


def topic_lags(groups: Mapping[str, GroupLag]) -> dict[str, int]:
    """Return the lag of each topic in records: that of the group that is furthest behind in it.
    Topics that no group reads are absent."""
    lags: dict[str, int] = {}
    for group in groups.values():
        of_group: dict[str, int] = {}
        for tp, part in group.partitions.items():
            of_group[tp.topic] = of_group.get(tp.topic, 0) + (part.records or 0)
        for name, lag in of_group.items():
            lags[name] = max(lags.get(name, 0), lag)
    return lags


def total_lag(parts: Collection[PartitionLag]) -> tuple[int | None, float | None]:
    """Return the sum of the partitions' lags in records and the longest lag in seconds. Each is
    None if the lag of a partition is unknown."""
    records = [part.records for part in parts if part.records is not None]
    seconds = [part.seconds for part in parts if part.seconds is not None]
    return (
        sum(records) if len(records) == len(parts) else None,
        max(seconds, default=0.0) if len(seconds) == len(parts) else None,
    )


def group_reading(listing: GroupListing, lag: GroupLag) -> GroupReading:
    """Return the figures of a listed group.

    A group without members is a Spark query's if the metadata of its committed offsets contain a
    lease (run id and expiry time). The query runs if the lease has not expired."""
    kind = group_kind(listing)
    state = lag.state or listing.state
    rows = lag.partitions.values()
    if kind != NATIVE and not lag.members:
        leases = [row for row in rows if row.committed and lease_of(row.committed.metadata)[0]]
        if leases:
            kind = SPARK
            state = "Running" if any(row.owner for row in leases) else "Stopped"
    return GroupReading(
        listing.group,
        kind,
        state,
        len(lag.members),
        tuple(sorted({tp.topic for tp in lag.partitions})),
        *total_lag(rows),
        "" if lag.error is None else lag.error.message,
    )
