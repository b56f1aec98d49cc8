"""Test consumers, range reads and end offsets on real brokers."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support.faces import Face
from support.patience import until

from broker_lite.bus import Bus
from broker_lite.client import EndOffsetsWatch, read_range
from broker_lite.client.consuming.arrow_rows import JOINED_BYTES
from broker_lite.client.received import records
from broker_lite.errors import (
    ClosedError,
    InvalidConfigError,
    InvalidGroupIdError,
    InvalidPartitionsError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import CommittedOffset, TopicPartition


def fill(bus: Bus, topic: str, count: int, partition: int = 0, **options: object) -> None:
    with bus.producer(**options) as producer:
        for n in range(count):
            producer.send(topic, b"%d" % n, partition=partition, timestamp_ms=1000 + n)


def test_iteration_waits_for_new_records_at_the_log_end(
    bus: Bus, face_bus: Bus, topic: str
) -> None:
    fill(bus, topic, 3)
    found: list[bytes | None] = []
    with face_bus.consumer(topic, start="earliest") as consumer, bus.producer() as producer:
        later = threading.Timer(0.2, producer.send, (topic, b"late"))
        for record in consumer:
            found.append(record.value)
            if len(found) == 3:
                later.start()
            if record.value == b"late":
                break
        later.join()
    assert found == [b"0", b"1", b"2", b"late"]


def test_leaving_a_loop_over_a_consumer_loses_no_record(
    bus: Bus, face_bus: Bus, topic: str
) -> None:
    fill(bus, topic, 10)
    with face_bus.consumer(topic, start="earliest") as consumer:
        for record in consumer:
            if record.offset == 3:
                break
        assert consumer.position(topic, 0) == 4
        assert [record.offset for record in consumer.poll(5.0, max_records=2)] == [4, 5]
        assert consumer.poll_arrow(5.0, max_rows=2).column("offset").to_pylist() == [6, 7]
        assert next(iter(consumer)).offset == 8


def test_poll_arrow_concatenates_batches_only_up_to_a_size_limit(bus: Bus, topic: str) -> None:
    with bus.producer(compression="zstd", linger_ms=0) as producer:
        for _ in range(20):
            producer.send(topic, bytes(8_000_000), partition=0).result()
    with bus.consumer(topic, start="earliest") as consumer:
        offsets: list[int] = []
        while len(offsets) < 20:
            rows = consumer.poll_arrow(20.0)
            assert 0 < rows.column("value").nbytes <= JOINED_BYTES
            offsets += rows.column("offset").to_pylist()
        assert offsets == list(range(20))


def test_records_are_delivered_again_if_their_batches_could_not_be_concatenated(
    bus: Bus, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Concatenation can fail: an Arrow column holds at most two gigabytes of values.

    Regression: the consumer skipped the records of such batches.
    """
    fill(bus, topic, 10, batch_bytes=200)

    def full(*_: object, **__: object) -> None:
        raise MemoryError

    with bus.consumer(topic, group="unjoined", start="earliest") as consumer:
        tp = TopicPartition(topic, 0)
        for module, read in (
            ("reader_core.arrow_rows", consumer.poll_arrow),
            ("fetch_collector.records", consumer.poll),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(f"broker_lite.client.consuming.{module}", full)
                with pytest.raises(MemoryError):
                    read(10.0)
            assert consumer.position(tp) == 0
            assert consumer.settled()[tp].offset == 0
        assert consumer.poll_arrow(10.0).column("offset").to_pylist()[0] == 0


def test_consumer_with_start_latest_begins_at_the_log_end(
    bus: Bus, face_bus: Bus, topic: str
) -> None:
    fill(bus, topic, 5)
    with face_bus.consumer(topic) as consumer:
        assert consumer.poll(0.1) == []
        with bus.producer() as producer:
            producer.send(topic, b"new", partition=0)
        assert [record.value for record in consumer.poll(10.0)] == [b"new"]


def test_seek_moves_the_position(bus: Bus, face_bus: Bus, topic: str) -> None:
    fill(bus, topic, 100, batch_bytes=500)
    with face_bus.consumer(topic, partitions=[0], start="earliest") as consumer:
        consumer.seek(topic, 0, 50)
        assert consumer.poll(5.0, max_records=1)[0].offset == 50
        consumer.seek(TopicPartition(topic, 0), 7)
        assert consumer.poll(5.0, max_records=1)[0].offset == 7
        consumer.seek_to_time(1033)
        assert consumer.poll(5.0, max_records=1)[0].offset == 33
        consumer.seek_to_end()
        assert consumer.positions() == {TopicPartition(topic, 0): 100}
        assert consumer.lag() == {TopicPartition(topic, 0): 0}
        consumer.seek_to_time(10**12)
        assert consumer.position(topic, 0) == 100
        consumer.seek_to_beginning()
        assert consumer.lag() == {TopicPartition(topic, 0): 100}
        consumer.seek(topic, 0, 10**6)
        assert consumer.poll(0.5) and consumer.position(topic, 0) == 100, "start=earliest"
        for nowhere in (-1, 10**20):
            with pytest.raises(InvalidConfigError, match="from 0 to"):
                consumer.seek(topic, 0, nowhere)
        with pytest.raises(UnknownTopicOrPartitionError):
            consumer.seek(topic, 1, 0)


def test_client_refuses_numbers_outside_the_range_of_offsets_times_and_partitions(
    bus: Bus, face_bus: Bus, topic: str
) -> None:
    """An out-of-range number raises InvalidConfigError.

    Regression: such a number ended the consumer's thread or raised struct.error.
    """
    fill(bus, topic, 3)
    tp, admin = TopicPartition(topic, 0), bus.admin
    with face_bus.consumer(topic, group="bounds", partitions=[0], start="earliest") as consumer:
        for attempt in (
            lambda: consumer.seek_to_time(10**20),
            lambda: consumer.commit({tp: 10**20}),
            lambda: consumer.commit({tp: -5}),
            lambda: admin.commit_offsets("bounds", {tp: CommittedOffset(1, 10**10)}),
            lambda: admin.commit_offsets("bounds", {TopicPartition(topic, 10**10): 1}),
            lambda: admin.list_offsets({tp: -(10**20)}),
            lambda: admin.delete_records({tp: 10**20}),
            lambda: admin.offsets_for_bytes({tp: (10**20, 1)}),
            lambda: admin.offsets_for_bytes({tp: (1, 10**20)}),
            lambda: admin.create_partitions(topic, 10**10),
        ):
            with pytest.raises((InvalidRequestError, InvalidPartitionsError)):
                attempt()
        assert len(consumer.poll(10.0)) == 3
        assert consumer.committed() == {}


def test_consumer_with_start_none_raises_if_there_is_no_valid_offset_to_start_at(
    bus: Bus, face_bus: Bus, topic: str
) -> None:
    fill(bus, topic, 3)
    with pytest.raises(OffsetOutOfRangeError, match="start='earliest'"):
        bus.consumer(topic, group="g-none", start="none")
    with face_bus.consumer(topic, group="g-none-2", start="earliest") as consumer:
        consumer.poll(5.0)
    with face_bus.consumer(topic, group="g-none-2", start="none", partitions=[0]) as consumer:
        consumer.seek(topic, 0, 99)
        with pytest.raises(OffsetOutOfRangeError, match="begins at 0"):
            consumer.poll(5.0)


def test_paused_partition_delivers_no_records(bus: Bus, face_bus: Bus, topic: str) -> None:
    fill(bus, topic, 3, partition=0)
    fill(bus, topic, 3, partition=1)
    zero = TopicPartition(topic, 0)
    with face_bus.consumer(topic, start="earliest") as consumer:
        consumer.pause(zero)
        assert {record.partition for record in consumer.poll(5.0)} == {1}
        assert consumer.poll(0.2) == []
        consumer.resume(zero)
        assert [record.offset for record in consumer.poll(5.0)] == [0, 1, 2]


def test_group_resumes_from_its_committed_offset(bus: Bus, topic: str) -> None:
    fill(bus, topic, 10)
    with bus.consumer(topic, group="g-on", start="earliest", auto_commit=False) as consumer:
        assert len(consumer.poll(5.0, max_records=4)) == 4
        assert consumer.committed() == {}
        consumer.commit()
        assert consumer.committed()[TopicPartition(topic, 0)].offset == 4
        consumer.poll(5.0)
    with bus.consumer(topic, group="g-on", start="latest") as consumer:
        assert consumer.poll(5.0)[0].offset == 4
    with bus.consumer(topic, group="g-on") as consumer:
        assert consumer.position(topic, 0) == 10, "close did not commit"
        consumer.commit({TopicPartition(topic, 0): 2})
        assert bus.admin.committed("g-on")[TopicPartition(topic, 0)].offset == 2
        consumer.seek(topic, 0, 2)
    with bus.consumer(topic) as consumer, pytest.raises(InvalidGroupIdError, match="group="):
        consumer.commit()


def test_consumer_commits_automatically(bus: Bus, topic: str) -> None:
    fill(bus, topic, 3)
    tp = TopicPartition(topic, 0)
    with bus.consumer(
        topic, group="g-auto", start="earliest", auto_commit_interval_ms=50
    ) as consumer:
        consumer.poll(5.0)

        def is_committed() -> bool:
            consumer.poll(0.01)
            found = bus.admin.committed("g-auto").get(tp)
            return found is not None and found.offset == 3

        until(is_committed)
        assert consumer.commit_error is None


def test_closing_a_client_closes_its_consumers(
    face: Face, cluster: LocalCluster, bus: Bus, topic: str
) -> None:
    group = f"g-{topic}"
    fill(bus, topic, 3)
    with face.connect(cluster.bootstrap_servers) as closing:
        member = closing.consumer(topic, group=group, start="earliest")
        native = closing.consumer(
            topic, group=f"{group}-native", coordination="zookeeper", start="earliest"
        )
        alone, ended = closing.consumer(topic), closing.consumer(topic)
        ended.close()
        for reader in (member, native):
            until(lambda reader=reader: bool(reader.poll(0.1)))
    for consumer in (member, native, alone, ended):
        assert not consumer.is_open
        with pytest.raises(ClosedError):
            consumer.poll()
    for name in (group, f"{group}-native"):
        assert bus.admin.committed(name)[TopicPartition(topic, 0)].offset == 3
        assert not bus.admin.group_members(name)
    with pytest.raises(KeyError), face.connect(cluster.bootstrap_servers) as failing:
        reader = failing.consumer(topic, group=f"{group}-failed", start="earliest")
        until(lambda: bool(reader.poll(0.1)))
        raise KeyError
    assert not reader.is_open
    committed = bus.admin.committed(f"{group}-failed")
    assert {row.offset for row in committed.values()} <= {0}


def test_missing_topics_and_partitions_raise_errors(face_bus: Bus, topic: str) -> None:
    def start(*topics: str, **options: Any) -> None:
        with face_bus.consumer(*topics, **options):
            pass

    with pytest.raises(UnknownTopicOrPartitionError, match="logbus topic create nowhere"):
        start("nowhere")
    typo = topic.replace("fixture", "fixtrue")
    for use in (
        lambda: start(typo),
        lambda: start(typo, group="g"),
        lambda: face_bus.producer().send(typo, b"").result(),
    ):
        with pytest.raises(UnknownTopicOrPartitionError, match=rf"did you mean .*'{topic}'"):
            use()
    with pytest.raises(UnknownTopicOrPartitionError, match="3 partitions"):
        start(topic, partitions=[3])
    with pytest.raises(InvalidConfigError, match="needs a topic"):
        start()


def test_consumer_of_a_deleted_and_recreated_topic_raises_an_error(bus: Bus) -> None:
    bus.create_topic("again", 1)
    fill(bus, "again", 2)
    with bus.consumer("again", start="earliest") as consumer:
        assert len(consumer.poll(5.0)) == 2
        bus.delete_topic("again")
        bus.create_topic("again", 1)
        with pytest.raises((UnknownTopicIdError, UnknownTopicOrPartitionError)):
            for _ in range(100):
                consumer.poll(0.2)


def test_read_range_returns_exactly_the_offsets_of_the_range(bus: Bus, topic: str) -> None:
    fill(bus, topic, 1000, batch_bytes=700)
    tp = TopicPartition(topic, 0)
    view = bus.admin.cluster([topic])

    def read(start: int, end: int, **options: object) -> list[int]:
        found = []
        for rows in read_range(
            tp,
            view.topic_id(topic),
            view.leader_epoch(tp),
            start,
            end,
            bootstrap=bus.bootstrap_servers,
            **options,  # type: ignore[arg-type]
        ):
            found += [record.offset for record in records(tp, rows)]
        return found

    assert read(0, 1000) == list(range(1000))
    assert read(123, 877, fetch_bytes=2000) == list(range(123, 877))
    assert read(5, 5) == []
    assert read(999, 1000, leader=view.leader(tp)) == [999]
    assert read(10, 12, leader=next(iter(set(view.brokers.values()) - {view.leader(tp)}))) == [
        10,
        11,
    ], "another broker is not the leader"
    with pytest.raises(OffsetOutOfRangeError, match="begins at 0 and ends at 1000"):
        read(1001, 1005)
    bus.admin.delete_records({tp: 500})
    with pytest.raises(OffsetOutOfRangeError, match="begins at 500"):
        read(400, 600)
    half = read_range(
        tp,
        view.topic_id(topic),
        view.leader_epoch(tp),
        500,
        1000,
        bootstrap=bus.bootstrap_servers,
        fetch_bytes=1000,
    )
    next(half)
    half.close()  # type: ignore[attr-defined]
    with pytest.raises(UnknownTopicIdError, match="recreated"):
        list(
            read_range(tp, "AAAAAAAAAAAAAAAAAAAAAQ", -1, 500, 600, bootstrap=bus.bootstrap_servers)
        )


def test_end_offsets_watch_reports_new_records_partitions_and_topics(bus: Bus, topic: str) -> None:
    tp = TopicPartition(topic, 0)
    with EndOffsetsWatch(bus.bootstrap_servers, [topic], refresh_ms=200) as watch:
        assert watch.wait_ready(20)
        assert {tp: end.offset for tp, end in watch.snapshot().ends.items()} == {
            TopicPartition(topic, n): 0 for n in range(3)
        }
        before = watch.snapshot()
        assert watch.snapshot() is before
        fill(bus, topic, 5)
        until(lambda: watch.snapshot().ends[tp].offset == 5)
        assert before.ends[tp].offset == 0, "snapshots do not change"
        bus.admin.create_partitions(topic, 4)
        until(lambda: len(watch.snapshot().ends) == 4)
        fill(bus, topic, 2, partition=3)
        until(lambda: watch.snapshot().ends[TopicPartition(topic, 3)].offset == 2)
        old = watch.snapshot().topic_ids[topic]
        bus.delete_topic(topic)
        until(lambda: topic not in watch.snapshot().topic_ids and not watch.snapshot().ends)
        assert watch.error is not None
        bus.create_topic(topic, 1)
        until(lambda: watch.snapshot().topic_ids.get(topic, old) != old)
        until(lambda: (end := watch.snapshot().ends.get(tp)) is not None and end.offset == 0)


def test_end_offsets_watch_includes_a_new_topic_that_its_filter_selects(
    bus: Bus, topic: str
) -> None:
    with EndOffsetsWatch(
        bus.bootstrap_servers,
        lambda view: [name for name in view.topics if name.startswith(topic + "-x")],
        refresh_ms=100,
    ) as watch:
        assert watch.wait_ready(20)
        assert watch.snapshot().ends == {}
        bus.create_topic(topic + "-x1", 1)
        until(lambda: TopicPartition(topic + "-x1", 0) in watch.snapshot().ends)


def test_new_partitions_are_read_from_earliest(
    bus: Bus, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker_lite.client.fetch.fetch_engine.REFRESH_MS", 100)
    with bus.consumer(topic) as consumer:
        assert consumer.poll(0.1) == []
        bus.admin.create_partitions(topic, 4)
        fill(bus, topic, 2, partition=3)
        assert [record.partition for record in consumer.poll(10.0)] == [3, 3]
