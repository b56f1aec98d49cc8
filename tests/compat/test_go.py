"""Test franz-go, unchanged and built with the user's Go; many log collectors use franz-go."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from support.client_programs import GO_CODECS, Note, OwnNote, Steps, assert_go_reads_what_it_wrote

from broker_lite.local.cluster import LocalCluster

pytestmark = [pytest.mark.compat, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def steps(cluster: LocalCluster, go_program: Callable[[str], str]) -> Steps:
    """Run the program go/franz-go; return the result of each of its steps."""
    topic, group = f"go-{os.getpid()}", f"go group {os.getpid()}"
    return Steps([go_program("franz-go"), "steps", cluster.bootstrap_servers, topic, group])


@pytest.fixture
def note(answered: Note, versions: dict[str, str]) -> OwnNote:
    return lambda asked, answer: answered(versions["franz-go"], asked, answer)


def test_go_client_produces_reads_and_seeks(steps: Steps, note: OwnNote) -> None:
    assert_go_reads_what_it_wrote(steps)
    note(f"produce, idempotent, and fetch by offset: {', '.join(GO_CODECS)}", "served")


def test_go_client_administers_topics(steps: Steps, note: OwnNote) -> None:
    assert steps.error("CreateTopic again").startswith("TOPIC_ALREADY_EXISTS")
    assert steps.answers("CreateTopic", "ListTopics", "ListBrokers") == [2, 2, [0, 1, 2]]
    assert steps.answers("ListEndOffsets", "ListOffsetsAfterMilli", "DeleteRecords") == [10, 0, 3]
    assert steps.answers("CreatePartitions", "AlterTopicConfigs", "DeleteTopics") == [None] * 3
    (settings,) = steps.answers("DescribeTopicConfigs")
    assert settings == {"retention.ms": "600000", "segment.bytes": "20000000"}
    assert steps.answers("DescribeAllLogDirs") == [3]
    note("admin: topics, partitions, configs, offsets, DeleteRecords, log dirs", "served")


def test_go_client_administers_groups(steps: Steps, note: OwnNote) -> None:
    kept, lag = steps.answers("CommitOffsets", "FetchOffsets", "Lag")[1:]
    assert (kept, lag) == ([7, "seven"], 3)
    assert steps.answers("ListGroups", "DescribeGroups") == [True, "Empty"]
    assert steps.answers("DeleteOffsets", "DeleteGroups") == [None, None]
    note("admin: groups, their offsets and lag", "served")


def test_go_client_describes_users(steps: Steps, note: OwnNote) -> None:
    steps.answer("DescribeUserSCRAMs")
    note("DescribeUserSCRAMs", "served")


def test_go_client_gets_an_error_for_acls_without_an_authorizer(
    steps: Steps, note: OwnNote
) -> None:
    assert "SECURITY_DISABLED" in steps.error("DescribeACLs")
    note("DescribeACLs without an authorizer", "refused: SecurityDisabled")
