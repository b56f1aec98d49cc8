"""Which segments are old enough to go: a pure decision over facts.

Whole closed segments, oldest first, while a reason holds: before the log's start, over
retention.bytes, past retention.ms. A segment's age is that of its newest record. Two kinds of
record times say nothing of age, -1 and one far ahead of the broker's clock when it was appended;
such a segment is as old as its last append. Times in the past count as they are: a topic that
keeps a week does not keep last month's records, whenever they were written.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from broker_lite.config import DAY, TopicConfig
from broker_lite.storage.segment import Segment

FUTURE_MAX_MS = DAY
"""A record further ahead of its append than this is from a wrong clock, not from a time zone."""


class SegmentFacts(NamedTuple):
    """What the decision needs of a segment."""

    base_offset: int
    size_bytes: int
    max_timestamp: int
    last_append_ms: int

    @classmethod
    def of(cls, segment: Segment) -> SegmentFacts:
        return cls(
            segment.base_offset, segment.size_bytes, segment.max_timestamp, segment.last_append_ms
        )

    @property
    def newest_ms(self) -> int:
        """When its newest record was written, as far as that can be believed."""
        if 0 <= self.max_timestamp <= self.last_append_ms + FUTURE_MAX_MS:
            return self.max_timestamp
        return self.last_append_ms


def expired_count(
    segments: Sequence[SegmentFacts],
    config: TopicConfig,
    *,
    now_ms: int,
    log_start_offset: int,
    high_watermark: int,
) -> int:
    """How many of the oldest segments go; the last one is active and never does."""
    total = sum(segment.size_bytes for segment in segments)
    count = 0
    for segment, following in pairwise(segments):
        deletable = following.base_offset <= high_watermark
        before_start = following.base_offset <= log_start_offset
        too_large = 0 <= config.retention_bytes <= total - segment.size_bytes
        too_old = 0 <= config.retention_ms < now_ms - segment.newest_ms
        if not deletable or not (before_start or too_large or too_old):
            break
        total -= segment.size_bytes
        count += 1
    return count
