"""Iteration over the batches in bytes of a log or a fetch answer."""

from __future__ import annotations

from collections.abc import Iterator

from broker_lite.record.batch import BatchHeader, Buffer
from broker_lite.record.walker import BatchWalker, WalkPolicy


def iter_headers(data: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the position and header of each complete batch."""
    policy = WalkPolicy(allows_gaps=True, orders_epochs=False)
    for batch in BatchWalker(policy, 0).walk(data):
        yield batch.position, batch.header
