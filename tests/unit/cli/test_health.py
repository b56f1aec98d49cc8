"""Tests of ``logbus health`` without a reachable cluster; tests/cluster has the other tests."""

from __future__ import annotations

import json

import pytest

from broker_lite.cli import health
from broker_lite.cli.main import run


def test_health_of_an_unreachable_cluster_is_critical(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "ANSWER_MS", 100)
    assert run(["health", "-b", "127.0.0.1:1", "-o", "jsonl"]) == 5
    found = json.loads(capsys.readouterr().out)
    (cause,) = found["causes"]
    assert (found["state"], cause["about"]) == ("critical", "cluster")
    assert "127.0.0.1:1" in cause["found"] and "-b" in cause["cure"]
    assert run(["health", "-b", "127.0.0.1:1", "-o", "table"]) == 5
    assert capsys.readouterr().out.startswith("cluster: critical\n")
    assert run(["health", "-b", "127.0.0.1:1", "--wait", "--timeout", "0"]) == 124


def test_command_health_refuses_a_negative_timeout(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["health", "--timeout", "-1"]) == 2
    assert "--timeout" in capsys.readouterr().err
