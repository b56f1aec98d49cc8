"""Run other ``logbus`` commands on a real cluster; check how commands find the cluster, their exit
codes and errors."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from support.fix_command_line import Logbus, rows
from support.log_batches import segments_of
from support.patience import until

from broker_lite.cli import completion
from broker_lite.local.cluster import LocalCluster


def test_commands_find_the_cluster_by_option_context_or_client_config_file(
    logbus: Logbus,
    cluster: LocalCluster,
    environment: dict[str, str],
    new_topic: str,
    tmp_path: Path,
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
    # Regression: ``status`` ignored the file, and the selected context overrode it.
    (tmp_path / "client.conf").write_text(f"bootstrap.servers={cluster.bootstrap_servers}\n")
    environment["LOGBUS_CLIENT_CONFIG"] = str(tmp_path / "client.conf")
    logbus("context", "create", "nobody", "-b", "127.0.0.1:1")
    logbus("context", "use", "nobody")
    assert rows(logbus("status")) == [status]
    del environment["LOGBUS_CLIENT_CONFIG"]
    logbus("context", "use", "here")
    assert new_topic in {row["topic"] for row in rows(logbus("topic", "list"))}


def test_names_of_a_slow_cluster_are_offered_by_a_later_completion(
    cluster: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Regression: a cluster that took longer than ``ANSWER_SECONDS`` to answer, such as one with
    TLS and logins, had no names at all."""
    for name in ("CONFIG", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path))
    monkeypatch.setattr(completion, "ANSWER_SECONDS", 0.0)
    params = {"bootstrap_servers": cluster.bootstrap_servers}
    assert completion.names("topic", params) == []
    until(lambda: topic in completion.names("topic", params), what="the names in the cache")


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
