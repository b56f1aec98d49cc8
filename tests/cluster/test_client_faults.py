"""Kill brokers and damage disks: clients see a delay or a clear error, never a wrong record."""

from __future__ import annotations

import contextlib
import resource
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from support import poison
from support.data_calls import columns_batch, find_topic, send_batch
from support.patience import until
from support.plain_connection import PlainConnection
from support.replicated import Watched

from broker_lite.bus import Bus, connect
from broker_lite.cli.main import run
from broker_lite.client import EndOffsetsWatch, read_range
from broker_lite.errors import (
    CorruptMessageError,
    DeliveryTimedOutError,
    NoBrokersError,
    RetriableError,
)
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import TopicPartition


@pytest.mark.timeout(180)
def test_producer_and_readers_survive_a_killed_broker(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    with (
        make_cluster(2) as cluster,
        connect(cluster.bootstrap_servers) as bus,
        EndOffsetsWatch(cluster.bootstrap_servers, ["t"]) as watch,
    ):
        bus.create_topic("t", 4)
        seen: dict[int, list[tuple[int, bytes | None]]] = {n: [] for n in range(4)}
        stop = threading.Event()

        def read() -> None:
            with bus.consumer("t", start="earliest", request_timeout_ms=5000) as consumer:
                while not stop.is_set():
                    for record in consumer.poll(0.2):
                        seen[record.partition].append((record.offset, record.value))

        reader = threading.Thread(target=read)
        reader.start()
        count, futures = 30_000, []
        with bus.producer(linger_ms=1, batch_bytes=20_000, request_timeout_ms=5000) as producer:
            for n in range(count):
                futures.append(producer.send("t", b"%d" % n, partition=n % 4))
                if n in (5_000, 15_000):
                    cluster.brokers[n // 15_000].kill()
                if n in (7_000, 17_000):
                    cluster.brokers[n // 17_000].start()
                if n % 500 == 0:
                    time.sleep(0.01)
            producer.flush(120)
        places = [future.result() for future in futures]
        ends = bus.admin.list_offsets({TopicPartition("t", n): -1 for n in range(4)})
        until(lambda: all(len(seen[n]) >= ends[TopicPartition("t", n)].offset for n in range(4)))
        stop.set()
        reader.join(30)
        for n in range(4):
            offsets = [offset for offset, _ in seen[n]]
            assert offsets == list(range(len(offsets))), (
                "records are lost, duplicated or out of order"
            )
            assert [value for _, value in seen[n]] == [b"%d" % i for i in range(n, count, 4)]
            for index, place in enumerate(places[n::4]):
                assert (place.partition, place.offset) == (n, index)
        until(
            lambda: {tp: end.offset for tp, end in watch.snapshot().ends.items()},
            lambda seen: seen == {tp: end.offset for tp, end in ends.items()},
        )


def test_producer_and_consumer_made_while_brokers_are_down_wait_for_the_brokers(
    make_cluster: Callable[..., LocalCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the first requests of a new producer or consumer failed after five seconds, as if
    the address were wrong.
    """
    with make_cluster(1) as cluster, connect(cluster.bootstrap_servers) as bus:
        bus.create_topic("t", 1)
        broker = cluster.brokers[0]
        broker.kill()
        monkeypatch.setattr("broker_lite.client.operations.requests.FIRST_CONTACT_MS", 0)
        with pytest.raises(NoBrokersError):
            connect(cluster.bootstrap_servers)
        with bus.producer() as producer:
            sent = producer.send("t", b"x")
            back = threading.Timer(0.5, broker.start)
            back.start()
            with bus.consumer("t", start="earliest") as consumer:
                assert sent.result(60).offset == 0
                assert [record.value for record in consumer.poll(60.0)] == [b"x"]
            back.join()


@pytest.mark.timeout(120)
def test_read_of_an_offset_range_continues_after_a_broker_restart(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    with make_cluster(1) as cluster, connect(cluster.bootstrap_servers) as bus:
        bus.create_topic("t", 1)
        tp = TopicPartition("t", 0)
        with bus.producer(batch_bytes=1000) as producer:
            for n in range(5000):
                producer.send("t", b"%d" % n)
        view = bus.cluster()

        def ranges(timeout_ms: float) -> int:
            rows = 0
            for batch in read_range(
                tp,
                view.topic_id("t"),
                view.leader_epoch(tp),
                0,
                5000,
                leader=view.leader(tp),
                bootstrap=bus.bootstrap_servers,
                fetch_bytes=5000,
                timeout_ms=timeout_ms,
            ):
                if rows == 0:
                    cluster.brokers[0].kill()
                    back.start()
                rows += batch.row_count
            return rows

        back = threading.Timer(0.5, cluster.brokers[0].start)
        assert ranges(60_000) == 5000
        back.join()
        back = threading.Timer(0, lambda: None)
        with pytest.raises(RetriableError, match="topic 't' partition 0"):
            ranges(300)


def test_consumer_reports_or_skips_a_corrupt_batch_as_configured(
    make_cluster: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    with make_cluster(1) as cluster, connect(cluster.bootstrap_servers) as bus:
        bus.create_topic("t", 1)
        tp = TopicPartition("t", 0)
        with bus.producer(linger_ms=0) as producer:
            sizes = []
            for n in range(5):
                producer.send("t", b"%d" % n * 100).result(30)
                sizes.append(sum(row.partitions[tp] for row in bus.admin.log_dirs()))
        (path,) = [each for each in tmp_path.rglob("0*.log") if each.stat().st_size >= sizes[-1]]
        view = bus.cluster()
        skipped: list[tuple[TopicPartition, int, int]] = []

        def read(start: int, **options: Any) -> list[int]:
            return [
                rows.header.base_offset
                for rows in read_range(
                    tp,
                    view.topic_id("t"),
                    view.leader_epoch(tp),
                    start,
                    5,
                    bootstrap=bus.bootstrap_servers,
                    **options,
                )
            ]

        assert read(0) == [0, 1, 2, 3, 4]
        with path.open("r+b") as file:
            file.seek(sizes[2] - 5)  # This byte is in the body of the batch at offset 2.
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 255]))
        with pytest.raises(CorruptMessageError, match="topic 't' partition 0 offset 2"):
            read(0)
        assert read(3) == [3, 4]
        skip = {"on_corrupt": "skip", "on_skipped": lambda *row: skipped.append(row)}
        assert read(0, **skip) == [0, 1, 3, 4]
        assert skipped == [(tp, 2, 3)]
        with bus.consumer("t", start="earliest", on_corrupt="skip") as consumer:
            found: list[int] = []
            while len(found) < 4:
                found += [record.offset for record in consumer.poll(5.0)]
            assert found == [0, 1, 3, 4]
            assert consumer.skipped == [(tp, 2, 3)]
        with bus.consumer("t", start="earliest") as consumer:
            assert [record.offset for record in consumer.poll(5.0, max_records=2)] == [0, 1]
            with pytest.raises(CorruptMessageError, match="offset 2"):
                consumer.poll(5.0)
            consumer.seek("t", 0, 3)
            assert [record.offset for record in consumer.poll(5.0)] == [3, 4]
        with path.open("r+b") as file:
            file.seek(sizes[2] + 16)  # This byte is the magic number of the batch at offset 3.
            file.write(b"\x07")
        with pytest.raises(CorruptMessageError, match="topic 't' partition 0 offset 3"):
            read(3)
        skipped.clear()
        assert read(0, **skip) == [0, 1, 4]
        assert skipped == [(tp, 2, 3), (tp, 3, 4)]
        with bus.consumer("t", start="earliest", on_corrupt="skip") as consumer:
            found = []
            while len(found) < 3:
                found += [record.offset for record in consumer.poll(5.0)]
            assert found == [0, 1, 4]


def test_undecodable_batch_stops_its_readers_but_no_replica(
    cluster: LocalCluster, bus: Bus
) -> None:
    """The batch has a valid CRC, so every replica stores it and stays in the ISR.

    Readers get an error at the batch, and may skip it.
    """
    bus.create_topic("poison", 1, 3)
    place, tp = find_topic(cluster, "poison"), TopicPartition("poison", 0)
    with PlainConnection(place.address) as leader:
        for batch in (columns_batch([b"0"]), poison.backwards(3, "lz4"), columns_batch([b"4"])):
            assert send_batch(leader, place, batch).error_code == 0
    watched = Watched(cluster, bus, "poison")
    before = watched.state()
    read = partial(read_range, tp, place.topic_id, before[1], 0, 5, bootstrap=bus.bootstrap_servers)
    named = "topic 'poison' partition 0 offset 1"
    with pytest.raises(CorruptMessageError, match=named):
        list(read())
    skipped: list[tuple[TopicPartition, int, int]] = []
    found = read(on_corrupt="skip", on_skipped=lambda *row: skipped.append(row))
    assert [rows.header.base_offset for rows in found] == [0, 4]
    assert skipped == [(tp, 1, 4)]
    with bus.consumer("poison", start="earliest") as consumer:
        assert [record.value for record in consumer.poll(5.0)] == [b"0"]
        with pytest.raises(CorruptMessageError, match=named):
            consumer.poll(5.0)
        consumer.seek("poison", 0, 4)
        assert [record.value for record in consumer.poll(5.0)] == [b"4"]
    settings = {"bootstrap.servers": bus.bootstrap_servers, "group.id": "poison"}
    kafka = confluent_kafka.Consumer(settings)
    try:
        kafka.assign([confluent_kafka.TopicPartition("poison", 0, 1)])
        error = kafka.poll(30).error()
        assert error.code() == CorruptMessageError.code
        kafka.assign([confluent_kafka.TopicPartition("poison", 0, 4)])
        assert kafka.poll(30).value() == b"4"
    finally:
        kafka.close()
    assert watched.state() == before


def test_producer_timeout_on_a_full_disk_names_the_cause(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    with make_cluster(1) as cluster, connect(cluster.bootstrap_servers) as bus:
        bus.create_topic("t", 1)
        pid = cluster.brokers[0].pid
        assert pid is not None
        with bus.producer() as producer:
            producer.send("t", bytes(100_000)).result(30)
        unlimited = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        # With this RLIMIT_FSIZE the kernel refuses to write past 150 kB, as on a full disk.
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (150_000, unlimited[1]))
        producer = bus.producer(delivery_timeout_ms=1500)
        try:
            with pytest.raises(DeliveryTimedOutError) as caught:
                producer.send("t", bytes(100_000)).result(30)
        finally:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
            with contextlib.suppress(DeliveryTimedOutError):
                producer.close()
        message = str(caught.value)
        assert "t-0: not acknowledged within delivery.timeout.ms=1500 (failures: " in message
        assert "[LOGBUS_KAFKA_STORAGE_ERROR] log.dir " in message
        assert "is full" in message
        assert "raise delivery.timeout.ms" in message


def test_leaderless_partition_error_names_the_dead_broker(
    make_cluster: Callable[..., LocalCluster], capsys: pytest.CaptureFixture[str]
) -> None:
    soon = {"zookeeper.session.timeout.ms": "2000"}
    with make_cluster(2, config=soon) as cluster, connect(cluster.bootstrap_servers) as bus:
        bus.create_topic("t", 1, 1)
        tp = TopicPartition("t", 0)
        known = bus.cluster().partition(tp)
        assert known is not None
        leader = known.leader
        bus.admin.commit_offsets("g", {tp: 0})
        (broker,) = [each for each in cluster.brokers if each.id == leader]
        broker.kill()
        until(lambda: leader not in bus.cluster().brokers)
        producer = bus.producer(delivery_timeout_ms=500)
        with pytest.raises(DeliveryTimedOutError, match=f"down: broker {leader} .alive: ") as late:
            producer.send("t", b"x").result(30)
        assert "start it" in str(late.value)
        with contextlib.suppress(DeliveryTimedOutError):
            producer.close()
        # Without a leader the group's lag is unknown. The command must not print 0.
        (lag,) = bus.admin.lag("g").values()
        assert lag.committed is not None and lag.committed.offset == 0
        assert (lag.end, lag.records, lag.seconds) == (None, None, None)
        servers = ["-b", cluster.bootstrap_servers]
        for command, code in (
            (["lag", "-g", "g", "--crit", "9"], 5),
            (["groups", "describe", "g"], 0),
        ):
            assert run([*command, *servers]) == code
            assert "the lag in t-0 is not known: it has no leader" in capsys.readouterr().err
