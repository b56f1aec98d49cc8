"""The lease with which a Spark query reserves a consumer group, to publish its progress there.

The query's driver commits its offsets to the group, with the lease in the metadata of each.
Commands that change the group's offsets refuse the change until the lease has expired."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from broker_lite.model import CommittedOffset, TopicPartition


def lease_text(run: str, until_ms: int) -> str:
    """Return a Spark query's lease of a group as text for an offset's metadata: the query's run id,
    and the lease's end in ms since 1970."""
    return json.dumps({"spark": run, "until": until_ms}, separators=(",", ":"))


def lease_of(metadata: str) -> tuple[str, int]:
    """Return the Spark query's run id and the end (ms since 1970) of the lease in an offset's
    metadata, or ("", 0)."""
    try:
        document = json.loads(metadata)
        return str(document["spark"]), int(document["until"])
    except (ValueError, TypeError, KeyError):
        return "", 0


def holder_of(
    commits: Iterable[CommittedOffset], now_ms: int, *, besides: str = ""
) -> tuple[str, int]:
    """Return the run id of the Spark query that holds the group's lease, and the lease's end in ms
    since 1970.

    Return ("", 0) without an unexpired lease, or if the caller's own query ``besides`` holds it."""
    for row in commits:
        run, until_ms = lease_of(row.metadata)
        if run and run != besides and until_ms > now_ms:
            return run, until_ms
    return "", 0


def running(
    commits: Mapping[TopicPartition, CommittedOffset], now_ms: float
) -> dict[TopicPartition, str]:
    """Return the run id of the Spark query that publishes its progress to the group, for each
    partition whose committed offset has an unexpired lease."""
    run_ids = {}
    for tp, row in commits.items():
        run, until_ms = lease_of(row.metadata)
        if run and until_ms > now_ms:
            run_ids[tp] = run
    return run_ids
