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
    """A consumer's positions, its group, and its identity in the group: what a transaction needs to
    commit the positions."""

    group: str
    identity: MemberIdentity
    offsets: dict[TopicPartition, CommittedOffset]


class ConsumerMembership(Protocol):
    """The interface through which a consumer's reader uses its group.

    The reader's thread calls all methods. A grant number identifies one assignment of a partition;
    the reader receives it with ``Assign``.
    """

    @property
    def followed_topics(self) -> Sequence[str]:
        """Return the topics whose new partitions the reader must discover itself, because no group
        assigns them."""

    @property
    def is_held_back(self) -> Callable[[], bool] | None:
        """Return a function that returns True while the reader must return no rows, for example
        because other members may own its partitions. Return None if it may always return rows."""

    @property
    def reports_positions(self) -> bool:
        """Return whether ``released`` commits the positions of released partitions. If not, the
        reader commits them itself before it calls ``released``."""

    @property
    def is_settled(self) -> bool:
        """Return False while the member knows of an assignment or revocation that is not complete
        yet, and True otherwise."""

    @property
    def member_id(self) -> str:
        """Return the member id; "" while the consumer is not a member."""

    def identity(self, grants: Mapping[TopicPartition, int | None]) -> MemberIdentity:
        """Return the identity with which a transaction commits offsets of the partitions in
        ``grants``, which has the grant number of each.

        Raises NotOwnerError if the member has lost one of the partitions, and InvalidConfigError
        for a native group, whose offsets a transaction cannot commit.
        """

    def join(self) -> Task[None]:
        """Join the group. The assignment may arrive after the task has ended. Raises the error with
        which the group refused this member."""

    def record_poll(self) -> None:
        """Record that the user asks for records now. A Kafka group member that is not asked for
        ``max.poll.interval.ms`` leaves the group."""

    def is_due(self) -> bool:
        """Return whether ``check`` has to raise an error or join again."""

    def check(self) -> None:
        """Raise the error that ended the membership, or join again. The reader calls this method
        before and after it applies assignment changes."""

    def beginnings(
        self, pending: Mapping[TopicPartition, StartBasis | None], deadline_ms: float
    ) -> Operation[StartPlan]:
        """Return the starting offsets of the assigned partitions in ``pending``. A partition that
        no broker knows yet is missing from the result."""

    def holds(self, tp: TopicPartition, grant: int | None) -> bool:
        """Return whether the member still owns a partition under this grant number, which
        identifies one assignment of the partition. If not, the reader treats a revocation of the
        partition as a loss, and commits nothing for it."""

    def commit(
        self,
        rows: Mapping[TopicPartition, CommittedOffset],
        grants: Mapping[TopicPartition, int],
        deadline_ms: float,
    ) -> RunOperation | Request:
        """Return a request that commits the offsets in ``rows``. ``grants`` has each partition's
        grant number. The request's result has an error, or None, for each partition."""

    def released(self, release: Release, settled: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Receive the reader's report that it stopped reading the partitions of ``release``. If
        ``reports_positions``, commit the positions in ``settled``."""

    def leave(self) -> Task[None]:
        """Leave the group. Do nothing if the consumer has not joined, or has left already."""
