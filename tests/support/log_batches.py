"""Find the segment files of a cluster on this machine, and the batches in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from broker_lite.record.batch import BatchHeader, Buffer
from broker_lite.record.walker import BatchWalker, WalkPolicy


def iter_headers(data: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the position and header of each complete batch."""
    policy = WalkPolicy(allows_gaps=True, orders_epochs=False)
    for batch in BatchWalker(policy, 0).walk(data):
        yield batch.position, batch.header


def segments_of(directory: Path, topic_id: str) -> list[Path]:
    """Return the segment files of the topic's partition 0 on every broker of a cluster.

    The search avoids ``rglob``, which fails if a broker removes a deleted log meanwhile.
    """
    return sorted(directory.glob(f"broker-*/data/{topic_id}-0/*.log"))
