"""Test native groups, which coordinate through ZooKeeper, on real brokers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from broker_lite.bus import Bus
from broker_lite.client import Consumer
from broker_lite.errors import (
    ClosedError,
    InconsistentGroupProtocolError,
    InvalidConfigError,
    InvalidGroupIdError,
    LogbusError,
    NoClusterError,
    NonEmptyGroupError,
    NotOwnerError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from broker_lite.local.cluster import LocalCluster
from broker_lite.metadata.zookeeper.blocking import read_group_offsets
from broker_lite.model import TopicPartition

PATIENCE_S = 30.0

ENDLESS = """
import sys
from broker_lite.bus import connect
bootstrap, topic, group = sys.argv[1:]
with connect(bootstrap) as bus:
    consumer = bus.consumer(
        topic, group=group, coordination="zookeeper", start="earliest", session_timeout_ms=2000
    )
    while len(consumer.assignment()) < 3:
        consumer.poll(0.05)
    print("owns", flush=True)
    while True:
        consumer.poll(0.1)
"""


def member(bus: Bus, *topics: str, group: str, **options: object) -> Consumer:
    options.setdefault("start", "earliest")
    return bus.consumer(*topics, group=group, coordination="zookeeper", **options)


def until(consumers: Sequence[Consumer], condition: Callable[[], bool]) -> list[bytes]:
    """Poll the consumers in turn until the condition holds; return the received values."""
    end, found = time.monotonic() + PATIENCE_S, []
    while not condition():
        assert time.monotonic() < end, [each.assignment() for each in consumers]
        for consumer in consumers:
            found += [record.value or b"" for record in consumer.poll(0.02)]
    return found


def fill(bus: Bus, topic: str, start: int, stop: int) -> list[bytes]:
    values = [b"%d" % n for n in range(start, stop)]
    with bus.producer() as producer:
        for n, value in enumerate(values):
            producer.send(topic, value, partition=n % 3)
    return values


def drain(consumers: Sequence[Consumer], wanted: Iterable[bytes]) -> list[bytes]:
    """Poll the consumers until all wanted values were received; return the received values."""
    found: list[bytes] = []
    end = time.monotonic() + PATIENCE_S
    while not set(wanted) <= set(found):
        assert time.monotonic() < end, set(wanted) - set(found)
        found += [record.value or b"" for each in consumers for record in each.poll(0.02)]
    return found


def owned(consumers: Sequence[Consumer]) -> list[int]:
    return [len(each.assignment()) for each in consumers]


def shell(cluster: LocalCluster, *arguments: str) -> list[dict[str, Any]]:
    """Run a ``logbus`` command; return the rows that it prints."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "broker_lite", *arguments],
        capture_output=True,
        check=True,
        env=os.environ | {"LOGBUS_BOOTSTRAP_SERVERS": cluster.bootstrap_servers},
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_zk_based_group_rebalances_when_a_member_joins_or_leaves(
    cluster: LocalCluster, bus: Bus, topic: str
) -> None:
    told: list[tuple[str, list[int]]] = []

    def tells(word: str) -> Callable[[Consumer, list[TopicPartition]], None]:
        return lambda _, tps: told.append((word, [tp.partition for tp in tps]))

    callbacks = {f"on_{word}": tells(word) for word in ("assign", "revoke", "lost")}
    with member(bus, topic, group=topic, **callbacks) as first:
        sent = fill(bus, topic, 0, 300)
        got = drain([first], sent)
        assert sorted(p for word, row in told for p in row if word == "assign") == [0, 1, 2]
        del told[:]
        with member(bus, topic, group=topic) as second:
            both = [first, second]
            got += until(both, lambda: owned(both) == [2, 1] or owned(both) == [1, 2])
            assert not set(first.assignment()) & set(second.assignment())
            given = sorted(tp.partition for tp in second.assignment())
            assert sorted(p for word, row in told for p in row if word == "revoke") == given
            more = fill(bus, topic, 300, 600)
            got += drain(both, more)
            listed = {row.group: row for row in bus.admin.list_groups()}[topic]
            assert (listed.kind, listed.state) == ("Native", "Stable")
            shown = shell(cluster, "groups", "members", topic)
            assert {row["member"]: row["owns"] for row in shown} == {
                each.member_id: " ".join(f"{t}-{p}" for t, p in sorted(each.assignment()))
                for each in both
            }
            for each in both:
                each.commit()
            for row in shell(cluster, "groups", "describe", topic):
                tp = TopicPartition(topic, row["partition"])
                (owner,) = [each for each in both if tp in each.assignment()]
                assert row["owner"] == owner.member_id
            with pytest.raises(NonEmptyGroupError):
                bus.admin.commit_offsets(topic, {TopicPartition(topic, 0): 0})
        # The second member has left, so the first member continues from the second's commits.
        got += until([first], lambda: owned([first]) == [3])
        last = fill(bus, topic, 600, 700)
        got += drain([first], last)
        assert sorted(got) == sorted(sent + more + last)
    assert told[-1] == ("revoke", [0, 1, 2]) and "lost" not in dict(told)
    # Another group receives all records, although each member of the first received only some.
    with member(bus, topic, group=f"{topic}-other") as other:
        drain([other], sent + more + last)
    with member(bus, topic, group=topic) as again:
        until([again], lambda: owned([again]) == [3])
        assert again.poll(0.3) == []


def test_killed_member_is_replaced_after_its_session_expires(
    cluster: LocalCluster, bus: Bus, topic: str
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, cluster.bootstrap_servers, topic, topic],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "owns\n"
        sent = fill(bus, topic, 0, 30)
        os.kill(process.pid, signal.SIGKILL)
        with member(bus, topic, group=topic) as heir:
            until([heir], lambda: owned([heir]) == [3])
            drain([heir], fill(bus, topic, 30, 60))
            assert sent
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_new_member_gets_partitions_from_a_member_that_is_not_polling(bus: Bus, topic: str) -> None:
    """The new owner also receives the records that the busy member still processes.

    The busy member's commit for these partitions is refused.
    """
    sent = fill(bus, topic, 0, 30)
    with member(bus, topic, group=topic, auto_commit=False) as slow:
        until([slow], lambda: owned([slow]) == [3])
        slow.seek_to_beginning()
        worked: dict[TopicPartition, int] = {}
        while len(worked) < 3:
            for record in slow.poll(5.0, max_records=3):
                worked[TopicPartition(record.topic, record.partition)] = record.offset + 1
        with member(bus, topic, group=topic) as eager:
            got = until([eager], lambda: owned([eager]) != [0])
            for tp in eager.assignment():
                with pytest.raises(NotOwnerError, match=f"partition={tp.partition}|{tp}"):
                    slow.commit({tp: worked[tp]})
            again = [b"%d" % tp.partition for tp in eager.assignment()]
            assert set(again) <= set(got + drain([eager], set(again) - set(got))) <= set(sent)
            slow.poll(0.0)
            assert not set(slow.assignment()) & set(eager.assignment())


def test_consumer_that_commits_before_it_processes_loses_records_in_a_crash(
    bus: Bus, topic: str
) -> None:
    """The first reader commits, and crashes before it processes the committed records."""
    sent = fill(bus, topic, 0, 30)
    with member(bus, topic, group=topic, auto_commit=False) as careful:
        until([careful], lambda: owned([careful]) == [3])
        careful.seek_to_beginning()
        before = [record.value for record in careful.poll(5.0, max_records=7)]
        careful.commit()  # The reader crashes before it does the work that follows the commit.
        lost = [record.value for record in careful.poll(5.0, max_records=7)]
        assert before and lost
    with member(bus, topic, group=topic, auto_commit=False) as heir:
        rest = drain([heir], [value for value in sent if value not in before])
        assert not set(rest) & set(before)


def test_group_receives_records_again_after_its_offsets_were_moved_back(
    cluster: LocalCluster, bus: Bus, topic: str
) -> None:
    """First a reader of the group calls ``seek`` and commits.

    Then, without readers, a command moves the offsets.
    """
    sent = fill(bus, topic, 0, 30)
    parts = [[value for value in sent if int(value) % 3 == n] for n in range(3)]

    def committed() -> list[int]:
        found = bus.admin.committed(topic)
        return [found[TopicPartition(topic, n)].offset for n in range(3)]

    with member(bus, topic, group=topic, auto_commit=False) as reader:
        drain([reader], sent)
        reader.commit()
        reader.seek(topic, 0, 0)
        assert drain([reader], parts[0]) == parts[0], "other records, or another order"
        reader.seek_to_beginning()
        assert sorted(drain([reader], sent)) == sorted(sent)
        reader.seek_to_time(0)
        assert sorted(drain([reader], sent)) == sorted(sent)
        assert committed() == [10, 10, 10], "a seek changed the committed offsets"
        reader.seek(topic, 1, 4)
        reader.commit()
        assert committed() == [10, 4, 10]
    with member(bus, topic, group=topic, auto_commit=False) as heir:
        assert drain([heir], parts[1][4:]) == parts[1][4:]
        heir.commit()
    for command, place in (("reset-offsets", "8"), ("seek", "9")):
        words = [topic, *([topic] if command == "seek" else []), "--to", place]
        moved = shell(cluster, "groups", command, *words, "--yes")
        assert {(row["partition"], row["to"]) for row in moved} == {
            (n, int(place)) for n in range(3)
        }
        assert committed() == [int(place)] * 3
        with member(bus, topic, group=topic, auto_commit=False) as again:
            last = [value for part in parts for value in part[int(place) :]]
            assert sorted(drain([again], last)) == sorted(last)


def test_each_stream_of_create_message_streams_can_be_read_in_its_own_thread(
    bus: Bus, topic: str
) -> None:
    got: list[list[bytes]] = [[], [], []]
    sent = fill(bus, topic, 0, 90)
    with bus.create_message_streams(topic, group=topic, streams=3, start="earliest") as streams:

        def read(stream: Consumer, into: list[bytes]) -> None:
            try:
                for record in stream:
                    into.append(record.value or b"")
            except ClosedError:
                pass

        threads = [
            threading.Thread(target=read, args=pair) for pair in zip(streams, got, strict=True)
        ]
        for thread in threads:
            thread.start()
        end = time.monotonic() + PATIENCE_S
        while sum(map(len, got)) < 90 and time.monotonic() < end:
            time.sleep(0.01)
        assert sorted(map(len, streams.assignment())) == [1, 1, 1]
        assert len({stream.member_id for stream in streams}) == 1
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(value for each in got for value in each) == sorted(sent)
    assert all(len(each) == 30 for each in got)


@pytest.mark.parametrize("is_late", [True, False])
def test_record_is_redelivered_if_its_consumer_closes_before_processing_ends(
    bus: Bus, topic: str, is_late: bool
) -> None:
    """A message stream commits a record only after its thread has asked for the next record."""
    fill(bus, topic, 0, 3)
    has_record, goes_on, seen = threading.Event(), threading.Event(), []

    def work(stream: Consumer) -> None:
        for record in stream:
            seen.append(record.partition)
            if len(seen) == 3:
                has_record.set()
                assert goes_on.wait(PATIENCE_S)
                return  # Returning without another poll means that the work failed.

    with bus.create_message_streams(topic, group=topic, start="earliest") as streams:
        thread = threading.Thread(target=work, args=(streams[0],))
        thread.start()
        assert has_record.wait(PATIENCE_S)
        if not is_late:
            goes_on.set()
            thread.join(PATIENCE_S)
    goes_on.set()
    thread.join(PATIENCE_S)
    with member(bus, topic, group=topic) as heir:
        again = drain([heir], [b"%d" % seen[-1]])
        if not is_late:
            assert again == [b"%d" % seen[-1]], "finished records came again"


def test_closing_message_streams_in_the_revoke_callback_leaves_the_group(
    bus: Bus, topic: str
) -> None:
    """Regression: each close called the callback, which closed the streams again."""
    revoked: list[int] = []

    def close(_: Consumer, partitions: list[TopicPartition]) -> None:
        revoked.append(len(partitions))
        streams.close()

    fill(bus, topic, 0, 3)
    streams = bus.create_message_streams(topic, group=topic, on_revoke=close, start="earliest")
    drain(streams, [b"0", b"1", b"2"])
    streams.close()
    assert revoked == [3]
    assert bus.admin.group_members(topic) == {}


def test_closing_a_message_stream_commits_the_offsets_of_processed_records(
    bus: Bus, topic: str
) -> None:
    fill(bus, topic, 0, 90)
    seen: list[bytes] = []
    has_all = threading.Event()

    def work(stream: Consumer) -> None:
        with contextlib.suppress(ClosedError):
            while True:
                seen.extend(record.value or b"" for record in stream.poll(PATIENCE_S))
                if len(seen) == 90:
                    has_all.set()

    with bus.create_message_streams(topic, group=topic, start="earliest") as streams:
        thread = threading.Thread(target=work, args=(streams[0],))
        thread.start()
        assert has_all.wait(PATIENCE_S)
    thread.join(PATIENCE_S)
    with member(bus, topic, group=topic) as heir:
        until([heir], lambda: owned([heir]) == [3])
        assert heir.poll(0.1) == []


def test_pattern_of_a_zk_based_group_follows_created_and_deleted_topics(
    bus: Bus, topic: str
) -> None:
    with member(bus, group=topic, pattern=f"{topic}-.*", start="latest") as consumer:
        assert consumer.poll(0.2) == []
        for _ in range(2):
            bus.create_topic(f"{topic}-x", partitions=3)
            until([consumer], lambda: owned([consumer]) == [3])
            drain([consumer], fill(bus, f"{topic}-x", 0, 30))
            bus.delete_topic(f"{topic}-x")
            # The member must give up the partitions of the deleted topic.
            until([consumer], lambda: owned([consumer]) == [0])


def test_topic_created_after_group_start_is_read_from_earliest(bus: Bus, topic: str) -> None:
    """Regression: with start="latest", the group skipped records that were written before its
    members became the owners of the topic's partitions."""
    fill(bus, topic, 0, 3)
    bus.create_topic(f"{topic}-old", partitions=1)
    with member(bus, group=topic, pattern=f"{topic}.*", start="latest") as consumer:
        until([consumer], lambda: owned([consumer]) == [4])
        for name in (f"{topic}-new", f"{topic}-old"):
            if name.endswith("-old"):
                bus.delete_topic(name)
                until([consumer], lambda: owned([consumer]) == [6])
            # The reader polls only after the records are sent, so it claims the partitions late.
            bus.create_topic(name, partitions=3)
            sent = fill(bus, name, 3, 33)
            assert sorted(drain([consumer], sent)) == sorted(sent), "older records came again"


def test_failed_join_of_a_zk_based_group_names_the_reason(
    cluster: LocalCluster, bus: Bus, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(error: type[LogbusError], match: str, *topics: str, **options: object) -> None:
        options = {"group": topic, "coordination": "zookeeper", **options}
        with pytest.raises(error, match=match):
            bus.consumer(*topics, **options).close()  # type: ignore[arg-type]

    refused(InvalidConfigError, "coordination='raft'", topic, coordination="raft")
    refused(InvalidConfigError, "zookeeper=… needs", topic, coordination="kafka", zookeeper="h:1")
    refused(InvalidConfigError, "give either topics or a pattern", topic, pattern="x")
    refused(InvalidConfigError, "not a regular expression", pattern="(")
    refused(InvalidConfigError, "leave out partitions", topic, partitions=[0])
    for session_timeout_ms in (10, 2**31):
        refused(InvalidConfigError, "1000 to", topic, session_timeout_ms=session_timeout_ms)
    refused(InvalidGroupIdError, "give group", topic, group=None)
    refused(InvalidGroupIdError, "characters", topic, group="g" * 1000)
    refused(UnknownTopicOrPartitionError, "no-such", "no-such")
    refused(InvalidConfigError, "host:port", topic, zookeeper="nowhere")
    monkeypatch.setattr("broker_lite.native.streams._as_brokers_have_it", lambda admin: None)
    refused(NoClusterError, "LOGBUS_ZOOKEEPER", topic)
    # A Kafka group refuses native members, and a native group refuses Kafka members.
    with bus.consumer(topic, group=f"{topic}-k", coordination="kafka") as kafka:
        until([kafka], lambda: len(kafka.assignment()) == 3)
    tp = {"group": f"{topic}-k", "zookeeper": cluster.zookeeper}
    refused(InconsistentGroupProtocolError, "coordinated by brokers", topic, **tp)
    with member(bus, topic, group=f"{topic}-n", zookeeper=cluster.zookeeper) as native:
        until([native], lambda: len(native.assignment()) == 3)
        kafkas = {"group": f"{topic}-n", "coordination": "kafka"}
        refused(InconsistentGroupProtocolError, "is a native group, which", topic, **kafkas)
    # The native group refuses Kafka members even while it is empty, and names the cure.
    cure = f"logbus groups delete {topic}-n; programs join it with coordination='zookeeper'"
    refused(InconsistentGroupProtocolError, cure, topic, **kafkas)


def test_member_of_a_zk_based_group_with_option_start_none_fails_without_a_committed_offset(
    bus: Bus, topic: str
) -> None:
    group = f"{topic} / 100 % ümlaut"
    consumer = member(bus, topic, group=group, start="none")
    with pytest.raises(OffsetOutOfRangeError, match="start='none'"):
        until([consumer], lambda: False)
    consumer.close()


def test_member_of_a_zk_based_group_commits_and_hands_partitions_over(
    cluster: LocalCluster, bus: Bus, face_bus: Bus, topic: str
) -> None:
    sent = fill(bus, topic, 0, 90)
    told: list[int] = []

    def revoked(consumer: Any, tps: list[TopicPartition]) -> Any:
        told.append(len(tps))
        return consumer.commit()

    with member(face_bus, topic, group=topic, on_revoke=revoked) as first:
        got = []
        for record in first:
            got.append(record.value)
            if len(got) == 90:
                break
        assert sorted(got) == sorted(sent)
        with member(face_bus, topic, group=topic) as second:
            until([first, second], lambda: bool(second.assignment()))
            assert not set(first.assignment()) & set(second.assignment())
            assert second.poll(0.1) == []
            second.commit()
        until([first], lambda: len(first.assignment()) == 3)
        assert sum(told) in (1, 2), "revoked other partitions than the second member got"
        assert first.poll(0.1) == []
    assert told[-1] == 3, "close did not revoke"
    assert cluster.zookeeper is not None
    offsets = read_group_offsets(cluster.zookeeper, topic)
    assert sum(row.offset for row in offsets.values()) == 90
