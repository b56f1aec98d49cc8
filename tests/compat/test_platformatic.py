"""@platformatic/kafka, unchanged, fetched by the user's npm: the newer of Node's own clients."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from client_programs import NODE, Note

from broker_lite.local.cluster import LocalCluster

pytestmark = [pytest.mark.compat, pytest.mark.timeout(400)]

CODECS = ["none", "gzip", "snappy", "lz4"]
RUN_SECONDS = 120

Steps = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def steps(cluster: LocalCluster, node_folder: Path) -> Steps:
    """What each step of platformatic.mjs was answered."""
    topic = f"platformatic-{os.getpid()}"
    done = subprocess.run(
        ["node", str(NODE / "platformatic.mjs"), cluster.bootstrap_servers, topic],
        cwd=node_folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return {row["step"]: row for row in map(json.loads, done.stdout.splitlines())}


@pytest.fixture
def note(answered: Note, versions: dict[str, str]) -> Callable[[str, str], None]:
    return lambda asked, answer: answered(versions["platformatic"], asked, answer)


def answers(steps: Steps, *names: str) -> list[Any]:
    """The answers to steps that were served."""
    assert [steps[name].get("error") for name in names] == [None] * len(names)
    return [steps[name]["answer"] for name in names]


def test_it_produces_reads_and_seeks(steps: Steps, note: Callable[[str, str], None]) -> None:
    codecs = CODECS + ["zstd"] * ("produce zstd" in steps)
    placed = answers(steps, *(f"produce {codec}" for codec in codecs))
    assert placed == [[2 * n] for n in range(len(codecs))]
    expected: list[Any] = []
    for n, codec in enumerate(codecs):
        expected += [[2 * n, "k", codec, [["h", "x"]]], [2 * n + 1, "gone", None, []]]
    read, sought = answers(steps, "consume", "seek")
    assert read == {"rows": expected, "state": "STABLE"}
    assert sought["rows"] == expected[-1:]
    note(f"produce, idempotent, and consume in a group: {', '.join(codecs)}; seek", "served")


def test_it_administers(steps: Steps, note: Callable[[str, str], None]) -> None:
    assert answers(steps, "createTopics", "listTopics", "commit", "listGroups") == [
        1,
        True,
        7,
        True,
    ]
    assert answers(steps, "createPartitions", "deleteGroups", "deleteTopics") == [None] * 3
    assert answers(steps, "describeConfigs", "describeLogDirs") == [
        [["retention.ms", "604800000"]],
        3,
    ]
    note("admin: topics, partitions, configs, log dirs, groups and their offsets", "served")


def test_what_is_not_served_is_refused(steps: Steps, note: Callable[[str, str], None]) -> None:
    """By the client itself: the broker's list of APIs does not name them."""
    assert "Unsupported API" in steps["describeAcls"]["error"]
    note("describeAcls", "refused: UnsupportedVersion")
