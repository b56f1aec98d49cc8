"""Test Apache Kafka's own command line tools, unchanged, from the user's Maven.

Each tool runs in a JVM with the arguments that its shell script passes, and the tests check its
exit code. For an API that logbus does not serve, the tool must report Kafka's own error.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from support.client_programs import Note, OwnNote
from support.java_tools import (
    CONFIGS,
    CONSUMER,
    ELECT,
    FEATURES,
    GROUPS,
    OFFSETS,
    PERFORMANCE,
    QUORUM,
    REASSIGN,
    TOOLS,
    TOPICS,
    TRANSACTIONS,
    VERIFICATION,
    WAIT_SECONDS,
    Tools,
)

from broker_lite.bus import Bus
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import TopicPartition
from broker_lite.wire.api import VERSIONS

pytestmark = [pytest.mark.compat, pytest.mark.timeout(400)]

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def tools(cluster: LocalCluster, class_path: str) -> Tools:
    return Tools(class_path, cluster.bootstrap_servers)


@pytest.fixture
def note(answered: Note, versions: dict[str, str]) -> OwnNote:
    return lambda asked, answer: answered(versions["java"], asked, answer)


@pytest.fixture
def name() -> str:
    return f"java-{os.getpid()}-{next(NUMBERS)}"


def test_kafka_topics_tool_manages_topics(tools: Tools, name: str, note: OwnNote) -> None:
    made = ("--topic", name, "--partitions", "2", "--config", "retention.ms=600000")
    tools(TOPICS, "--create", *made, says=f"Created topic {name}")
    tools(TOPICS, "--create", *made, code=1, says="exists already")
    tools.eventually(name, TOPICS, "--list")
    described = tools.eventually("PartitionCount: 2", TOPICS, "--describe")
    assert re.search(rf"Topic: {name}\s.*ReplicationFactor: 3\s+Configs: .*retention", described)
    assert tools(TOPICS, "--describe", "--unavailable-partitions").strip() == ""
    tools(TOPICS, "--alter", "--topic", name, "--partitions", "3")
    tools.eventually("PartitionCount: 3", TOPICS, "--describe", "--topic", name)
    tools(TOPICS, "--delete", "--topic", name)
    tools(TOPICS, "--describe", "--topic", f"{name}-no", code=1, says="does not exist")
    note("kafka-topics: create, list, describe, alter, delete", "served")


def test_kafka_configs_tool_changes_settings(
    tools: Tools, name: str, note: OwnNote, bus: Bus
) -> None:
    bus.create_topic(name, partitions=1)
    topic = ("--entity-type", "topics", "--entity-name", name)
    tools(CONFIGS, "--alter", *topic, "--add-config", "retention.ms=700000,segment.bytes=20000000")
    tools.eventually("retention.ms=700000", CONFIGS, "--describe", *topic)
    tools(CONFIGS, "--alter", *topic, "--delete-config", "segment.bytes")
    every = tools(CONFIGS, "--describe", *topic, "--all")
    assert "segment.bytes=1073741824" in every and "DYNAMIC_TOPIC_CONFIG" in every
    wrong = ("--add-config", "retenton.ms=1")
    tools(CONFIGS, "--alter", *topic, *wrong, code=1, says="did you mean 'retention.ms'?")
    note("kafka-configs: describe, alter, delete of topics' settings", "served")
    broker = ("--entity-type", "brokers", "--entity-name", "0")
    tools(CONFIGS, "--describe", *broker, "--all", says="zookeeper.connect=")
    change = ("--add-config", "num.partitions=2")
    tools(CONFIGS, "--alter", *broker, *change, code=1, says="read from its file")
    note("kafka-configs: brokers' settings", "described; a change is refused with the cure")
    app = ("--entity-type", "clients", "--entity-name", "app")
    tools(CONFIGS, "--alter", *app, "--add-config", "producer_byte_rate=1000000")
    tools.eventually("producer_byte_rate=1000000.0", CONFIGS, "--describe", *app)
    tools(CONFIGS, "--alter", *app, "--delete-config", "producer_byte_rate")
    tools(CONFIGS, "--describe", "--entity-type", "users")
    note("kafka-configs: users and quotas", "served")


def test_console_producer_and_consumer_exchange_records(
    tools: Tools, name: str, note: OwnNote, bus: Bus
) -> None:
    bus.create_topic(name, partitions=1)
    codecs = ["none", "gzip", "snappy", "lz4", "zstd"]
    for codec in codecs:
        tools.produce(name, f"k:{codec}\nk:again\n", "--compression-codec", codec)
    lines = tools.consume(name, 10, "key", "offset", "partition")
    expected = [value for codec in codecs for value in (codec, "again")]
    assert lines == [f"Partition:0\tOffset:{at}\tk\t{value}" for at, value in enumerate(expected)]
    note(f"kafka-console-producer, -consumer --partition: {', '.join(codecs)}", "served")


def test_console_consumer_prints_the_records_of_an_arrow_batch(
    tools: Tools, name: str, note: OwnNote, bus: Bus
) -> None:
    bus.create_topic(name, partitions=1)
    with bus.producer(compression="zstd") as producer:
        producer.send(name, b"value", key=b"key", headers=[("h", b"x")], timestamp_ms=5)
        producer.send(name, None, key=b"gone")
        producer.flush()
    lines = tools.consume(name, 2, "timestamp", "headers", "key")
    assert lines[0] == "CreateTime:5\th:x\tkey\tvalue"
    assert lines[1].endswith("NO_HEADERS\tgone\tnull")
    note("kafka-console-consumer of a batch of Arrow columns", "served as rows")


def test_kafka_tools_read_offsets_and_delete_records(
    tools: Tools, name: str, note: OwnNote, bus: Bus, tmp_path: Path
) -> None:
    bus.create_topic(name, partitions=2)
    with bus.producer() as producer:
        for n in range(10):
            producer.send(name, b"%d" % n, partition=0, timestamp_ms=1000 + n)
        producer.flush()

    def offsets(moment: str) -> list[str]:
        return tools(OFFSETS, "--topic", name, "--time", moment).split()

    assert offsets("latest") == [f"{name}:0:10", f"{name}:1:0"]
    assert f"{name}:0:4" in offsets("1004")
    assert f"{name}:0:9" in offsets("max-timestamp")
    wanted = {"partitions": [{"topic": name, "partition": 0, "offset": 7}], "version": 1}
    (tmp_path / "delete.json").write_text(json.dumps(wanted))
    deleting = ("--offset-json-file", str(tmp_path / "delete.json"))
    tools(f"{TOOLS}DeleteRecordsCommand", *deleting, says=f"{name}-0\tlow_watermark: 7")
    assert offsets("earliest") == [f"{name}:0:7", f"{name}:1:0"]
    assert offsets("earliest-local") == [f"{name}:0:7", f"{name}:1:0"]
    assert offsets("latest-tiered") == []
    note("kafka-get-offsets: latest, earliest, by time, max-timestamp, earliest-local", "served")
    note("kafka-delete-records", "served")


def test_kafka_tools_describe_log_dirs_and_the_cluster(
    tools: Tools, name: str, note: OwnNote, bus: Bus
) -> None:
    bus.create_topic(name, partitions=3)
    said = tools(f"{TOOLS}LogDirsCommand", "--describe", "--topic-list", name)
    brokers = json.loads(said[said.index("{") :])["brokers"]
    partitions = [row["partition"] for b in brokers for row in b["logDirs"][0]["partitions"]]
    assert {f"{name}-{number}" for number in range(3)} == set(partitions)
    note("kafka-log-dirs", "served")
    assert "Cluster ID: " in tools(f"{TOOLS}ClusterTool", "cluster-id")
    said = tools(f"{TOOLS}BrokerApiVersionsCommand")
    assert len(re.findall(r"usable: \d+", said)) >= len(VERSIONS) - 1
    note("kafka-cluster cluster-id, kafka-broker-api-versions", "served")
    tools(f"{TOOLS}AclCommand", "--list", code=1, says="SecurityDisabledException")
    note("kafka-acls without an authorizer", "refused: SecurityDisabled")


def test_replica_verification_tool_reports_lag(
    tools: Tools, name: str, note: OwnNote, bus: Bus
) -> None:
    """The tool fetches from all replicas, and prints the largest lag until it is killed.

    The lag may be above 0 until each replica has fetched the last records.
    """
    bus.create_topic(name, partitions=2)
    with bus.producer() as producer:
        for n in range(1000):
            producer.send(name, b"%d" % n, partition=n % 2)
        producer.flush()
    line = re.compile(r"max lag is 0 for partition .* at offset 500 among 2 partitions")
    with tools.running(
        VERIFICATION, "--topics-include", name, "--time", "-2", "--report-interval-ms", "200"
    ) as said:
        assert any(line.search(row) for row in said)
    note("kafka-replica-verification", "served")


def test_kafka_transactions_tool_describes_the_producers_of_a_partition(
    tools: Tools, name: str, note: OwnNote, bus: Bus, cluster: LocalCluster
) -> None:
    bus.create_topic(name, partitions=1)
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True}
    producer = confluent_kafka.Producer(settings)
    for n in range(5):
        producer.produce(name, b"%d" % n, partition=0)
    assert producer.flush(WAIT_SECONDS) == 0
    at = ("--topic", name, "--partition", "0")
    for broker in ((), ("--broker-id", "0"), ("--broker-id", "1")):
        said = tools(TRANSACTIONS, "describe-producers", *at, *broker)
        assert re.search(r"^\d+\s+0\s+-1\s+4\s+\d{13}\s+None", said, re.M), said
    note("kafka-transactions describe-producers", "served")


def test_consumer_groups_tool_manages_offsets(
    tools: Tools, name: str, note: OwnNote, bus: Bus
) -> None:
    bus.create_topic(name, partitions=2)
    with bus.producer() as producer:
        for n in range(10):
            producer.send(name, b"%d" % n, partition=0)
        producer.flush()
    group = ("--group", f"{name} group")
    reset = (*group, "--topic", name, "--reset-offsets", "--execute")
    assert re.search(rf"{name}\s+0\s+10", tools(GROUPS, *reset, "--to-latest"))
    assert re.search(rf"{name}\s+0\s+7", tools(GROUPS, *reset, "--shift-by", "-3"))
    described = tools(GROUPS, "--describe", *group)
    assert re.search(rf"{name}\s+0\s+7\s+10\s+3\s", described)
    assert "has no active members" in described
    assert re.search(rf"{group[1]}\s+Empty", tools(GROUPS, "--list", "--state"))
    kept = bus.admin.committed(group[1], [TopicPartition(name, 0)])
    assert kept[TopicPartition(name, 0)].offset == 7
    tools(GROUPS, *group, "--topic", f"{name}:0", "--delete-offsets", says="Successful")
    assert TopicPartition(name, 0) not in bus.admin.committed(group[1])
    tools(GROUPS, *group, "--delete", says="was successful")
    assert group[1] not in tools(GROUPS, "--list")
    tools(GROUPS, *group, "--delete", says="GroupIdNotFoundException")
    asked = "list, describe, reset-offsets, delete-offsets, delete"
    note(f"kafka-consumer-groups: {asked}", "served")


def test_console_consumer_reads_in_a_group_that_the_consumer_groups_tool_describes(
    tools: Tools, name: str, note: OwnNote, bus: Bus
) -> None:
    bus.create_topic(name, partitions=2)
    with bus.producer() as producer:
        for n in range(1000):
            producer.send(name, b"row %d" % n, partition=n % 2)
        producer.flush()
    group = ("--group", f"{name} members")
    reading = ("--topic", name, "--from-beginning", "--timeout-ms", "20000")
    said = tools(CONSUMER, *reading, *group, "--max-messages", "1000")
    assert {f"row {n}" for n in range(1000)} <= set(said.splitlines())
    described = tools(GROUPS, "--describe", *group)
    for partition in (0, 1):
        assert re.search(rf"{name}\s+{partition}\s+500\s+500\s+0\s", described)
    note("kafka-console-consumer in a group", "served")
    measure = ("--topic", name, "--num-records", "1000", "--timeout", "20000")
    said = tools(f"{TOOLS}ConsumerPerformance", *measure)
    assert ", 1000, " in said
    note("kafka-consumer-perf-test", "served")


@pytest.fixture
def two_members(name: str, bus: Bus, cluster: LocalCluster) -> Iterator[None]:
    """Run a stable group of two librdkafka members on a topic of four partitions.

    The group and the topic have the name ``name``.
    """
    bus.create_topic(name, partitions=4)
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": name}
    named = {"client.id": "one", "group.instance.id": "static"}
    members = [confluent_kafka.Consumer({**settings, **more}) for more in (named, {})]
    for member in members:
        member.subscribe([name])
    deadline = time.monotonic() + WAIT_SECONDS
    while [len(member.assignment()) for member in members] != [2, 2]:
        assert time.monotonic() < deadline
        for member in members:
            assert member.poll(0.05) is None
    yield
    for member in members:
        member.close()


@pytest.mark.usefixtures("two_members")
def test_consumer_groups_tool_lists_members_and_states(
    tools: Tools, name: str, note: OwnNote
) -> None:
    group = ("--describe", "--group", name)
    static = rf"{name}\s+static-\S+\s+static\s+/127\.0\.0\.1\s+one\s+2\b"
    assert re.search(static, tools(GROUPS, *group, "--members"))
    verbose = tools(GROUPS, *group, "--members", "--verbose")
    assert sorted(re.findall(rf"{name}:(\d,\d)", verbose)) == ["0,1", "2,3"]
    assert re.search(r"\(\d\)\s+range\s+Stable\s+2\b", tools(GROUPS, *group, "--state"))
    rows = tools(GROUPS, *group, "--verbose")
    assert len(re.findall(rf"{name}\s+{name}\s+\d\s", rows)) == 4
    every = tools(GROUPS, "--describe", "--all-groups", "--state")
    assert re.search(rf"{name}\s+\S+\s+\(\d\)\s+range\s+Stable", every)
    assert re.search(rf"{name}\s+Classic", tools(GROUPS, "--list", "--type"))
    assert re.search(rf"{name}\s+Classic\s+consumer", tools(f"{TOOLS}GroupsCommand", "--list"))
    reset = ("--group", name, "--topic", name, "--reset-offsets", "--to-latest", "--execute")
    tools(GROUPS, *reset, says="current state is Stable")
    note("kafka-consumer-groups: members, state, verbose, types; kafka-groups", "served")


def test_tools_report_kafkas_error_for_apis_that_logbus_does_not_serve(
    tools: Tools, name: str, note: OwnNote, bus: Bus
) -> None:
    bus.create_topic(name, partitions=1)
    reading = ("--topic", name, "--group", name, "--timeout-ms", "20000")
    new = ("--command-property", "group.protocol=consumer")
    tools(CONSUMER, *reading, *new, says="Set group.protocol=classic")
    note("group.protocol=consumer", "refused: UnsupportedVersion, with the cure")
    tools(QUORUM, "describe", "--status", code=1, says="UnsupportedVersionException")
    note("kafka-metadata-quorum", "refused: UnsupportedVersion")
    described = tools(FEATURES, "describe")
    [level] = re.findall(r"Feature: columns.*FinalizedVersionLevel: (\d+)", described)
    tools(FEATURES, "upgrade", "--feature", f"columns={level}", says=f"upgraded to {level}")
    tools(FEATURES, "upgrade", "--feature", "columns=9", code=1, says="upgrade all brokers")
    tools(FEATURES, "upgrade", "--feature", "group.version=1", code=1, says="has no feature")
    note("kafka-features describe", "served")
    note("kafka-features upgrade", "accepts the current level; refuses any other")
    assert tools(f"{TOOLS}ClientMetricsCommand", "--list").strip() == ""
    note("kafka-client-metrics list", "lists none")


def test_producer_perf_tool_runs(tools: Tools, name: str, note: OwnNote, bus: Bus) -> None:
    bus.create_topic(name, partitions=2)
    load = ("--topic", name, "--num-records", "50000", "--record-size", "100")
    tools(PERFORMANCE, *load, "--throughput", "-1", says="50000 records sent")
    ends = tools(OFFSETS, "--topic", name).split()
    assert sum(int(line.rpartition(":")[2]) for line in ends) == 50000
    transactions = ("--transaction-duration-ms", "100")
    few = ("--topic", name, "--num-records", "5", "--record-size", "9", "--throughput", "-1")
    tools(PERFORMANCE, *few, *transactions, says="5 records sent")
    note("kafka-producer-perf-test, with transactions too", "served")


def test_kafka_tools_reassign_replicas_and_elect_leaders(
    tools: Tools, name: str, note: OwnNote, bus: Bus, tmp_path: Path
) -> None:
    tools(TOPICS, "--create", "--topic", name, "--replica-assignment", "0:1,1:2")
    plan = tmp_path / "plan.json"
    moves = ("--reassignment-json-file", str(plan))

    def to(*replicas: int) -> None:
        row = {"topic": name, "partition": 0, "replicas": list(replicas)}
        plan.write_text(json.dumps({"version": 1, "partitions": [row]}))

    to(2, 0)
    tools(REASSIGN, "--execute", *moves, says="Successfully started partition reassignment")
    tools.eventually("is completed", REASSIGN, "--verify", *moves)
    tools(REASSIGN, "--list", says="No partition reassignments found")
    described = tools(TOPICS, "--describe", "--topic", name)
    assert re.search(r"Partition: 0\s+Leader: 0\s+Replicas: 2,0", described)
    to(1, 9)
    tools(REASSIGN, "--execute", *moves, code=1, says="Unknown broker id 9")
    to(1, 0)
    tools(REASSIGN, "--cancel", *moves, says="None of the specified partition moves are active")
    throttled = ("--execute", *moves, "--throttle", "1000000")
    tools(REASSIGN, *throttled, says="The inter-broker throttle limit was set to 1000000 B/s")
    tools.eventually("Clearing topic-level throttles", REASSIGN, "--verify", *moves)
    to(2, 0)
    tools(REASSIGN, "--execute", *moves, says="Successfully started partition reassignment")
    tools.eventually("is completed", REASSIGN, "--verify", *moves)
    note("kafka-reassign-partitions: execute, verify, list, cancel", "served")
    note("kafka-reassign-partitions --throttle", "served")
    preferred = ("--election-type", "preferred", "--topic", name, "--partition", "0")
    elected = tools(ELECT, *preferred)
    # On a busy machine, leader.rebalance.ms (a minute) may pass first: the controller then has
    # elected the preferred leader already.
    assert "leader election (PREFERRED)" in elected or "Valid replica already elected" in elected
    described = tools.eventually("Leader: 2", TOPICS, "--describe", "--topic", name)
    assert re.search(r"Partition: 0\s+Leader: 2\s+Replicas: 2,0", described)
    tools(ELECT, *preferred, says="Valid replica already elected")
    tools(ELECT, "--election-type", "unclean", "--all-topic-partitions")
    note("kafka-leader-election: preferred, unclean", "served")
    few = ("--replication-factor", "4")
    tools(TOPICS, "--create", "--topic", f"{name}-4", *few, code=1, says="only 3 brokers are live")
    gone = ("unregister", "--id", "1")
    tools(f"{TOOLS}ClusterTool", *gone, code=1, says="is running: stop it first")
    note("kafka-cluster unregister", "served")
