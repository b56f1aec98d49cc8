"""Test ``bus.consumer`` as a member of a Kafka group, alone and with other clients.

The other clients are logbus consumers, librdkafka and kafka-python.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import confluent_kafka
import confluent_kafka.admin as confluent_admin
import kafka
import pytest
from support.patience import PATIENCE_S, until

from broker_lite.bus import Bus, aconnect
from broker_lite.client import Consumer
from broker_lite.errors import (
    FencedInstanceIdError,
    InvalidSessionTimeoutError,
    NotOwnerError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import TopicPartition

BRISK: dict[str, Any] = {
    "start": "earliest",
    "session_timeout_ms": 3000,
    "heartbeat_interval_ms": 100,
}


def member(bus: Bus, *topics: str, group: str, **options: Any) -> Consumer:
    return bus.consumer(*topics, group=group, **BRISK | options)


def fill(bus: Bus, topic: str, start: int, stop: int) -> list[bytes]:
    values = [b"%d" % n for n in range(start, stop)]
    with bus.producer() as producer:
        for n, value in enumerate(values):
            producer.send(topic, value, partition=n % 3)
    return values


class Reader(threading.Thread):
    """A thread that polls a logbus consumer, and records its partitions and the values it reads.

    Subclasses poll a consumer of librdkafka or kafka-python.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.make = make
        self.owned: frozenset[int] = frozenset()
        self.values: list[bytes] = []
        self.told: list[tuple[str, list[int]]] = []
        self.failed: Exception | None = None
        self.stopping = threading.Event()
        self.dies = False

    def run(self) -> None:
        try:
            self.consume()
        except Exception as error:
            self.failed = error

    def consume(self) -> None:
        consumer = self.make()
        while not self.stopping.is_set():
            self.values += [record.value for record in consumer.poll(0.05)]
            self.owned = frozenset(tp.partition for tp in consumer.assignment())
        (consumer.stop if self.dies else consumer.close)()

    def __enter__(self) -> Reader:
        if self.ident is None:
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()
        assert self.failed is None, self.failed


def listening(reader: Reader) -> dict[str, Any]:
    """Return rebalance callbacks that record their calls in ``reader.told``."""

    def told(word: str) -> Callable[[Any, list[TopicPartition]], None]:
        return lambda _, tps: reader.told.append((word, [tp.partition for tp in tps]))

    return {f"on_{word}": told(word) for word in ("assign", "revoke", "lost")}


def of_logbus(bus: Bus, topic: str, **options: Any) -> Reader:
    reader = Reader(lambda: member(bus, topic, group=topic, **options, **listening(reader)))
    return reader


class Librdkafka(Reader):
    def __init__(self, servers: str, topic: str, **settings: Any) -> None:
        super().__init__(lambda: None)
        self.servers, self.topic, self.settings = servers, topic, settings

    def consume(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": self.topic,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 3000,
                "heartbeat.interval.ms": 100,
                "partition.assignment.strategy": "range",
                **self.settings,
            }
        )
        consumer.subscribe([self.topic])
        while not self.stopping.is_set():
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                self.values.append(message.value() or b"")
            self.owned = frozenset(row.partition for row in consumer.assignment())
        consumer.close()


class KafkaPython(Reader):
    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(lambda: None)
        self.servers, self.topic = servers, topic

    def consume(self) -> None:
        consumer = kafka.KafkaConsumer(
            self.topic,
            bootstrap_servers=self.servers,
            group_id=self.topic,
            auto_offset_reset="earliest",
            session_timeout_ms=3000,
            heartbeat_interval_ms=100,
        )
        while not self.stopping.is_set():
            for rows in consumer.poll(50).values():
                self.values += [row.value for row in rows]
            self.owned = frozenset(row.partition for row in consumer.assignment())
        consumer.close()


def shared(readers: Sequence[Reader], count: int = 3) -> bool:
    """Return whether every partition has one owner and every reader owns a partition."""
    owned = [partition for reader in readers for partition in reader.owned]
    return sorted(owned) == list(range(count)) and all(reader.owned for reader in readers)


def read(readers: Sequence[Reader]) -> list[bytes]:
    return sorted((value for reader in readers for value in reader.values), key=int)


def state_of(readers: Sequence[Reader]) -> Callable[[], object]:
    return lambda: [(row.owned, len(row.values), row.failed, row.told) for row in readers]


def until_shared(*readers: Reader, count: int = 3) -> None:
    until(lambda: shared(readers, count), what=state_of(readers))


def until_read(readers: Sequence[Reader], values: Sequence[bytes]) -> None:
    until(lambda: set(read(readers)) >= set(values), what=state_of(readers))


@pytest.mark.parametrize("assignors", ["range,cooperative-sticky", "cooperative-sticky", "sticky"])
def test_members_share_partitions_and_hand_them_over(bus: Bus, topic: str, assignors: str) -> None:
    sent = fill(bus, topic, 0, 30)
    one, two = (of_logbus(bus, topic, assignors=assignors) for _ in "ab")
    with one:
        until_read([one], sent)
        assert one.told == [("assign", [0, 1, 2])]
        with two:
            until_shared(one, two)
            sent += fill(bus, topic, 30, 60)
            until_read([one, two], sent)
            moved = one.told[1]
            assert moved[0] == "revoke"
            if assignors == "cooperative-sticky":
                assert moved[1] == sorted(two.owned), "it did not keep all other partitions"
            else:
                assert moved[1] == [0, 1, 2]
        until_shared(one)
        sent += fill(bus, topic, 60, 90)
        until_read([one], sent[60:])
    assert read([one, two]) == sent, "a revoked partition was not committed"
    assert one.told[-1] == ("revoke", [0, 1, 2]), "a closed member did not commit"
    committed = bus.admin.committed(topic)
    assert sum(row.offset for row in committed.values()) == 90
    assert {row.leader_epoch for row in committed.values()} == {0}


def until_taken_over(readers: Sequence[Reader]) -> None:
    def are_all_owned() -> bool:
        return sorted(p for row in readers for p in row.owned) == [0, 1, 2]

    until(are_all_owned, what=state_of(readers))


@pytest.mark.parametrize("assignors", ["range", "cooperative-sticky"])
def test_group_of_logbus_and_kafka_clients_continues_after_a_members_death(
    cluster: LocalCluster, bus: Bus, topic: str, assignors: str
) -> None:
    """The group's leader is a logbus consumer. After its death, a member with another client
    leads."""
    servers, cooperative = cluster.bootstrap_servers, assignors == "cooperative-sticky"
    sent = fill(bus, topic, 0, 30)
    dying = of_logbus(bus, topic, assignors=assignors)
    dying.dies = True
    with dying:
        until_read([dying], sent)
        strategy = {"partition.assignment.strategy": assignors}
        others: list[Reader] = [
            Librdkafka(servers, topic, **strategy),
            Librdkafka(servers, topic, **strategy) if cooperative else KafkaPython(servers, topic),
        ]
        with others[0], others[1]:
            until_shared(dying, *others)
            sent += fill(bus, topic, 30, 60)
            until_read([dying, *others], sent)
            dying.stopping.set()
            dying.join()
            # After the dead member's session timeout, the others receive its uncommitted records.
            until_taken_over(others)
            with of_logbus(bus, topic, assignors=assignors) as last:
                until_shared(last, *others)
                sent += fill(bus, topic, 60, 90)
                until_read([dying, last, *others], sent)
            until_taken_over(others)
    assert sum(row.offset for row in bus.admin.committed(topic).values()) == 90


STUCK_MS = 1000


def test_member_that_does_not_poll_loses_its_partitions_and_can_rejoin(
    bus: Bus, topic: str
) -> None:
    sent = fill(bus, topic, 0, 30)
    other = of_logbus(bus, topic)
    told: list[str] = []
    options = {"on_lost": lambda c, w: told.append("lost"), "max_poll_interval_ms": STUCK_MS}
    with member(bus, topic, group=topic, **options) as stuck:
        assert len(stuck.poll(10.0, max_records=5)) == 5
        with other:
            # The stuck reader does not poll, so the other reader receives all records, also those
            # that the stuck reader had not finished.
            until_read([other], sent)
            until(lambda: other.owned == {0, 1, 2}, what=state_of([other]))
            with pytest.raises(NotOwnerError):
                stuck.commit()
            until(lambda: stuck.poll(0.05) == [] and 0 < len(stuck.assignment()) < 3)
            assert told == ["lost"]
    assert read([other]) == sent


def test_iteration_releases_revoked_partitions_after_the_current_record(
    bus: Bus, topic: str
) -> None:
    sent = fill(bus, topic, 0, 300)
    told: list[int] = []
    options = {"on_revoke": lambda c, w: told.append(len(seen)), "assignors": "cooperative-sticky"}
    seen: list[bytes] = []
    other = of_logbus(bus, topic, assignors="cooperative-sticky")
    with member(bus, topic, group=topic, **options) as consumer:
        for record in consumer:
            seen.append(record.value or b"")
            if len(seen) == 5:
                other.start()
                until(lambda: consumer.core.assignment.queue)
            if other.is_alive() and told:
                break
        assert told == [5], "revoked after the last fetched record"
    with other:
        until_read([other], list(set(sent) - set(seen)))
    assert len(seen) + len(other.values) == 300


def test_commit_for_a_partition_that_moved_to_another_member_has_no_effect(
    bus: Bus, topic: str
) -> None:
    """To deliver at most once, a reader commits before it processes records.

    It then skips the partitions that NotOwnerError names.
    """
    fill(bus, topic, 0, 30)
    options = {"auto_commit": False, "assignors": "cooperative-sticky"}
    with member(bus, topic, group=topic, **options) as consumer:
        while sum(consumer.positions().values()) < 30:
            consumer.poll(1.0)
        rows = consumer.positions()
        with of_logbus(bus, topic, **options) as other:
            until(lambda: (consumer.poll(0.05), other.owned)[1], what=state_of([other]))
            (gone,) = {TopicPartition(topic, p) for p in other.owned}
            with pytest.raises(NotOwnerError, match=f"{topic}-{gone.partition}"):
                consumer.commit(rows)
            assert bus.admin.committed(topic).keys() == rows.keys() - {gone}
            consumer.seek(next(iter(rows.keys() - {gone})), 4)
            consumer.commit()
        assert sorted(row.offset for row in bus.admin.committed(topic).values()) == [4, 10]


def test_restarted_static_member_rejoins_without_rebalance_and_fences_its_former_process(
    bus: Bus, topic: str
) -> None:
    fill(bus, topic, 0, 30)
    one = of_logbus(bus, topic, group_instance_id="one")
    with one, of_logbus(bus, topic, group_instance_id="two") as two:
        until_shared(one, two)
        two.stopping.set()
        two.join()
        mine, told = one.owned, list(one.told)
        with member(bus, topic, group=topic, group_instance_id="two") as again:
            assert {tp.partition for tp in again.assignment()} == two.owned
            with member(bus, topic, group=topic, group_instance_id="two") as third:
                assert third.assignment() == again.assignment()
                with pytest.raises(FencedInstanceIdError, match="'two'"):
                    while again.poll(1.0) is not None:
                        pass
                with pytest.raises(NotOwnerError):
                    again.commit({third.assignment()[0]: 1})
        assert one.owned == mine and one.told == told


def test_static_group_leader_that_rejoins_assigns_added_partitions(bus: Bus, topic: str) -> None:
    """A static group leader that returns gets its former assignment without a rebalance.

    Regression: the returning leader assumed that another member owned a partition that had been
    added meanwhile.
    """

    def share() -> list[TopicPartition]:
        with member(bus, topic, group=topic, group_instance_id="one") as leader:
            return leader.assignment()

    before = share()
    bus.admin.create_partitions(topic, len(before) + 1)
    # The coordinator may learn of the added partition only after the first join.
    until(lambda: share() == [*before, TopicPartition(topic, len(before))], what=share)


def test_pattern_subscription_follows_created_and_deleted_topics(bus: Bus, topic: str) -> None:
    options = {"pattern": f"{topic}-.*", "metadata_max_age_ms": 100}
    with member(bus, group=topic, **options) as consumer:
        assert consumer.assignment() == []

        def owned() -> list[str]:
            consumer.poll(0.02)
            return sorted(tp.topic for tp in consumer.assignment())

        for name in ("x", "y"):
            bus.create_topic(f"{topic}-{name}", partitions=1)
        until(lambda: owned() == [f"{topic}-x", f"{topic}-y"], what=owned)
        bus.delete_topic(f"{topic}-x")
        until(lambda: owned() == [f"{topic}-y"], what=owned)
        bus.create_topic(f"{topic}-x", partitions=1)
        with bus.producer() as producer:
            producer.send(f"{topic}-x", b"new")
        found: list[bytes | None] = []
        until(lambda: found.extend(r.value for r in consumer.poll(0.1)) or found == [b"new"])


def test_added_partitions_are_read_from_earliest(bus: Bus, topic: str) -> None:
    options = {"start": "latest", "metadata_max_age_ms": 100}
    with member(bus, topic, group=topic, **options) as consumer:
        bus.admin.create_partitions(topic, 4)
        with bus.producer() as producer:
            producer.send(topic, b"first", partition=3)
        found: list[bytes | None] = []
        until(lambda: found.extend(r.value for r in consumer.poll(0.1)) or found == [b"first"])


def test_recreated_topic_is_read_from_earliest(bus: Bus, topic: str) -> None:
    options = {"start": "latest", "metadata_max_age_ms": 100}
    with bus.producer() as producer:
        producer.send(topic, b"before", partition=0)
    with member(bus, topic, group=topic, **options) as consumer:
        until(lambda: consumer.poll(0.02) or consumer.assignment())
        assert consumer.position(topic, 0) == 1
        bus.delete_topic(topic)
        bus.create_topic(topic, partitions=1)
        with bus.producer() as producer:
            producer.send(topic, b"first")
        found: list[bytes | None] = []
        until(lambda: found.extend(r.value for r in consumer.poll(0.1)) or found == [b"first"])


def test_poll_of_a_member_without_a_recent_heartbeat_returns_no_record(
    bus: Bus, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(bus, topic, 0, 30)
    with member(bus, topic, group=topic) as consumer:
        assert len(consumer.poll(10.0, max_records=1)) == 1
        held = consumer.core.membership.member  # type: ignore[attr-defined]
        monkeypatch.setattr(type(held), "_carry_out", lambda *_: None)
        until(lambda: consumer.poll(0.0, max_records=1) == [])
        assert len(consumer.assignment()) == 3, "the assignment changed after the lease"
        monkeypatch.undo()


def test_failed_join_names_the_reason(bus: Bus, topic: str) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="no-such"):
        member(bus, "no-such", group=topic)
    with pytest.raises(InvalidSessionTimeoutError, match=r"group\.min\.session\.timeout\.ms"):
        member(bus, topic, group=topic, session_timeout_ms=250)
    with pytest.raises(OffsetOutOfRangeError, match="start='none'"):
        member(bus, topic, group=topic, start="none")
    assert bus.admin.describe_groups([topic])[topic].members == (), "it left"


def test_member_commits_in_a_callback_before_it_hands_a_partition_over(
    bus: Bus, face_bus: Bus, topic: str
) -> None:
    sent = fill(bus, topic, 0, 60)
    told: list[int] = []

    def revoked(consumer: Any, tps: list[TopicPartition]) -> Any:
        told.append(len(tps))
        return consumer.commit()

    found: list[bytes | None] = []
    options = {"group": topic, "assignors": "cooperative-sticky", "on_revoke": revoked}
    with member(face_bus, topic, auto_commit=False, **options) as first:
        while len(found) < 60:
            found += [record.value for record in first.poll(1.0)]
        with member(face_bus, topic, **options) as second:
            while not second.assignment():
                found += [record.value for record in [*first.poll(0.02), *second.poll(0.02)]]
            assert len(first.assignment()) == 2
        assert first.member_id.startswith("logbus-")
    assert sorted(found, key=lambda value: int(value or b"")) == sent
    assert told == [1, 1, 2]
    assert sum(row.offset for row in bus.admin.committed(topic).values()) == 60


def test_member_whose_callback_closes_it_leaves_the_group(bus: Bus, topic: str) -> None:
    """Regression: the ``close`` in the callback stopped the client before the outer ``close`` had
    left the group. The partitions then had no reader until the session timeout."""
    fill(bus, topic, 0, 6)
    consumer = member(bus, topic, group=topic, on_revoke=lambda consumer, _: consumer.close())
    found = 0
    while found < 6:
        found += len(consumer.poll(1.0))
    consumer.close()
    assert bus.admin.group_members(topic) == {}
    assert sum(row.offset for row in bus.admin.committed(topic).values()) == 6


def test_asyncio_member_closed_by_two_tasks_at_once_commits_and_leaves_the_group(
    bus: Bus, topic: str
) -> None:
    fill(bus, topic, 0, 6)

    async def main() -> None:
        async with await aconnect(bus.bootstrap_servers) as abus:
            consumer = abus.consumer(topic, group=topic, **BRISK)
            found = 0
            while found < 6:
                found += len(await consumer.poll(1.0))
            await asyncio.gather(consumer.close(), consumer.close())

    asyncio.run(main())
    assert bus.admin.group_members(topic) == {}
    assert sum(row.offset for row in bus.admin.committed(topic).values()) == 6


def test_members_continue_after_the_death_of_their_coordinator(
    cluster: LocalCluster, bus: Bus, topic: str
) -> None:
    sent = fill(bus, topic, 0, 30)
    readers = [of_logbus(bus, topic, assignors="cooperative-sticky") for _ in "ab"]
    with readers[0], readers[1]:
        until_shared(*readers)
        until_read(readers, sent)
        found = confluent_admin.AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        described = found.describe_consumer_groups([topic])[topic].result(PATIENCE_S)
        killed = next(row for row in cluster.brokers if row.id == described.coordinator.id)
        killed.kill()
        try:
            sent += fill(bus, topic, 30, 60)
            until_read(readers, sent)
            until_shared(*readers)
        finally:
            killed.start()
