"""Run ``logbus topic`` on a real cluster."""

from __future__ import annotations

import csv
import json
import uuid

from support.fix_command_line import Logbus, rows


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
