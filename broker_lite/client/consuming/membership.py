"""``ConsumerMembership``: the interface by which a group assigns partitions to a consumer.

A membership appends changes (``Assign``, ``Revoke``, ``Lose``) to the ``AssignmentQueue`` of the
consumer's reader. Implementations: ``NoMembership`` (no group), ``KafkaMembership`` and
``NativeMembership`` (no coordinator)."""

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
    """A consumer's positions, with its group and member identity, for a transaction's commit."""

    group: str
    identity: MemberIdentity
    offsets: dict[TopicPartition, CommittedOffset]


class ConsumerMembership(Protocol):
    """The group membership that a consumer's reader (``ReaderCore``) uses, on the reader's thread.

    A grant number identifies one assignment of a partition; the reader receives it with
    ``Assign``."""

    @property
    def followed_topics(self) -> Sequence[str]:
        """The topics whose new partitions the reader must discover, because no group assigns
        them."""

    @property
    def is_held_back(self) -> Callable[[], bool] | None:
        """A function that returns whether to hold back rows now, because other members may own the
        partitions; None if rows may always be returned."""

    @property
    def reports_positions(self) -> bool:
        """Whether ``released`` commits the positions. If not, the reader commits them before it
        calls ``released``."""

    @property
    def is_settled(self) -> bool:
        """False while an assignment or revocation is incomplete, True otherwise."""

    @property
    def member_id(self) -> str:
        """The member id; "" while the consumer is not a member."""

    def identity(self, grants: Mapping[TopicPartition, int | None]) -> MemberIdentity:
        """Return the identity with which a transaction commits offsets of partitions. ``grants``
        has the number of each partition's assignment.

        Raises NotOwnerError if the member has lost one of the partitions, and InvalidConfigError
        for a group that coordinates through ZooKeeper: a transaction cannot commit its offsets."""

    def join(self) -> Task[None]:
        """Join the group. The assignment may arrive later.

        Raises the error with which the group refused this member."""

    def record_poll(self) -> None:
        """Record that the user asks for records now.

        A member leaves a Kafka group if the user asks for no records within
        ``max.poll.interval.ms``."""

    def is_due(self) -> bool:
        """Return whether ``check`` has to raise an error or join again."""

    def check(self) -> None:
        """Raise the error that ended the membership. If the member left because of
        ``max.poll.interval.ms``, join again.

        The reader calls it before and after it applies assignment changes."""

    def beginnings(
        self, pending: Mapping[TopicPartition, StartBasis | None], deadline_ms: float
    ) -> Operation[StartPlan]:
        """Return the starting offsets of ``pending``: partitions assigned, but not read yet.

        A partition that no broker knows yet is missing from the result."""

    def holds(self, tp: TopicPartition, grant: int | None) -> bool:
        """Return whether the member still owns a partition by the assignment with the number
        ``grant``.

        If not, the reader treats a revocation of the partition as a loss, and commits nothing for
        it."""

    def commit(
        self,
        rows: Mapping[TopicPartition, CommittedOffset],
        grants: Mapping[TopicPartition, int],
        deadline_ms: float,
    ) -> RunOperation | Request:
        """Return a request that commits the offsets in ``rows``. ``grants`` has the number of each
        partition's assignment.

        The commit's result has an error, or None, for each partition."""

    def released(self, release: Release, settled: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Report to the group that the reader no longer reads revoked partitions.

        If ``reports_positions``, commit ``settled``: the offsets after their processed records."""

    def leave(self) -> Task[None]:
        """Leave the group, unless the consumer has not joined or has left already."""
