"""The log ends and the lag after a batch, as Spark shows them in a query's progress report."""

from __future__ import annotations

from typing import Any

from pyspark_logbus.offset_ranges import Live, starts_in
from pyspark_logbus.offsets import SourceOffset


def lag_report(live: Live, at: SourceOffset) -> dict[str, Any]:
    """Return a JSON document of the log ends ``live``, and of the unread records after the batch
    end ``at``."""
    topics, lag = {}, {}
    for name, topic in sorted(live.topics.items()):
        topics[name] = {str(p): end.offset for p, end in sorted(topic.ends.items())}
        lag[name] = {
            str(p): max(0, end.offset - (starts_in(at, name, topic.topic_id, p) or 0))
            for p, end in sorted(topic.ends.items())
            if end.offset >= 0
        }
    return {
        "topics": topics,
        "lagAfterBatch": lag,
        "lagAfterBatchTotal": sum(sum(rows.values()) for rows in lag.values()),
    }
