"""franz-go, unchanged, built by the user's Go: many collectors of logs are made with it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from client_programs import Note

from broker_lite.local.cluster import LocalCluster

pytestmark = [pytest.mark.compat, pytest.mark.timeout(400)]

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
RUN_SECONDS = 120
TIME_MS = 1_700_000_000_000

Steps = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def steps(cluster: LocalCluster, go_client: str) -> Steps:
    """What each step of go/main.go was answered."""
    topic, group = f"go-{os.getpid()}", f"go group {os.getpid()}"
    done = subprocess.run(
        [go_client, "steps", cluster.bootstrap_servers, topic, group],
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return {row["step"]: row for row in map(json.loads, done.stdout.splitlines())}


@pytest.fixture
def note(answered: Note, versions: dict[str, str]) -> Callable[[str, str], None]:
    return lambda asked, answer: answered(versions["franz-go"], asked, answer)


def answers(steps: Steps, *names: str) -> list[Any]:
    """The answers to steps that were served."""
    assert [steps[name].get("error") for name in names] == [None] * len(names)
    return [steps[name]["answer"] for name in names]


def test_it_produces_reads_and_seeks(steps: Steps, note: Callable[[str, str], None]) -> None:
    placed = answers(steps, *(f"produce {codec}" for codec in CODECS))
    assert placed == [[2 * n, 2 * n + 1] for n in range(len(CODECS))]
    rows, last = answers(steps, "consume", "seek")
    expected = []
    for n, codec in enumerate(CODECS):
        expected.append([2 * n, "k", codec, [["h", "1"], ["h", "2"]], TIME_MS])
        expected.append([2 * n + 1, "gone", None, [], TIME_MS])
    assert rows == expected and last == expected[-1:]
    note(f"produce, idempotent, and fetch by offset: {', '.join(CODECS)}", "served")


def test_it_administers_topics(steps: Steps, note: Callable[[str, str], None]) -> None:
    assert steps["CreateTopic again"]["error"] == "TOPIC_ALREADY_EXISTS"
    assert answers(steps, "CreateTopic", "ListTopics", "ListBrokers") == [2, 2, [0, 1, 2]]
    assert answers(steps, "ListEndOffsets", "ListOffsetsAfterMilli", "DeleteRecords") == [10, 0, 3]
    assert answers(steps, "CreatePartitions", "AlterTopicConfigs", "DeleteTopics") == [None] * 3
    (settings,) = answers(steps, "DescribeTopicConfigs")
    assert settings == {"retention.ms": "600000", "segment.bytes": "20000000"}
    assert answers(steps, "DescribeAllLogDirs") == [3]
    note("admin: topics, partitions, configs, offsets, DeleteRecords, log dirs", "served")


def test_it_administers_groups(steps: Steps, note: Callable[[str, str], None]) -> None:
    kept, lag = answers(steps, "CommitOffsets", "FetchOffsets", "Lag")[1:]
    assert (kept, lag) == ([7, "seven"], 3)
    assert answers(steps, "ListGroups", "DescribeGroups") == [True, "Empty"]
    assert answers(steps, "DeleteOffsets", "DeleteGroups") == [None, None]
    note("admin: groups, their offsets and lag", "served")


@pytest.mark.parametrize("step", ["DescribeACLs", "DescribeUserSCRAMs", "ListTransactions"])
def test_what_is_not_served_is_refused(
    steps: Steps, note: Callable[[str, str], None], step: str
) -> None:
    """By the client itself: the broker's list of APIs does not name them."""
    assert "broker is too old" in steps[step]["error"]
    note(step, "refused: UnsupportedVersion")
