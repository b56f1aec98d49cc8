"""What the group tells a member's reader, kept until the reader has time for it, in order.

The shell's thread adds, the reader takes. ``Share`` is also the seat that the reader commits from:
it knows under which grant each partition is read, so a commit of what was read under another one
is refused here, whatever generation the member is in by now.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from broker_lite.client.consuming.intake import Intake
from broker_lite.client.consuming.starting import Starts
from broker_lite.client.membership.beginning import FirstLook
from broker_lite.client.membership.events import Give, Identity, Lose, Take
from broker_lite.client.membership.member import Change, Member
from broker_lite.model import TopicPartition


class Share:
    """``pending``: given, and not begun yet."""

    def __init__(self, intake: Intake, queue: deque[Change]) -> None:
        self.queue = queue
        self.pending: dict[TopicPartition, int] = {}
        self.look = FirstLook()
        self.member: Member | None = None
        self._intake = intake
        self._grants: dict[TopicPartition, int] = {}

    @property
    def identity(self) -> Identity | None:
        return None if self.member is None else self.member.identity

    def grants(self, wheres: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """By which the reader has these now: to be asked with how far it came, on its thread."""
        return {where: self._grants[where] for where in wheres if where in self._grants}

    def holds(self, where: TopicPartition, grant: int | None) -> bool:
        """Whether a grant of a partition holds still."""
        return self.member is not None and self.member.holds(where, grant)

    def __bool__(self) -> bool:
        """Whether there is something to be taken or begun."""
        return bool(self.queue) or bool(self.pending)

    def next(self) -> Take | Lose | None:
        """The next change that takes something away; what is given on the way is ``pending``."""
        while self.queue:
            change = self.queue.popleft()
            if not isinstance(change, Give):
                return change
            self.pending |= change.grants
            self._grants |= change.grants
        return None

    def split(self, change: Take | Lose) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """Of what the reader reads: what is to be given up, and what is lost already, be it that
        the reader hears of what was to be given up too late."""
        reads = set(self._intake.assignment())
        wheres = sorted(where for where in change.wheres if where in reads)
        if isinstance(change, Lose):
            return [], wheres
        lost = [where for where in wheres if not self.holds(where, self._grants.get(where))]
        return [where for where in wheres if where not in lost], lost

    def let_go(self, change: Take | Lose) -> None:
        """Read these no more, and say so."""
        for where in change.wheres:
            self.pending.pop(where, None)
            self._grants.pop(where, None)
            self._intake.end(where)
        if isinstance(change, Take) and self.member is not None:
            self.member.stopped(change.number)

    def begin(self, starts: Starts) -> list[TopicPartition]:
        """Read these, of the pending ones, from here on."""
        for where in starts.offsets:
            self.pending.pop(where, None)
        self._intake.begin(*starts)
        return sorted(starts.offsets)


class Pulse:
    """Whether a reader is alive: it is in a call that waits for records, or it has asked for some
    since somebody looked. The reader's thread counts, the shell's looks."""

    def __init__(self, intake: Intake) -> None:
        self.calls = 0
        self.is_waiting = False
        self._intake = intake
        self._seen: tuple[int, int] = (-1, -1)

    def look(self) -> bool:
        before, self._seen = self._seen, (self.calls, self._intake.at)
        return self.is_waiting or self._seen != before
