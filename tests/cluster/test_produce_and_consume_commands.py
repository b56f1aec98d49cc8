"""Run ``logbus produce`` and ``logbus consume`` on a real cluster: pipes, formats and errors."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from support.fix_command_line import Logbus, rows
from support.patience import until

from broker_lite.bus import connect
from broker_lite.cli.consume import TopicReader
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import TopicPartition


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
    assert done.stderr == b"2 of 4 records without a key: no ':'\n"
    done = logbus("produce", new_topic, "-K", ":", stdin=b"no key\n")
    assert done.stderr == b"1 of 1 record without a key: no ':'\n"
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


def test_consume_in_a_group_ends_with_an_error_when_its_topic_is_deleted(
    logbus: Logbus, new_topic: str, environment: dict[str, str]
) -> None:
    """Regression: the group revoked the topic's partitions, and the command waited for ever."""
    logbus("produce", new_topic, "-p", "0", stdin=b"one\n")
    command = [sys.executable, "-P", "-m", "broker_lite", "consume", new_topic]
    with subprocess.Popen(
        [*command, "-g", f"g-{new_topic}"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as consumer:
        try:
            assert consumer.stdout and consumer.stderr
            assert consumer.stdout.readline() == b"one\n"
            logbus("topic", "delete", new_topic, "--yes")
            assert consumer.wait(60) == 1
        finally:
            consumer.kill()
        said = consumer.stderr.read().decode()
    assert f"topic {new_topic!r} was deleted while it was read" in said


def test_consume_of_chosen_partitions_refuses_a_group_that_has_members(
    logbus: Logbus, new_topic: str, cluster: LocalCluster
) -> None:
    """Regression: the command printed all records, then ended with a bare UNKNOWN_MEMBER_ID."""
    group = f"g-{new_topic}"
    logbus("produce", new_topic, "-p", "0", stdin=b"one\n")
    chosen = ("consume", new_topic, "-g", group, "-p", "0", "-e")
    with (
        connect(cluster.bootstrap_servers) as bus,
        bus.consumer(new_topic, group=group, start="earliest"),
    ):
        refused = logbus(*chosen, code=1)
    said = f"group {group!r} has members, and -p with -g needs a group without members"
    assert refused.stdout == b"" and said in refused.stderr.decode()
    assert logbus(*chosen).stdout == b"one\n"


def _feed(pipe: Any, lines: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):
        pipe.write(lines)
        pipe.close()


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


def test_error_for_malformed_input_counts_one_record_in_the_singular(
    logbus: Logbus, new_topic: str
) -> None:
    lines = b'{"value": "v"}\n{bad\n'
    said = logbus("produce", new_topic, "--input", "jsonl", stdin=lines, code=1).stderr
    assert f"1 of 1 record is known to be in {new_topic}\n".encode() in said


def test_key_delimiter_option_accepts_the_escapes_of_kcat(logbus: Logbus, new_topic: str) -> None:
    logbus("produce", new_topic, "-K", r"\t", "-p", "0", stdin=b"k1\tv1\n")
    logbus("produce", new_topic, "-K", r"\x00\xff", "-p", "0", stdin=b"k2\0\xffv2\n")
    printed = logbus("consume", new_topic, "-e", "-f", r"%k=%v\x7c").stdout
    assert printed == b"k1=v1|k2=v2|"
