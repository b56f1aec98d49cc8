"""Test that automatic commits deliver at least once.

A record whose processing did not finish is delivered again, and no record is skipped. A record's
offset is *settled* once its processing has finished.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from broker_lite.bus import Bus, aconnect
from broker_lite.client import Consumer
from broker_lite.errors import UnknownMemberIdError
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import TopicPartition


class Broken(Exception):
    """Raised by a test's reading loop, like an error of user code that processes records."""


def fill(bus: Bus, topic: str, start: int, stop: int, partition: int = 0) -> None:
    """Produce records in many small batches."""
    with bus.producer(batch_bytes=300) as producer:
        for n in range(start, stop):
            producer.send(topic, b"%d" % n, partition=partition)


def group_at(bus: Bus, group: str, topic: str) -> int:
    found = bus.admin.committed(group).get(TopicPartition(topic, 0))
    return 0 if found is None else found.offset


def next_offset(bus: Bus, topic: str, group: str) -> int:
    """Return the offset of the first record that another consumer of the group receives."""
    with bus.consumer(topic, group=group, start="earliest", auto_commit=False) as consumer:
        return consumer.poll(10.0, max_records=1)[0].offset


def poll_then_raise(consumer: Consumer) -> None:
    assert len(consumer.poll(10.0, max_records=5)) == 5
    assert len(consumer.poll(10.0, max_records=5)) == 5
    raise Broken


def loop_then_raise(consumer: Consumer) -> None:
    for record in consumer:
        if record.offset == 7:
            raise Broken


def seek_then_raise(consumer: Consumer) -> None:
    consumer.poll(10.0, max_records=5)
    consumer.poll(10.0, max_records=5)
    consumer.seek(consumer.assignment()[0], 12)
    raise Broken


def pause_then_raise(consumer: Consumer) -> None:
    for record in consumer:
        if record.offset == 7:
            consumer.pause()
            raise Broken


def mix_then_raise(consumer: Consumer) -> None:
    for record in consumer:
        if record.offset == 3:
            assert [row.offset for row in consumer.poll(10.0, max_records=2)] == [4, 5]
            raise Broken


def arrow_then_raise(consumer: Consumer) -> None:
    consumer.poll_arrow(10.0, max_rows=5)
    consumer.poll_arrow(10.0, max_rows=5)
    raise Broken


RAISING = [
    (poll_then_raise, 5),
    (loop_then_raise, 7),
    (seek_then_raise, 5),
    (pause_then_raise, 7),
    (mix_then_raise, 4),
    (arrow_then_raise, 5),
]


@pytest.mark.parametrize(
    ("read", "expected", "is_closed_by_hand"),
    [*((*row, False) for row in RAISING), *((*row, True) for row in RAISING[:2])],
)
def test_record_whose_processing_raised_an_error_is_redelivered(
    bus: Bus,
    face_bus: Bus,
    topic: str,
    read: Callable[[Consumer], None],
    expected: int,
    is_closed_by_hand: bool,
) -> None:
    fill(bus, topic, 0, 20)
    consumer = face_bus.consumer(topic, group=topic, start="earliest", partitions=[0])
    with pytest.raises(Broken):
        if is_closed_by_hand:
            try:
                read(consumer)
            finally:
                consumer.close()
        else:
            with consumer:
                read(consumer)
    assert next_offset(bus, topic, topic) == expected


def test_consumer_that_is_closed_without_an_error_commits_the_delivered_records(
    bus: Bus, topic: str
) -> None:
    fill(bus, topic, 0, 20)
    with bus.consumer(topic, group=topic, start="earliest") as consumer:
        consumer.poll(10.0, max_records=5)
    assert group_at(bus, topic, topic) == 5
    with bus.consumer(topic, group=topic) as consumer:
        for record in consumer:
            if record.offset == 8:
                break
    assert next_offset(bus, topic, topic) == 9


def test_commit_stores_the_given_offsets_or_else_the_consumers_position(
    bus: Bus, topic: str
) -> None:
    fill(bus, topic, 0, 20)
    tp = TopicPartition(topic, 0)
    with bus.consumer(topic, group=topic, start="earliest", auto_commit=False) as consumer:
        consumer.poll(10.0, max_records=5)
        consumer.poll(10.0, max_records=5)
        assert consumer.settled()[tp].offset == 5
        consumer.commit(consumer.settled())
        assert group_at(bus, topic, topic) == 5
        consumer.commit()
        assert group_at(bus, topic, topic) == 10


def test_commit_by_a_consumer_outside_of_a_group_with_members_names_the_group(
    bus: Bus, topic: str
) -> None:
    alone = bus.consumer(topic, group=topic, partitions=[0], start="earliest", auto_commit=False)
    refused = pytest.raises(UnknownMemberIdError, match=f"group '{topic}' has members, and only")
    with alone, bus.consumer(topic, group=topic), refused:
        alone.commit()


@pytest.mark.parametrize("way", ["poll", "loop", "arrow"])
def test_automatic_commit_never_passes_the_record_that_is_being_processed(
    bus: Bus, face_bus: Bus, topic: str, way: str
) -> None:
    fill(bus, topic, 0, 600)
    options = {"group": topic, "start": "earliest", "auto_commit_interval_ms": 10}
    with face_bus.consumer(topic, **options) as consumer:
        seen = 0

        def check(first: int) -> None:
            nonlocal seen
            seen = max(seen, group_at(bus, topic, topic))
            assert seen <= first

        if way == "loop":
            for record in consumer:
                if record.offset % 20 == 0:
                    check(record.offset)
                if record.offset == 599:
                    break
        offset = 0
        while way != "loop" and offset < 600:
            if way == "poll":
                found = [row.offset for row in consumer.poll(10.0, max_records=40)]
            else:
                rows = consumer.poll_arrow(10.0, max_rows=40)
                found = rows.column("offset").to_pylist()
            check(found[0])
            offset = found[-1] + 1
        assert consumer.commit_error is None
        assert seen > 0, "the reader committed nothing while it read"


READER = """
import sys, threading
from broker_lite.bus import connect

bus = connect(sys.argv[1])
topic = sys.argv[2]
consumer = bus.consumer(
    topic, group=topic, start="earliest", auto_commit_interval_ms=10,
    session_timeout_ms=1000, heartbeat_interval_ms=200,
)
if sys.argv[3] == "loop":
    for record in consumer:
        print(record.offset, flush=True)
        if record.offset == 400:
            threading.Event().wait()
while True:
    for record in consumer.poll(10.0, max_records=150):
        print(record.offset, flush=True)
        if record.offset == 400:
            threading.Event().wait()
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("way", ["loop", "poll"])
def test_group_resumes_after_a_killed_consumer_without_skipping_a_record(
    cluster: LocalCluster, bus: Bus, topic: str, way: str, tmp_path: Path
) -> None:
    fill(bus, topic, 0, 500)
    command = [sys.executable, "-P", "-c", READER, cluster.bootstrap_servers, topic, way]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path, env=os.environ) as reader:
        try:
            assert reader.stdout is not None
            seen = []
            while not seen or seen[-1] != 400:
                seen.append(int(reader.stdout.readline()))
        finally:
            reader.kill()
    assert seen == list(range(401))
    with bus.consumer(topic, group=topic, start="earliest") as consumer:
        found: list[int] = []
        while not found or found[-1] < 499:
            found += [record.offset for record in consumer.poll(10.0)]
    assert found[0] <= 400, "the record in progress was skipped"
    assert found == list(range(found[0], 500))


@pytest.mark.timeout(120)
def test_killed_logbus_consume_command_may_repeat_records_but_skips_none(
    cluster: LocalCluster, bus: Bus, topic: str, tmp_path: Path
) -> None:
    fill(bus, topic, 0, 500)
    # The consumer is a static member, so that the next one need not wait for its session timeout.
    command = [sys.executable, "-P", "-m", "broker_lite", "consume", topic, "-g", topic, "-i", "x"]
    environment = os.environ | {"LOGBUS_BOOTSTRAP_SERVERS": cluster.bootstrap_servers}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, cwd=tmp_path, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(200)]
        finally:
            process.kill()
            assert process.stdout is not None
            lines += process.stdout.readlines()
    assert group_at(bus, topic, topic) <= len(lines)
    done = subprocess.run(
        [*command, "-e"], capture_output=True, check=True, cwd=tmp_path, env=environment, timeout=60
    )
    assert {int(line) for line in (*lines, *done.stdout.splitlines())} == set(range(500))


def test_logbus_consume_commits_after_a_parquet_file_is_complete(
    cluster: LocalCluster, bus: Bus, topic: str, tmp_path: Path
) -> None:
    fill(bus, topic, 0, 50)
    environment = os.environ | {"LOGBUS_BOOTSTRAP_SERVERS": cluster.bootstrap_servers}
    command = [sys.executable, "-P", "-m", "broker_lite", "consume", topic, "-g", topic]
    with (tmp_path / "t.parquet").open("wb") as file:
        subprocess.run(
            [*command, "-o", "parquet", "-n", "20"], stdout=file, check=True, env=environment
        )
    assert group_at(bus, topic, topic) == 20
    assert next_offset(bus, topic, topic) == 20


def test_cancelled_polls_of_an_asyncio_consumer_lose_no_record(bus: Bus, topic: str) -> None:
    fill(bus, topic, 0, 200)

    async def main() -> list[int]:
        found: list[int] = []
        async with (
            await aconnect(bus.bootstrap_servers) as other,
            other.consumer(topic, start="earliest") as consumer,
        ):
            while not found or found[-1] < 199:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.002):
                        found += [row.offset for row in await consumer.poll(10.0, max_records=20)]
        return found

    assert asyncio.run(main()) == list(range(200))


def test_cancelled_first_poll_does_not_change_where_an_asyncio_consumer_starts(
    bus: Bus, topic: str
) -> None:
    fill(bus, topic, 0, 3)

    async def main() -> None:
        async with await aconnect(bus.bootstrap_servers) as other:
            consumer = other.consumer(topic, group=topic, start="earliest")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await consumer.poll(10.0)
            assert [record.offset for record in await consumer.poll(10.0)] == [0, 1, 2]
            await consumer.close()

    asyncio.run(main())


# The next tests check the offset at which a consumer starts or resumes.


def test_group_that_started_at_latest_resumes_at_its_first_position_after_a_crash(
    bus: Bus, topic: str
) -> None:
    fill(bus, topic, 0, 5)
    first = bus.consumer(topic, group=topic, session_timeout_ms=1000, heartbeat_interval_ms=200)
    fill(bus, topic, 5, 10)
    assert first.poll(10.0, max_records=1)[0].offset == 5
    first.stop()
    with bus.consumer(topic, group=topic) as second:
        assert second.poll(10.0, max_records=1)[0].offset == 5


def test_partitions_added_while_group_is_empty_start_at_earliest(bus: Bus, topic: str) -> None:
    with bus.consumer(topic, group=topic):
        pass
    bus.admin.create_partitions(topic, 4)
    fill(bus, topic, 0, 3, partition=3)
    with bus.consumer(topic, group=topic) as consumer:
        assert consumer.position(topic, 3) == 0


def test_partition_without_a_commit_starts_at_the_start_option(bus: Bus, topic: str) -> None:
    """A partition without a committed offset starts where the option ``start`` says, here at the
    log end offset.

    Regression: the consumer delivered records that were written before the group existed.
    """
    for partition in range(3):
        fill(bus, topic, 0, 5, partition=partition)
    with bus.consumer(topic, group=topic, auto_commit=False) as consumer:
        consumer.commit({TopicPartition(topic, 0): 5})
    with bus.consumer(topic, group=topic, auto_commit=False) as consumer:
        fill(bus, topic, 5, 6, partition=1)
        assert [record.offset for record in consumer.poll(10.0)] == [5]


def test_consumer_starts_a_new_partition_at_earliest_if_its_first_records_are_deleted(
    bus: Bus, face_bus: Bus, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker_lite.client.fetch.fetch_engine.REFRESH_MS", 300)
    with face_bus.consumer(topic) as consumer:
        bus.admin.create_partitions(topic, 4)
        fill(bus, topic, 0, 8, partition=3)
        bus.admin.delete_records({TopicPartition(topic, 3): 5})
        assert consumer.poll(20.0, max_records=1)[0].offset in (0, 5)
        assert consumer.poll(20.0)[-1].offset == 7


def test_offset_resets_are_counted_and_logged_once_per_partition(
    bus: Bus, face_bus: Bus, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(bus, topic, 0, 10)
    tp = TopicPartition(topic, 0)
    bus.admin.delete_records({tp: 6})
    with (
        caplog.at_level(logging.WARNING, "logbus.consumer"),
        face_bus.consumer(topic, start="earliest", partitions=[0]) as consumer,
    ):
        assert consumer.resets == []
        consumer.seek(tp, 2)
        assert consumer.poll(10.0, max_records=1)[0].offset == 6
        consumer.seek(tp, 3)
        assert consumer.poll(10.0, max_records=1)[0].offset == 6
        assert consumer.resets == [(tp, 2, 6), (tp, 3, 6)]
        assert consumer.beginning_offsets() == {tp: 6}
    (line,) = caplog.messages
    assert f"topic '{topic}' partition 0: offset 2 is not in the log" in line
    assert "reading resumes at 6, as start='earliest' says" in line
