"""Read a handwritten log with control, empty and aborted batches from a real broker in every way
that a client can.

The broker finds the transactions in the log when it starts, and lists the aborted ones in fetches.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from pyspark.sql.types import BinaryType, LongType, StructField, StructType
from support import hand_made_log as by_hand
from support.data_calls import ROWS_ONLY, Place, batches, read
from support.plain_connection import PlainConnection
from support.range_rows import plan_of
from support.row_codec import decode_rows

from broker_lite.bus import Bus, connect
from broker_lite.cli.main import run
from broker_lite.client import read_range
from broker_lite.client.in_place import partitions
from broker_lite.client.in_place.local_files import LocalRange
from broker_lite.client.received import records
from broker_lite.local.cluster import LocalCluster
from broker_lite.mirror.mirror import Mirror
from broker_lite.model import PartitionKey, TopicPartition
from broker_lite.record.batch import read_header
from broker_lite.storage import paths
from broker_lite.storage.checkpoint import read_offsets, write_offsets
from broker_lite.storage.files import OsFiles
from broker_lite.wire import fetch
from pyspark_logbus.offset_ranges import OffsetRange
from pyspark_logbus.partition_reader import read_ranges

SIZE = 20_000
"""Size of a value in bytes, so large that consumers read the log from its file."""
ROUNDS = 2
"""Number of reads: a consumer reads the file only from its second fetch on."""
TOPIC = "by-hand"
WHERE = TopicPartition(TOPIC, 0)
READ_COMMITTED = [(at, by_hand.value_at(at, SIZE)) for at in by_hand.COMMITTED]
READ_ALL = [(at, by_hand.value_at(at, SIZE)) for at in by_hand.UNCOMMITTED]


@dataclass
class Planted:
    """A topic with the module's handwritten log, on a cluster of one broker."""

    bus: Bus
    topic_id: str
    opened: list[fetch.StoredRange]
    """The file ranges that consumers opened."""


def write_log(cluster: LocalCluster, topic_id: str) -> None:
    """Kill the broker, write a log and its recovery point, and start the broker again."""
    broker = cluster.brokers[0]
    broker.kill()
    (folder,) = broker.directory.rglob(f"{topic_id}-0")
    (log,) = folder.glob("*.log")
    log.write_bytes(b"".join(by_hand.contiguous(SIZE)))
    files, points = OsFiles(), paths.RECOVERY_POINTS
    offsets = read_offsets(files, str(folder.parent), points)
    offsets[PartitionKey(topic_id, 0)] = by_hand.END
    write_offsets(files, str(folder.parent), points, offsets)
    broker.start()


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    directory = tmp_path_factory.mktemp("by-hand")
    with (
        LocalCluster(brokers=1, directory=directory) as running,
        connect(running.bootstrap_servers) as bus,
    ):
        write_log(running, bus.create_topic(TOPIC, 1, replication_factor=1))
        yield bus


@pytest.fixture
def planted(origin: Bus, monkeypatch: pytest.MonkeyPatch) -> Planted:
    """Return the topic with the handwritten log. The result's list ``opened`` records every file
    range that a consumer opens."""
    found = Planted(origin, origin.admin.cluster([TOPIC]).topic_id(TOPIC), [])

    class Seen(LocalRange):
        def __init__(self, stored: fetch.StoredRange, *rest: object, **more: object) -> None:
            super().__init__(stored, *rest, **more)  # type: ignore[arg-type]
            found.opened.append(stored)

    monkeypatch.setattr(partitions, "LocalRange", Seen)
    return found


def is_in_place(planted: Planted) -> bool:
    return bool(planted.opened)


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize(
    ("isolation", "expected"),
    [("read_committed", READ_COMMITTED), ("read_uncommitted", READ_ALL)],
)
def test_consumer_returns_the_records_that_its_isolation_level_allows(
    planted: Planted, isolation: str, expected: list[tuple[int, bytes]], in_place: bool
) -> None:
    options = {"isolation_level": isolation, "start": "earliest"}
    if not in_place:
        options["partition_fetch_bytes"] = 100_000
    with planted.bus.consumer(TOPIC, **options) as consumer:
        for _ in range(ROUNDS):
            found: list[tuple[int, bytes | None]] = []
            consumer.seek(WHERE, 0)
            while consumer.position(WHERE) != by_hand.END:
                found += [(each.offset, each.value) for each in consumer.poll(0.2)]
            assert found == expected
    assert is_in_place(planted) == in_place


@pytest.mark.parametrize("in_place", [True, False])
def test_consumer_returns_only_committed_rows_as_arrow(planted: Planted, in_place: bool) -> None:
    options = {} if in_place else {"partition_fetch_bytes": 100_000}
    with planted.bus.consumer(TOPIC, start="earliest", **options) as consumer:
        for _ in range(ROUNDS):
            found: list[tuple[int, bytes]] = []
            consumer.seek(WHERE, 0)
            while consumer.position(WHERE) != by_hand.END:
                got = consumer.poll_arrow(0.2)
                found += zip(got["offset"].to_pylist(), got["value"].to_pylist(), strict=True)
            assert found == READ_COMMITTED
    assert is_in_place(planted) == in_place


@pytest.mark.parametrize(
    "options",
    [
        {"local_reads": False},
        {"local_reads": False, "fetch_bytes": 1},
        {"local_reads": True},
        {"local_reads": True, "reads_once": True},
    ],
)
def test_read_of_an_offset_range_returns_only_committed_records(
    planted: Planted, options: dict[str, int]
) -> None:
    def read(start: int, end: int) -> list[tuple[int, bytes | None]]:
        ranges = read_range(
            WHERE, planted.topic_id, -1, start, end,
            bootstrap=planted.bus.bootstrap_servers, **options,  # type: ignore[arg-type]
        )  # fmt: skip
        return [(each.offset, each.value) for rows in ranges for each in records(WHERE, rows)]

    assert read(0, by_hand.END) == READ_COMMITTED
    for start in (4, 12, 18, 22, 30, 45):
        assert read(start, by_hand.END) == [row for row in READ_COMMITTED if row[0] >= start]
    assert read(11, 13) == read(19, 24) == read(34, 40) == read(50, by_hand.END) == []
    assert is_in_place(planted) == options["local_reads"]


@pytest.mark.parametrize("local_reads", [True, False])
@pytest.mark.parametrize("start", [0, 18])
def test_spark_reads_committed_rows_only(planted: Planted, local_reads: bool, start: int) -> None:
    schema = StructType(
        [StructField("offset", LongType(), False), StructField("value", BinaryType(), True)]
    )
    given = {"max.partition.fetch.bytes": str(8 << 20), "localReads": str(local_reads)}
    plan = plan_of(planted.bus.bootstrap_servers, schema, **given)
    item = OffsetRange(TOPIC, 0, start, by_hand.END, planted.topic_id)
    found = [
        (row["offset"], row["value"])
        for got in read_ranges([item], plan)
        for row in got.to_pylist()
    ]
    assert found == [row for row in READ_COMMITTED if row[0] >= start]
    assert is_in_place(planted) == (local_reads and not start)


def test_mirror_copies_committed_records_only(planted: Planted, bus: Bus) -> None:
    said: list[str] = []
    mirror = Mirror(
        planted.bus.bootstrap_servers, bus.bootstrap_servers, topics=TOPIC, tell=said.append
    )
    mirror.run(once=True, stop=threading.Event(), on_sync=lambda: None)
    copied = [copy.known.source_next for copy in mirror.copies.values()]
    mirror.close()
    assert copied == [by_hand.END]
    with bus.consumer(TOPIC, start="earliest") as consumer:
        found: list[bytes | None] = []
        while len(found) < len(READ_COMMITTED):
            found += [each.value for each in consumer.poll(5.0)]
        assert consumer.poll(0.2) == []
    bus.delete_topic(TOPIC)
    assert found == [value for _, value in READ_COMMITTED]


def test_command_line_prints_committed_records_only(
    planted: Planted, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["consume", TOPIC, "-b", planted.bus.bootstrap_servers, "-e", "-f", "%o\\n"]) == 0
    assert [int(line) for line in capfd.readouterr().out.split()] == by_hand.COMMITTED


def test_client_without_arrow_support_also_gets_empty_and_control_batches(
    planted: Planted,
) -> None:
    place = Place(TOPIC, planted.topic_id, 1, planted.bus.bootstrap_servers)
    answer = read(PlainConnection(place.address), place, 0, reader=ROWS_ONLY)
    sent = batches(answer.records)
    expected = [read_header(each) for each in by_hand.contiguous()]
    assert [(header.base_offset, header.next_offset) for _, header in sent] == [
        (header.base_offset, header.next_offset) for header in expected
    ]
    assert not any(header.is_columns for _, header in sent)
    rows = [
        row for one, header in sent if not header.is_control for row in decode_rows(one, header)
    ]
    assert [(row.offset, row.value) for row in rows] == READ_ALL
