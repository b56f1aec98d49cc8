"""Test @platformatic/kafka, a newer client for Node, unchanged, from the user's npm."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.client_programs import NODE, Note, OwnNote, Steps

from broker_lite.local.cluster import LocalCluster

pytestmark = [pytest.mark.compat, pytest.mark.timeout(400)]

CODECS = ["none", "gzip", "snappy", "lz4"]


@pytest.fixture(scope="module")
def steps(cluster: LocalCluster, node_folder: Path) -> Steps:
    """Run the program platformatic.mjs; return the result of each of its steps."""
    arguments = [cluster.bootstrap_servers, f"platformatic-{os.getpid()}"]
    return Steps(["node", str(NODE / "platformatic.mjs"), *arguments], node_folder)


@pytest.fixture
def note(answered: Note, versions: dict[str, str]) -> OwnNote:
    return lambda asked, answer: answered(versions["platformatic"], asked, answer)


def test_platformatic_produces_reads_and_seeks(steps: Steps, note: OwnNote) -> None:
    codecs = CODECS + ["zstd"] * ("produce zstd" in steps)
    placed = steps.answers(*(f"produce {codec}" for codec in codecs))
    assert placed == [[2 * n] for n in range(len(codecs))]
    expected: list[Any] = []
    for n, codec in enumerate(codecs):
        expected += [[2 * n, "k", codec, [["h", "x"]]], [2 * n + 1, "gone", None, []]]
    read, sought = steps.answers("consume", "seek")
    assert read == {"rows": expected, "state": "STABLE"}
    assert sought["rows"] == expected[-1:]
    note(f"produce, idempotent, and consume in a group: {', '.join(codecs)}; seek", "served")


def test_platformatic_administers_a_cluster(steps: Steps, note: OwnNote) -> None:
    assert steps.answers("createTopics", "listTopics", "commit", "listGroups") == [
        1,
        True,
        7,
        True,
    ]
    assert steps.answers("createPartitions", "deleteGroups", "deleteTopics") == [None] * 3
    assert steps.answers("describeConfigs", "describeLogDirs") == [
        [["retention.ms", "604800000"]],
        3,
    ]
    note("admin: topics, partitions, configs, log dirs, groups and their offsets", "served")


def test_platformatic_gets_an_error_for_acls_without_an_authorizer(
    steps: Steps, note: OwnNote
) -> None:
    assert "response with error while executing API DescribeAcls" in steps.error("describeAcls")
    note("describeAcls without an authorizer", "refused: SecurityDisabled")
