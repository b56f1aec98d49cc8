"""A client that writes transactional records and markers to brokers in memory, and reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

from broker_lite.config import BrokerConfig
from broker_lite.record import format as fmt
from broker_lite.record.walker import BatchWalker, WalkPolicy
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.coordinators.coordinator_epochs import CoordinatorEpochs
from broker_lite.server.handlers import fetch, list_offsets, write_txn_markers
from broker_lite.server.metrics import Histogram
from broker_lite.wire import fetch as wire
from broker_lite.wire import tables
from broker_lite.wire.api import ApiKey, write_request_header
from broker_lite.wire.calls.broker_transactions import (
    MarkedTopic,
    TransactionMarker,
    WriteTxnMarkersRequest,
)
from broker_lite.wire.primitives import Reader, Writer
from support.handler_world import context_of, received
from support.replica_world import TOPIC_ID, Node, part_bytes

BIG = 1 << 30


class MarkerClient:
    """A client that passes encoded requests, such as WriteTxnMarkers, to one broker's handlers."""

    is_open = True

    def __init__(self, node: Node) -> None:
        self.node = node
        self.frames: list[bytes] = []
        self.parts = cast(
            BrokerContext,
            SimpleNamespace(
                config=BrokerConfig(broker_id=node.id.broker_id),
                clock=node.clock,
                registry=SimpleNamespace(snapshot=node.snapshot),
                replicas=node.manager,
                disk=node.disk,
                metrics=node.metrics,
                coordinator_epochs=CoordinatorEpochs(lambda: node.snapshot),
                fetch_waits=Histogram(),
            ),
        )

    def build(self, size: int, start: Callable[[], None]) -> None:
        start()

    def answer(self, parts: Sequence[Any]) -> None:
        self.frames.append(b"".join(part_bytes(part) for part in parts))

    async def fetch(
        self, offset: int, *, committed: bool = True, size: int = BIG, flags: int = 0
    ) -> wire.FetchedPartition:
        wanted = wire.FetchPartition(0, offset, size)
        request = wire.FetchRequest(
            (wire.FetchTopic("", TOPIC_ID, (wanted,)),), 0, isolation_level=int(committed),
            replica_id=wire.ANY_REPLICA, columns_body_version=1, flags=flags,
        )  # fmt: skip
        sent = wire.encode_request(request, correlation_id=1, client_id="c", version=13)
        frame = memoryview(sent)[4:]
        fetch.handle(self.parts, received(frame, self.parts.clock), frame, cast(Any, self))
        await self.node.world.until(lambda: bool(self.frames))
        answer = wire.decode_response(memoryview(self.frames.pop())[4:], 13)
        return answer.topics[0].partitions[0]

    async def read(self, offset: int = 0, size: int = BIG) -> list[int]:
        """Return the offsets of the records that a read_committed reader gets from ``offset``
        on."""
        rows: list[int] = []
        while True:
            got = await self.fetch(offset, size=size)
            assert got.error_code == 0
            if not got.records:
                assert offset == got.last_stable_offset
                return rows
            walker = BatchWalker(WalkPolicy(aborted=got.aborted_transactions or ()), offset)
            for batch in walker.walk(got.records):
                first, end = batch.header.base_offset, batch.header.next_offset
                rows += [] if batch.is_void else range(max(first, offset), end)
            offset = walker.offset

    async def mark(self, *markers: TransactionMarker) -> dict[tuple[int, str, int], int]:
        writer = Writer()
        write_request_header(writer, ApiKey.WRITE_TXN_MARKERS, 2, 1, "coordinator")
        WriteTxnMarkersRequest(markers).encode(writer)
        frame = memoryview(writer.buffer)
        request = received(frame, self.parts.clock)
        message = tables.decode(ApiKey.WRITE_TXN_MARKERS, 2, frame, request.body_at)
        response = await write_txn_markers.handle(self.parts, request, message)
        data = tables.encode(ApiKey.WRITE_TXN_MARKERS, 2, 1, response)
        body = Reader(memoryview(data)[4:])
        body.i32()
        body.skip_tags()
        rows = WriteTxnMarkersRequest.decode(body).rows
        return {(row.producer_id, row.name, row.partition): row.error_code for row in rows}

    async def listed(self, timestamp: int, *, committed: bool = True) -> int:
        row = SimpleNamespace(partition_index=0, timestamp=timestamp, current_leader_epoch=-1)
        message = SimpleNamespace(
            topics=[SimpleNamespace(name="t", partitions=[row])], isolation_level=int(committed)
        )
        request = context_of(ApiKey.LIST_OFFSETS, 7)
        answer = await list_offsets.handle(self.parts, request, message)
        (found,) = answer.topics[0].partitions
        assert found.error_code == 0
        return cast(int, found.offset)


def marker(
    producer: int = 7, *, commit: bool = True, epoch: int = 0, coordinator: int = 1,
    version: int = 1, topics: tuple[MarkedTopic, ...] = (MarkedTopic("t", (0,)),),
    state_partition: int = -1, number: int = -1,
) -> TransactionMarker:  # fmt: skip
    return TransactionMarker(
        producer, epoch, commit, topics, coordinator, version, number, state_partition
    )


async def write(node: Node, producer: int = 7, sequence: int = 0, rows: int = 1) -> int:
    """Append a transactional batch of ``rows`` records; return its base offset."""
    appended = await node.append(
        [b"v"] * rows, attributes=fmt.ATTRIBUTE_TRANSACTIONAL, producer_id=producer,
        producer_epoch=0, base_sequence=sequence,
    )  # fmt: skip
    return appended.base_offset


async def write_history(node: Node) -> None:
    """Append plain records at offsets 0, 6 and 8, and transactions.

    One transaction is aborted (offsets 1 and 2), one committed (3) and one open (7). Markers are at
    offsets 4 and 5.
    """
    client = MarkerClient(node)
    await node.append([b"plain"])
    await write(node, 1, rows=2)
    await write(node, 2)
    assert set((await client.mark(marker(1, commit=False), marker(2))).values()) == {0}
    await node.append([b"plain"])
    await write(node, 3)
    await node.append([b"plain"])
