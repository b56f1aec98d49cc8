"""Producers, consumers and administration of a cluster. ``broker_lite.bus`` creates them.

The client's logic is written once, without I/O, and runs on threads and with asyncio:

- ``operations`` and ``administration`` hold operations: generators that yield each request to send,
  and receive the answer.
- ``producing`` and ``consuming`` hold the engines of producers and consumers.
- ``transport`` does the I/O of operations, in two variants: on threads and on an asyncio loop.

The package imports pyarrow, numpy, asyncio and kazoo on the first use of a name that needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_lite.lazy_names import lazy_names

if TYPE_CHECKING:
    from broker_lite.client.administration.admin import Admin
    from broker_lite.client.consuming.aio_consumer import AsyncConsumer
    from broker_lite.client.consuming.consumer import Consumer
    from broker_lite.client.fetch.ends import EndOffsetsWatch
    from broker_lite.client.fetch.range_reader import FetchedBatch, read_range
    from broker_lite.client.operations.cluster import ClusterView, PartitionMetadata, TopicMetadata
    from broker_lite.client.producing.aio_producer import AsyncProducer
    from broker_lite.client.producing.futures import (
        BatchFuture,
        BatchMetadata,
        RecordFuture,
        RecordMetadata,
    )
    from broker_lite.client.producing.producer import Producer
    from broker_lite.client.received import Record

_HOMES = {
    "Admin": "administration.admin",
    "AsyncConsumer": "consuming.aio_consumer",
    "AsyncProducer": "producing.aio_producer",
    "BatchFuture": "producing.futures",
    "BatchMetadata": "producing.futures",
    "ClusterView": "operations.cluster",
    "Consumer": "consuming.consumer",
    "EndOffsetsWatch": "fetch.ends",
    "FetchedBatch": "fetch.range_reader",
    "PartitionMetadata": "operations.cluster",
    "Producer": "producing.producer",
    "Record": "received",
    "RecordFuture": "producing.futures",
    "RecordMetadata": "producing.futures",
    "TopicMetadata": "operations.cluster",
    "read_range": "fetch.range_reader",
}

__all__ = [
    "Admin",
    "AsyncConsumer",
    "AsyncProducer",
    "BatchFuture",
    "BatchMetadata",
    "ClusterView",
    "Consumer",
    "EndOffsetsWatch",
    "FetchedBatch",
    "PartitionMetadata",
    "Producer",
    "Record",
    "RecordFuture",
    "RecordMetadata",
    "TopicMetadata",
    "read_range",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
