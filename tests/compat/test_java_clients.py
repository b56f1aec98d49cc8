"""Test Kafka's own Java clients, unchanged, from the user's Maven.

The tests use the producer, the consumers and the admin client. They also request APIs that logbus
does not serve, and send a frame of every request that the clients know.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Callable

import pytest
from support.client_programs import JAVA, Note, OwnNote, Steps

from broker_lite.local.cluster import LocalCluster
from broker_lite.local.zookeeper import find_java

pytestmark = [pytest.mark.compat, pytest.mark.timeout(500)]

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
UNSUPPORTED = "UnsupportedVersionException"

Run = Callable[..., Steps]


@pytest.fixture(scope="module")
def run(class_path: str, cluster: LocalCluster) -> Run:
    """Return a function that compiles and runs one of the test's Java programs.

    The function returns the results of the program's steps.
    """
    java = find_java()
    modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=True)
    if "jdk.compiler@" not in modules.stdout:
        pytest.skip(f"{java} compiles nothing: apt-get install openjdk-17-jdk-headless")
    log = f"-Dlog4j2.configurationFile={JAVA / 'log4j2.xml'}"
    jvm = [java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", log]
    return lambda name, *arguments: Steps([*jvm, "-cp", class_path, str(JAVA / name), *arguments])


@pytest.fixture(scope="module")
def steps(run: Run, cluster: LocalCluster) -> Steps:
    name = f"java-clients-{os.getpid()}"
    return run("Clients.java", cluster.bootstrap_servers, name, f"{name} group")


@pytest.fixture
def note(answered: Note, versions: dict[str, str]) -> OwnNote:
    return lambda asked, answer: answered(versions["java clients"], asked, answer)


def test_java_client_produces_reads_and_seeks(steps: Steps, note: OwnNote) -> None:
    offsets = itertools.count(step=3)
    rows: list[list[object]] = []
    for codec, at in zip(CODECS, offsets, strict=False):
        assert steps.answer(f"produce {codec}") == [at, at + 1]
        rows.append([at, ["1", "null"], 0, "k", codec])
        rows.append([at + 1, [], 1, "gone", None])
        rows.append([at + 2, [], 2, None, None])
    read, committed, metadata = steps.answer("consume")
    assert (read, committed, metadata) == (rows, 7, "seven")
    by_time, first, end, last, position, partitions = steps.answer("seek")
    assert (by_time, first, end, position, partitions) == (1, 0, len(rows), 0, 2)
    assert last == rows[-2:]
    note(f"produce and consume in a group: {', '.join(CODECS)}; headers, nulls; seek", "served")


def test_java_client_administers_a_cluster(steps: Steps, note: OwnNote) -> None:
    assert steps.answers("describeTopics", "describeCluster", "listOffsets") == [2, 3, [0, 15, 2]]
    names = ("describeConsumerGroups", "describeClassicGroups", "listGroups")
    assert steps.answers(*names) == ["Empty", "Empty", True]
    changes = ("createTopics", "alterConsumerGroupOffsets", "electLeaders", "deleteConsumerGroups")
    assert steps.answers(*changes) == [None] * 4
    assert steps.answers("describeReplicaLogDirs", "listPartitionReassignments") == [None] * 2
    assert "columns" in steps.answer("describeFeatures")
    note("Admin: topics, cluster, groups and their offsets, log dirs, elections", "served")


def test_java_admin_client_can_call_recently_added_kafka_apis(steps: Steps, note: OwnNote) -> None:
    names = (
        "listConfigResources", "listClientMetricsResources", "describeProducers",
        "listOffsets earliestLocal", "listOffsets latestTiered",
    )  # fmt: skip
    assert steps.answers(*names) == [None] * 5
    note(f"Admin: {', '.join(names)}", "served")
    assert steps.error("updateFeatures") == "InvalidUpdateVersionException"
    note("updateFeatures", "refused: InvalidUpdateVersion, with the cure")


ACLS = ("describeAcls", "createAcls", "deleteAcls")
SETTINGS = (
    "createDelegationToken", "renewDelegationToken", "expireDelegationToken",
    "describeDelegationToken",
)  # fmt: skip
CLUSTER = (
    "describeMetadataQuorum", "addRaftVoter", "removeRaftVoter", "alterReplicaLogDirs",
)  # fmt: skip
GROUPS = (
    "group.protocol=consumer", "KafkaShareConsumer", "describeShareGroups",
    "listShareGroupOffsets", "alterShareGroupOffsets", "deleteShareGroupOffsets",
    "describeStreamsGroups",
)  # fmt: skip
TRANSACTIONS = (
    "listTransactions", "describeProducers", "abortTransaction", "fenceProducers",
    "forceTerminateTransaction", "initTransactions",
)  # fmt: skip


@pytest.mark.parametrize("asked", [SETTINGS, CLUSTER, GROUPS], ids=lambda asked: asked[0])
def test_java_client_is_refused_unsupported_apis(
    asked: tuple[str, ...], steps: Steps, note: OwnNote
) -> None:
    assert {name: steps.error(name) for name in asked} == dict.fromkeys(asked, UNSUPPORTED)
    note(", ".join(asked), "refused: UnsupportedVersion")


def test_java_client_gets_an_error_for_acls_without_an_authorizer(
    steps: Steps, note: OwnNote
) -> None:
    assert {steps.error(name) for name in ACLS} == {"SecurityDisabledException"}
    note(f"{', '.join(ACLS)} without an authorizer", "refused: SecurityDisabled")


def test_java_client_administers_transactions(steps: Steps, note: OwnNote) -> None:
    steps.answers(*TRANSACTIONS)
    assert steps.error("describeTransactions") == "TransactionalIdNotFoundException"
    note(f"describeTransactions, {', '.join(TRANSACTIONS)}", "served")


def test_java_client_gets_no_client_instance_id_because_brokers_collect_no_telemetry(
    steps: Steps, note: OwnNote
) -> None:
    assert steps.answer("clientInstanceId") is None
    result = "no metrics accepted, as by Kafka without a metrics reporter"
    note("enable.metrics.push, clientInstanceId", result)


def test_java_client_gets_invalid_request_for_configs_of_unsupported_resources(
    steps: Steps, note: OwnNote
) -> None:
    for kind in ("BROKER_LOGGER", "CLIENT_METRICS", "GROUP"):
        assert steps.error(f"incrementalAlterConfigs {kind}") == "InvalidRequestException"
    for kind in ("BROKER_LOGGER", "CLIENT_METRICS"):
        assert steps.error(f"describeConfigs {kind}") == "InvalidRequestException"
    steps.answer("describeConfigs GROUP")
    note("settings of loggers and client metrics; a change of a group's", "refused: InvalidRequest")


def test_each_unsupported_request_of_a_java_client_gets_unsupported_version(
    run: Run, cluster: LocalCluster, note: OwnNote
) -> None:
    """The test sends all requests that logbus does not serve on one connection, which must stay
    open."""
    told = run("Frames.java", cluster.brokers[0].endpoint).all()
    assert len(told) > 40
    assert [row for row in told if row.get("answer") != ["UNSUPPORTED_VERSION"]] == []
    note("every version of every API that is not served, by bytes", "refused: UnsupportedVersion")
