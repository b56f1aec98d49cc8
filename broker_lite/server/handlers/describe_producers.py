"""Handle DescribeProducers 0: return the idempotent and transactional producers of a partition.

Each is listed with the first offset of its open transaction. As in Kafka, every replica answers,
from its own log."""

from __future__ import annotations

from typing import Any

from broker_lite.errors import LogbusError
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.storage.producer_state import ProducerEntry
from broker_lite.wire.tables import DescribeProducersResponse as Response
from broker_lite.wire.tables import build, error_fields

_Topic = Response.TopicResponse
_Partition = _Topic.PartitionResponse
_Producer = _Partition.ProducerState


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Describe the producers of each partition. Each partition has its own error in the answer, and
    one row even if the request repeats it."""
    requested: dict[str, dict[int, None]] = {}
    for topic in message.topics:
        requested.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    topics = []
    for name, indexes in requested.items():
        rows = [await _describe(parts, request, name, index) for index in indexes]
        topics.append(build(_Topic, name=name, partitions=rows))
    return Response(topics=topics)


async def _describe(
    parts: BrokerContext, request: RequestContext, topic: str, partition: int
) -> Any:
    error: LogbusError | None = None
    producers: list[Any] = []
    try:
        request.access.check_topic(topic)
        log = parts.replicas.find(topic, partition).log
        # The partition's append thread changes the state of producers, so read it on that thread.
        producers = await parts.disk.run_on(
            log.key, lambda: [_row(*p) for p in log.producers], request.spent
        )
    except LogbusError as raised:
        error = raised
    return build(
        _Partition,
        partition_index=partition,
        **error_fields(error),
        active_producers=producers,
    )


def _row(producer_id: int, producer: ProducerEntry) -> Any:
    return build(
        _Producer,
        producer_id=producer_id,
        producer_epoch=producer.epoch,
        last_sequence=producer.last_sequence,
        last_timestamp=producer.last_append_ms,
        coordinator_epoch=producer.coordinator_epoch,
        current_txn_start_offset=producer.transaction_start,
    )
