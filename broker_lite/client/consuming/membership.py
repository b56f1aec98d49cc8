"""``ConsumerMembership``: the interface through which a group assigns partitions to a consumer and
revokes them.

A membership appends ``Assign``, ``Revoke`` and ``Lose`` to its reader's ``AssignmentQueue``.
Implementations: ``NoMembership``, ``KafkaMembership`` and ``NativeMembership``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from broker_lite.client.consuming.assignment import Release
from broker_lite.client.consuming.changes import MemberIdentity, StartBasis
from broker_lite.client.consuming.starting import StartPlan
from broker_lite.client.consuming.waits import Request, RunOperation, Task
from broker_lite.client.transport.steps import Operation
from broker_lite.model import CommittedOffset, TopicPartition


class MemberOffsets(NamedTuple):
    """A consumer's positions, and its identity in the group that commits them."""

    group: str
    identity: MemberIdentity
    offsets: dict[TopicPartition, CommittedOffset]


class ConsumerMembership(Protocol):
    """A consumer's interface to its group. The reader's thread calls all methods."""

    @property
    def followed_topics(self) -> Sequence[str]:
        """Return the topics whose new partitions the reader must discover itself."""

    @property
    def is_held_back(self) -> Callable[[], bool] | None:
        """Return a function that returns True while the reader must return no rows. Return None if
        the reader may always return rows."""

    @property
    def reports_positions(self) -> bool:
        """Return whether ``released`` commits positions. If so, the reader sends no commit before
        it calls ``released``."""

    @property
    def is_settled(self) -> bool:
        """Return whether this member knows of no pending assignment or revocation."""

    @property
    def member_id(self) -> str:
        """Return the member id; "" while the consumer is not a member."""

    def identity(self, grants: Mapping[TopicPartition, int | None]) -> MemberIdentity:
        """Return the identity with which a transaction commits the offsets of partitions.

        ``grants`` has the number that the reader received with each partition (``Assign``). Raises
        NotOwnerError if the member has lost a partition, and InvalidConfigError for a group without
        a coordinator.
        """

    def join(self) -> Task[None]:
        """Join the group. The assignment may arrive later. Raises the group's error."""

    def record_poll(self) -> None:
        """Record that the reader asks for records now."""

    def is_due(self) -> bool:
        """Return whether ``check`` has to raise an error or join again."""

    def check(self) -> None:
        """Raise the error that ended the membership, or join again. The reader calls this method
        before and after it applies assignment changes."""

    def beginnings(
        self, pending: Mapping[TopicPartition, StartBasis | None], deadline_ms: float
    ) -> Operation[StartPlan]:
        """Return the starting offsets of assigned partitions. The result leaves out partitions that
        no broker lists."""

    def holds(self, tp: TopicPartition, grant: int | None) -> bool:
        """Return whether the member still owns the grant of a partition: ``grant`` is the number
        that the reader received with the partition. If the member lost it, a revocation counts as a
        loss."""

    def commit(
        self,
        rows: Mapping[TopicPartition, CommittedOffset],
        grants: Mapping[TopicPartition, int],
        deadline_ms: float,
    ) -> RunOperation | Request:
        """Return the request that commits ``rows``. Its result has an error, or None, for each
        partition.

        ``grants`` has the number that the reader received with each partition (``Assign``).
        """

    def released(self, release: Release, settled: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Report that the reader stopped the partitions of ``release``. If ``reports_positions``,
        ``settled`` holds the positions to commit."""

    def leave(self) -> Task[None]:
        """Leave the group. The reader may run this task without a join, and more than once."""
