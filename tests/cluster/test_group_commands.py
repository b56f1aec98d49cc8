"""Run ``logbus groups`` and ``logbus lag`` on a real cluster."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import uuid
from typing import Any

import pytest
from kazoo.client import KazooClient
from support.fix_command_line import Logbus, rows

from broker_lite.bus import connect
from broker_lite.client.administration.query_lease import lease_text
from broker_lite.errors import GroupLeaseHeldError
from broker_lite.local.cluster import LocalCluster
from broker_lite.metadata import znodes
from broker_lite.model import CommittedOffset, TopicPartition


def test_groups_describe_and_lag_commands_show_committed_offsets_and_lag(
    logbus: Logbus, new_topic: str
) -> None:
    group = f"g-{new_topic}"
    logbus("produce", new_topic, stdin=b"x\n" * 100)
    assert logbus("consume", new_topic, "-g", group, "-n", "60").stdout.count(b"\n") == 60
    described = rows(logbus("groups", "describe", group))
    assert sum(row["committed"] for row in described) == 60
    assert all(re.fullmatch(r"20..-..-..T.*Z", row["committed_at"]) for row in described)
    (row,) = rows(logbus("lag", "-g", group))
    since = row.pop("lag_s")
    assert row == {"group": group, "topic": new_topic, "partitions": len(described), "lag": 40}
    assert since > 0
    assert all((row["lag_s"] > 0) is (row["lag"] > 0) for row in described)
    logbus("lag", "-g", group, "--warn-s", "9999")
    logbus("lag", "-g", group, "--crit", "40", "--warn-s", "0", code=4)
    logbus("lag", "-g", group, "--crit-s", "0", code=5)
    logbus("lag", "-g", group, "--warn", "40")
    logbus("lag", "-g", group, "--warn", "39", code=4)
    logbus("lag", "-g", group, "--warn", "1", "--crit", "39", code=5)
    assert logbus("consume", new_topic, "-g", group, "-e").stdout.count(b"\n") == 40
    plan = logbus("groups", "seek", group, new_topic, "--to", "earliest", "--dry-run")
    assert b"nothing was changed" in plan.stderr
    assert rows(logbus("lag", "-g", group))[0]["lag"] == 0
    logbus("groups", "seek", group, new_topic, "--to", "earliest", "--yes")
    assert rows(logbus("lag", "-g", group))[0]["lag"] == 100
    mistyped = logbus("groups", "seek", "nosuch", new_topic, "--to", "earliest", "--dry-run")
    assert b"group 'nosuch' does not exist; this creates it" in mistyped.stderr
    for command in ("describe", "members", "delete"):
        assert b"logbus groups list" in logbus("groups", command, "nosuch", code=1).stderr


def test_groups_commands_reset_offsets_and_delete_groups(logbus: Logbus, new_topic: str) -> None:
    group, other = f"g-{new_topic}", f"{new_topic}-2"
    logbus("topic", "create", other, "-p", "1")
    for topic in (new_topic, other):
        logbus("produce", topic, stdin=b"x\n" * 10)
        logbus("consume", topic, "-g", group, "-e")
    assert sum(row["lag"] for row in rows(logbus("lag", "-g", group))) == 0
    plan = logbus("groups", "reset-offsets", group, "--to", "earliest", "--dry-run")
    assert b"nothing was changed" in plan.stderr
    assert {row["topic"] for row in rows(plan)} == {new_topic, other}
    beyond = logbus("groups", "reset-offsets", group, "--to", "9999", stdin=b"n\n", code=1)
    assert b"Move these offsets of group" in beyond.stderr
    assert f"{other}-0: 9999 is outside of the log; using its end 10" in beyond.stderr.decode()
    assert sum(row["to"] for row in rows(beyond)) == 20
    logbus("groups", "reset-offsets", group, "--to", "-2", "-t", other, "--yes")
    assert {row["topic"]: row["lag"] for row in rows(logbus("lag", "-g", group))} == {
        new_topic: 0,
        other: 2,
    }
    logbus("groups", "reset-offsets", group, "--to", "earliest", "--yes")
    assert [row["lag"] for row in rows(logbus("lag", "-g", group))] == [10, 10]
    refused = logbus("groups", "seek", group, other, "--to", "1", "-p", "7", code=2)
    assert b"not 7" in refused.stderr
    logbus("groups", "delete", group, "-t", "nosuch", "--yes", code=1)
    logbus("groups", "delete", group, "-t", other, "--yes")
    assert {row["topic"] for row in rows(logbus("groups", "describe", group))} == {new_topic}
    plan = logbus("groups", "delete", group, "--dry-run")
    assert b"nothing was changed" in plan.stderr
    assert sum(row["committed"] for row in rows(plan)) == 0
    logbus("groups", "delete", group, "--yes")
    assert b"GROUP_ID_NOT_FOUND" in logbus("groups", "delete", group, "--yes", code=1).stderr
    assert group not in [row["group"] for row in rows(logbus("groups", "list"))]


def test_group_that_lost_its_coordinator_is_not_reported_empty_if_it_had_members(
    cluster: LocalCluster, logbus: Logbus
) -> None:
    """The group's coordinator has died. As the group's znodes show, the group had members, which
    may rejoin."""
    group = f"g-{uuid.uuid4().hex[:8]}"
    left = znodes.CoordinatorZnode(99, 1, 1, 4, None, "1-1", 2, 600_000)
    zookeeper = KazooClient(cluster.zookeeper)
    zookeeper.start()
    try:
        for path, data in (
            (znodes.group_path(group), znodes.encode_group(znodes.KIND_KAFKA)),
            (znodes.offsets_path(group), b""),
            (znodes.coordinator_path(group), znodes.encode_coordinator(left)),
            (znodes.claim_path(group, left.claim), b""),
        ):
            zookeeper.create(path, data)
    finally:
        zookeeper.stop()
        zookeeper.close()
    listed = [row for row in rows(logbus("groups", "list")) if row["group"] == group]
    assert listed == [{"group": group, "state": "PreparingRebalance", "kind": "Consumer"}]
    for command in ("members", "describe"):
        assert (
            b"had members when its coordinator went down" in logbus("groups", command, group).stderr
        )
    assert b"NON_EMPTY_GROUP" in logbus("groups", "delete", group, "--yes", code=1).stderr


def test_groups_describe_lists_partitions_with_offsets_of_open_transactions(
    cluster: LocalCluster, logbus: Logbus, new_topic: str
) -> None:
    group, tp = f"g-{new_topic}", TopicPartition(new_topic, 0)
    with connect(cluster.bootstrap_servers) as bus:
        bus.admin.commit_offsets(group, {tp: 0})
        topic_id = bus.admin.committed(group)[tp].topic_id
    offset = CommittedOffset(5, topic_id=topic_id)
    part = znodes.PendingPart(znodes.TransactionKey(1000, 0, 1), 0)
    value = znodes.encode_pending(znodes.PendingOffsets("copier", {tp: offset}))
    zookeeper = KazooClient(cluster.zookeeper)
    zookeeper.start()
    try:
        zookeeper.create(znodes.part_path(group, str(part)), value, makepath=True)
    finally:
        zookeeper.stop()
        zookeeper.close()
    done = logbus("groups", "describe", group)
    assert [row["committed"] for row in rows(done)] == [0]
    assert f"open transactions have later offsets for {new_topic}-0".encode() in done.stderr
    assert b"NON_EMPTY_GROUP" in logbus("groups", "delete", group, "--yes", code=1).stderr


def test_groups_seek_refuses_to_move_the_offsets_of_a_running_spark_query(
    logbus: Logbus, new_topic: str, cluster: LocalCluster
) -> None:
    """A query holds the group's lease (the right to commit), so its next commit would overwrite the
    moved offsets."""
    group, tp = f"q-{new_topic}", TopicPartition(new_topic, 1)
    logbus("produce", new_topic, stdin=b"x\n" * 10)
    commands: tuple[tuple[str, ...], ...] = (
        ("seek", group, new_topic, "--to", "earliest"),
        ("reset-offsets", group, "--to", "earliest"),
        ("delete", group, "-t", new_topic),
        ("delete", group),
    )
    with connect(cluster.bootstrap_servers) as bus:
        until_ms = int(time.time() * 1000) + 60_000
        held = CommittedOffset(1, metadata=lease_text("query-7", until_ms))
        bus.admin.commit_each(group, {tp: held})
        # Without --yes the commands print a plan. They must refuse instead of asking to confirm it.
        for options in ((), ("--dry-run",), ("--yes",)):
            for command in commands:
                said = logbus("groups", *command, *options, code=1).stderr.decode()
                assert "GROUP_LEASE_HELD" in said and "query-7" in said and "stop the query" in said
                assert "?" not in said
        listed = {"group": group, "state": "Running", "kind": "Spark query"}
        assert rows(logbus("groups", "list", "-r", group)) == [listed]
        for refused in (
            lambda: bus.admin.commit_offsets(group, {tp: 0}),
            lambda: bus.admin.delete_offsets(group, [tp]),
            lambda: bus.admin.delete_group(group),
        ):
            with pytest.raises(GroupLeaseHeldError, match="query-7"):
                refused()
        assert bus.admin.committed(group)[tp].offset == 1
        assert [row["owner"] for row in rows(logbus("groups", "describe", group))] == ["query-7"]
        assert b"(query-7) reads" in logbus("groups", "members", group).stderr
        # An expired lease, as of a killed query, does not prevent a reset.
        bus.admin.commit_each(group, {tp: held._replace(metadata=lease_text("query-7", 1))})
        listed["state"] = "Empty"
        assert rows(logbus("groups", "list", "-r", group)) == [listed]
        for command in commands[1:3]:
            logbus("groups", *command, "--yes")
        assert bus.admin.committed(group) == {}


def test_lag_of_a_missing_group_is_an_error(
    logbus: Logbus, new_topic: str, environment: dict[str, str]
) -> None:
    group = f"g-{new_topic}"
    logbus("produce", new_topic, stdin=b"x\n")
    logbus("consume", new_topic, "-g", group, "-e")
    said = logbus("lag", "-g", group[:-1], "--crit", "1", code=1).stderr.decode()
    assert "GROUP_ID_NOT_FOUND" in said and f"did you mean {group!r}" in said
    said = logbus("lag", "-t", "nosuch", code=1).stderr.decode()
    assert "topic 'nosuch' does not exist, or you may not see it; see: logbus topic list" in said
    later = f"later-{new_topic}"
    watch = subprocess.Popen(
        [sys.executable, "-P", "-m", "broker_lite", "lag", "-g", later, "-w", "--interval", "0.1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    assert watch.stdout is not None and watch.stderr is not None
    try:
        assert b"waiting for it" in watch.stderr.readline()
        logbus("consume", new_topic, "-g", later, "-e")
        # Before the first commit the lag counts from the log start offset.
        while json.loads(watch.stdout.readline())["lag"]:
            pass
    finally:
        watch.kill()
        watch.communicate()


@pytest.mark.parametrize("coordination", ["kafka", "zookeeper"])
def test_lag_of_a_member_without_commits_counts_the_whole_log(
    logbus: Logbus, new_topic: str, cluster: LocalCluster, coordination: str
) -> None:
    """A member that reads but never commits must be reported by ``logbus lag --warn``."""
    group = f"stuck-{new_topic}"
    logbus("produce", new_topic, stdin=b"x\n" * 10)
    options: dict[str, Any] = {"coordination": coordination, "auto_commit": False}
    with (
        connect(zookeeper=cluster.zookeeper) as bus,
        bus.consumer(new_topic, group=group, start="earliest", **options) as consumer,
    ):
        while len(consumer.assignment()) < 2:
            consumer.poll(0.1)
        logbus("lag", "-g", group, "--crit", "10")
        (row,) = rows(logbus("lag", "-g", group, "--warn", "9", code=4))
        assert (row["lag"], row["partitions"]) == (10, 2) and row["lag_s"] >= 0
        described = rows(logbus("groups", "describe", group))
        assert [(each["committed"], each["committed_at"]) for each in described] == [
            (None,) * 2
        ] * 2
        assert all(each["owner"] for each in described)
        kind = {"kafka": "Consumer", "zookeeper": "Native"}[coordination]
        listed = {"group": group, "state": "Stable", "kind": kind}
        assert rows(logbus("groups", "list", "-r", group)) == [listed]
        plan = logbus("groups", "seek", group, new_topic, "--to", "latest", code=1)
        assert len(rows(plan)) == 2 and b"live members" in plan.stderr
        consumer.commit()
        plan = logbus("groups", "delete", group, "-t", new_topic, code=1)
        assert len(rows(plan)) == 2 and b"live members" in plan.stderr
    logbus("groups", "delete", group, "-t", new_topic, "--yes")
    # The group has neither offsets nor members now, so its lag is unknown.
    assert b"is empty" in logbus("groups", "describe", group).stderr
    assert b"its lag is unknown" in logbus("lag", "-g", group, "--crit", "1", code=5).stderr
