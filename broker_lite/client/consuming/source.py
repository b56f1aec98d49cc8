"""The fetch state of one partition: next offset, leader connection and buffered bytes.

``fetching.FetchEngine`` owns it, on its shell's thread.
"""

from __future__ import annotations

from broker_lite.client.fetch.lineage import Lineage
from broker_lite.model import NO_EPOCH
from broker_lite.record.walker import BatchWalker, WalkPolicy
from broker_lite.wire.fetch import FetchedPartition


class PartitionSource:
    """The state of one partition between its fetches."""

    __slots__ = (
        "at_boundary",
        "buffered_bytes",
        "doubted_until_ms",
        "failures",
        "generation",
        "high_watermark",
        "is_paused",
        "is_stopped",
        "lane",
        "lineage",
        "offset",
        "retry_at_ms",
        "topic_id",
    )

    def __init__(self, topic_id: str, offset: int, generation: int) -> None:
        self.topic_id = topic_id
        self.lineage = Lineage()
        self.begin(offset, generation)
        self.is_paused = False
        self.lane = ""
        self.high_watermark = -1

    def walker(self, answer: FetchedPartition, leader_epoch: int) -> BatchWalker:
        """Return a walker over an answer that a leader of ``leader_epoch`` sent for ``offset``.

        The walker rejects batches of an earlier leader epoch than the last batch read here. A
        committed leader epoch is not used for that: the leader validates it.
        """
        return BatchWalker(
            WalkPolicy(leader_epoch=leader_epoch, aborted=answer.aborted_transactions or ()),
            self.offset,
            epoch=max(self.lineage.last_epoch, 0) if self.at_boundary else 0,
            at_boundary=self.at_boundary,
        )

    def begin(
        self,
        offset: int,
        generation: int,
        doubted_until_ms: float = 0.0,
        last_epoch: int = NO_EPOCH,
    ) -> None:
        """Reset the state to read from ``offset``. ``last_epoch`` is the leader epoch of the
        record before it, if known."""
        self.offset = offset
        self.generation = generation
        self.at_boundary = False
        self.lineage.begin(offset, last_epoch)
        self.buffered_bytes = 0
        self.is_stopped = False
        self.failures = 0
        self.retry_at_ms = 0.0
        self.high_watermark = -1
        self.doubted_until_ms = doubted_until_ms
        """Deadline for the repair of a corrupt batch, in milliseconds; 0 if no batch is corrupt."""
