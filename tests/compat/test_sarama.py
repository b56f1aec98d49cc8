"""sarama, unchanged, built by the user's Go: what most shippers and collectors written in Go use.

Today's and the last one under its first owner, each as its users have it who set no version, and
with the newest version that it knows.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from client_programs import Note

from broker_lite.local.cluster import LocalCluster

pytestmark = [pytest.mark.compat, pytest.mark.timeout(500)]

NUMBERS = itertools.count()
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
RUN_SECONDS = 120
TIME_MS = 1_700_000_000_000
UNSUPPORTED = "kafka server: The version of API is not supported"

Steps = dict[str, dict[str, Any]]
Variant = tuple[str, str]


@pytest.fixture(
    scope="module",
    params=itertools.product(("sarama", "old sarama"), ("default", "newest")),
    ids="-".join,
)
def variant(request: pytest.FixtureRequest) -> Variant:
    """Which sarama, and for which version of the brokers it takes them."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def steps(cluster: LocalCluster, sarama_clients: dict[str, str], variant: Variant) -> Steps:
    """What each step of sarama/main.go was answered."""
    number = next(NUMBERS)
    topic, group = f"sarama-{os.getpid()}-{number}", f"sarama group {os.getpid()} {number}"
    done = subprocess.run(
        [sarama_clients[variant[0]], "steps", cluster.bootstrap_servers, topic, group, variant[1]],
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return {row["step"]: row for row in map(json.loads, done.stdout.splitlines())}


@pytest.fixture
def note(answered: Note, versions: dict[str, str], variant: Variant) -> Callable[[str, str], None]:
    return lambda asked, answer: answered(versions[variant[0]], asked, answer)


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
    note(f"produce, idempotent, and consume by offset: {', '.join(CODECS)}", "served")


def test_its_records_are_found_by_their_times(
    steps: Steps, note: Callable[[str, str], None]
) -> None:
    """The old one says no newest time of its batches; the broker reads it from their records."""
    names = ("GetOffset newest", "GetOffset of a time", "GetOffset oldest")
    assert answers(steps, *names) == [10, 0, 3]
    note("offsets: newest, oldest, by time", "served")


def test_it_administers_topics(
    steps: Steps, variant: Variant, note: Callable[[str, str], None]
) -> None:
    assert answers(steps, "CreateTopic", "DescribeCluster") == [None, [3, True]]
    assert "already exists" in steps["CreateTopic again"]["error"]
    changes = ("CreatePartitions", "AlterConfig", "DeleteRecords", "DeleteTopic")
    assert answers(steps, *changes) == [None] * 4
    note("admin: topics, partitions, configs, DeleteRecords", "served")
    if variant == ("old sarama", "default"):
        assert "versions 1 to 4 are" in steps["DescribeConfig"]["error"]
        note("DescribeConfig without config.Version", "refused: UnsupportedVersion")
    else:
        assert answers(steps, "DescribeConfig") == [1]


def test_it_administers_groups(
    steps: Steps, variant: Variant, note: Callable[[str, str], None]
) -> None:
    assert answers(steps, "commit with a retention time") == [None]
    assert answers(steps, "ListConsumerGroupOffsets") == [[7, "seven"]]
    assert answers(steps, "ListConsumerGroups", "DescribeConsumerGroups") == [True, "Empty"]
    note("groups: commits with Consumer.Offsets.Retention; offsets, list, describe", "served")
    if variant[0] == "old sarama":
        assert steps["commit"]["error"] == UNSUPPORTED
        note("commits without Consumer.Offsets.Retention", "refused: UnsupportedVersion")
    else:
        assert answers(steps, "commit") == [None]
        note("commits without Consumer.Offsets.Retention", "served")


def test_acls_are_refused(steps: Steps, variant: Variant, note: Callable[[str, str], None]) -> None:
    """The old one does not look at the answer's error, and takes it for an empty list."""
    if variant[0] == "sarama":
        assert steps["ListAcls"]["error"] == UNSUPPORTED
    note("ListAcls", "refused: UnsupportedVersion")
