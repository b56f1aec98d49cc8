"""Run third-party group members as processes: members join, are killed and leave.

The members must read all records, and later members resume at the group's offsets.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.client_programs import GO_MODULES, JAVA, NODE, Note
from support.member_process import RECORD, Group, Member, eventually

from broker_lite.bus import Bus
from broker_lite.local.cluster import LocalCluster
from broker_lite.local.zookeeper import find_java
from broker_lite.model import TopicPartition

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

NUMBERS = itertools.count()
PARTITIONS = 4
SESSION_MS = 2000

NODE_MEMBERS = {"kafkajs": "member.mjs", "platformatic": "platformatic-member.mjs"}

Command = Callable[[str, str], Member]
"""A function that starts a member on a topic in a group."""


@pytest.fixture(
    params=[
        "kcat",
        *(pytest.param(name, marks=pytest.mark.compat) for name in GO_MODULES),
        *(pytest.param(name, marks=pytest.mark.compat) for name in NODE_MEMBERS),
        pytest.param("java", marks=pytest.mark.compat),
    ]
)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def start(
    kind: str, cluster: LocalCluster, request: pytest.FixtureRequest, tmp_path: Path
) -> Command:
    servers, session = cluster.bootstrap_servers, str(SESSION_MS)

    def kcat(topic: str, group: str) -> Member:
        settings = {
            "auto.offset.reset": "earliest",
            "session.timeout.ms": session,
            "heartbeat.interval.ms": "200",
            "auto.commit.interval.ms": "200",
        }
        options = [w for key, value in settings.items() for w in ("-X", f"{key}={value}")]
        where = ["-b", servers, "-G", group, *options, "-u", "-f", "%p %o\n", topic]
        return Member([request.getfixturevalue("kcat"), *where], RECORD, tmp_path)

    def go(topic: str, group: str) -> Member:
        program = request.getfixturevalue("go_program")(kind)
        return Member([program, "member", servers, topic, group, session], RECORD, tmp_path)

    def node(topic: str, group: str) -> Member:
        program = ["node", str(NODE / NODE_MEMBERS[kind]), servers, topic, group, session]
        return Member(program, RECORD, request.getfixturevalue("node_folder"))

    def java(topic: str, group: str) -> Member:
        properties = {
            "session.timeout.ms": session,
            "heartbeat.interval.ms": "200",
            "auto.commit.interval.ms": "200",
        }
        options = [
            w for key, value in properties.items() for w in ("--command-property", f"{key}={value}")
        ]
        printed = [f"print.{name}={value}" for name, value in
                   (("partition", "true"), ("offset", "true"), ("value", "false"))]  # fmt: skip
        options += [w for each in printed for w in ("--formatter-property", each)]
        log = f"-Dlog4j2.configurationFile={JAVA / 'log4j2.xml'}"
        jvm = [find_java(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m", log]
        tool = ["-cp", request.getfixturevalue("class_path")]
        tool += ["org.apache.kafka.tools.consumer.ConsoleConsumer", "--from-beginning"]
        where = ["--bootstrap-server", servers, "--topic", topic, "--group", group]
        record = re.compile(r"^Partition:(\d+)\tOffset:(\d+)")
        return Member([*jvm, *tool, *where, *options], record, tmp_path)

    made: dict[str, Command] = {"kcat": kcat, "java": java}
    made |= dict.fromkeys(NODE_MEMBERS, node) | dict.fromkeys(GO_MODULES, go)
    return made[kind]


def test_group_rebalances_after_join_kill_and_leave(
    kind: str,
    start: Command,
    cluster: LocalCluster,
    bus: Bus,
    answered: Note,
    versions: dict[str, str],
) -> None:
    topic = group = f"member-{os.getpid()}-{next(NUMBERS)}"
    bus.create_topic(topic, partitions=PARTITIONS)
    seen, fed = Group(cluster.bootstrap_servers, group), set[tuple[int, int]]()

    def feed() -> set[tuple[int, int]]:
        with bus.producer() as producer:
            sent = [producer.send(topic, b"x", partition=n % PARTITIONS) for n in range(40)]
        new = {(row.partition, row.offset) for row in (each.result() for each in sent)}
        fed.update(new)
        return new

    feed()
    with start(topic, group) as one:
        eventually(lambda: seen.shares() == [PARTITIONS], lambda: one.said)
        eventually(lambda: set(one.read) == fed, lambda: one.said)
        with start(topic, group) as two:
            eventually(lambda: seen.shares() == [2, 2], lambda: (one.said, two.said))
            # Feed until the second member reads: the first may still return rows that it fetched
            # before the rebalance.
            eventually(lambda: feed() and two.read, lambda: (one.said, two.said))
            eventually(lambda: {*one.read, *two.read} == fed, lambda: (one.said, two.said))
            two.kill()
        eventually(lambda: seen.shares() == [PARTITIONS], lambda: one.said)
        new = feed()
        eventually(lambda: new <= set(one.read), lambda: one.said)
        one.leave()
    eventually(lambda: seen.state() == "EMPTY", lambda: one.said)
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    kept = bus.admin.committed(group, places)
    ends = dict.fromkeys(places, len(fed) // PARTITIONS)
    assert {place: row.offset for place, row in kept.items()} == ends
    answered(versions[kind], "a group: one joins, one is killed, the last leaves", "served")
