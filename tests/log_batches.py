"""The batches of log bytes, one after the other, for tests that look into logs and answers."""

from __future__ import annotations

from collections.abc import Iterator

from broker_lite.record.batch import BatchHeader, Buffer
from broker_lite.record.walker import BatchWalker, WalkPolicy


def iter_headers(data: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch; a batch cut at the end is not yielded."""
    policy = WalkPolicy(allows_gaps=True, orders_epochs=False)
    for batch in BatchWalker(policy, 0).walk(data):
        yield batch.position, batch.header
