"""Tests of audit log lines: repeated events, the rate of lines, and text from clients."""

from __future__ import annotations

import json

from broker_lite.security.audit import LINES_PER_S, TEXT_MAX, AuditLimit, cut, line_of


def test_repeated_audit_events_are_written_once_in_ten_seconds_with_their_count() -> None:
    limit = AuditLimit()
    assert limit.counts("denied", 0) == (0, 0)
    assert limit.counts("denied", 1) is None
    assert limit.counts("denied", 9_999) is None
    assert limit.counts("other", 9_999) == (0, 0)
    assert limit.counts("denied", 10_000) == (2, 0)
    assert limit.counts("denied", 20_000) == (0, 0)


def test_audit_log_lines_beyond_the_rate_limit_are_dropped_and_counted() -> None:
    limit = AuditLimit()
    found = [limit.counts(None, 5_000) for _ in range(LINES_PER_S + 7)]
    assert found.count((0, 0)) == LINES_PER_S and found.count(None) == 7
    assert limit.counts(None, 6_000) == (0, 7)
    assert limit.counts(None, 6_000) == (0, 0)


def test_text_from_clients_is_escaped_to_one_line_and_truncated_in_the_audit_log() -> None:
    text = line_of(0, "login", {"user": 'a\n{"event": "login"}\x1b[0m', "client_id": "x" * 999})
    assert text.isascii() and text.isprintable()
    row = json.loads(text)
    assert row["time"] == "1970-01-01T00:00:00.000Z"
    assert row["event"] == "login" and row["user"].startswith("a\n")
    assert len(row["client_id"]) == TEXT_MAX + 1
    assert cut({"y" * 999: [1]}) == {"y" * TEXT_MAX + "…": "[1]"}


def test_empty_fields_are_omitted_from_audit_lines() -> None:
    assert json.loads(line_of(0, "login", {"user": None, "client_id": "", "repeated": 0})) == {
        "time": "1970-01-01T00:00:00.000Z",
        "event": "login",
    }
