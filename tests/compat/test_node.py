"""Test kafkajs, unchanged, as the user's npm installs it: producing, reading, administration."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.client_programs import NODE, Note, OwnNote, Steps

from broker_lite.bus import connect
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import CommittedOffset, TopicPartition

pytestmark = [pytest.mark.compat, pytest.mark.timeout(400)]

UNSUPPORTED = "KafkaJSServerDoesNotSupportApiKey"


@pytest.fixture(scope="module")
def steps(cluster: LocalCluster, node_folder: Path) -> Steps:
    """Run the program client.mjs; return the result of each of its steps."""
    group = f"node-group-{os.getpid()}"
    with connect(cluster.bootstrap_servers) as bus:
        bus.create_topic(group, partitions=1)
        bus.admin.commit_offsets(group, {TopicPartition(group, 0): CommittedOffset(0)})
    arguments = [cluster.bootstrap_servers, f"node-{os.getpid()}", group]
    return Steps(["node", str(NODE / "client.mjs"), *arguments], node_folder)


@pytest.fixture
def note(answered: Note, versions: dict[str, str]) -> OwnNote:
    return lambda asked, answer: answered(versions["kafkajs"], asked, answer)


def test_kafkajs_produces_and_reads(steps: Steps, note: OwnNote) -> None:
    assert [row["errorCode"] for row in steps.answer("send")] == [0]
    assert [row["baseOffset"] for row in steps.answer("send gzip")] == ["2"]
    assert steps.answer("fetch") == [
        {"offset": 0, "key": "k", "value": "one", "headers": {"h": "x"}},
        {"offset": 1, "key": "gone", "value": None, "headers": {}},
        {"offset": 2, "key": None, "value": "zipped", "headers": {}},
    ]
    note("producer.send, idempotent, plain and gzip; fetch", "served")


def test_kafkajs_writes_and_reads_every_codec_and_seeks(steps: Steps, note: OwnNote) -> None:
    names = [name * 9 for name in ("None", "GZIP", "Snappy", "LZ4", "ZSTD")]
    assert steps.answer("every codec, seek") == {"all": names, "last": names[-1:]}
    note("producer.send: none, gzip, snappy, lz4, zstd; consumer.seek", "served")


def test_kafkajs_administers_topics(steps: Steps, note: OwnNote) -> None:
    assert steps.answer("createTopics") is True
    assert steps.answer("createTopics again") is False
    assert steps.answer("listTopics")
    assert len(steps.answer("describeCluster")["brokers"]) == 3
    (topic,) = steps.answer("fetchTopicMetadata")["topics"]
    assert [row["leader"] >= 0 for row in topic["partitions"]] == [True, True]
    ends = {row["partition"]: row["high"] for row in steps.answer("fetchTopicOffsets")}
    assert ends == {0: "3", 1: "0"}
    found = steps.answer("fetchTopicOffsetsByTimestamp")
    assert {row["partition"]: row["offset"] for row in found}[0] == "0"
    for step in ("createPartitions", "deleteTopicRecords", "deleteTopics"):
        assert steps.answer(step) is None
    note("admin: topics, partitions, metadata, offsets, deleteTopicRecords", "served")


def test_kafkajs_changes_and_reads_settings(steps: Steps, note: OwnNote) -> None:
    assert steps.answer("alterConfigs")["resources"][0]["errorCode"] == 0
    (resource,) = steps.answer("describeConfigs")["resources"]
    found = {row["configName"]: row["configValue"] for row in resource["configEntries"]}
    # AlterConfigs replaces all settings, so settings that it does not name get their defaults.
    assert found == {"segment.bytes": "20000000", "retention.ms": "604800000"}
    note("admin: alterConfigs, describeConfigs", "served")


def test_kafkajs_lists_groups_and_their_offsets(steps: Steps, note: OwnNote) -> None:
    (topic,) = steps.answer("fetchOffsets")
    assert [row["offset"] for row in topic["partitions"]] == ["0"]
    assert topic["topic"] in [row["groupId"] for row in steps.answer("listGroups")["groups"]]
    (group,) = steps.answer("describeGroups")["groups"]
    assert group["state"] == "Empty"
    assert steps.answer("deleteGroups")[0]["errorCode"] == 0
    note("admin: describeGroups, fetchOffsets, deleteGroups", "served")
    note("admin.listGroups", "served")


def test_kafkajs_reads_as_a_group_member(steps: Steps, note: OwnNote) -> None:
    answer = steps.answer("consumer in a group")
    assert answer == {
        "values": ["one", None, "zipped"],
        "state": "Stable",
        "members": 1,
        "offsets": [[0, "3"], [1, "-1"]],
    }
    note("consumer in a group: run, describeGroups, offsets on disconnect", "served")


def test_kafkajs_gets_an_error_for_acls_without_an_authorizer(steps: Steps, note: OwnNote) -> None:
    """kafkajs reports the broker's error code in its own error."""
    assert steps.error("describeAcls") == "KafkaJSProtocolError"
    note("describeAcls without an authorizer", "refused: SecurityDisabled")
