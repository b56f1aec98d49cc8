"""``FetchPosition``: the state of one partition between two fetches, without I/O.

``request`` builds the partition's part of a fetch request. ``evaluate`` takes the leader's answer
and says what to do next: decode batches, read a segment file, retry or fail. Consumers,
``read_range``, ``read_small_ranges`` and ``logbus mirror`` do the I/O. A position has at most one
fetch in flight."""

from __future__ import annotations

from typing import NamedTuple

from broker_lite.client.fetch.lineage import Lineage
from broker_lite.client.received import LogTruncatedError, WalkResult, walk
from broker_lite.errors import CorruptMessageError, LogbusError, OffsetOutOfRangeError
from broker_lite.model import NO_EPOCH, OffsetAndEpoch, TopicPartition
from broker_lite.record.walker import BatchWalker, WalkPolicy
from broker_lite.wire.fetch import FetchedPartition, FetchPartition, StoredRange

REPAIR_MS = 10_000
"""Milliseconds for which a reader repeats the fetch of a corrupt batch.

Meanwhile the leader may repair the batch with the copy of another replica."""
LOGBUS_LOG = WalkPolicy()
"""The checks of batches from logbus: offsets have no gaps, leader epochs never decrease."""
KAFKA_LOG = WalkPolicy(allows_gaps=True, orders_epochs=False)
"""The checks of batches from Apache Kafka: offsets may have gaps, leader epochs may be missing."""


class Stored(NamedTuple):
    """The leader on this machine answered with a range of its segment file.

    The caller reads the file, and splits its bytes into batches with ``walker``."""

    stored: StoredRange
    walker: BatchWalker


class Retry(NamedTuple):
    """The fetch failed for the moment. Fetch again: at once if ``error`` is None, else after a
    backoff.

    ``attempt`` is the number of failures in a row before this one."""

    error: LogbusError | None
    attempt: int = 0


class Corrupt(NamedTuple):
    """The batch at the position's offset is corrupt.

    ``FetchPosition.awaits_repair`` says whether to fetch it again: the leader may repair it."""

    error: CorruptMessageError


class Failed(NamedTuple):
    """The fetch failed, and a retry is useless. ``error`` names partition and offset."""

    error: LogbusError


Evaluation = WalkResult | Stored | Retry | Corrupt | Failed


class FetchPosition:
    """The next offset to fetch of one partition, with the state that its fetches need.

    ``policy`` selects the checks of fetched batches, such as that offsets have no gaps.
    ``failures`` counts failed fetches in a row. If the batch at ``offset`` is corrupt, fetches
    before the time ``repair_until_ms`` make the leader check CRCs and repair the batch. Otherwise
    this time is 0."""

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

    def seek(self, offset: int, last_epoch: int = NO_EPOCH) -> None:
        """Move to ``offset``, with the leader epoch of the record before it, if known."""
        self.offset = offset
        self.at_boundary = False
        self.lineage.begin(offset, last_epoch)
        self.failures = 0
        self.repair_until_ms = 0.0

    def request(self, leader_epoch: int, max_bytes: int) -> tuple[str, FetchPartition]:
        """Return the topic id, and the partition's part of a fetch request.

        ``leader_epoch`` is the partition's leader epoch in the client's metadata. If the records
        before the offset have a later epoch, the metadata are old, and the request has the later
        epoch. A deposed leader, whose log may lack these records, then answers UNKNOWN_LEADER_EPOCH
        (KIP-320)."""
        leader_epoch = max(leader_epoch, self.lineage.last_epoch)
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
        """Return the fetched batches and advance past them, or return the caller's next step.

        A ``WalkResult`` without batches means that the log has no records at the offset yet."""
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
        """Move the position past batches that were fetched, or read from a segment file."""
        self.lineage.read(walked.batches, self.offset, walked.leader_epoch)
        self.offset = walked.next_offset
        self.at_boundary = not self.policy.allows_gaps
        self._succeed()

    def skip_to(self, offset: int) -> None:
        """Skip the corrupt batch at the position, to the next batch at ``offset``."""
        self.offset = offset
        self.at_boundary = not self.policy.allows_gaps
        self.lineage.forget()
        self._succeed()

    def begin_repair(self, now_ms: float) -> None:
        """Let the leader check and repair the corrupt batch at the position, for REPAIR_MS from the
        first call on."""
        if not self.repair_until_ms:
            self.repair_until_ms = now_ms + REPAIR_MS

    def awaits_repair(self, now_ms: float, has_copies: bool) -> bool:
        """Return whether to fetch the corrupt batch at the position again, for at most REPAIR_MS.

        This needs other replicas (``has_copies``): the leader may repair the batch from one of
        them, or one of them may become leader."""
        # A batch also seems corrupt if its leader epoch is below the last recorded one. The
        # recorded epoch may be wrong, so forget the epochs.
        self.lineage.forget()
        if not has_copies:
            return False
        self.failures += 1
        self.begin_repair(now_ms)
        return now_ms < self.repair_until_ms

    def located(self, error: LogbusError) -> LogbusError:
        """Return ``error`` with topic, partition and offset added to its message."""
        if f"topic {self.tp.topic!r}" in error.message:
            return error
        return type(error)(
            f"topic {self.tp.topic!r} partition {self.tp.partition} offset {self.offset}: "
            f"{error.message}"
        )

    def _succeed(self) -> None:
        self.failures, self.repair_until_ms = 0, 0.0

    def _walker(self, answer: FetchedPartition) -> BatchWalker:
        """Return a walker, which splits the bytes of an answer into batches and checks their order.

        The walker rejects a batch with a lower leader epoch than the batch before."""
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
        """Handle the leader's report that its log differs from the records read here.

        ``diverging`` is the end offset of the last leader epoch that the leader's log shares with
        these records."""
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
