"""Test kcat, unchanged, from the system's packages: modes, codecs, headers, times and formats.

``test_members`` tests kcat as a group member. The tests are skipped if kcat is not installed.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Callable

import pytest
from support.client_programs import Note, OwnNote

from broker_lite.bus import Bus
from broker_lite.local.cluster import LocalCluster

pytestmark = pytest.mark.real

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
NUMBERS = itertools.count()
RUN_SECONDS = 60

Kcat = Callable[..., str]


@pytest.fixture
def run(kcat: str, cluster: LocalCluster) -> Kcat:
    """Return a function that runs kcat and returns its stdout. With ``fails``, kcat must fail with
    this error."""

    def call(*arguments: str, stdin: str = "", fails: str = "") -> str:
        done = subprocess.run(
            [kcat, "-b", cluster.bootstrap_servers, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_SECONDS,
        )
        assert (done.returncode != 0) is bool(fails), done.stderr
        assert fails in done.stderr
        return done.stdout

    return call


@pytest.fixture
def topic(bus: Bus) -> str:
    """Create a topic of two partitions; wait until every broker's metadata has it."""
    name = f"kcat-{os.getpid()}-{next(NUMBERS)}"
    bus.create_topic(name, partitions=2)
    return name


@pytest.fixture
def note(answered: Note, versions: dict[str, str]) -> OwnNote:
    return lambda asked, answer: answered(versions["kcat"], asked, answer)


def test_kcat_lists_brokers_and_topics(run: Kcat, topic: str, note: OwnNote) -> None:
    found = json.loads(run("-L", "-J", "-t", topic))
    assert len(found["brokers"]) == 3
    (described,) = found["topics"]
    assert [len(row["replicas"]) for row in described["partitions"]] == [3, 3]
    assert "Unknown topic" in run("-L", "-t", f"{topic}-no")
    note("-L", "served")


def test_kcat_produces_and_consumes_every_codec(run: Kcat, topic: str, note: OwnNote) -> None:
    for codec in CODECS:
        lines = f"k:{codec}\nk:{codec * 50}\ngone:\n"
        headers = ("-H", "h=1", "-H", "h=2")
        run("-P", "-t", topic, "-p", "1", "-K:", "-Z", "-z", codec, *headers, stdin=lines)
    rows = [json.loads(row) for row in run("-C", "-t", topic, "-e", "-q", "-J").splitlines()]
    assert [(row["partition"], row["offset"]) for row in rows] == [(1, n) for n in range(15)]
    assert {tuple(row["headers"]) for row in rows} == {("h", "1", "h", "2")}
    expected: list[tuple[str, str | None]] = []
    for codec in CODECS:
        expected += [("k", codec), ("k", codec * 50), ("gone", None)]
    assert [(row["key"], row["payload"]) for row in rows] == expected
    note(f"-P and -C: {', '.join(CODECS)}; keys, headers, tombstones", "served")
    wanted = ("-C", "-t", topic, "-p", "1", "-q", "-f", "%o %k\n")
    assert run(*wanted, "-o", "7", "-c", "2") == "7 k\n8 gone\n"
    assert run(*wanted, "-o", "-1", "-e") == "14 gone\n"
    note("-o: by offset, from the end", "served")


def test_kcat_finds_offsets_by_time(run: Kcat, topic: str, bus: Bus, note: OwnNote) -> None:
    with bus.producer(compression="lz4") as producer:
        for n in range(10):
            producer.send(topic, b"%d" % n, partition=0, timestamp_ms=1000 + n)
    for moment, offset in ((-1, 10), (-2, 0), (1004, 4), (1010, -1)):
        assert run("-Q", "-t", f"{topic}:0:{moment}") == f"{topic} [0] offset {offset}\n"
    between = ("-o", "s@1003", "-o", "e@1006", "-q", "-f", "%o %T\n")
    assert run("-C", "-t", topic, "-p", "0", *between) == "3 1003\n4 1004\n5 1005\n"
    note("-Q; -o s@ and e@, of a batch of Arrow columns", "served")


def test_kcat_gets_kafka_error_codes(run: Kcat, topic: str, bus: Bus, note: OwnNote) -> None:
    unknown = ("-C", "-t", f"{topic}-no", "-e", "-q")
    run(*unknown, fails="Unknown topic or partition")
