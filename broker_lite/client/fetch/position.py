"""``FetchPosition``: the state of one partition between two fetches, without I/O.

``request`` builds the partition's row of a fetch request, and ``take`` evaluates the leader's
answer. Consumers (``fetch_engine``), Spark's tasks (``range_reader``) and mirrors have a position
for each partition. They send the requests, find leaders, wait, and read segment files. A position
has at most one fetch in flight.
"""

from __future__ import annotations

from typing import NamedTuple

from broker_lite.client.fetch.lineage import Lineage
from broker_lite.client.received import LogTruncatedError, WalkResult, walk
from broker_lite.errors import CorruptMessageError, LogbusError, OffsetOutOfRangeError
from broker_lite.model import NO_EPOCH, OffsetAndEpoch, TopicPartition
from broker_lite.record.walker import BatchWalker, WalkPolicy
from broker_lite.wire.fetch import FetchedPartition, FetchPartition, StoredRange

REPAIR_MS = 10_000
"""Milliseconds for which a reader waits for the repair of a corrupt batch from other replicas."""
LOGBUS_LOG = WalkPolicy()
"""Walk policy for logbus's own logs: batches are contiguous and leader epochs do not fall."""
KAFKA_LOG = WalkPolicy(allows_gaps=True, orders_epochs=False)
"""Walk policy for Kafka's logs: compaction leaves gaps, and old batch formats have no leader
epoch."""


class Stored(NamedTuple):
    """The leader answered with a range of its segment file. Read the batches from the file with
    ``walker``."""

    stored: StoredRange
    walker: BatchWalker


class Retry(NamedTuple):
    """Fetch the offset again: at once if ``error`` is None, else after a backoff. ``attempt`` is
    the number of errors in a row before this error."""

    error: LogbusError | None
    attempt: int = 0


class Corrupt(NamedTuple):
    """The batch at the offset is corrupt. ``awaits_repair`` says whether to fetch it again, because
    another replica may repair it."""

    error: CorruptMessageError


class Failed(NamedTuple):
    """No later fetch of the offset succeeds. ``error`` names the partition and the offset."""

    error: LogbusError


Evaluation = WalkResult | Stored | Retry | Corrupt | Failed


class FetchPosition:
    """The next offset of one partition, with the state that its fetches need.

    ``policy`` has the leader epoch of the last request. ``failures`` counts errors in a row.
    ``repair_until_ms`` is the deadline for the repair of a corrupt batch, or 0 without a corrupt
    batch. Until that time, the leader checks CRCs before it answers.
    """

    __slots__ = (
        "at_boundary",
        "failures",
        "lineage",
        "offset",
        "policy",
        "repair_until_ms",
        "topic_id",
        "tp",
    )

    def __init__(
        self,
        tp: TopicPartition,
        topic_id: str,
        offset: int = 0,
        *,
        last_epoch: int = NO_EPOCH,
        policy: WalkPolicy = LOGBUS_LOG,
    ) -> None:
        self.tp = tp
        self.topic_id = topic_id
        self.policy = policy
        self.lineage = Lineage()
        self.seek(offset, last_epoch)

    def seek(self, offset: int, last_epoch: int = NO_EPOCH, repair_until_ms: float = 0.0) -> None:
        """Read from ``offset`` on. ``last_epoch`` is the leader epoch of the record before
        ``offset``, if known."""
        self.offset = offset
        self.at_boundary = False
        self.lineage.begin(offset, last_epoch)
        self.failures = 0
        self.repair_until_ms = repair_until_ms

    def request(self, leader_epoch: int, max_bytes: int) -> tuple[str, FetchPartition]:
        """Return the topic id, and the partition's row of a fetch request to the leader with
        ``leader_epoch``."""
        if leader_epoch != self.policy.leader_epoch:
            self.policy = self.policy._replace(leader_epoch=leader_epoch)
        row = FetchPartition(
            self.tp.partition,
            self.offset,
            max_bytes,
            current_leader_epoch=leader_epoch,
            last_fetched_epoch=self.lineage.last_epoch,
        )
        return self.topic_id, row

    def evaluate(self, answer: FetchedPartition | LogbusError) -> Evaluation:
        """Evaluate the answer to the last request, advance past its batches, and return the
        caller's next action.

        A ``WalkResult`` without batches means that the leader has no records at the offset yet.
        """
        if isinstance(answer, LogbusError):
            return self._refused(answer)
        if answer.diverging is not None:
            return self._diverged(answer.diverging)
        if answer.stored is not None:
            self._succeed()
            return Stored(answer.stored, self._walker(answer))
        walked = walk(answer.records, self._walker(answer), self.tp)
        if walked.batches:
            self.advance(walked)
        elif walked.damage is not None:
            return Corrupt(walked.damage)
        else:
            self._succeed()
        return walked

    def advance(self, walked: WalkResult) -> None:
        """Advance past batches that came from the leader or from a segment file."""
        self.lineage.read(walked.batches, self.offset, walked.leader_epoch)
        self.offset = walked.next_offset
        self.at_boundary = not self.policy.allows_gaps
        self._succeed()

    def skip_to(self, offset: int) -> None:
        """Skip a corrupt batch. ``offset`` is the first offset of the next batch."""
        self.offset = offset
        self.at_boundary = not self.policy.allows_gaps
        self.lineage.forget()
        self._succeed()

    def awaits_repair(self, now_ms: float, has_copies: bool) -> bool:
        """Return whether to fetch a corrupt batch again, within REPAIR_MS. Other replicas
        (``has_copies``) may repair it, or another replica may become the leader."""
        # The recorded leader epoch may be stale. Clear it; the leader verifies the next fetch.
        self.lineage.forget()
        if not has_copies:
            return False
        self.failures += 1
        if not self.repair_until_ms:
            self.repair_until_ms = now_ms + REPAIR_MS
        return now_ms < self.repair_until_ms

    def located(self, error: LogbusError) -> LogbusError:
        """Return the error with topic, partition and offset in its message."""
        if f"topic {self.tp.topic!r}" in error.message:
            return error
        return type(error)(
            f"topic {self.tp.topic!r} partition {self.tp.partition} offset {self.offset}: "
            f"{error.message}"
        )

    def _succeed(self) -> None:
        self.failures, self.repair_until_ms = 0, 0.0

    def _walker(self, answer: FetchedPartition) -> BatchWalker:
        """Return a walker over the batches of an answer.

        It rejects a batch of an earlier leader epoch than the last batch that this position read.
        It does not use the leader epoch of a committed offset, because the leader validates that.
        """
        policy, aborted = self.policy, answer.aborted_transactions
        if aborted:
            policy = policy._replace(aborted=aborted)
        return BatchWalker(
            policy,
            self.offset,
            epoch=max(self.lineage.last_epoch, 0) if self.at_boundary else 0,
            at_boundary=self.at_boundary,
        )

    def _refused(self, error: LogbusError) -> Evaluation:
        if isinstance(error, CorruptMessageError):
            return Corrupt(error)
        if isinstance(error, OffsetOutOfRangeError) or not error.retriable:
            return Failed(self.located(error))
        self.failures += 1
        return Retry(error, self.failures - 1)

    def _diverged(self, diverging: OffsetAndEpoch) -> Evaluation:
        """Handle an answer that reports a diverging log. ``diverging`` is the end of the last
        leader epoch that the leader's log shares with the records read here."""
        at = self.lineage.cut(diverging, self.offset, self.policy.leader_epoch)
        if at is None:
            self.lineage.forget()
            return Retry(None)
        message = (
            f"topic {self.tp.topic!r} partition {self.tp.partition} offset {self.offset}: the log "
            f"was truncated and lost its records from offset {at.offset} on, as after an unclean "
            "election"
        )
        return Failed(LogTruncatedError(message, *at))
