"""One partition as a consumer's engine sees it: where it is read, and what is buffered of it.

Owned by ``fetching.FetchEngine``, on its shell's thread.
"""

from __future__ import annotations

from broker_lite.client.consuming.lineage import Lineage
from broker_lite.model import NO_EPOCH
from broker_lite.record.walker import BatchWalker, WalkPolicy
from broker_lite.wire.fetch import FetchedPartition


class Source:
    """What is known of one partition between its fetches."""

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
        """A walker over what a leader of that epoch answers from ``offset`` on.

        No batch may be of an earlier leader epoch than the last one that was read here. The epoch
        of a commit is not believed: the leader is asked about it.
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
        """Read from ``offset`` on, whatever was read before; ``last_epoch``: of the record before
        it, as far as that is known."""
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
        """Not 0: a damaged batch came, and until then its repair is waited for."""
