"""The lease of a Spark query on a group, which is in the metadata of the query's commits.

The query's driver writes the lease. Commands that change the group's offsets read it, and refuse
the change until the lease expires. The module does no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from broker_lite.model import CommittedOffset, TopicPartition


def lease_text(run: str, until_ms: int) -> str:
    """Return the metadata of a commit with the query's run id and the end of its lease (ms since
    1970)."""
    return json.dumps({"spark": run, "until": until_ms}, separators=(",", ":"))


def lease_of(metadata: str) -> tuple[str, int]:
    """Return the run id and the end of the lease in a commit's metadata; ("", 0) if none."""
    try:
        document = json.loads(metadata)
        return str(document["spark"]), int(document["until"])
    except (ValueError, TypeError, KeyError):
        return "", 0


def holder_of(
    commits: Iterable[CommittedOffset], now_ms: int, *, besides: str = ""
) -> tuple[str, int]:
    """Return the run id of a query other than ``besides`` that has an unexpired lease, and the end
    of the lease; ("", 0) if there is none."""
    for row in commits:
        run, until_ms = lease_of(row.metadata)
        if run and run != besides and until_ms > now_ms:
            return run, until_ms
    return "", 0


def running(
    commits: Mapping[TopicPartition, CommittedOffset], now_ms: float
) -> dict[TopicPartition, str]:
    """Return the run id of the query with an unexpired lease, by partition."""
    found = {}
    for tp, row in commits.items():
        run, until_ms = lease_of(row.metadata)
        if run and until_ms > now_ms:
            found[tp] = run
    return found
