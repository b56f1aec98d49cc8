"""Decide which of the oldest segments retention deletes, and why, without I/O.

Brokers delete only closed segments below the last stable offset, oldest first, for three reasons:

- the segment is before the log start offset;
- the log without the segment still has retention.bytes;
- the segment is older than retention.ms.

A segment's age is that of its newest timestamp. If that is -1 or far ahead of the broker's clock,
the time of the last append counts instead. An old timestamp counts even if the append was just
now."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from broker_lite.config import DAY, TopicConfig
from broker_lite.storage.segment import Segment

FUTURE_MAX_MS = DAY
"""Maximum milliseconds by which a record's timestamp may be ahead of the broker's clock.

A larger difference cannot be a time zone: the producer's clock is wrong."""


class SegmentFacts(NamedTuple):
    """The properties of a segment that decide its retention."""

    base_offset: int
    size_bytes: int
    max_timestamp: int
    last_append_ms: int

    @classmethod
    def of(cls, segment: Segment) -> SegmentFacts:
        return cls(
            segment.base_offset, segment.size_bytes, segment.max_timestamp, segment.last_append_ms
        )

    def newest_ms(self, now_ms: int) -> int:
        """Return the time (ms) of the newest record, or the time of the last append if the record's
        time is missing or too far in the future.

        Too far is more than FUTURE_MAX_MS after ``now_ms``, not after the append's time: the
        broker's clock may have been wrong then."""
        if 0 <= self.max_timestamp <= now_ms + FUTURE_MAX_MS:
            return self.max_timestamp
        return self.last_append_ms


def expired(
    segments: Sequence[SegmentFacts],
    config: TopicConfig,
    *,
    now_ms: int,
    log_start_offset: int,
    last_stable_offset: int,
) -> list[str]:
    """Return the reason to delete each of the oldest segments: "log_start", "size" or "time".

    The list ends before the first segment that stays; the last one, which is active, always
    stays."""
    total = sum(segment.size_bytes for segment in segments)
    reasons: list[str] = []
    for segment, following in pairwise(segments):
        deletable = following.base_offset <= last_stable_offset
        before_start = following.base_offset <= log_start_offset
        too_large = 0 <= config.retention_bytes <= total - segment.size_bytes
        too_old = 0 <= config.retention_ms < now_ms - segment.newest_ms(now_ms)
        if not deletable or not (before_start or too_large or too_old):
            break
        total -= segment.size_bytes
        reasons.append("log_start" if before_start else "size" if too_large else "time")
    return reasons
