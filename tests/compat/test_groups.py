"""Test groups of unchanged third-party clients.

Members join, leave and die, and are static or cooperative. One test kills the coordinator of a
group with members of all kinds. Each client polls in its own thread, as users' programs do.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Self

import confluent_kafka
import confluent_kafka.admin as confluent_admin
import kafka
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from support.patience import until

from broker_lite.bus import Bus
from broker_lite.local.cluster import LocalCluster

pytestmark = pytest.mark.real

NUMBERS = itertools.count()
WAIT_S = 40.0
PARTITIONS = 6
SESSION_MS, HEARTBEAT_MS = 3000, 300

Note = Callable[[str, str], None]
Where = tuple[int, int]
"""The partition and the offset of a record."""


class Reader(threading.Thread, ABC):
    """A thread with a group member; it records the member's assignment, and the records that the
    member reads.

    ``lost`` has one tuple for each revocation, with the revoked partitions.
    """

    def __init__(self, servers: str, topic: str, group: str) -> None:
        super().__init__(daemon=True)
        self.servers, self.topic, self.group = servers, topic, group
        self.owned: frozenset[int] = frozenset()
        self.lost: list[frozenset[int]] = []
        self.read: list[Where] = []
        self.failed: Exception | None = None
        self.stopping = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.join(WAIT_S)
        assert not self.is_alive() and self.failed is None, self.failed

    def run(self) -> None:
        try:
            self.consume()
        except Exception as error:
            self.failed = error

    @abstractmethod
    def consume(self) -> None:
        """Poll the client until the test sets ``stopping``."""


class Librdkafka(Reader):
    def __init__(self, servers: str, topic: str, group: str, **settings: Any) -> None:
        super().__init__(servers, topic, group)
        self.errors: list[int] = []
        self.settings = {name.replace("_", "."): value for name, value in settings.items()}

    def consume(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "auto.commit.interval.ms": 200,
                "partition.assignment.strategy": "range",
                **self.settings,
            }
        )

        def revoked(_: Any, partitions: Any) -> None:
            self.lost.append(frozenset(row.partition for row in partitions))

        consumer.subscribe([self.topic], on_revoke=revoked, on_lost=revoked)
        while not self.stopping.is_set():
            message = consumer.poll(0.05)
            self.owned = frozenset(row.partition for row in consumer.assignment())
            if message is not None and message.error() is None:
                self.read.append((message.partition(), message.offset()))
            elif message is not None:
                self.errors.append(message.error().code())
        consumer.close()


class KafkaPython(Reader):
    def consume(self) -> None:
        consumer = kafka.KafkaConsumer(
            self.topic,
            bootstrap_servers=self.servers,
            group_id=self.group,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            auto_commit_interval_ms=200,
        )
        while not self.stopping.is_set():
            for rows in consumer.poll(50).values():
                self.read += [(row.partition, row.offset) for row in rows]
            self.owned = frozenset(row.partition for row in consumer.assignment())
        consumer.close()


class Aiokafka(Reader):
    def consume(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        consumer = AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.servers,
            group_id=self.group,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            auto_commit_interval_ms=200,
            partition_assignment_strategy=(RangePartitionAssignor,),
            retry_backoff_ms=50,
        )
        await consumer.start()
        while not self.stopping.is_set():
            for rows in (await consumer.getmany(timeout_ms=50)).values():
                self.read += [(row.partition, row.offset) for row in rows]
            self.owned = frozenset(row.partition for row in consumer.assignment())
        await consumer.stop()


@pytest.fixture
def note(answered: Callable[[str, str, str], None], versions: dict[str, str]) -> Note:
    return lambda client, asked: answered(versions[client], asked, "served")


@pytest.fixture
def topic(bus: Bus) -> str:
    """Create a topic; return its name, which is also the group's name."""
    name = f"group-{os.getpid()}-{next(NUMBERS)}"
    bus.create_topic(name, partitions=PARTITIONS, replication_factor=3)
    return name


@pytest.fixture
def feed(bus: Bus, topic: str) -> Iterator[Callable[[], list[Where]]]:
    """Yield a function that produces ten more records to each partition.

    The function returns the offsets of all records so far.
    """
    fed: list[Where] = []
    with bus.producer() as producer:

        def more() -> list[Where]:
            sent = [
                producer.send(topic, b"%d" % n, partition=n % PARTITIONS)
                for n in range(10 * PARTITIONS)
            ]
            fed.extend((row.partition, row.offset) for row in (each.result() for each in sent))
            return fed

        yield more


def shared(readers: list[Reader]) -> bool:
    """Return whether every partition has one owner, and every reader owns a partition."""
    owned = [partition for reader in readers for partition in reader.owned]
    return sorted(owned) == list(range(PARTITIONS)) and all(reader.owned for reader in readers)


def all_read(readers: list[Reader], fed: list[Where]) -> bool:
    return {tp for reader in readers for tp in reader.read} >= set(fed)


NAMES: dict[type[Reader], str] = {
    Librdkafka: "librdkafka",
    KafkaPython: "kafka-python",
    Aiokafka: "aiokafka",
}


@pytest.mark.parametrize("kind", list(NAMES))
def test_members_join_and_leave_a_group(
    kind: type[Reader],
    cluster: LocalCluster,
    topic: str,
    feed: Callable[[], list[Where]],
    note: Note,
) -> None:
    servers, fed = cluster.bootstrap_servers, feed()
    with kind(servers, topic, topic) as one:
        until(lambda: shared([one]) and all_read([one], fed))
        with kind(servers, topic, topic) as two:
            until(lambda: shared([one, two]))
            fed = feed()
            until(lambda: all_read([one, two], fed))
            assert two.read, "it took its part"
        until(lambda: shared([one]))
        fed = feed()
        until(lambda: all_read([one, two], fed))
    # Members commit the offsets of revoked partitions, so no record was read twice.
    assert len(one.read) + len(two.read) == len(fed)
    with kind(servers, topic, topic) as again:
        until(lambda: shared([again]))
        fed = feed()
        until(lambda: all_read([one, two, again], fed))
        assert len(again.read) == 10 * PARTITIONS, "it did not resume at the committed offset"
    note(NAMES[kind], "a group: one joins, one leaves, one comes back")


DYING: dict[type[Reader], str] = {
    Librdkafka: """
import sys, confluent_kafka
servers, topic = sys.argv[1:]
consumer = confluent_kafka.Consumer({
    "bootstrap.servers": servers, "group.id": topic, "auto.offset.reset": "earliest",
    "session.timeout.ms": 1500, "heartbeat.interval.ms": 200, "enable.auto.commit": False,
    "partition.assignment.strategy": "range"})
consumer.subscribe([topic])
while True:
    message = consumer.poll(0.05)
    if message is not None and message.error() is None:
        print("read", flush=True)
""",
    KafkaPython: """
import sys, kafka
servers, topic = sys.argv[1:]
consumer = kafka.KafkaConsumer(
    topic, bootstrap_servers=servers, group_id=topic, auto_offset_reset="earliest",
    session_timeout_ms=1500, heartbeat_interval_ms=200, enable_auto_commit=False)
while True:
    for _ in consumer.poll(50):
        print("read", flush=True)
""",
    Aiokafka: """
import asyncio, sys
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
servers, topic = sys.argv[1:]
async def consume():
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=servers, group_id=topic, auto_offset_reset="earliest",
        session_timeout_ms=1500, heartbeat_interval_ms=200, enable_auto_commit=False,
        partition_assignment_strategy=(RangePartitionAssignor,), retry_backoff_ms=50)
    await consumer.start()
    while True:
        for _ in await consumer.getmany(timeout_ms=50):
            print("read", flush=True)
asyncio.run(consume())
""",
}
"""For each client, a program with a member that commits nothing and never leaves the group."""


@pytest.mark.parametrize("kind", list(NAMES))
def test_partitions_of_a_killed_member_move_after_its_session_timeout(
    kind: type[Reader],
    cluster: LocalCluster,
    topic: str,
    feed: Callable[[], list[Where]],
    note: Note,
) -> None:
    servers, fed = cluster.bootstrap_servers, feed()
    arguments = [sys.executable, "-c", DYING[kind], servers, topic]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as dying:
        try:
            assert dying.stdout is not None and dying.stdout.readline() == b"read\n"
            with kind(servers, topic, topic) as one:
                until(lambda: len(one.owned) == PARTITIONS // 2)
                dying.kill()
                until(lambda: shared([one]) and all_read([one], fed))
        finally:
            dying.kill()
    note(NAMES[kind], "a group: a member is killed")


def test_cooperative_members_keep_unrevoked_partitions(
    cluster: LocalCluster, topic: str, feed: Callable[[], list[Where]], note: Note
) -> None:
    strategy = {"partition_assignment_strategy": "cooperative-sticky"}
    servers, fed = cluster.bootstrap_servers, feed()
    with Librdkafka(servers, topic, topic, **strategy) as one:
        until(lambda: shared([one]) and all_read([one], fed))
        with Librdkafka(servers, topic, topic, **strategy) as two:
            until(lambda: shared([one, two]))
            assert [len(row) for row in one.lost] == [PARTITIONS // 2]
            assert one.lost[0] == two.owned
            fed = feed()
            until(lambda: all_read([one, two], fed))
        until(lambda: shared([one]))
        assert len(one.lost) == 1
    note("librdkafka", "a group: cooperative-sticky")


def test_static_member_rejoins_without_rebalance(
    cluster: LocalCluster, topic: str, feed: Callable[[], list[Where]], note: Note
) -> None:
    servers, fed = cluster.bootstrap_servers, feed()
    with Librdkafka(servers, topic, topic, group_instance_id="one") as one:
        with Librdkafka(servers, topic, topic, group_instance_id="two") as two:
            until(lambda: shared([one, two]) and all_read([one, two], fed))
        given, mine, taken = two.owned, one.owned, list(one.lost)
        with Librdkafka(servers, topic, topic, group_instance_id="two") as two:
            until(lambda: two.owned == given)
            assert one.owned == mine and one.lost == taken
            # A third member with the same instance id must replace the second, which gets an error.
            with Librdkafka(servers, topic, topic, group_instance_id="two") as third:
                until(lambda: third.owned == given)
                assert one.owned == mine
                until(lambda: confluent_kafka.KafkaError._FATAL in two.errors)
    note("librdkafka", "a group: static members; a second member of the same name fences the first")


def test_group_with_members_of_three_client_libraries_survives_the_death_of_its_coordinator(
    cluster: LocalCluster, topic: str, feed: Callable[[], list[Where]], note: Note
) -> None:
    """The clients can form one group because all of them have the range assignor."""
    servers, fed = cluster.bootstrap_servers, feed()
    admin = confluent_admin.AdminClient({"bootstrap.servers": servers})
    kinds: list[type[Reader]] = [Librdkafka, KafkaPython, Aiokafka]
    readers = [kind(servers, topic, topic) for kind in kinds]
    # Restart the killed broker only after aiokafka has stopped. If aiokafka stops while it looks up
    # a moved coordinator, it retries its commit for ever.
    with ExitStack() as later, readers[0], readers[1], readers[2]:
        until(lambda: shared(readers) and all_read(readers, fed))
        found = admin.describe_consumer_groups([topic])[topic].result(WAIT_S)
        assert found.state == confluent_kafka.ConsumerGroupState.STABLE
        assert sorted(len(row.assignment.topic_partitions) for row in found.members) == [2, 2, 2]
        killed = next(row for row in cluster.brokers if row.id == found.coordinator.id)
        killed.kill()
        later.callback(killed.start)
        fed = feed()
        until(lambda: all_read(readers, fed))
        until(lambda: shared(readers))

        def is_stable() -> bool:
            now = admin.describe_consumer_groups([topic])[topic].result(WAIT_S)
            return (
                now.coordinator.id != found.coordinator.id
                and now.state == confluent_kafka.ConsumerGroupState.STABLE
                and len(now.members) == len(readers)
            )

        until(is_stable)
    for name in NAMES.values():
        note(name, "one group of three kinds of client: its coordinator is killed")
