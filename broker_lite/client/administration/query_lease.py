"""The lease with which a Spark query reserves a consumer group, to publish its progress there.

The query's driver commits its offsets to the group, with the lease in the metadata of each
committed offset. Commands that change the group's offsets read the lease, and refuse the change
until the lease has expired. The module does no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from broker_lite.model import CommittedOffset, TopicPartition


def lease_text(run: str, until_ms: int) -> str:
    """Return a lease as text for the metadata of a committed offset. It consists of the query's run
    id and the end of the lease in ms since 1970."""
    return json.dumps({"spark": run, "until": until_ms}, separators=(",", ":"))


def lease_of(metadata: str) -> tuple[str, int]:
    """Parse the metadata of a committed offset. Return the run id and the end (ms since 1970) of
    the lease in it, or ("", 0) if it contains no lease."""
    try:
        document = json.loads(metadata)
        return str(document["spark"]), int(document["until"])
    except (ValueError, TypeError, KeyError):
        return "", 0


def holder_of(
    commits: Iterable[CommittedOffset], now_ms: int, *, besides: str = ""
) -> tuple[str, int]:
    """Return the run id and the end (ms since 1970) of an unexpired lease among a group's committed
    offsets. Ignore the query ``besides``. Return ("", 0) if there is no such lease."""
    for row in commits:
        run, until_ms = lease_of(row.metadata)
        if run and run != besides and until_ms > now_ms:
            return run, until_ms
    return "", 0


def running(
    commits: Mapping[TopicPartition, CommittedOffset], now_ms: float
) -> dict[TopicPartition, str]:
    """Return the run id of the query with an unexpired lease, for each partition whose committed
    offset contains one."""
    run_ids = {}
    for tp, row in commits.items():
        run, until_ms = lease_of(row.metadata)
        if run and until_ms > now_ms:
            run_ids[tp] = run
    return run_ids
