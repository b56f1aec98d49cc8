"""Tests of the producer's sender against scripted brokers; requests are encoded and decoded."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.client_world import ONE, OTHER_ID, TOPIC_ID, Asked, World
from support.java_partitions import partition_for

from broker_lite.client.arrays import binary_of
from broker_lite.client.operations.cluster import Cluster, ClusterView
from broker_lite.client.producing.accumulator import Chunk, OpenRows
from broker_lite.client.producing.futures import Outcome, RecordFuture
from broker_lite.client.producing.sender import Sender
from broker_lite.config import ProducerConfig
from broker_lite.errors import (
    ClosedError,
    InvalidPartitionsError,
    LogbusError,
    NetworkError,
    NoBrokersError,
    NotEnoughReplicasError,
    UnknownTopicOrPartitionError,
)
from broker_lite.record import arrow
from broker_lite.record.arrow import Columns
from broker_lite.record.batch import read_header
from broker_lite.wire.api import ApiKey
from broker_lite.wire.calls.cluster import (
    MetadataBroker,
    MetadataPartition,
    MetadataResponse,
    MetadataTopic,
)
from broker_lite.wire.calls.producers import InitProducerIdResponse

BROKERS = (MetadataBroker(1, "one", 1, None), MetadataBroker(2, "two", 2, None))


def metadata(
    partitions: int = 2,
    leader: int = 1,
    error: int = 0,
    topic_id: str = TOPIC_ID,
    leader_epoch: int = 5,
) -> MetadataResponse:
    rows = (
        ()
        if error
        else tuple(
            MetadataPartition(0, each, leader, leader_epoch, (1,), (1,), ())
            for each in range(partitions)
        )
    )
    return MetadataResponse(
        0, BROKERS, "cluster", 1, (MetadataTopic(error, "t", topic_id, False, rows),)
    )


class Bench:
    """A sender whose brokers answer metadata and InitProducerId requests automatically."""

    def __init__(self, **options: Any) -> None:
        self.world = World()
        self.metadata: MetadataResponse | LogbusError = metadata()
        self.identities = 0
        self.world.automatic[ApiKey.METADATA] = lambda asked: self.reply(asked, self.metadata)
        self.world.automatic[ApiKey.INIT_PRODUCER_ID] = self.identify
        self.released = 0
        self.finished: list[Outcome] = []
        self.cluster = Cluster((ONE,), self.world.now_ms)
        self.sender = Sender(
            self.world,
            self.cluster,
            ProducerConfig(**options),
            on_released=self.release,
            on_finished=self.finished.append,
        )

    def release(self, count: int) -> None:
        self.released += count

    def reply(self, asked: Asked, answer: Any) -> None:
        """Answer a request with a response object, without encoding the response."""
        self.world.asked.remove(asked)
        self.world.call_soon(lambda: asked.on_answer(answer))

    def identify(self, asked: Asked) -> None:
        self.identities += 1
        self.reply(asked, InitProducerIdResponse(0, 0, 1000 + self.identities, 0))

    def rows(self, *records: tuple[bytes | None, bytes | None], **rare: Any) -> OpenRows:
        rows = OpenRows("t", threading.Condition(), lambda _: None, 1 << 20)
        rows.timestamp_ms = 77
        for index, (key, value) in enumerate(records):
            rows.values.append(value)
            rows.keys.append(key)
            rows.has_keys |= key is not None
            rows.size_bytes += 100
            rows.set_optional_fields(
                index, rare.get("headers"), rare.get("partition"), rare.get("timestamp_ms")
            )
        return self.put(rows)

    def put(self, rows: Any) -> Any:
        self.sender.inbox.append(rows)
        self.sender.wake()
        self.world.run()
        return rows

    def produced(self) -> dict[int, arrow.Columns]:
        """Return the decoded records of the only pending Produce request, by partition."""
        topic = self.world.the(ApiKey.PRODUCE).message.topics[0]
        return {
            row.partition: arrow.decode(row.records, read_header(row.records))
            for row in topic.partitions
        }


def test_repeated_produce_errors_of_a_partition_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    bench.rows((None, b"v"), partition=0)
    for _ in range(12):
        bench.world.the(ApiKey.PRODUCE).produced(p0=(NotEnoughReplicasError.code, -1))
        bench.world.run(1000)
    # Threads that earlier tests left may log, too.
    [warning] = [message for message in caplog.messages if message.startswith("t-0: ")]
    assert "records are not acknowledged yet" in warning
    assert "NOT_ENOUGH_REPLICAS" in warning


def test_rows_with_keys_are_sent_in_order_to_the_partitions_of_their_keys() -> None:
    bench = Bench()
    keys = [b"k%d" % index for index in range(20)]
    rows = bench.rows(*[(key, b"v" + key) for key in keys])
    sent = bench.produced()
    expected: dict[int, list[bytes]] = {0: [], 1: []}
    for key in keys:
        expected[partition_for(key, 2)].append(b"v" + key)
    assert {p: columns.value.to_pylist() for p, columns in sent.items()} == expected
    bench.world.the(ApiKey.PRODUCE).produced(p0=(0, 100), p1=(0, 200))
    assert bench.finished == [rows]
    assert bench.released == rows.size_bytes
    for index, key in enumerate(keys):
        found = RecordFuture(rows, index).result(0)
        partition = partition_for(key, 2)
        base = 100 * (partition + 1)
        assert (found.partition, found.offset) == (
            partition,
            base + expected[partition].index(b"v" + key),
        )
        assert found.timestamp_ms == 77


def test_rows_without_keys_go_to_one_sticky_partition_per_batch() -> None:
    bench = Bench()
    bench.rows((None, b"a"), (None, b"b"))
    first = set(bench.produced())
    bench.world.the(ApiKey.PRODUCE).produced(p0=(0, 0), p1=(0, 0))
    bench.rows((None, b"c"))
    second = set(bench.produced())
    assert first | second == {0, 1}
    assert len(first) == len(second) == 1


def test_headers_timestamps_and_partitions_that_the_user_chose_are_sent() -> None:
    bench = Bench()
    headers = [("h", b"x")]
    rows = bench.rows((b"k", b"v"), headers=headers, partition=1, timestamp_ms=5)
    (partition, columns), *_ = bench.produced().items()
    assert partition == 1
    assert columns.headers.to_pylist() == [[{"key": "h", "value": b"x"}]]
    bench.world.the(ApiKey.PRODUCE).produced(p1=(0, 3))
    assert RecordFuture(rows, 0).result(0) == ("t", 1, 3, 5)


def test_row_for_a_partition_that_does_not_exist_fails() -> None:
    bench = Bench()
    rows = bench.rows((b"k", b"v"), partition=2)
    with pytest.raises(InvalidPartitionsError, match="has 2 partitions"):
        RecordFuture(rows, 0).result(0)
    assert bench.released == rows.size_bytes


def test_rows_are_split_into_batches_of_at_most_batch_bytes() -> None:
    bench = Bench(batch_bytes=4096)
    bench.metadata = metadata(partitions=1)
    values = [bytes([65 + index]) * 1000 for index in range(10)]
    rows = OpenRows("t", threading.Condition(), lambda _: None, 4096)
    for value in values:
        rows.values.append(value)
        rows.keys.append(None)
        rows.size_bytes += 1020
    bench.put(rows)
    at, sizes = 0, []
    while bench.world.asked:
        asked = bench.world.asked[0]
        header = read_header(asked.message.topics[0].partitions[0].records)
        asked.produced(p0=(0, at))
        at += header.record_count
        sizes.append(header.size_bytes)
    assert max(sizes) <= 4096
    assert len(sizes) >= 4
    assert [RecordFuture(rows, index).result(0).offset for index in range(10)] == list(range(10))
    assert bench.released == rows.size_bytes


def test_rows_of_an_arrow_chunk_are_sent_to_the_partitions_in_its_partition_column() -> None:
    bench = Bench()
    columns = Columns(4, binary_of([b"k"] * 4), binary_of([b"a", b"b", b"c", b"d"]))
    chunk = Chunk(
        "t",
        threading.Condition(),
        lambda _: None,
        columns=columns,
        requested=np.array([1, 0, 1, -1], np.int32),
        size_bytes=400,
        timestamp_ms=9,
    )
    bench.put(chunk)
    sent = {p: columns.value.to_pylist() for p, columns in bench.produced().items()}
    own = partition_for(b"k", 2)
    expected = {0: [b"b"], 1: [b"a", b"c"]}
    expected[own].append(b"d")
    assert sent == expected


def test_producer_sends_only_the_rows_of_a_slice_of_an_arrow_array() -> None:
    bench = Bench()
    value = pa.array([b"x" * 100] * 50 + [b"mine"] + [b"y"] * 50).slice(50, 1)
    bench.put(
        Chunk(
            "t",
            threading.Condition(),
            lambda _: None,
            columns=Columns(1, None, value),
            requested=0,
            size_bytes=4,
            timestamp_ms=9,
        )
    )
    records = bench.world.the(ApiKey.PRODUCE).message.topics[0].partitions[0].records
    assert len(records) < 600
    assert bench.produced()[0].value.to_pylist() == [b"mine"]


def test_not_leader_error_is_retried_at_the_new_leader() -> None:
    bench = Bench()
    rows = bench.rows((b"k", b"v"))
    partition = next(iter(bench.produced()))
    bench.metadata = metadata(leader=2)
    bench.world.the(ApiKey.PRODUCE).produced(**{f"p{partition}": (6, -1)})
    bench.world.run(200)
    asked = bench.world.the(ApiKey.PRODUCE)
    assert asked.endpoint.host == "two"
    asked.produced(**{f"p{partition}": (0, 8)})
    assert RecordFuture(rows, 0).result(0).offset == 8


def test_metadata_is_refreshed_until_a_leader_is_elected() -> None:
    bench = Bench(retry_backoff_ms=10_000)
    rows = bench.rows((b"k", b"v"))
    bench.world.the(ApiKey.PRODUCE).fail(NetworkError("gone"))
    bench.world.run(200)
    bench.metadata = metadata(leader=2, leader_epoch=6)
    bench.world.run(50)
    assert bench.world.the(ApiKey.PRODUCE).endpoint.host == "two"
    assert not rows.done


@pytest.mark.parametrize("outage_ms", [100, 400, 700, 1100, 2000, 6000, 20_000])
def test_retry_backoff_after_an_outage_is_at_most_an_eighth_of_the_outage(
    outage_ms: int,
) -> None:
    bench = Bench()
    bench.rows((b"k", b"v"))
    bench.metadata = NetworkError("refused")
    bench.world.automatic[ApiKey.PRODUCE] = lambda asked: bench.reply(asked, bench.metadata)
    bench.world.the(ApiKey.PRODUCE).fail(NetworkError("gone"))
    bench.world.run(outage_ms)
    del bench.world.automatic[ApiKey.PRODUCE]
    bench.metadata = metadata(leader=2, leader_epoch=6)
    bench.world.run(min(1100, 30 + 0.125 * outage_ms))
    assert bench.world.the(ApiKey.PRODUCE).endpoint.host == "two"


def test_request_to_a_hung_leader_is_repeated_at_the_next_leader() -> None:
    bench = Bench()
    bench.rows((b"k", b"v"))
    bench.world.run(2000)
    assert bench.world.the(ApiKey.PRODUCE).endpoint.host == "one"
    bench.metadata = metadata(leader=2, leader_epoch=6)
    bench.world.run(1000)
    assert bench.world.the(ApiKey.PRODUCE).endpoint.host == "two"


def test_request_to_a_dead_broker_is_retried_until_the_deadline() -> None:
    bench = Bench(delivery_timeout_ms=5000)
    rows = bench.rows((b"k", b"v"))
    while not rows.done:
        for asked in list(bench.world.asked):
            asked.fail(NetworkError("refused"))
        bench.world.run(100)
    assert 5000 <= bench.world.now - 1000 <= 6500
    assert rows.error is not None
    assert rows.error.name == "DELIVERY_TIMED_OUT"
    assert bench.released == rows.size_bytes


def test_send_to_a_missing_topic_fails_with_the_command_that_creates_the_topic() -> None:
    bench = Bench()
    bench.metadata = metadata(error=3)
    rows = bench.rows((b"k", b"v"))
    bench.world.run(3000)
    assert isinstance(rows.error, UnknownTopicOrPartitionError)
    assert "logbus topic create t" in str(rows.error)


def test_rows_wait_until_a_new_topic_is_in_the_metadata() -> None:
    bench = Bench()
    bench.metadata = metadata(error=3)
    rows = bench.rows((b"k", b"v"))
    bench.world.run(100)
    bench.metadata = metadata()
    bench.world.run(1000)
    assert not rows.done
    assert len(bench.produced()) == 1


def test_queued_rows_of_a_topic_that_is_deleted_fail() -> None:
    bench = Bench()
    rows = bench.rows((b"k", b"v"))
    partition = next(iter(bench.produced()))
    bench.metadata = metadata(error=3)
    bench.world.the(ApiKey.PRODUCE).produced(**{f"p{partition}": (100, -1)})
    bench.world.run(5000)
    assert isinstance(rows.error, UnknownTopicOrPartitionError)


def test_records_reach_a_recreated_topic_by_its_new_id() -> None:
    bench = Bench()
    rows = bench.rows((b"k", b"v"))
    partition = next(iter(bench.produced()))
    bench.metadata = metadata(topic_id=OTHER_ID)
    bench.world.the(ApiKey.PRODUCE).produced(**{f"p{partition}": (100, -1)})
    bench.world.run(1000)
    asked = bench.world.the(ApiKey.PRODUCE)
    assert asked.message.topics[0].topic_id == OTHER_ID
    asked.produced(**{f"p{partition}": (0, 0)})
    assert rows.error is None


def test_queued_rows_fail_at_once_if_a_recreated_topic_lacks_their_partition() -> None:
    """Regression: the producer requested metadata without a pause until delivery.timeout.ms."""
    bench = Bench()
    rows = bench.rows((None, b"v"), partition=1)
    bench.metadata = metadata(partitions=1, topic_id=OTHER_ID)
    bench.world.the(ApiKey.PRODUCE).produced(p1=(100, -1))
    bench.world.run(1000)
    assert isinstance(rows.error, UnknownTopicOrPartitionError)
    assert "topic 't' was recreated with fewer partitions" in str(rows.error)


def test_rows_of_a_new_producer_fail_if_no_broker_of_the_cluster_has_ever_answered() -> None:
    bench = Bench()
    bench.metadata = NoBrokersError("refused")
    rows = bench.rows((b"k", b"v"))
    bench.world.run(10_000)
    assert isinstance(rows.error, NoBrokersError)


def test_new_producer_of_a_connected_client_waits_while_all_brokers_restart() -> None:
    """Regression: a new producer of a connected client failed its first record after five seconds
    while all brokers restarted.
    """
    bench = Bench()
    bench.cluster.has_answered = True
    bench.metadata = NoBrokersError("refused")
    rows = bench.rows((b"k", b"v"))
    bench.world.run(60_000)
    bench.metadata = metadata()
    bench.world.run(5_000)
    bench.world.the(ApiKey.PRODUCE).produced(**{f"p{next(iter(bench.produced()))}": (100, -1)})
    assert rows.error is None


def test_delivery_timeout_includes_the_wait_for_the_topics_metadata() -> None:
    """Regression: rows whose topic was unknown for long got the whole timeout again afterwards, and
    failed only after twice ``delivery.timeout.ms``."""
    bench = Bench(delivery_timeout_ms=60_000)
    bench.cluster.has_answered = True
    bench.metadata = NoBrokersError("refused")
    rows = bench.rows((b"k", b"v"))
    bench.world.run(50_000)
    bench.metadata = metadata(leader=-1)
    bench.world.run(11_000)
    assert rows.error is not None
    assert rows.error.name == "DELIVERY_TIMED_OUT"


def test_sender_frees_topic_metadata_that_a_refresh_has_replaced() -> None:
    """Regression: for each topic, the sender kept a copy of the whole cluster's metadata, as they
    were at the last send to this topic. Memory grew with the square of the number of topics."""
    bench = Bench()
    for name in ("one", "two", "three"):
        [topic] = metadata().topics
        bench.metadata = metadata()._replace(topics=(topic._replace(name=name),))
        rows = OpenRows(name, threading.Condition(), lambda _: None, 1 << 20)
        rows.values, rows.keys = [b"v"], [None]
        bench.put(rows)
    gc.collect()
    views = [each for each in gc.get_objects() if isinstance(each, ClusterView)]
    assert [each for each in views if "one" in each.topics] == [bench.cluster.view]


def test_refused_init_producer_id_is_retried() -> None:
    bench = Bench()
    answers = [InitProducerIdResponse(0, 15, -1, -1)] * 3 + [InitProducerIdResponse(0, 0, 7, 0)]
    bench.world.automatic[ApiKey.INIT_PRODUCER_ID] = lambda asked: bench.reply(
        asked, answers.pop(0)
    )
    bench.rows((b"k", b"v"))
    bench.world.run(2000)
    records = bench.world.the(ApiKey.PRODUCE).message.topics[0].partitions[0].records
    assert read_header(records).producer_id == 7


def test_produce_request_with_acks_0_expects_no_response() -> None:
    bench = Bench(acks="0", idempotence=False)
    bench.rows((b"k", b"v"))
    assert bench.world.the(ApiKey.PRODUCE).message.acks == 0
    assert not bench.world.the(ApiKey.PRODUCE).exchange.has_answer


def test_close_of_the_sender_fails_remaining_rows() -> None:
    bench = Bench()
    under_way = bench.rows((b"k", b"v"))
    waiting = OpenRows("t", threading.Condition(), lambda _: None, 1)
    waiting.values.append(b"v")
    waiting.keys.append(None)
    bench.sender.inbox.append(waiting)
    bench.sender.close(ClosedError("end"))
    assert isinstance(under_way.error, ClosedError)
    assert isinstance(waiting.error, ClosedError)
    with pytest.raises(ClosedError):
        RecordFuture(waiting, 0).result(0)


def test_sender_refreshes_stale_metadata_and_uses_new_partitions() -> None:
    bench = Bench(metadata_max_age_ms=1000)
    bench.rows((None, b"v"))
    bench.world.the(ApiKey.PRODUCE).produced(p0=(0, 0), p1=(0, 0))
    bench.metadata = metadata(partitions=6)
    bench.world.run(1500)
    bench.rows((None, b"v"))
    bench.world.run(100)
    assert len(bench.cluster.view.partitions_of("t")) == 6
