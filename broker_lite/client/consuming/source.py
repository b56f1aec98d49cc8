"""One partition as a consumer's engine sees it: where it is read, and what is buffered of it.

Owned by ``fetching.FetchEngine``, on its shell's thread.
"""

from __future__ import annotations

from broker_lite.client.consuming.lineage import Lineage
from broker_lite.model import NO_EPOCH


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

    @property
    def after_epoch(self) -> int:
        """Below which no epoch may be that comes next: one that others committed is asked about,
        only one that was read here is believed."""
        return self.lineage.last_epoch if self.at_boundary else NO_EPOCH

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
