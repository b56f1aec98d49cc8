"""Clients of a logbus cluster: ``connect`` is the way in. Start at README.md, then ``bus``.

Operations are written once, as generators (``requests``, ``admin_requests`` over ``steps``), and
carried out by a shell: ``blocking`` (sockets, threads) or ``aio`` (asyncio). Producers and
consumers are engines without I/O of their own (``delivery``, ``fetching``) under both. Importing
this package imports none of pyarrow, numpy, asyncio, kazoo: names are looked up when used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker_lite.client.admin import Admin
    from broker_lite.client.aio import AsyncBus, AsyncProducer, aconnect
    from broker_lite.client.aio_consumer import AsyncConsumer
    from broker_lite.client.bus import Bus, connect
    from broker_lite.client.cluster import ClusterView, PartitionMetadata, TopicMetadata
    from broker_lite.client.consumer import Consumer
    from broker_lite.client.ends import EndOffsetsWatch
    from broker_lite.client.fetcher import FetchedBatch, read_range
    from broker_lite.client.futures import BatchFuture, BatchMetadata, RecordFuture, RecordMetadata
    from broker_lite.client.producer import Producer
    from broker_lite.client.received import Record

_HOMES = {
    "Admin": "admin",
    "AsyncBus": "aio",
    "AsyncConsumer": "aio_consumer",
    "AsyncProducer": "aio",
    "BatchFuture": "futures",
    "BatchMetadata": "futures",
    "Bus": "bus",
    "ClusterView": "cluster",
    "Consumer": "consumer",
    "EndOffsetsWatch": "ends",
    "FetchedBatch": "fetcher",
    "PartitionMetadata": "cluster",
    "Producer": "producer",
    "Record": "received",
    "RecordFuture": "futures",
    "RecordMetadata": "futures",
    "TopicMetadata": "cluster",
    "aconnect": "aio",
    "connect": "bus",
    "read_range": "fetcher",
}

__all__ = [
    "Admin",
    "AsyncBus",
    "AsyncConsumer",
    "AsyncProducer",
    "BatchFuture",
    "BatchMetadata",
    "Bus",
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
    "aconnect",
    "connect",
    "read_range",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
