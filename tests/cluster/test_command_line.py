"""Run ``logbus`` commands on a real cluster; check pipes, formats and exit codes."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kazoo.client import KazooClient
from support.log_batches import segments_of
from support.patience import until

from broker_lite.bus import connect
from broker_lite.cli.consume import TopicReader
from broker_lite.cli.main import run
from broker_lite.client.administration.query_lease import lease_text
from broker_lite.errors import GroupLeaseHeldError
from broker_lite.local.cluster import LocalCluster
from broker_lite.metadata import znodes
from broker_lite.model import CommittedOffset, TopicPartition

Logbus = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def environment(cluster: LocalCluster, tmp_path: Path) -> dict[str, str]:
    return os.environ | {
        "LOGBUS_BOOTSTRAP_SERVERS": cluster.bootstrap_servers,
        "XDG_DATA_HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }


@pytest.fixture
def logbus(environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Logbus:
    """Return a function that runs a command in this process, which is faster than a new process."""

    def run_command(*arguments: str, stdin: bytes = b"", code: int | None = 0) -> Any:
        with contextlib.ExitStack() as opened:
            files = [opened.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
            files[0].write(stdin)
            files[0].seek(0)
            patch = opened.enter_context(monkeypatch.context())
            patch.setattr(os, "environ", environment)
            patch.chdir(tmp_path)
            opened.enter_context(_standard_streams(files, patch))
            returned = run([*arguments])
            for file in files:
                file.seek(0)
            done = subprocess.CompletedProcess(
                arguments, returned, files[1].read(), files[2].read()
            )
        assert code in (done.returncode, None), done.stderr.decode()
        return done

    return run_command


@contextlib.contextmanager
def _standard_streams(files: Sequence[BinaryIO], patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replace the file descriptors 0 to 2, and Python's streams on them, with files."""
    kept = [os.dup(number) for number in range(3)]
    streams = []
    try:
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            os.dup2(files[number].fileno(), number)
            streams.append(os.fdopen(number, "r" if number == 0 else "w", closefd=False))
            patch.setattr(sys, name, streams[number])
        yield
    finally:
        for stream in streams[1:]:
            stream.flush()
        for number, descriptor in enumerate(kept):
            os.dup2(descriptor, number)
            os.close(descriptor)


@pytest.fixture
def new_topic(logbus: Logbus) -> str:
    name = f"cli-{uuid.uuid4().hex[:8]}"
    logbus("topic", "create", name, "-p", "2")
    return name


def rows(done: subprocess.CompletedProcess[bytes]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_commands_find_the_cluster_by_the_option_bootstrap_servers_or_by_a_context(
    logbus: Logbus, cluster: LocalCluster, environment: dict[str, str], new_topic: str
) -> None:
    del environment["LOGBUS_BOOTSTRAP_SERVERS"]
    logbus("status", code=3)
    logbus("context", "create", "here", "-b", cluster.bootstrap_servers)
    named = ("-b", cluster.bootstrap_servers)
    [status] = rows(logbus("status", *named))
    assert status["running"] == len(cluster.brokers)
    assert {broker["running"] for broker in status["brokers"]} == {True}
    assert sum(broker["leaders"] for broker in status["brokers"]) == status["partitions"] >= 2
    assert rows(logbus("status", "--context", "here")) == [status]
    environment["LOGBUS_CONTEXT"] = "here"
    assert rows(logbus("status")) == [status]
    assert rows(logbus("health")) == [{"state": "ok", "causes": []}]
    findings = {row["check"]: row for row in rows(logbus("doctor", code=None))}
    for check in ("cluster", "replicas", "brokers' disks"):
        assert findings[check]["state"] in ("ok", "info"), findings[check]
    assert cluster.bootstrap_servers in findings["cluster"]["found"]
    del environment["LOGBUS_CONTEXT"]
    logbus("context", "use", "here")
    assert new_topic in {row["topic"] for row in rows(logbus("topic", "list"))}


def test_consume_command_prints_the_lines_sent_by_the_produce_command(
    logbus: Logbus, new_topic: str
) -> None:
    lines = [f"line {number} \xff".encode("latin-1") for number in range(1000)]
    groups = {row["group"] for row in rows(logbus("groups", "list"))}
    logbus("produce", new_topic, stdin=b"\n".join(lines))
    done = logbus("consume", new_topic, "-e")
    assert sorted(done.stdout.splitlines()) == sorted(lines)
    assert done.stderr == b""
    assert logbus("consume", new_topic, "-e", "-n", "10").stdout.count(b"\n") == 10
    assert logbus("consume", new_topic, "-e", "--grep", "line 99").stdout.count(b"\n") == 11
    assert logbus("consume", new_topic, "-e", "-s", "latest").stdout == b""
    assert logbus("consume", new_topic, "-e", "-s", "-3").stdout.count(b"\n") <= 6
    left = {row["group"] for row in rows(logbus("groups", "list"))}
    assert left <= groups, "a consumer without a group created one"


def test_lines_from_a_slow_pipe_are_sent_at_once(
    environment: dict[str, str], new_topic: str
) -> None:
    """While ``tail -f x.log | logbus produce t`` runs, ``logbus consume t`` prints each new line
    at once."""
    command = [sys.executable, "-P", "-m", "broker_lite"]
    consumer = subprocess.Popen(
        [*command, "consume", new_topic], stdout=subprocess.PIPE, env=environment
    )
    producer = subprocess.Popen(
        [*command, "produce", new_topic], stdin=subprocess.PIPE, env=environment
    )
    assert producer.stdin is not None and consumer.stdout is not None
    try:
        for number in range(3):
            line = f"line {number}\n".encode()
            producer.stdin.write(line)
            producer.stdin.flush()
            assert consumer.stdout.readline() == line
        producer.stdin.close()
        assert producer.wait(30) == 0
    finally:
        for process in (producer, consumer):
            process.kill()
            process.wait()
        consumer.stdout.close()


def test_consume_command_prints_keys_headers_and_json_values_that_the_produce_command_sent(
    logbus: Logbus, new_topic: str
) -> None:
    headers = ("-H", "h=x", "-H", "h=y")
    given = b'k1:{"a": 1}\nk2:\nk3:\xff\n'
    logbus("produce", new_topic, "-K", ":", *headers, "-Z", stdin=given)
    done = logbus("consume", new_topic, "-e", "-o", "jsonl")
    found = {row["key"]: row for row in rows(done)}
    assert found["k1"]["value"] == {"a": 1}
    assert found["k2"]["value"] is None
    assert found["k3"]["value"] == {"$b64": "/w=="}
    assert found["k1"]["headers"] == [["h", "x"], ["h", "y"]]
    assert found["k1"]["timestamp"].endswith("Z")
    assert abs(found["k1"]["timestamp_ms"] / 1000 - time.time()) < 600
    logbus("produce", new_topic, "--input", "jsonl", "-p", "1", stdin=done.stdout)
    again = rows(logbus("consume", new_topic, "-e", "-o", "jsonl", "-p", "1", "-s", "-3"))
    kept = ("key", "value", "headers", "timestamp_ms")
    assert sorted([str({k: row[k] for k in kept}) for row in again]) == sorted(
        [str({k: row[k] for k in kept}) for row in found.values()]
    )


def test_produce_reports_once_how_many_lines_have_no_key_separator(
    logbus: Logbus, new_topic: str
) -> None:
    done = logbus("produce", new_topic, "-K", ":", stdin=b"k:v\nno key\n:\n\n")
    assert done.stderr == b"2 of 4 records have no ':', so no key\n"
    assert logbus("produce", new_topic, "-K", ":", stdin=b"k:v\n").stderr == b""


def test_produce_reports_records_per_partition_on_a_terminal(
    environment: dict[str, str], new_topic: str
) -> None:
    main, terminal = pty.openpty()
    try:
        subprocess.run(
            [sys.executable, "-P", "-m", "broker_lite", "produce", new_topic],
            input=b"a\nb\n",
            stderr=terminal,
            env=environment,
            check=True,
            timeout=60,
        )
        said = os.read(main, 1000).decode()
    finally:
        os.close(main)
        os.close(terminal)
    assert re.fullmatch(rf"2 records to {new_topic} in [\d.]+ s\s+", said)


def test_export_shows_its_progress_on_a_terminal(
    environment: dict[str, str], logbus: Logbus, new_topic: str, tmp_path: Path
) -> None:
    logbus("produce", new_topic, stdin=b"x\n" * 500)
    main, terminal = pty.openpty()
    command = [sys.executable, "-P", "-m", "broker_lite", "consume", new_topic, "-e"]
    try:
        with (tmp_path / "records").open("wb") as file:
            subprocess.run(
                command, stdout=file, stderr=terminal, env=environment, check=True, timeout=60
            )
        said = os.read(main, 10_000).decode()
    finally:
        os.close(main)
        os.close(terminal)
    assert (tmp_path / "records").read_bytes() == b"x\n" * 500
    assert "records" in said and "100%" in said


def test_interrupted_produce_reports_the_number_of_acknowledged_records(
    environment: dict[str, str], new_topic: str
) -> None:
    """Without this number, the user would not know from which record to send again."""
    command = [sys.executable, "-P", "-m", "broker_lite"]
    with (
        subprocess.Popen(
            [*command, "consume", new_topic], stdout=subprocess.PIPE, env=environment
        ) as consumer,
        subprocess.Popen(
            [*command, "produce", new_topic],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            # A test in the background inherits from its shell that Ctrl-C is ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as producer,
    ):
        try:
            assert producer.stdin and producer.stderr and consumer.stdout
            producer.stdin.write(b"a\nb\nhalf a li")
            producer.stdin.flush()
            assert sorted(consumer.stdout.readline() for _ in range(2)) == [b"a\n", b"b\n"]
            producer.send_signal(signal.SIGINT)
            # Standard input stays open, so that only Ctrl-C can end the command.
            producer.wait(timeout=60)
            said = producer.stderr.read().decode()
        finally:
            consumer.kill()
            producer.kill()
    assert producer.returncode == 130
    assert re.fullmatch(rf"2 records to {new_topic} in [\d.]+ s\n", said)


def test_consume_command_reports_a_start_offset_beyond_the_log_end(
    logbus: Logbus, new_topic: str
) -> None:
    logbus("produce", new_topic, "-p", "1", stdin=b"a\nb\n")
    done = logbus("consume", new_topic, "-e", "-s", "7", "-p", "1")
    assert done.stdout == b""
    told = f"offset 7 is past the end: {new_topic}-1 ends at 2; reading begins there\n"
    assert done.stderr.decode() == told
    assert logbus("consume", new_topic, "-e", "-s", "2", "-p", "1").stderr == b""


def test_export_to_a_symbolic_link_writes_the_file_to_which_the_link_points(
    logbus: Logbus, new_topic: str, tmp_path: Path
) -> None:
    """Regression: the export replaced a symbolic link or a named pipe by a new file, so a reader of
    the pipe waited for ever. With /dev/stdout, the export would have replaced the link in /dev."""
    os.mkfifo(tmp_path / "pipe.csv")
    refused = logbus("export", new_topic, "pipe.csv", "--yes", code=2).stderr.decode()
    assert f"logbus consume {new_topic} -e -o jsonl" in " ".join(refused.split())
    assert (tmp_path / "pipe.csv").is_fifo()
    (tmp_path / "link.csv").symlink_to("target.csv")
    logbus("export", new_topic, "link.csv")
    assert (tmp_path / "link.csv").is_symlink() and (tmp_path / "target.csv").is_file()


def test_records_exported_to_arrow_or_parquet_can_be_produced_again(
    logbus: Logbus, new_topic: str, tmp_path: Path
) -> None:
    logbus("produce", new_topic, "-k", "key", stdin=b"a\nb\nc\n")
    (tmp_path / "t.parquet").write_bytes(logbus("consume", new_topic, "-e", "-o", "parquet").stdout)
    logbus("produce", new_topic, "t.parquet")
    stream = logbus("consume", new_topic, "-e", "-o", "arrow").stdout
    table = pa.ipc.open_stream(io.BytesIO(stream)).read_all()
    assert sorted(table.column("value").to_pylist()) == [b"a", b"a", b"b", b"b", b"c", b"c"]
    assert set(table.column("key").to_pylist()) == {b"key"}
    (tmp_path / "bad.parquet").write_bytes(b"nonsense")
    assert b"INVALID_SCHEMA" in logbus("produce", new_topic, "bad.parquet", code=1).stderr


def test_command_whose_output_pipe_is_closed_ends_without_an_error(
    environment: dict[str, str], new_topic: str
) -> None:
    logbus = f"{sys.executable} -P -m broker_lite"
    script = (
        f"seq 200000 | {logbus} produce {new_topic} && "
        f"{logbus} consume {new_topic} | head -n 1; echo ${{PIPESTATUS[@]}}"
    )
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=environment, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "0 0", done.stderr
    assert done.stderr == ""


def test_consume_on_an_idle_topic_exits_when_the_reader_of_its_output_pipe_exits(
    environment: dict[str, str], logbus: Logbus, new_topic: str
) -> None:
    """Run ``logbus consume t | head -n 1``; head exits after the first record."""
    logbus("produce", new_topic, stdin=b"one\ntwo\n")
    command = [sys.executable, "-P", "-m", "broker_lite", "consume", new_topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as consumer:
        assert consumer.stdout is not None and consumer.stdout.readline() == b"one\n"
        consumer.stdout.close()
        assert consumer.wait(60) == 0


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


def test_start_of_a_group_member_replaces_the_committed_offsets_before_it_reads_a_record(
    logbus: Logbus, new_topic: str, cluster: LocalCluster
) -> None:
    """Regression: a member that lost its partitions before its first commit, as during an outage,
    then began at the earliest offset."""
    group = f"g-{new_topic}"
    logbus("produce", new_topic, stdin=b"a\nb\nc\n" * 10)
    ends = {TopicPartition(new_topic, number): 0 for number in (0, 1)}
    with connect(cluster.bootstrap_servers) as bus:
        ends = {
            tp: row.offset for tp, row in bus.admin.list_offsets(dict.fromkeys(ends, -1)).items()
        }
        assert sum(ends.values()) == 30
        options = {"start": "earliest", "auto_commit": False}
        reader = TopicReader(
            cluster.bootstrap_servers, (new_topic,), group, dict(ends), options, {}
        )
        with reader.open(None) as consumer:
            while reader.starts:
                assert consumer.poll(0.1) == []
            committed = bus.admin.committed(group)
            assert {tp: row.offset for tp, row in committed.items()} == ends


def test_rate_limited_produce_ends_soon_after_its_topic_is_deleted(
    logbus: Logbus, new_topic: str, environment: dict[str, str]
) -> None:
    """Regression: the command looked at the outcome of its records only after each megabyte of
    input, which it had not sent within hours."""
    command = [sys.executable, "-P", "-m", "broker_lite", "produce", new_topic, "--rate", "20"]
    command += ["-X", "delivery.timeout.ms=3000", "-X", "request.timeout.ms=1000"]
    lines = b"".join(b"%d\n" % number for number in range(100_000))
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as sending:
        feeding = threading.Thread(target=_feed, args=(sending.stdin, lines), daemon=True)
        feeding.start()
        until(lambda: logbus("consume", new_topic, "-e").stdout.count(b"\n") > 5, what="records")
        logbus("topic", "delete", new_topic, "--yes")
        said = sending.stderr.read() if sending.stderr else b""
    assert sending.returncode == 1
    assert b"are known to be in" in said


def _feed(pipe: Any, lines: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):
        pipe.write(lines)
        pipe.close()


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


def test_user_is_deleted_only_after_confirmation(logbus: Logbus, tmp_path: Path) -> None:
    name = f"user-{uuid.uuid4().hex[:8]}"
    (tmp_path / "password").write_text("a password\n")
    logbus("user", "add", name, "--password-file", "password")
    asked = logbus("user", "delete", name, stdin=b"n\n", code=1)
    assert b"with its passwords?" in asked.stderr
    assert name in {row["user"] for row in rows(logbus("user", "list"))}
    logbus("user", "delete", name, "--dry-run")
    kept = logbus("user", "add", name, "--if-not-exists", "--password-file", "password")
    assert b"keeps its password" in kept.stderr
    again = logbus("user", "add", name, "--password-file", "password", stdin=b"n\n", code=1)
    assert b"Replace the password" in again.stderr
    for words in (["user", "add", name], ["user", "rotate", name]):
        assert b"nothing was changed" in logbus(*words, "--dry-run").stderr
    logbus("user", "add", name, "--password-file", "password", "--yes")
    quota = ["quota", "set", "producer_byte_rate", "1000", "--user", name]
    assert b"no quota -> 1000" in logbus(*quota, "--dry-run").stderr
    assert name not in {row["user"] for row in rows(logbus("quota", "list"))}
    logbus("user", "delete", name, stdin=b"y\n")
    assert name not in {row["user"] for row in rows(logbus("user", "list"))}
    # Regression: --dry-run announced the deletion of a user that does not exist.
    missing = logbus("user", "delete", name, "--dry-run", code=1)
    assert f"there is no user '{name}'".encode() in missing.stderr


def test_topic_commands_manage_topics(logbus: Logbus) -> None:
    name = f"cli-{uuid.uuid4().hex[:8]}"
    logbus("topic", "create", name, "-p", "2", "-c", "retention.ms=60000", "--dry-run")
    assert name not in [row["topic"] for row in rows(logbus("topic", "list"))]
    logbus("topic", "create", name, "-p", "2", "-c", "retention.ms=60000")
    logbus("topic", "create", name, "--if-not-exists")
    assert b"exists" in logbus("topic", "create", name, code=1).stderr
    alter = ("topic", "alter", name, "-c", "segment.ms=1000", "--reset", "retention.ms", "-p", "3")
    plan = logbus(*alter, "--dry-run").stderr
    for line in (b"segment.ms: ", b"retention.ms: 60000 -> the default", b"partitions: 2 -> 3"):
        assert line in plan
    assert b"Added partitions stay for good" in logbus(*alter, stdin=b"n\n", code=1).stderr
    assert rows(logbus("topic", "describe", name))[0]["config"] == {"retention.ms": "60000"}
    logbus(*alter, "--yes")
    described = rows(logbus("topic", "describe", name))[0]
    assert described["config"] == {"segment.ms": "1000"}
    assert [part["partition"] for part in described["partitions"]] == [0, 1, 2]
    table = csv.DictReader(
        logbus("topic", "describe", name, "-o", "csv").stdout.decode().splitlines()
    )
    assert [(row["topic"], row["partition"]) for row in table] == [(name, p) for p in "012"]
    logbus("produce", name, "-p", "0", stdin=b"a\nb\nc\n")
    planned = logbus("topic", "trim", name, "--before", "2", "--dry-run").stderr.decode()
    assert "before offset 2" in planned
    assert f"{name}-1: 2 is outside of the log; using its end 0" in planned
    refused = logbus("topic", "trim", name, "--before", "2", code=1)
    assert b"--yes answers the question" in refused.stderr
    trimmed = rows(logbus("topic", "trim", name, "--before", "2", "--yes"))
    assert {row["partition"]: row["start"] for row in trimmed} == {0: 2, 1: 0, 2: 0}
    one = rows(logbus("topic", "trim", name, "--before", "latest", "-p", "1", "--yes"))
    assert [row["partition"] for row in one] == [1]
    assert (
        b"partitions 0 to 2, not 7"
        in logbus("topic", "trim", name, "--before", "1", "-p", "7", code=2).stderr
    )
    assert logbus("consume", name, "-e").stdout == b"c\n"
    near = logbus("topic", "describe", name[:-1], code=1).stderr
    assert f"did you mean {name}".encode() in near
    logbus("topic", "delete", name, code=1)
    logbus("topic", "delete", name, "--yes")
    gone = logbus("topic", "delete", name, "--yes", code=1).stderr
    assert b"does not exist" in gone and b"create" not in gone
    logbus("topic", "delete", name, "--yes", "--if-exists")


def test_topic_alter_asks_before_a_change_that_loses_records(
    logbus: Logbus, new_topic: str
) -> None:
    def retention() -> str | None:
        config = rows(logbus("topic", "describe", new_topic))[0]["config"]
        found: str | None = config.get("retention.ms")
        return found

    lower = ("topic", "alter", new_topic, "-c", "retention.ms=60000")
    asked = logbus(*lower, stdin=b"n\n", code=1)
    assert b"beyond the lower retention.ms. Go on?" in asked.stderr and retention() is None
    (plan,) = rows(logbus(*lower, "--dry-run", "-o", "jsonl"))
    change = {"topic": new_topic, "setting": "retention.ms", "from": "604800000", "to": "60000"}
    assert plan == {**change, "altered": False} and retention() is None
    logbus(*lower, stdin=b"y\n")
    assert retention() == "60000"
    raised = logbus("topic", "alter", new_topic, "--reset", "retention.ms")
    assert b"Go on?" not in raised.stderr and retention() is None


def test_json_output_of_a_command_with_several_changes_is_one_document(logbus: Logbus) -> None:
    names = [f"cli-{uuid.uuid4().hex[:8]}" for _ in range(2)]
    made = json.loads(logbus("topic", "create", *names, "-p", "1", "-o", "json").stdout)
    assert [(row["topic"], row["created"]) for row in made] == [(name, True) for name in names]
    again = logbus("topic", "create", names[0], "--if-not-exists", "-o", "json").stdout
    (kept,) = json.loads(again)
    assert (kept["topic_id"], kept["created"]) == (made[0]["topic_id"], False)
    # The second topic exists already, so the command fails. It still reports the first topic.
    new = f"{names[0]}-new"
    partly = logbus("topic", "create", new, names[1], "-p", "1", "-o", "json", code=1)
    assert [row["topic"] for row in json.loads(partly.stdout)] == [new]
    assert json.loads(partly.stderr)["error"] == "TOPIC_ALREADY_EXISTS"
    deleted = logbus(
        *("topic", "delete", *names, new, "nosuch", "--if-exists", "--yes", "-o", "json")
    )
    assert [row["deleted"] for row in json.loads(deleted.stdout)] == [True, True, True, False]


def test_error_for_a_malformed_input_line_names_the_line_to_resume_at(
    logbus: Logbus, new_topic: str, tmp_path: Path
) -> None:
    file, later = tmp_path / "rows.jsonl", tmp_path / "more.jsonl"
    file.write_bytes(b'{"value": "%s"}\n\n' % (b"v" * 1000) * 1500 + b"{bad\n")
    logbus("produce", new_topic, "--input", "jsonl", stdin=b"\n\n")
    later.write_bytes(b'{"value": "v"}\n')
    files = (str(file), str(later))
    said = logbus("produce", new_topic, "--input", "jsonl", *files, code=1).stderr
    assert b"rows.jsonl line 3001: not a JSON object" in said
    assert f"1,500 of 1,500 records are known to be in {new_topic}".encode() in said
    assert f"resume from line 3001 of {file}, then send {later}".encode() in said
    assert len(logbus("consume", new_topic, "-e").stdout.splitlines()) == 1500


def test_key_delimiter_option_accepts_the_escapes_of_kcat(logbus: Logbus, new_topic: str) -> None:
    logbus("produce", new_topic, "-K", r"\t", "-p", "0", stdin=b"k1\tv1\n")
    logbus("produce", new_topic, "-K", r"\x00\xff", "-p", "0", stdin=b"k2\0\xffv2\n")
    printed = logbus("consume", new_topic, "-e", "-f", r"%k=%v\x7c").stdout
    assert printed == b"k1=v1|k2=v2|"


def test_error_of_a_command_names_the_wrong_argument_or_input_line(
    logbus: Logbus, new_topic: str
) -> None:
    assert b"may not see it" in logbus("produce", "nosuch", code=1).stderr
    assert b"logbus topic create" in logbus("consume", "nosuch", code=1).stderr
    assert b"partitions 0 to 1" in logbus("consume", new_topic, "-p", "7", code=2).stderr
    assert b"give earliest" in logbus("consume", new_topic, "-s", "never", code=2).stderr
    assert (
        b"did you mean" in logbus("topic", "alter", new_topic, "-c", "retention.m=1", code=1).stderr
    )
    assert b"KEY=VALUE" in logbus("topic", "create", "x", "-c", "retention", code=2).stderr
    lost = logbus("produce", new_topic, "--input", "jsonl", stdin=b'{"a": 1}\n', code=1).stderr
    assert b"stdin line 1: field 'a'" in lost
    assert f"no records were sent to {new_topic}".encode() in lost
    assert (
        b"stdin line 1: longer than"
        in logbus("produce", new_topic, stdin=bytes(9 << 20), code=1).stderr
    )
    assert b"is not text" in logbus("produce", new_topic, "-H", "a\udcff=b", code=2).stderr
    logbus("consume", new_topic, "-t", "0.2", code=124)
    logbus("topic", "list", "-b", "127.0.0.1:1", code=3)


def test_storage_command_reads_segments_offline(
    logbus: Logbus, new_topic: str, cluster: LocalCluster, tmp_path: Path
) -> None:
    logbus("produce", new_topic, "-p", "0", stdin=b"a\nb\n")
    topic_id = rows(logbus("topic", "describe", new_topic))[0]["topic_id"]
    segment = segments_of(cluster.directory, topic_id)[0]
    assert rows(logbus("storage", "inspect", str(segment)))[0]["records"] == 2
    assert rows(logbus("storage", "verify", str(segment.parent)))[0]["problems"] == []
    bad = tmp_path / segment.name
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    bad.write_bytes(data)
    assert rows(logbus("storage", "verify", str(bad), code=5))[0]["problems"]


def test_command_perf_prints_throughput(logbus: Logbus) -> None:
    for command in ("produce", "consume"):
        (figures,) = rows(logbus("perf", command, "-n", "2000", "-p", "1", "-X", "client.id=x"))
        assert figures["records"] == 2000
        assert figures["records_per_s"] > 0
    (figures,) = rows(logbus("perf", "latency", "-n", "5"))
    assert 0 < figures["p50_ms"] <= figures["p99_ms"]
    assert not [row for row in rows(logbus("topic", "list")) if row["topic"].startswith("perf-")]


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_export_writes_every_record_into_a_file(
    form: str, logbus: Logbus, new_topic: str, tmp_path: Path
) -> None:
    values = sorted(f'{{"n": {number}, "text": "a,b"}}' for number in range(300))
    logbus("produce", new_topic, stdin="\n".join(values).encode())
    file = tmp_path / f"records.{form}"
    done = logbus("export", new_topic, file.name)
    assert f"300 records of {new_topic} in {file.name}" in done.stderr.decode()
    assert done.stdout == b"" and sorted(tmp_path.glob(".*")) == []
    (plan,) = rows(logbus("export", new_topic, "other.csv", "--dry-run", "-o", "jsonl"))
    assert (plan["offsets"], plan["exported"]) == (300, False)
    assert not (tmp_path / "other.csv").exists()
    if form == "parquet":
        found = pq.read_table(file).column("value").to_pylist()
        assert sorted(value.decode() for value in found) == values
        (again,) = rows(logbus("produce", new_topic, file.name, "-o", "jsonl"))
        assert again["records"] == 300
    elif form == "csv":
        with file.open(newline="") as rows_of_file:
            assert sorted(row["value"] for row in csv.DictReader(rows_of_file)) == values
        (again,) = rows(logbus("produce", new_topic, file.name, "-o", "jsonl"))
        assert again["records"] == 300
    else:
        envelopes = [json.loads(line) for line in file.read_text().splitlines()]
        assert sorted(row["value"]["n"] for row in envelopes) == list(range(300))
    # export replaces an existing file only with --yes. Even without records to export it writes a
    # file.
    assert b"Replace" in logbus("export", new_topic, file.name, code=1).stderr
    latest = ("export", new_topic, file.name, "-s", "latest")
    (done_row,) = rows(logbus(*latest, "--yes", "-o", "jsonl"))
    assert (done_row["records"], done_row["exported"]) == (0, True)
    assert file.exists() and str(values[0]) not in file.read_bytes().decode("latin-1")


def test_export_refuses_folders_and_file_names_with_an_unknown_suffix(
    logbus: Logbus, new_topic: str, tmp_path: Path
) -> None:
    assert b"give --format" in logbus("export", new_topic, "records.xls", code=2).stderr
    refused = logbus("export", new_topic, "no where/records.csv", code=1).stderr
    assert b"records.csv cannot be written: the folder 'no where' does not exist" in refused
    assert refused.strip().endswith(b"mkdir -p 'no where'")
    (tmp_path / "file").write_bytes(b"")
    refused = logbus("export", new_topic, "file/records.csv", code=1).stderr
    assert b"'file' is not a folder. Name another file" in refused
