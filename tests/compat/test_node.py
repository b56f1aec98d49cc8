"""kafkajs, unchanged, fetched by the user's npm: producing, reading, administration from Node."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from client_programs import NODE

from broker_lite import client
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import CommittedOffset, TopicPartition

pytestmark = [pytest.mark.compat, pytest.mark.timeout(400)]

UNSUPPORTED = "KafkaJSServerDoesNotSupportApiKey"
RUN_SECONDS = 120

Steps = dict[str, dict[str, Any]]
Note = Callable[[str, str], None]


@pytest.fixture(scope="module")
def steps(cluster: LocalCluster, node_folder: Path) -> Steps:
    """What each step of client.mjs was answered."""
    group = f"node-group-{os.getpid()}"
    with client.connect(cluster.bootstrap_servers) as bus:
        bus.create_topic(group, partitions=1)
        bus.admin.commit_offsets(group, {TopicPartition(group, 0): CommittedOffset(0)})
    arguments = [cluster.bootstrap_servers, f"node-{os.getpid()}", group]
    done = subprocess.run(
        ["node", str(NODE / "client.mjs"), *arguments],
        cwd=node_folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return {row["step"]: row for row in map(json.loads, done.stdout.splitlines())}


@pytest.fixture
def note(answered: Callable[[str, str, str], None], versions: dict[str, str]) -> Note:
    return lambda asked, answer: answered(versions["kafkajs"], asked, answer)


def test_it_produces_and_reads(steps: Steps, note: Note) -> None:
    assert [row["errorCode"] for row in steps["send"]["answer"]] == [0]
    assert [row["baseOffset"] for row in steps["send gzip"]["answer"]] == ["2"]
    assert steps["fetch"]["answer"] == [
        {"offset": 0, "key": "k", "value": "one", "headers": {"h": "x"}},
        {"offset": 1, "key": "gone", "value": None, "headers": {}},
        {"offset": 2, "key": None, "value": "zipped", "headers": {}},
    ]
    note("producer.send, idempotent, plain and gzip; fetch", "served")


def test_it_writes_and_reads_every_codec_and_seeks(steps: Steps, note: Note) -> None:
    names = [name * 9 for name in ("None", "GZIP", "Snappy", "LZ4", "ZSTD")]
    assert steps["every codec, seek"]["answer"] == {"all": names, "last": names[-1:]}
    note("producer.send: none, gzip, snappy, lz4, zstd; consumer.seek", "served")


def test_it_administers_topics(steps: Steps, note: Note) -> None:
    assert steps["createTopics"]["answer"] is True
    assert steps["createTopics again"]["answer"] is False
    assert steps["listTopics"]["answer"]
    assert len(steps["describeCluster"]["answer"]["brokers"]) == 3
    (topic,) = steps["fetchTopicMetadata"]["answer"]["topics"]
    assert [row["leader"] >= 0 for row in topic["partitions"]] == [True, True]
    ends = {row["partition"]: row["high"] for row in steps["fetchTopicOffsets"]["answer"]}
    assert ends == {0: "3", 1: "0"}
    found = steps["fetchTopicOffsetsByTimestamp"]["answer"]
    assert {row["partition"]: row["offset"] for row in found}[0] == "0"
    for step in ("createPartitions", "deleteTopicRecords", "deleteTopics"):
        assert steps[step]["answer"] is None
    note("admin: topics, partitions, metadata, offsets, deleteTopicRecords", "served")


def test_it_replaces_and_reads_settings(steps: Steps, note: Note) -> None:
    assert steps["alterConfigs"]["answer"]["resources"][0]["errorCode"] == 0
    (resource,) = steps["describeConfigs"]["answer"]["resources"]
    found = {row["configName"]: row["configValue"] for row in resource["configEntries"]}
    # AlterConfigs replaces: what it does not name is back at its default.
    assert found == {"segment.bytes": "20000000", "retention.ms": "604800000"}
    note("admin: alterConfigs, describeConfigs", "served")


def test_it_sees_groups_and_their_offsets(steps: Steps, note: Note) -> None:
    (topic,) = steps["fetchOffsets"]["answer"]
    assert [row["offset"] for row in topic["partitions"]] == ["0"]
    assert topic["topic"] in [row["groupId"] for row in steps["listGroups"]["answer"]["groups"]]
    (group,) = steps["describeGroups"]["answer"]["groups"]
    assert group["state"] == "Empty"
    assert steps["deleteGroups"]["answer"][0]["errorCode"] == 0
    note("admin: describeGroups, fetchOffsets, deleteGroups", "served")
    note("admin.listGroups", "served")


def test_it_reads_as_a_member_of_a_group(steps: Steps, note: Note) -> None:
    answer = steps["consumer in a group"]["answer"]
    assert answer == {
        "values": ["one", None, "zipped"],
        "state": "Stable",
        "members": 1,
        "offsets": [[0, "3"], [1, "-1"]],
    }
    note("consumer in a group: run, describeGroups, offsets on disconnect", "served")


@pytest.mark.parametrize("step", ["describeAcls"])
def test_what_is_not_served_is_refused(steps: Steps, note: Note, step: str) -> None:
    assert steps[step]["error"] == UNSUPPORTED
    note(step, "refused: UnsupportedVersion")
