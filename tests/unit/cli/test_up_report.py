"""Tests of the report of ``logbus up``: text for a terminal and a JSON object for a script."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from broker_lite.cli import running
from broker_lite.cli.under_replication import NAMED_MAX, FewReplicas
from broker_lite.cli.up_report import UpReport, announce, brokers_in
from broker_lite.local.process import start_mark

ENDING = "Stop it with: logbus down"


def facts(directory: Path, *ports: int) -> dict[str, Any]:
    return {
        "bootstrap_servers": ",".join(f"127.0.0.1:{port}" for port in ports),
        "zookeeper": "127.0.0.1:1/logbus",
        "brokers": [{"id": n, "port": port, "pid": 1} for n, port in enumerate(ports)],
        "directory": str(directory),
        "pid": os.getpid(),
        "zookeeper_pid": 7,
        "processes": {str(os.getpid()): start_mark(os.getpid())},
    }


@pytest.fixture(autouse=True)
def _data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.mark.parametrize("form", [None, "json", "table"])
def test_up_report_omits_pids_used_only_by_logbus_down(
    form: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    announce(facts(tmp_path, 9092), form, ENDING, is_new=True)
    said = capsys.readouterr()
    assert "processes" not in said.out.lower() and "zookeeper_pid" not in said.out.lower()
    assert "127.0.0.1:9092" in said.out
    if form is None:
        # Because stdout is no terminal, it gets the JSON object, and stderr gets the text.
        assert json.loads(said.out)["brokers"] == [{"id": 0, "port": 9092, "pid": 1}]
        for word in ("1 broker: ", "logbus topic create events", "broker.log", ENDING):
            assert word in said.err
    else:
        assert said.err == ""


def test_up_report_explains_the_login_of_a_secured_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secured = facts(tmp_path, 9092) | {"client_config": "/c/security/admin.conf"}
    announce(secured, None, ENDING, is_new=True)
    said = capsys.readouterr().err
    assert "on this machine need no option; elsewhere: logbus topic list -F /c/secur" in said


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        (None, "http://127.0.0.1:7/metrics http://127.0.0.1:8/metrics"),
        ("10.0.0.7", "http://10.0.0.7:7/metrics http://10.0.0.7:8/metrics"),
        ("0.0.0.0", "http://127.0.0.1:7/metrics http://127.0.0.1:8/metrics"),
        ("::", "http://[::1]:7/metrics http://[::1]:8/metrics"),
    ],
)
def test_up_report_shows_addresses_at_which_the_brokers_serve_metrics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], host: str | None, shown: str
) -> None:
    measured = facts(tmp_path, 9092, 9093)
    for port, broker in enumerate(measured["brokers"], 7):
        broker["metrics_port"] = port
    if host is not None:
        measured["metrics_host"] = host
    announce(measured, None, ENDING, is_new=True)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines if line.startswith("metrics:")] == [shown]


def test_suggested_commands_show_folders_relative_to_the_current_or_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for folder, shown in (
        ("here/one", "one"),
        ("here/a b", "'a b'"),
        ("home/one/two", "~/one/two"),
        ("home/a b", "~/'a b'"),
        ("here", "."),
        ("else", str(tmp_path / "else")),
    ):
        assert running.names([facts(tmp_path / folder)]) == f"--dir {shown}"


def test_up_report_warns_if_fewer_brokers_start_than_have_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    UpReport("json", 9092, 3).show(facts(tmp_path, 9092), ENDING)
    said = capsys.readouterr().err
    assert "data of 3 brokers, and 1 of them run" in said
    assert "logbus up --brokers 3" in said


def test_up_report_names_replaced_ports_and_other_running_clusters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = facts(tmp_path / "one", 9092), facts(tmp_path / "two", 9093, 9095)
    running.remember(one)
    UpReport("json", 9092, 0).show(one, ENDING)
    assert capsys.readouterr().err == ""
    running.remember(two)
    UpReport("json", 9093, 0).show(two, ENDING)
    said = capsys.readouterr().err
    assert "port 9094 is taken: broker 1 has port 9095" in said
    assert "that name no cluster use this one from now on" in said
    assert f"-b 127.0.0.1:9092 (--dir {tmp_path / 'one'})" in said


def test_up_report_counts_the_broker_folders_in_the_data_directory(
    tmp_path: Path,
) -> None:
    assert brokers_in(None) == brokers_in(tmp_path / "none") == brokers_in(tmp_path) == 0
    for name in ("broker-0", "broker-1", "zookeeper"):
        (tmp_path / name).mkdir()
    assert brokers_in(tmp_path) == 2


def test_warning_about_topics_with_too_few_replicas_names_the_topics_and_the_remedy() -> None:
    one = FewReplicas(["t"], 2)
    assert one.found() == "1 topic has fewer replicas than the 2 that a new one gets: t"
    assert one.cure() == "logbus topic reassign t --replication-factor 2"
    many = FewReplicas([f"t{n}" for n in range(NAMED_MAX + 3)], 3)
    assert many.found().endswith(", t9 and 3 more") and "13 topics have" in many.found()
    assert many.cure().endswith("t8 t9 … --replication-factor 3")
