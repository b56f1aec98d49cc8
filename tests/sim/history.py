"""Record the batches, commits and positions of all clients; check them at the end of a run.

Values are unique. A batch is acknowledged at a known offset, certainly refused, or of unknown
outcome. A batch of unknown outcome may be in the log. ``Checker`` checks reads when they happen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from sim.checker import Violation

from broker_lite.model import PartitionKey, TopicPartition

COMMIT_LATE_S = 20.0
ACKS_ALL = -1


@dataclass
class Sent:
    """One batch of one producer: its values and its outcome."""

    producer: str
    key: PartitionKey
    values: list[bytes]
    acks: int
    floor: int
    """The end of the partition's acknowledged records when the batch was sent."""
    acked_at: int = -1
    """The base offset, once the batch is acknowledged."""
    refused: bool = False
    """Whether the batch is certainly not in the log."""
    done: bool = False


@dataclass
class Commit:
    """One attempt of a consumer to commit an offset."""

    offset: int
    began_s: float
    acknowledged: bool = False


@dataclass
class History:
    """The batches and commits of all clients. Clients add them while they run."""

    sent: list[Sent] = field(default_factory=list)
    committed: dict[tuple[str, TopicPartition], list[Commit]] = field(default_factory=dict)
    """Commits by group and partition, in the order of the attempts."""
    is_lossy: bool = False
    """Whether the topic allows unclean elections, so that records may be lost."""
    _ends: dict[PartitionKey, int] = field(default_factory=dict)

    def send(self, producer: str, key: PartitionKey, values: list[bytes], acks: int) -> Sent:
        """Record a batch that is about to be sent."""
        sent = Sent(producer, key, values, acks, self._ends.get(key, 0))
        self.sent.append(sent)
        return sent

    def acked(self, sent: Sent, base_offset: int) -> None:
        """Record that the broker acknowledged the batch at ``base_offset``."""
        sent.acked_at = base_offset
        sent.done = True
        if base_offset < 0:
            raise Violation(f"{sent.producer}: acknowledged at {base_offset}")
        if sent.acks == ACKS_ALL and not self.is_lossy:
            end = base_offset + len(sent.values)
            self._ends[sent.key] = max(self._ends.get(sent.key, 0), end)
            if base_offset < sent.floor:
                raise Violation(
                    f"{sent.producer}: acknowledged at {base_offset}, but {sent.floor} records "
                    "were acknowledged before it was sent"
                )

    def check(
        self,
        logs: dict[PartitionKey, dict[int, bytes]],
        lossy: Collection[PartitionKey] = (),
    ) -> None:
        """Compare the logs at the end with everything that was sent.

        ``logs`` holds the log of each topic that was not deleted. ``lossy`` names the partitions
        that may have lost acknowledged records.
        """
        for key, rows in logs.items():
            if list(rows) != list(range(len(rows))):
                raise Violation(f"{key}: its offsets are not contiguous")
            if len(set(rows.values())) != len(rows):
                raise Violation(f"{key}: a value is in the log twice")
        places = {
            value: (key, offset) for key, rows in logs.items() for offset, value in rows.items()
        }
        known = {value for sent in self.sent for value in sent.values}
        for value, place in places.items():
            if value not in known:
                raise Violation(f"{place}: {value!r} is in the log, but no producer sent it")
        latest: dict[tuple[PartitionKey, str], int] = {}
        for sent in self.sent:
            if sent.key in logs:
                _check_sent(sent, places, latest, may_be_lost=sent.key in lossy)

    def check_commits(self, found: Callable[[str, TopicPartition], int]) -> None:
        """Check that each committed offset is that of the last acknowledged commit.

        A commit of unknown outcome is allowed too, even an earlier one: a broker may apply it late.
        """
        for (group, place), attempts in self.committed.items():
            since, allowed = 0.0, {-1}
            for attempt in attempts:
                if attempt.acknowledged:
                    since, allowed = attempt.began_s, {attempt.offset}
            allowed |= {
                attempt.offset
                for attempt in attempts
                if not attempt.acknowledged and attempt.began_s > since - COMMIT_LATE_S
            }
            if found(group, place) not in allowed:
                raise Violation(
                    f"{group} {place}: committed {sorted(allowed)}, found {found(group, place)}"
                )


def _check_sent(
    sent: Sent,
    places: dict[bytes, tuple[PartitionKey, int]],
    latest: dict[tuple[PartitionKey, str], int],
    *,
    may_be_lost: bool,
) -> None:
    found = [places.get(value) for value in sent.values]
    is_safe = sent.acked_at >= 0 and sent.acks == ACKS_ALL and not may_be_lost
    if is_safe:
        wanted = [(sent.key, sent.acked_at + n) for n in range(len(sent.values))]
        if found != wanted:
            raise Violation(
                f"{sent.key}: {sent.values} were acknowledged at {sent.acked_at} and are at {found}"
            )
    if sent.refused and any(found):
        raise Violation(f"{sent.key}: {sent.values} were refused and are at {found}")
    there = [place for place in found if place is not None]
    if there and len(there) != len(found):
        raise Violation(f"{sent.key}: {sent.values} are in the log only in part: {found}")
    if is_safe:
        # Acknowledged batches of a producer keep their order. A batch of unknown outcome may be
        # appended late.
        name = (sent.key, sent.producer)
        if there[0][1] < latest.get(name, -1):
            raise Violation(
                f"{sent.key}: {sent.values} are in the log before older values of the producer"
            )
        latest[name] = there[-1][1]
