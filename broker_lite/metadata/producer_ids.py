"""Allocate producer ids, unique in the cluster, from ZooKeeper in blocks of 1,000.

A broker takes the next block by a compare-and-set of one znode. If ZooKeeper's answer is lost, no
broker uses the block, so that no id is used twice.
"""

from __future__ import annotations

import asyncio

from broker_lite.errors import WriteConflictError
from broker_lite.metadata import znodes
from broker_lite.metadata.store import MetadataStore, put
from broker_lite.metadata.znodes import ProducerIdBlock

BLOCK_SIZE = 1000
ATTEMPTS_MAX = 100


class ProducerIds:
    """Allocates producer ids for one broker."""

    def __init__(self, store: MetadataStore, broker_id: int) -> None:
        self._store = store
        self._broker_id = broker_id
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()

    async def next(self) -> int:
        """Return a new producer id. Raises CoordinationUnavailableError if a new block of ids is
        needed and ZooKeeper does not answer."""
        async with self._lock:
            if self._next >= self._end:
                block = await self._allocate()
                self._next, self._end = block.first, block.next
            self._next += 1
            return self._next - 1

    async def _allocate(self) -> ProducerIdBlock:
        for _ in range(ATTEMPTS_MAX):
            znode = await self._store.get(znodes.PRODUCER_IDS)
            first = 0
            if znode is not None:
                first = znodes.decode_producer_ids(znodes.PRODUCER_IDS, znode.data).next
            block = ProducerIdBlock(self._broker_id, first, first + BLOCK_SIZE)
            data = znodes.encode_producer_ids(block)
            if await self._store.write([put(znodes.PRODUCER_IDS, data, znode)]) is None:
                return block
        raise WriteConflictError(
            f"other brokers reserved producer ids during each of {ATTEMPTS_MAX} attempts to "
            "reserve some; try again"
        )
