"""``NoMembership``: the ``ConsumerMembership`` of a consumer that reads alone, outside a group.

It reads all partitions of its topics, or chosen ones. It may commit offsets to a group that has no
members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from broker_lite.client.consuming.assignment import Release
from broker_lite.client.consuming.changes import NO_MEMBER, MemberIdentity, StartBasis
from broker_lite.client.consuming.reader_core import Joining, ReaderCore
from broker_lite.client.consuming.starting import (
    StartPlan,
    Starts,
    resolve_partitions,
    starting_offsets,
)
from broker_lite.client.consuming.waits import RunOperation, Task
from broker_lite.client.operations import group_requests
from broker_lite.client.transport.steps import Operation
from broker_lite.model import CommittedOffset, TopicPartition


class NoMembership:
    """The membership of a reader whose partitions are fixed, except for new partitions of its
    topics."""

    is_held_back = None
    reports_positions = False
    is_settled = True
    member_id = ""

    def __init__(
        self,
        reader: ReaderCore,
        *,
        topics: Sequence[str],
        partitions: Iterable[TopicPartition | int] | None,
    ) -> None:
        self._reader = reader
        self._topics = topics
        self._partitions = None if partitions is None else list(partitions)
        self.followed_topics = topics if partitions is None else ()

    def identity(self, grants: Mapping[TopicPartition, int | None]) -> MemberIdentity:
        return NO_MEMBER

    def join(self) -> Task[None]:
        reader, deadline_ms = self._reader, self._reader.deadline_ms()
        tps = yield RunOperation(
            resolve_partitions(reader.cluster, self._topics, self._partitions, deadline_ms)
        )
        starts: Starts = yield RunOperation(
            starting_offsets(reader.cluster, reader.group, tps, reader.config, deadline_ms)
        )
        reader.collector.begin(*starts)

    def record_poll(self) -> None:
        """Do nothing, because there is no group."""

    def is_due(self) -> bool:
        return False

    def check(self) -> None:
        """Do nothing: a reader outside a group has no membership that could end."""

    def beginnings(
        self, pending: Mapping[TopicPartition, StartBasis | None], deadline_ms: float
    ) -> Operation[StartPlan]:
        raise AssertionError("no group assigns partitions")

    def holds(self, tp: TopicPartition, grant: int | None) -> bool:
        return True

    def commit(
        self,
        rows: Mapping[TopicPartition, CommittedOffset],
        grants: Mapping[TopicPartition, int],
        deadline_ms: float,
    ) -> RunOperation:
        reader = self._reader
        return RunOperation(
            group_requests.commit_offsets(reader.cluster, reader.group_id(), rows, deadline_ms)
        )

    def released(self, release: Release, settled: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Do nothing, because no group revokes partitions."""

    def leave(self) -> Task[None]:
        return
        yield


def standalone(topics: Sequence[str], partitions: Iterable[TopicPartition | int] | None) -> Joining:
    """Return a function that makes a ``NoMembership``, for a consumer outside a group."""
    return partial(NoMembership, topics=topics, partitions=partitions)
