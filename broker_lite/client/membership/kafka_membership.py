"""``KafkaMembership``: connects a consumer's reader with the consumer's member of a Kafka group.

The reader runs on the thread that calls the consumer. The member (``member.MemberShell``) runs on
the thread of the network I/O, and sends heartbeats while the user processes records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from broker_lite.client.boottime_clock import lease_ms
from broker_lite.client.consuming.assignment import Release
from broker_lite.client.consuming.changes import NO_MEMBER, MemberIdentity, StartBasis
from broker_lite.client.consuming.deleted_topics import DeletedTopics
from broker_lite.client.consuming.reader_core import Joining, ReaderCore
from broker_lite.client.consuming.starting import StartPlan
from broker_lite.client.consuming.waits import RunOperation, Task, Wait
from broker_lite.client.membership.beginning import (
    JoinSnapshot,
    beginnings,
    commit,
    join_snapshot,
    not_owner,
)
from broker_lite.client.membership.member import MemberShell
from broker_lite.client.membership.settings import MemberConfig
from broker_lite.client.transport.steps import Operation
from broker_lite.model import CommittedOffset, TopicPartition

JOIN_WAIT_MS = 3000.0
"""Milliseconds for which a new consumer waits for its first assignment.

The assignment takes longer only if other members must first finish the records that they are
processing."""
LEAVE_WAIT_MS = 5000.0
"""Milliseconds for which ``close`` waits for the coordinator's response to LeaveGroup."""
DELETED_TOPIC_SLACK_MS = 5000


class KafkaMembership:
    """A consumer's membership in a group that a broker coordinates.

    If the user asks for no records within ``max_poll_interval_ms``, the member leaves the group; it
    joins again when the user asks next. Records are returned only during the member's lease, which
    ends nine tenths of ``session_timeout_ms`` after the last confirmed heartbeat. If another
    consumer joins with the same ``group_instance_id``, all later calls raise
    FencedInstanceIdError."""

    followed_topics = ()
    reports_positions = False

    def __init__(
        self,
        reader: ReaderCore,
        *,
        topics: Iterable[str],
        pattern: str | None,
        lease_clock: Callable[[], float] = lease_ms,
    ) -> None:
        config = reader.config
        assert isinstance(config, MemberConfig)
        self._reader = reader
        self._config = config
        self._group = reader.group_id()
        self._topics = tuple(dict.fromkeys(topics))
        self._lease_clock = lease_clock
        self._snapshot: JoinSnapshot | None = None
        self._polls = 0
        self._last_seen = (-1, -1)
        self.member = MemberShell(
            reader.shell,
            reader.cluster,
            self._group,
            topics=self._topics,
            pattern=pattern,
            config=config,
            now_ms=lease_clock,
            is_alive=self._is_alive,
            on_change=reader.assignment.queue.append,
            on_update=reader.notify,
        )
        patience_ms = config.metadata_max_age_ms + DELETED_TOPIC_SLACK_MS
        reader.assignment.deleted_topics = DeletedTopics(
            reader.collector, reader.engine, patience_ms, self.member.refresh_topics
        )

    @property
    def is_settled(self) -> bool:
        return self.member.is_settled

    @property
    def member_id(self) -> str:
        identity = self.member.identity
        return "" if identity is None else identity.member_id

    def identity(self, grants: Mapping[TopicPartition, int | None]) -> MemberIdentity:
        # Read the member's identity (id and generation) before checking that it still owns the
        # partitions. If a rebalance happens in between, the commit has the old generation, and the
        # coordinator refuses the commit.
        identity = self.member.identity
        for tp, grant in grants.items():
            if identity is None or not self.member.holds(tp, grant):
                raise not_owner(tp)
        return identity or NO_MEMBER

    def join(self) -> Task[None]:
        reader, member = self._reader, self.member
        if self._snapshot is None:
            self._snapshot = yield RunOperation(
                join_snapshot(
                    reader.cluster, self._group, self._topics, self._config, reader.deadline_ms()
                )
            )
            member.start()
        yield Wait(
            lambda: member.has_joined or member.refused or reader.end,
            reader.deadline_ms(JOIN_WAIT_MS),
        )
        self.check()

    def record_poll(self) -> None:
        self._polls += 1

    def is_held_back(self) -> bool:
        """Return whether the lease (the time in which records may be returned) has expired: another
        member may then own the partitions."""
        return self._lease_clock() >= self.member.lease_until_ms

    def _is_alive(self) -> bool:
        """Return whether the user waits for records, or has asked for some since the last call of
        this method. If neither for max.poll.interval.ms, the member leaves.

        Runs on the I/O thread."""
        before, self._last_seen = self._last_seen, (self._polls, self._reader.collector.at)
        return self._reader.is_waiting or self._last_seen != before

    def is_due(self) -> bool:
        return self.member.refused is not None or self.member.is_idle

    def check(self) -> None:
        if self.member.refused is not None and not self._reader.assignment.queue:
            raise self.member.refused.with_traceback(None)
        if self.member.is_idle:
            self.member.polled()

    def beginnings(
        self, pending: Mapping[TopicPartition, StartBasis | None], deadline_ms: float
    ) -> Operation[StartPlan]:
        assert self._snapshot is not None
        return beginnings(
            self._reader.cluster,
            self._group,
            pending,
            snapshot=self._snapshot,
            config=self._config,
            deadline_ms=deadline_ms,
        )

    def holds(self, tp: TopicPartition, grant: int | None) -> bool:
        return self.member.holds(tp, grant)

    def commit(
        self,
        rows: Mapping[TopicPartition, CommittedOffset],
        grants: Mapping[TopicPartition, int],
        deadline_ms: float,
    ) -> RunOperation:
        cluster = self._reader.cluster
        return RunOperation(
            commit(
                cluster,
                self._group,
                rows,
                grants=grants,
                member=self.member,
                deadline_ms=deadline_ms,
            )
        )

    def released(self, release: Release, settled: Mapping[TopicPartition, CommittedOffset]) -> None:
        for number in release.numbers:
            self.member.stopped(number)

    def leave(self) -> Task[None]:
        """Leave the group, so that other members get the partitions at once.

        A static member keeps its partitions until its session expires."""
        reader, member = self._reader, self.member
        member.close()
        yield Wait(lambda: member.is_closed or reader.end, reader.deadline_ms(LEAVE_WAIT_MS))


def in_group(topics: Iterable[str], pattern: str | None = None) -> Joining:
    """Return a function that makes a consumer's membership in a Kafka group.

    The consumer subscribes to ``topics``, or to all topics whose name matches ``pattern``."""
    return partial(KafkaMembership, topics=topics, pattern=pattern)
