"""Assignments and revocations of a member, queued in order until its reader asks for records.

The shell's thread appends, the reader takes. ``Share`` knows the grant under which each partition
is read. It refuses a commit of records from another grant, whatever the generation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from broker_lite.client.consuming.intake import Intake
from broker_lite.client.consuming.starting import Starts
from broker_lite.client.membership.beginning import FirstLook
from broker_lite.client.membership.events import Give, Lose, MemberIdentity, Take
from broker_lite.client.membership.member import Change, MemberShell
from broker_lite.model import TopicPartition


class Share:
    """The reader's share of partitions. ``pending`` are assigned and not started."""

    def __init__(self, intake: Intake, queue: deque[Change]) -> None:
        self.queue = queue
        self.pending: dict[TopicPartition, int] = {}
        self.look = FirstLook()
        self.member: MemberShell | None = None
        self._intake = intake
        self._grants: dict[TopicPartition, int] = {}

    @property
    def identity(self) -> MemberIdentity | None:
        return None if self.member is None else self.member.identity

    def grants(self, wheres: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the grants under which the reader has these partitions now. Reader's thread."""
        return {where: self._grants[where] for where in wheres if where in self._grants}

    def holds(self, where: TopicPartition, grant: int | None) -> bool:
        """Return whether a grant of a partition is still valid."""
        return self.member is not None and self.member.holds(where, grant)

    def __bool__(self) -> bool:
        """Return whether a change waits for the reader."""
        return bool(self.queue) or bool(self.pending)

    def next(self) -> Take | Lose | None:
        """Return the next revocation or loss; assignments before it become ``pending``."""
        while self.queue:
            change = self.queue.popleft()
            if not isinstance(change, Give):
                return change
            self.pending |= change.grants
            self._grants |= change.grants
        return None

    def split(self, change: Take | Lose) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """Return the reader's partitions to revoke, and those already lost. A revocation that
        arrives too late is a loss."""
        reads = set(self._intake.assignment())
        wheres = sorted(where for where in change.wheres if where in reads)
        if isinstance(change, Lose):
            return [], wheres
        lost = [where for where in wheres if not self.holds(where, self._grants.get(where))]
        return [where for where in wheres if where not in lost], lost

    def let_go(self, change: Take | Lose) -> None:
        """Stop reading the partitions and report it."""
        for where in change.wheres:
            self.pending.pop(where, None)
            self._grants.pop(where, None)
            self._intake.end(where)
        if isinstance(change, Take) and self.member is not None:
            self.member.stopped(change.number)

    def begin(self, starts: Starts) -> list[TopicPartition]:
        """Start pending partitions at these offsets."""
        for where in starts.offsets:
            self.pending.pop(where, None)
        self._intake.begin(*starts)
        return sorted(starts.offsets)


class Pulse:
    """Whether a reader is active: it waits for records in a call, or asked since the last check.
    The reader's thread counts, the shell's thread checks."""

    def __init__(self, intake: Intake) -> None:
        self.calls = 0
        self.is_waiting = False
        self._intake = intake
        self._seen: tuple[int, int] = (-1, -1)

    def look(self) -> bool:
        before, self._seen = self._seen, (self.calls, self._intake.at)
        return self.is_waiting or self._seen != before
