"""Tests of the supervisor of ``logbus up``, which restarts a (simulated) killed ZooKeeper."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from broker_lite.cli import supervisor
from broker_lite.cli.supervisor import ProcessSupervisor
from broker_lite.errors import CoordinationUnavailableError


class KilledServer:
    """Simulates a killed ZooKeeper server; ``answers`` are the results of its ``has_started``."""

    log = Path("zookeeper.log")
    address = "127.0.0.1:2181"
    ending = "killed by SIGKILL"

    def __init__(self, answers: list[bool | Exception]) -> None:
        self._answers = answers
        self.is_running = self.is_starting = False

    def start(self, *, wait: bool = True) -> str:
        assert not wait, "the supervisor must not block until the JVM has started"
        self.is_running = self.is_starting = True
        return self.address

    def has_started(self) -> bool:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            self.is_running = self.is_starting = False
            raise answer
        self.is_starting = not answer
        return answer


def test_supervisor_restarts_zookeeper_without_waiting_for_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "PAUSES_SECONDS", (0.0,))
    server = KilledServer([False, CoordinationUnavailableError("it ended"), False, True])
    said: list[str] = []
    cluster = SimpleNamespace(brokers=[], console=None, zookeeper_server=server)
    processes = ProcessSupervisor(cluster, said.append)  # type: ignore[arg-type]
    looks = [processes.check() for _ in range(8)]
    assert looks == [False] * 6 + [True, False]
    assert said == [
        "ZooKeeper has ended (killed by SIGKILL); see zookeeper.log; it is started again",
        "ZooKeeper did not start: it ended; it is started again",
        "ZooKeeper serves again on 127.0.0.1:2181",
    ]
