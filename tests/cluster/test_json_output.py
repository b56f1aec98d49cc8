"""Compare the field names in the JSON output of commands with a recording, because scripts rely on
them.

``pytest --rewrite`` records the present names.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from support.command_tree import commands
from support.patience import until

from broker_lite.bus import Bus
from broker_lite.cli.main import cli, run
from broker_lite.client.discovery import ENV_BOOTSTRAP
from broker_lite.local.cluster import LocalCluster

GOLDEN = Path(__file__).with_name("json_fields.txt")
OPEN_MAPS = {"config", "settings"}
"""Fields that hold settings by name. The names of settings are not recorded."""

COMMANDS = """
topic create {topic} -p 2
topic list -r {topic}
topic describe {topic}
topic elect {topic}
topic elect {topic} --dry-run
topic reassign {topic} -r 2 --dry-run
topic reassign {topic}
produce {topic} {lines} -o json
consume {topic} -e -n 1
export {topic} {file}
export {topic} {file} --dry-run
top
topic trim {topic} --before 1 --yes
broker list
broker describe 0
config describe --topic {topic}
config describe --broker 0 --changed
config describe --file {settings} --changed
groups list -r {group}
groups describe {group}
groups members {group}
groups seek {group} {topic} --to 1 --dry-run
groups reset-offsets {group} --to latest --dry-run
lag -g {group}
lag -g {group} --by-partition
groups delete {group} --dry-run
topic alter {topic} -c retention.ms=60000 -p 3 --yes
topic delete {topic} --yes
user add {user} --password-file {password}
user rotate {user} --password-file {password}
user delete {user} --yes
quota set producer_byte_rate 1048576 --user {user}
quota list
quota delete producer_byte_rate --user {user} --yes
context create dev -b {servers}
context describe dev
context use dev
context delete dev
transactions list
transactions describe {transaction}
transactions hanging
cert create {user} --dir {folder}/certificates --dry-run
cert create {user} --dir {folder}/certificates
cert list --dir {folder}/certificates
cert show {folder}/certificates/{user}-clients.pem
cert renew --all --dir {folder}/certificates
logs 0 -n 1 --dir {cluster}
doctor
user list
context list
status
health
perf latency -n 5
perf produce -n 100
perf consume -n 100
storage inspect {log}
storage verify {log}
storage strays {data}
"""
ELSEWHERE = {
    "acl": "tests/cluster/test_secured_clusters.py, whose brokers have an authorizer",
    "broker retire": "tests/cluster/test_replica_commands.py",
    "checkpoint": "tests/cluster/test_mirror.py",
    "console": "tests/support/console.py reads its address",
    "demo": "tests/spark/test_demo.py",
    "down": "tests/cluster/test_up_down.py",
    "mirror": "tests/cluster/test_mirror.py",
    "transactions abort": "tests/cluster/test_hanging_transactions.py",
    "up": "tests/cluster/test_up_down.py",
    "zookeeper secure": "tests/cluster/test_zookeeper_tls.py",
}
"""Commands that this cluster cannot run, and the tests that run them."""
NO_ROWS = ("completion", "config template", "generate")


def fields(value: Any, name: str = "") -> str:
    """Return the names of a JSON value's fields, nested as in the value."""
    if isinstance(value, list):
        # The list may hold objects of other tests with fewer fields, so take the longest element.
        longest = max((fields(each, name) for each in value), key=len, default="")
        return f"[{longest or '…'}]" if value else "[]"
    if not isinstance(value, dict):
        return ""
    if name in OPEN_MAPS:
        return "{…}"
    inner = (f"{key}{_nested(each, key)}" for key, each in value.items())
    return "{" + ", ".join(inner) + "}"


def _nested(value: Any, name: str) -> str:
    found = fields(value, name)
    return f": {found}" if found else ""


@pytest.fixture
def names(
    cluster: LocalCluster, bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, str]]:
    """Create the objects and files that the commands need; yield their names."""
    monkeypatch.setenv(ENV_BOOTSTRAP, cluster.bootstrap_servers)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    topic, group, transaction = (f"json-{kind}-{os.getpid()}" for kind in "tgx")
    found = {"topic": topic, "group": group, "transaction": transaction}
    (tmp_path / "lines").write_text("a\nb\n")
    (tmp_path / "broker.conf").write_text(f"log.dir={tmp_path}\n")
    (tmp_path / "password").write_text("a password\n")
    found |= {"user": f"{topic}-user", "password": str(tmp_path / "password")}
    found |= {"file": str(tmp_path / "records.csv")}
    found |= {"servers": cluster.bootstrap_servers, "folder": str(tmp_path)}
    found |= {"cluster": str(cluster.directory)}
    found |= {"lines": str(tmp_path / "lines"), "settings": str(tmp_path / "broker.conf")}
    broker = cluster.brokers[0].directory
    (found["data"],) = (str(path) for path in broker.glob("data"))
    assert run(["context", "create", "prod", "-b", cluster.bootstrap_servers]) == 0
    assert run(["user", "add", "json", "--password-file", str(tmp_path / "password")]) == 0
    bus.create_topic(f"{topic}-read", partitions=1)
    with bus.transaction(transaction) as open_:
        open_.send(f"{topic}-read", b"x")
    logs = Path(found["data"]).parents[1].glob("broker-*/data/**/*.log")
    found["log"] = str(next(path for path in logs if path.stat().st_size))
    with bus.consumer(f"{topic}-read", group=group, start="earliest") as consumer:
        next(iter(consumer))
        consumer.commit()
        until(lambda: bus.admin.committed(group))
        yield found
    assert run(["user", "delete", "json", "--yes"]) == 0
    assert run(["user", "delete", "json", "--if-exists", "--yes"]) == 0
    assert run(["groups", "delete", f"{group}-none", "--if-exists", "--yes"]) == 0


def test_json_field_names_are_checked_for_every_command_that_prints_rows() -> None:
    listed = [line.split() for line in COMMANDS.strip().splitlines()]
    for path, command in commands(cli):
        name = " ".join(path)
        is_elsewhere = name in ELSEWHERE or path[0] in ELSEWHERE
        if isinstance(command, click.Group) or is_elsewhere or name.startswith(NO_ROWS):
            continue
        assert any(words[: len(path)] == list(path) for words in listed), name


@pytest.mark.real
def test_json_output_of_each_command_keeps_its_field_names(
    names: dict[str, str], capsys: pytest.CaptureFixture[str], pytestconfig: pytest.Config
) -> None:
    found = []
    for line in COMMANDS.strip().splitlines():
        words = shlex.split(line.format_map(names))
        capsys.readouterr()
        code = run([*words, *(() if "-o" in words else ("-o", "json"))])
        said = capsys.readouterr()
        # Some commands exit with 1: the group has members, or the preferred leader leads already.
        # doctor exits with 4 or 5 if it finds a problem of this machine.
        assert code in (0, 1, 4, 5), f"{line}: {said.err}"
        found.append(f"logbus {line}\n  {fields(_parsed(said.out))}\n")
    assert run(["groups", "describe", "no such group", "-o", "json"]) == 1
    found.append(f"an error, on stderr\n  {fields(json.loads(capsys.readouterr().err))}\n")
    text = "".join(found)
    if pytestconfig.getoption("--rewrite"):
        GOLDEN.write_text(text, "utf-8")
    assert text == GOLDEN.read_text("utf-8")


def _parsed(text: str) -> Any:
    lines = text.strip().splitlines()
    return json.loads(text) if len(lines) != 1 else json.loads(lines[0])


@pytest.mark.real
def test_json_output_of_topic_settings_has_value_default_and_source(
    bus: Bus, cluster: LocalCluster, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bus.admin.alter_configs(topic, {"retention.ms": "60000"})

    def described(*words: str) -> dict[str, dict[str, Any]]:
        capsys.readouterr()
        servers = ["-b", cluster.bootstrap_servers, "-o", "json"]
        assert run(["config", "describe", *words, *servers]) == 0
        return {row["setting"]: row for row in json.loads(capsys.readouterr().out)}

    found = described("--topic", topic)
    assert found["retention.ms"]["value"] == "60000"
    assert found["retention.ms"]["default"] == "604800000"
    assert found["retention.ms"]["source"] == "topic"
    assert found["segment.ms"]["source"] == "default"
    assert set(described("--topic", topic, "--changed")) == {"retention.ms"}
    broker = described("--broker", "0", "--changed")
    assert broker["group.min.session.timeout.ms"]["value"] == "500"
