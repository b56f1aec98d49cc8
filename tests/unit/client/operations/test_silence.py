"""Tests of the warnings about brokers that no longer answer."""

from __future__ import annotations

import logging

import pytest

from broker_lite.client.operations.silence import INTERVAL_MS, Silence
from broker_lite.errors import LeaderNotAvailableError, NoBrokersError


def test_client_that_waits_for_silent_brokers_logs_that_it_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_ms = 100_000.0
    silence = Silence("one:1", "query", lambda: now_ms, logging.getLogger("logbus.test"))
    gone = NoBrokersError("refused")
    silence.check(None, is_known=False)
    now_ms += 900
    silence.check(gone, is_known=False)
    assert not caplog.messages
    for _ in range(3):
        now_ms += 200
        silence.check(gone, is_known=False)
    assert len(caplog.messages) == 1
    assert "bootstrap.servers=one:1: the query waits, for 1 s now" in caplog.text
    assert "refused" in caplog.text
    now_ms += INTERVAL_MS
    silence.check(gone, is_known=False)
    assert len(caplog.messages) == 2
    silence.check(None, is_known=True)
    assert "answer again" in caplog.messages[2]
    # No warning follows: the cluster answered before, so it may restart, and a broker that returns
    # an error is not silent.
    for _ in range(9):
        silence.check(gone, is_known=True)
        now_ms += 1_000
    silence.check(LeaderNotAvailableError("none"), is_known=True)
    now_ms += 100_000
    silence.check(gone, is_known=True)
    assert len(caplog.messages) == 3
