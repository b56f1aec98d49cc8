"""The lease of a Spark query on a group. The metadata of the query's commits hold the lease.

The query's driver writes the lease. Commands that change the group's offsets read the lease, and
refuse the change until it expires. The module does no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from broker_lite.model import CommittedOffset, TopicPartition


def lease_text(run: str, until_ms: int) -> str:
    """Return the lease as the metadata of a commit: the query's run id, and the end of the lease in
    ms since 1970."""
    return json.dumps({"spark": run, "until": until_ms}, separators=(",", ":"))


def lease_of(metadata: str) -> tuple[str, int]:
    """Return the run id and the end of the lease in a commit's metadata. Return ("", 0) without a
    lease."""
    try:
        document = json.loads(metadata)
        return str(document["spark"]), int(document["until"])
    except (ValueError, TypeError, KeyError):
        return "", 0


def holder_of(
    commits: Iterable[CommittedOffset], now_ms: int, *, besides: str = ""
) -> tuple[str, int]:
    """Return the run id of a query other than ``besides`` that has an unexpired lease, and the end
    of the lease. Return ("", 0) without such a query."""
    for row in commits:
        run, until_ms = lease_of(row.metadata)
        if run and run != besides and until_ms > now_ms:
            return run, until_ms
    return "", 0


def running(
    commits: Mapping[TopicPartition, CommittedOffset], now_ms: float
) -> dict[TopicPartition, str]:
    """Return, by partition, the run id of the query that has an unexpired lease."""
    run_ids = {}
    for tp, row in commits.items():
        run, until_ms = lease_of(row.metadata)
        if run and until_ms > now_ms:
            run_ids[tp] = run
    return run_ids
