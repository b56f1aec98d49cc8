"""Test that the metrics of brokers have the values that clients' work and faults should cause."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kazoo.client import KazooClient
from support.data_calls import (
    ROWS_ONLY,
    find_topic,
    produce_request,
    read,
    rows_batch,
    send_batch,
)
from support.patience import PATIENCE_S, until
from support.plain_connection import PlainConnection
from support.scrapes import scraped

from broker_lite.bus import Bus, connect
from broker_lite.config import BrokerConfig
from broker_lite.errors import RequestTimedOutError
from broker_lite.local.broker import LocalBroker
from broker_lite.local.cluster import LocalCluster
from broker_lite.local.zookeeper import EmbeddedZooKeeper
from broker_lite.metadata.store import Create
from broker_lite.metadata.zookeeper.store import ZooKeeperStore
from broker_lite.model import TopicPartition
from broker_lite.server.broker import Broker
from broker_lite.wire import produce

pytestmark = [pytest.mark.real, pytest.mark.slow]


class Expected(NamedTuple):
    """The expected sum of a metric over brokers: ``value``, or any positive number if None."""

    name: str
    value: float | None = None
    labels: tuple[tuple[str, str], ...] = ()


def row(name: str, value: float | None = None, **labels: str) -> Expected:
    return Expected(name, value, tuple(labels.items()))


AFTER_WORK = (
    row("broker_info", 3),
    row("zookeeper_connected", 3),
    row("metadata_age_seconds", 0),
    row("peers_connected", 6),
    row("partitions", role="leader"),
    row("partitions", role="follower"),
    row("request_memory_limit_bytes"),
    row("connections", listener="PLAINTEXT"),
    row("requests_total", api="produce"),
    row("request_duration_seconds_count", api="produce"),
    row("fetch_wait_seconds_count"),
    row("received_bytes_total", topic="t"),
    row("received_records_total", 3, topic="t"),
    row("sent_bytes_total", topic="t"),
    row("replication_received_bytes_total"),
    row("replication_sent_bytes_total"),
    row("replica_fetches_total"),
    row("follower_fetches_waiting"),
    row("append_duration_seconds_count"),
    row("flush_duration_seconds_count"),
    row("log_size_bytes"),
    row("log_segments"),
    row("disk_size_bytes"),
    row("disk_free_bytes"),
    row("stray_partitions", 0),
    row("recovery_duration_seconds"),
    row("coordinated_groups", 1, state="Stable"),
    row("coordinated_members", 1),
    row("transactions_total", 1, outcome="committed"),
    row("transactions_total", 1, outcome="aborted"),
    row("transaction_duration_seconds_count", 2),
    row("reassigning_partitions", 0),
    row("produces_waiting", 0),
    row("produces_timed_out_total", 0),
)
WHILE_A_FOLLOWER_IS_PAUSED = (
    row("produces_waiting", 1),
    row("request_memory_bytes"),
    row("reassigning_partitions", 1),
)
AFTER_THE_BROKER_WAS_KILLED = (
    row("peers_connected", 2),
    row("peer_connections_lost_total"),
    row("peers_suspected_total"),
)
WITHOUT_ZOOKEEPER = (row("zookeeper_connected", 0), row("metadata_age_seconds"))


def check(brokers: Iterable[LocalBroker], table: Iterable[Expected]) -> None:
    """Wait until the metrics of the brokers have the expected values."""
    chosen = list(brokers)

    def wrong() -> list[tuple[Expected, float]]:
        scrape = scraped(chosen)
        found = [(each, scrape.total(f"logbus_{each.name}", **dict(each.labels))) for each in table]
        return [
            (each, value)
            for each, value in found
            if (value <= 0 if each.value is None else value != each.value)
        ]

    until(wrong, lambda rows: not rows, what="metrics with a wrong value")


def work(bus: Bus, running: LocalCluster) -> None:
    """Append three records to the topic t, read them, and commit and abort a transaction."""
    with bus.producer() as producer:
        producer.send("t", b"x").result()
    place = find_topic(running, "t")
    with PlainConnection(place.address) as leader:
        assert send_batch(leader, place, rows_batch([b"y", b"z"])).error_code == 0
        assert read(leader, place, 0, reader=ROWS_ONLY).error_code == 0
        assert read(leader, place, 3, max_wait_ms=10).error_code == 0
    with bus.transaction("t") as transaction:
        transaction.send("other", b"committed")
    with contextlib.suppress(KeyError), bus.transaction("t") as transaction:
        transaction.send("other", b"aborted").result()
        raise KeyError


def lead_all_from_the_controller(bus: Bus) -> tuple[int, int]:
    """Let the controller lead t and other. Return its id, and that of the broker without a replica
    of other.
    """
    controller = bus.cluster().controller_id
    second, third = sorted(set(bus.cluster().brokers) - {controller})
    brokers = {
        TopicPartition("t", 0): (controller, second, third),
        TopicPartition("other", 0): (controller, second),
    }
    bus.admin.reassign(brokers)
    until(bus.admin.reassignments, lambda moves: not moves, what="the reassignment")

    def is_led() -> bool:
        bus.admin.elect_leaders(brokers)
        leaders = {tp: part.leader for tp, part in bus.admin.cluster().rows}
        return all(leaders[tp] == controller for tp in brokers)

    until(is_led, what="the election")
    return controller, third


def test_metrics_of_brokers_show_work_waiting_requests_and_faults(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    config = {
        "metrics.port": "0",
        "replica.lag.time.max.ms": "60000",
        "zookeeper.session.timeout.ms": "60000",
    }
    running = make_cluster(3, own_zookeeper=True, config=config)
    with connect(running.bootstrap_servers) as bus:
        bus.create_topic("t", partitions=1, replication_factor=3)
        bus.create_topic("other", partitions=1, replication_factor=2)
        with bus.consumer("t", group="g", start="earliest") as consumer:
            work(bus, running)
            assert next(iter(consumer)).value == b"x"
            check(running.brokers, AFTER_WORK)
        leader, third = lead_all_from_the_controller(bus)
        place = find_topic(running, "t")
        paused = running.brokers[third]
        others = [each for each in running.brokers if each is not paused]
        with PlainConnection(place.address) as waiting, PlainConnection(place.address) as hasty:
            paused.pause()
            try:
                bus.admin.reassign({TopicPartition("other", 0): (leader, third)})
                waiting.send(produce_request(place, rows_batch([b"w"]), timeout_ms=60_000))
                check(others, WHILE_A_FOLLOWER_IS_PAUSED)
                late = send_batch(hasty, place, rows_batch([b"w"]), timeout_ms=10)
                assert late.error_code == RequestTimedOutError.code
                check(others, [row("produces_timed_out_total", 1)])
            finally:
                paused.resume()
            answer = produce.decode_response(waiting.receive(), 13)
            assert answer.topics[0].partitions[0].error_code == 0
        check(running.brokers, [row("produces_waiting", 0), row("reassigning_partitions", 0)])
        paused.kill()
        check(others, AFTER_THE_BROKER_WAS_KILLED)
    assert running.zookeeper_server is not None
    running.zookeeper_server.stop()
    check(others, WITHOUT_ZOOKEEPER)


def test_broker_counts_refused_writes_and_expired_sessions_of_zookeeper(
    zookeeper: EmbeddedZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores: list[ZooKeeperStore] = []

    def make(*arguments: Any, **options: Any) -> ZooKeeperStore:
        stores.append(ZooKeeperStore(*arguments, **options))
        return stores[-1]

    def expire() -> None:
        """Close the broker's session through a second connection."""
        twin = KazooClient(hosts=stores[0]._hosts, client_id=stores[0]._client.client_id)
        twin.start()
        twin.stop()
        twin.close()

    async def main() -> None:
        address = f"{zookeeper.address}/{tmp_path.name}/logbus"
        broker = Broker(
            BrokerConfig(port=0, log_dir=str(tmp_path / "data"), zookeeper_connect=address)
        )
        await broker.start()
        try:
            counted, refused = broker._metrics.value, "zookeeper_write_conflicts"
            before = counted(refused)
            for _ in range(2):
                await stores[0].write([Create("/twice", b"")])
            assert counted(refused) == before + 1
            await asyncio.to_thread(expire)
            session_losses = partial(counted, "zookeeper_session_losses")
            await asyncio.to_thread(until, session_losses, lambda count: count == 1)
        finally:
            await broker.stop()

    monkeypatch.setattr("broker_lite.server.broker.ZooKeeperStore", make)
    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
