"""What the metadata of a Spark query's commits say: which query publishes to a group, until when no
other may. Pure; the query's driver writes it, and whoever would move the group's offsets reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from broker_lite.model import CommittedOffset, TopicPartition


def lease_text(run: str, until_ms: int) -> str:
    """The metadata of a commit: which query publishes to the group, until when no other may."""
    return json.dumps({"spark": run, "until": until_ms}, separators=(",", ":"))


def lease_of(metadata: str) -> tuple[str, int]:
    """Who holds the lease that a commit's metadata speaks of, until when; ("", 0) if none."""
    try:
        document = json.loads(metadata)
        return str(document["spark"]), int(document["until"])
    except (ValueError, TypeError, KeyError):
        return "", 0


def holder_of(
    commits: Iterable[CommittedOffset], now_ms: int, *, besides: str = ""
) -> tuple[str, int]:
    """The query, other than ``besides``, whose lease runs now, until when; ("", 0) if none."""
    for row in commits:
        run, until_ms = lease_of(row.metadata)
        if run and run != besides and until_ms > now_ms:
            return run, until_ms
    return "", 0


def running(
    commits: Mapping[TopicPartition, CommittedOffset], now_ms: float
) -> dict[TopicPartition, str]:
    """The query that reads each partition now, where one does: whose lease runs."""
    found = {}
    for where, row in commits.items():
        run, until_ms = lease_of(row.metadata)
        if run and until_ms > now_ms:
            found[where] = run
    return found
