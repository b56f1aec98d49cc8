"""Lose a transaction coordinator's state, or a transaction's marker. The transaction stays open,
until a logbus command or its partition's leader ends it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import confluent_kafka as ck
import pytest
from support.console import RunningConsole, change
from support.patience import until

from broker_lite.bus import Bus, connect
from broker_lite.client.consuming.consumer import Consumer
from broker_lite.local.broker import LocalBroker
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import TRANSACTION_STATE
from broker_lite.record.control import MARKER_BYTES
from broker_lite.storage import paths

SEARCHES_SOON = {"transaction.max.timeout.ms": "100", "log.retention.check.interval.ms": "50"}
"""Settings with which a leader ends a transaction that has hung for 0.2 seconds."""

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

WAIT_S = 30.0


def logbus(servers: str, *words: str) -> str:
    """Run a command of logbus. Return its output and its error output."""
    command = [sys.executable, "-m", "broker_lite", *words, "-b", servers]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout + done.stderr


def held_back(output: str) -> dict[str, str]:
    """Return what ``logbus doctor`` found about open transactions, from its JSON output."""
    [found] = [row for row in json.loads(output) if row["check"] == "transactions"]
    return dict(found)


def cut_marker(broker: LocalBroker, topic_id: str) -> None:
    """Cut the last marker off the log of a stopped broker, as an unclean election may do."""
    [segment] = broker.directory.glob(f"data/{topic_id}-0/*.log")
    os.truncate(segment, segment.stat().st_size - MARKER_BYTES)
    # Without these files, the broker takes the shorter log for the whole log.
    for name in (paths.CLEAN_MARKER, paths.RECOVERY_POINTS):
        (segment.parents[1] / name).unlink()


def lose_state(broker: LocalBroker, topic_id: str) -> int:
    """Delete a stopped broker's logs of ``__transaction_state``; return their number."""
    lost = list(broker.directory.glob(f"data/{topic_id}-*"))
    for folder in lost:
        shutil.rmtree(folder)
    return len(lost)


def commit_paid(bus: Bus, run: Callable[..., str]) -> None:
    """Commit a transaction in t-0, and wait until its marker is written."""
    with bus.transaction("etl") as transaction:
        transaction.send("t", b"paid")
    until(lambda: "CompleteCommit" in run("transactions", "list"), what="the commit's end")


def read(consumer: Consumer, count: int) -> list[bytes | None]:
    """Return the values of the next records, at least ``count``."""
    values: list[bytes | None] = []
    while len(values) < count:
        values += [row.value for row in consumer.poll(WAIT_S)]
    return values


def abort_in_console(servers: str) -> str:
    """Abort the transaction at offset 0 of t-0 in the console. Return the page that the console
    then shows."""
    console = RunningConsole(servers)
    try:
        until(lambda: console.get("/healthz").status == 200, what="the first reading")
        place = {"topic": "t", "partition": "0", "start_offset": "0"}
        refused = change(console, "/transactions/abort", **place, typed="t-1")
        assert refused.status == 400
        done = change(console, "/transactions/abort", **place, typed="t-0")
        return done.headers["location"].partition("?")[0]
    finally:
        console.close()


@pytest.mark.parametrize("through", ["command", "console"])
def test_transaction_whose_coordinator_lost_its_state_is_found_and_aborted(
    tmp_path: Path, through: str
) -> None:
    """The test deletes the only copy of the coordinator's state while a topic has an open
    transaction."""
    with LocalCluster(1, directory=tmp_path) as cluster:
        (broker,), servers = cluster.brokers, cluster.bootstrap_servers

        run = partial(logbus, servers)
        with connect(servers) as bus:
            bus.create_topic("t", partitions=1)
            producer = ck.Producer({"bootstrap.servers": servers, "transactional.id": "lost"})
            producer.init_transactions(WAIT_S)
            producer.begin_transaction()
            producer.produce("t", b"hidden", partition=0)
            assert producer.flush(WAIT_S) == 0
            found = held_back(run("doctor", "-o", "json"))
            assert "id or Spark sink 'lost', hides records of t-0 from offset 0" in found["found"]
            assert found["cure"].endswith("logbus transactions describe lost")
            state_id = bus.cluster().topics[TRANSACTION_STATE].topic_id
            broker.stop()
            assert lose_state(broker, state_id) == 6
            broker.start()
            with bus.producer() as sender:
                sender.send("t", b"behind").result(WAIT_S)
            with bus.consumer("t", start="earliest") as consumer:
                assert consumer.poll(0.5) == []
                assert "there is no transactional id" in run("transactions", "list")
                assert "no transaction hangs" in run("transactions", "hanging", "-t", "t")
                assert (
                    json.loads(run("transactions", "hanging", "-t", "t", "--idle", "0"))[
                        "start_offset"
                    ]
                    == 0
                )
                found = held_back(run("doctor", "-o", "json"))
                assert "which no coordinator will end" in found["found"]
                assert "logbus transactions abort t 0 --start-offset 0 --yes" in found["cure"]
                if through == "console":
                    assert abort_in_console(servers) == "/transactions"
                else:
                    words = ("t", "0", "--start-offset", "0", "--yes")
                    assert "aborted" in run("transactions", "abort", *words)
                assert [row.value for row in consumer.poll(WAIT_S)] == [b"behind"]
            assert "no transaction hangs" in run(
                "transactions", "hanging", "-t", "t", "--idle", "0"
            )


def test_hanging_transaction_that_its_coordinator_has_committed_is_committed(
    tmp_path: Path,
) -> None:
    with LocalCluster(1, directory=tmp_path) as cluster, connect(cluster.bootstrap_servers) as bus:
        (broker,), run = cluster.brokers, partial(logbus, cluster.bootstrap_servers)
        topic_id = bus.create_topic("t", partitions=1)
        commit_paid(bus, run)
        broker.stop()
        cut_marker(broker, topic_id)
        broker.start()
        with bus.producer() as sender:
            sender.send("t", b"behind").result(WAIT_S)
        with bus.consumer("t", start="earliest") as consumer:
            assert consumer.poll(0.5) == []
            found = json.loads(run("transactions", "hanging", "-t", "t", "--idle", "0"))
            assert (found["start_offset"], found["outcome"]) == (0, "commit")
            assert (
                "which writes the commit marker" in held_back(run("doctor", "-o", "json"))["cure"]
            )
            words = ("t", "0", "--start-offset", "0", "--yes")
            assert "was committed" in run("transactions", "abort", *words)
            assert read(consumer, 2) == [b"paid", b"behind"]
        assert "no transaction hangs" in run("transactions", "hanging", "-t", "t", "--idle", "0")


@pytest.mark.parametrize("is_known", [True, False])
def test_partition_leader_ends_a_hanging_transaction_as_its_coordinator_decided(
    tmp_path: Path, is_known: bool
) -> None:
    with LocalCluster(1, directory=tmp_path) as cluster, connect(cluster.bootstrap_servers) as bus:
        (broker,), run = cluster.brokers, partial(logbus, cluster.bootstrap_servers)
        topic_id = bus.create_topic("t", partitions=1)
        commit_paid(bus, run)
        state_id = bus.cluster().topics[TRANSACTION_STATE].topic_id
        broker.stop()
        cut_marker(broker, topic_id)
        if not is_known:
            assert lose_state(broker, state_id) == 6
        broker.settings |= SEARCHES_SOON
        broker.start()
        with bus.producer() as sender:
            sender.send("t", b"behind").result(WAIT_S)
        wanted = [b"paid", b"behind"] if is_known else [b"behind"]
        with bus.consumer("t", start="earliest") as consumer:
            assert read(consumer, len(wanted)) == wanted
        ended = "committed, as its coordinator" if is_known else "aborted, because no coordinator"
        assert f"open from offset 0, hung and is now {ended}" in broker.log.read_text()


def test_hanging_transaction_stays_open_while_a_coordinator_is_down(tmp_path: Path) -> None:
    """Each broker has the only replicas of some partitions of ``__transaction_state``."""
    config = {"default.replication.factor": "1"}
    with (
        LocalCluster(2, directory=tmp_path, config=config) as cluster,
        connect(cluster.bootstrap_servers) as bus,
    ):
        topic_id = bus.create_topic("t", partitions=1)
        commit_paid(bus, partial(logbus, cluster.bootstrap_servers))
        topics = bus.cluster().topics
        leader_id = topics["t"].partitions[0].leader
        leader, other = sorted(cluster.brokers, key=lambda broker: broker.id != leader_id)
        for broker in (other, leader):
            broker.stop()
            assert lose_state(broker, topics[TRANSACTION_STATE].topic_id) == 3
        cut_marker(leader, topic_id)
        leader.settings |= SEARCHES_SOON
        leader.start()
        with bus.producer() as sender:
            sender.send("t", b"behind").result(WAIT_S)
        with bus.consumer("t", start="earliest") as consumer:
            until(
                lambda: (
                    "open until these partitions of __transaction_state answer"
                    in leader.log.read_text()
                ),
                what="a search",
            )
            assert consumer.poll(0.5) == []
            other.start()
            assert read(consumer, 1) == [b"behind"]
