"""Run ``logbus broker`` as a service: check its readiness notifications, JSON log and IPv6."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from broker_lite.bus import connect
from broker_lite.local.zookeeper import EmbeddedZooKeeper
from broker_lite.server.json_log import FIELDS
from broker_lite.server.log_events import EVENTS

START_S = 30


class Service(NamedTuple):
    """A broker process, the socket that it notifies, and the fields of the JSON line that it prints
    when it is ready.
    """

    process: subprocess.Popen[str]
    manager: socket.socket
    facts: dict[str, Any]

    def stop(self) -> list[str]:
        """Stop the broker as systemd does, and return the lines of its log."""
        self.process.send_signal(signal.SIGTERM)
        _, log = self.process.communicate(timeout=START_S)
        assert self.process.returncode == 0
        return log.splitlines()


@pytest.fixture
def service(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> Iterator[Service]:
    """A broker on IPv6 with JSON logs, started as systemd starts a service."""
    settings = {
        "listeners": "PLAINTEXT://[::1]:0",
        "log.dir": tmp_path / "data",
        "log.format": "json",
        "metrics.host": "::1",
        "metrics.port": 0,
        "zookeeper.connect": f"{zookeeper.address}/{tmp_path.name}/logbus",
    }
    config = tmp_path / "broker.conf"
    config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), "utf-8")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        address = f"logbus-test-{tmp_path.name}"
        manager.bind(f"\0{address}")
        manager.settimeout(START_S)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "broker_lite", "broker", "--config", str(config)],
            env={"NOTIFY_SOCKET": f"@{address}", "PATH": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        try:
            yield Service(process, manager, json.loads(process.stdout.readline()))
        finally:
            process.kill()
            process.communicate()


@pytest.mark.real
def test_broker_on_ipv6_notifies_its_service_manager_and_logs_json(service: Service) -> None:
    assert service.manager.recv(64) == b"READY=1"
    with connect(f"[::1]:{service.facts['port']}") as bus:
        bus.create_topic("six", partitions=1)
        with bus.producer() as producer:
            producer.send("six", b"x").result()
        with bus.consumer("six", start="earliest") as consumer:
            assert next(iter(consumer)).value == b"x"
    metrics = f"http://[::1]:{service.facts['metrics_port']}/readyz"
    with urllib.request.urlopen(metrics, timeout=START_S) as answer:
        assert json.load(answer)["ready"] is True
    lines = [json.loads(line) for line in service.stop()]
    assert service.manager.recv(64) == b"STOPPING=1"
    common = {"time", "level", "logger", "message", "broker_id"}
    for line in lines:
        assert common <= set(line) <= common | set(FIELDS) | {"exception"}
        assert line["broker_id"] == 0 and line.get("event", "broker_started") in EVENTS
    events = [line["event"] for line in lines if "event" in line]
    assert {"logs_opened", "broker_registered", "controller_elected", "broker_started"} < {*events}
    (led,) = (line for line in lines if line.get("event") == "replica_role")
    assert (led["topic"], led["partition"]) == ("six", 0)
