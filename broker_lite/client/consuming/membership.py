"""``ConsumerMembership``: the port through which a group assigns partitions to a consumer and
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
    """The port of a consumer to its group. The reader's thread calls all methods."""

    @property
    def followed_topics(self) -> Sequence[str]:
        """Return the topics whose new partitions the reader discovers by itself."""

    @property
    def is_held_back(self) -> Callable[[], bool] | None:
        """Return a function that returns True while the reader must return no rows; None if the
        reader always may."""

    @property
    def reports_positions(self) -> bool:
        """Return whether ``released`` itself commits positions. The reader then sends no commit
        before it."""

    @property
    def is_settled(self) -> bool:
        """Return whether no assignment or revocation is pending, as far as the member knows."""

    @property
    def member_id(self) -> str:
        """Return the member id; "" while the consumer is not a member."""

    def identity(self, grants: Mapping[TopicPartition, int | None]) -> MemberIdentity:
        """Return the identity with which a transaction commits the offsets of partitions.

        ``grants`` has the number that the reader received with each partition. Raises NotOwnerError
        if the member has lost one of them, InvalidConfigError for a group without a coordinator.
        """

    def join(self) -> Task[None]:
        """Join the group. The assignment may arrive later. Raises the group's error."""

    def record_poll(self) -> None:
        """Record that the reader asks for records now."""

    def is_due(self) -> bool:
        """Return whether ``check`` has something to do."""

    def check(self) -> None:
        """Raise the error that ended the membership, or join again. The reader calls it before and
        after it applies changes."""

    def beginnings(
        self, pending: Mapping[TopicPartition, StartBasis | None], deadline_ms: float
    ) -> Operation[StartPlan]:
        """Return the starting offsets of assigned partitions, without partitions that no broker
        lists."""

    def holds(self, tp: TopicPartition, grant: int | None) -> bool:
        """Return whether the member still owns a partition that the reader received with the number
        ``grant``. If it does not, a revocation counts as a loss."""

    def commit(
        self,
        rows: Mapping[TopicPartition, CommittedOffset],
        grants: Mapping[TopicPartition, int],
        deadline_ms: float,
    ) -> RunOperation | Request:
        """Return the request that commits ``rows``. Its result has an error, or None, for each
        partition. ``grants`` has the number that the reader received with each partition."""

    def released(self, release: Release, settled: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Report that the reader stopped these partitions. ``settled`` holds positions to commit,
        if ``reports_positions``."""

    def leave(self) -> Task[None]:
        """Leave the group. The reader may run this without a join, and more than once."""
