"""The quota request_percentage counts the time of disk threads for every API, and of the event loop
for a fetch that waited."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.data_calls import Place, fetch_request, produce_request, rows_batch
from support.handler_world import context_of, received
from support.replica_world import TOPIC_ID, World, broker_context, run

from broker_lite.config import BrokerConfig
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.model import PartitionKey
from broker_lite.security.quotas import CLIENT_ID, REQUEST_PERCENTAGE, entity_of
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.clock import Clock
from broker_lite.server.handlers import (
    delete_records,
    describe_producers,
    fetch,
    list_offsets,
    offsets_for_bytes,
    produce,
    record_times,
)
from broker_lite.server.network.context import RequestContext
from broker_lite.server.network.quotas import ClientQuota, Quotas
from broker_lite.wire.api import ApiKey

PLACE = Place("t", TOPIC_ID, 1, "")
AN_HOUR = 3_600.0


class StoppedClock(Clock):
    """A clock that stands still, so that a quota is not refilled."""

    def monotonic_ms(self) -> int:
        return 0


def quota_of_time() -> ClientQuota:
    """Return the quota of a client that may use an hour of processing time a second."""
    quotas = Quotas(StoppedClock())
    limit = {entity_of([(CLIENT_ID, None)]): {REQUEST_PERCENTAGE: AN_HOUR * 100}}
    quotas.apply(MetadataSnapshot(quotas=limit))
    quota = quotas.of(context_of(ApiKey.FETCH, 13, "client"))
    assert quota is not None
    return quota


def spent_s(quota: ClientQuota) -> float:
    """Return the seconds that are charged to the quota so far."""
    return AN_HOUR - quota._buckets[REQUEST_PERCENTAGE].left / 100


def _partitions(**fields: Any) -> Any:
    row = SimpleNamespace(partition_index=0, current_leader_epoch=-1, **fields)
    return [SimpleNamespace(name="t", partitions=[row], partition_indexes=[0])]


def _time_lookup(parts: BrokerContext, quota: ClientQuota) -> Coroutine[Any, Any, Any]:
    request = context_of(ApiKey.LIST_OFFSETS, 7)._replace(quota=quota)
    message = SimpleNamespace(topics=_partitions(timestamp=0), isolation_level=0)
    return list_offsets.handle(parts, request, message)


def _range_of_bytes(parts: BrokerContext, quota: ClientQuota) -> Coroutine[Any, Any, Any]:
    request = context_of(ApiKey.OFFSETS_FOR_BYTES, 0)._replace(quota=quota)
    row = SimpleNamespace(topic_id=TOPIC_ID, partition=0, start_offset=0, max_bytes=1)
    return offsets_for_bytes.handle(
        parts, request, SimpleNamespace(partitions=[row], isolation_level=0)
    )


def _record_time(parts: BrokerContext, quota: ClientQuota) -> Coroutine[Any, Any, Any]:
    request = context_of(ApiKey.RECORD_TIMES, 0)._replace(quota=quota)
    row = SimpleNamespace(topic_id=TOPIC_ID, partition=0, offset=0)
    return record_times.handle(parts, request, SimpleNamespace(partitions=[row]))


def _producers(parts: BrokerContext, quota: ClientQuota) -> Coroutine[Any, Any, Any]:
    request = context_of(ApiKey.DESCRIBE_PRODUCERS, 0)._replace(quota=quota)
    return describe_producers.handle(parts, request, SimpleNamespace(topics=_partitions()))


def _deletion(parts: BrokerContext, quota: ClientQuota) -> Coroutine[Any, Any, Any]:
    request = context_of(ApiKey.DELETE_RECORDS, 2)._replace(quota=quota)
    message = SimpleNamespace(topics=_partitions(offset=1), timeout_ms=10_000)
    return delete_records.handle(parts, request, message)


async def _produced(parts: BrokerContext, quota: ClientQuota) -> None:
    frame = memoryview(bytearray(produce_request(PLACE, rows_batch([b"x"]))))[4:]
    await _answered(produce, parts, received(frame, parts.clock)._replace(quota=quota), frame)


async def _fetched(parts: BrokerContext, quota: ClientQuota, max_wait_ms: int = 0) -> None:
    frame = memoryview(bytearray(fetch_request(PLACE, 0, max_wait_ms=max_wait_ms)))[4:]
    await _answered(fetch, parts, received(frame, parts.clock)._replace(quota=quota), frame)


async def _answered(
    handler: Any, parts: BrokerContext, request: RequestContext, frame: memoryview
) -> None:
    done = asyncio.get_running_loop().create_future()
    reply = SimpleNamespace(
        answer=done.set_result, throttle=lambda _: None, is_open=True, connection=None, waited_ms=0
    )
    handler.handle(parts, request, frame, cast(Any, reply))
    await done


@pytest.mark.parametrize(
    "ask", [_time_lookup, _range_of_bytes, _record_time, _producers, _deletion, _produced, _fetched]
)
def test_work_of_a_disk_thread_is_charged_to_the_client(ask: Any) -> None:
    """The handlers are called without the dispatcher, which charges the time of the event loop."""

    async def body(world: World) -> None:
        leader = await world.serves(1)
        await leader.append([b"a", b"b"])
        quota = quota_of_time()
        config = BrokerConfig(broker_id=1, fetch_verify="always")
        await ask(broker_context(leader, config=config), quota)
        assert spent_s(quota) > 0
        key = PartitionKey(TOPIC_ID, 0)
        before = spent_s(quota)
        await leader.disk.run_on(key, lambda: None)
        assert spent_s(quota) == before, "work for no client is charged to none"

    run(body, brokers=1)


def test_work_for_a_fetch_after_its_wait_is_charged_to_the_client() -> None:
    """These records are in the page cache, and the broker has checked them: no disk thread reads
    them."""

    async def body(world: World) -> None:
        leader = await world.serves(1)
        quota = quota_of_time()
        waits = asyncio.create_task(_fetched(broker_context(leader), quota, max_wait_ms=20_000))
        await world.until(lambda: bool(leader.replica().waiters))
        before = spent_s(quota)
        await leader.append([b"a"])
        await waits
        assert spent_s(quota) > before

    run(body, brokers=1)
