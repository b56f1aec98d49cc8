"""Tests of text log lines: each message is one line."""

from __future__ import annotations

import logging
import sys

from broker_lite.server.process import LOG_FORMAT
from broker_lite.server.text_log import TextFormatter


def test_client_text_with_line_breaks_stays_on_one_log_line() -> None:
    forged = "x)\n2026-01-01 00:00:00,000 WARNING logbus.access: User:admin\x1b[2J\u2028"
    record = logging.LogRecord("logbus", logging.INFO, "", 0, "login of %s, é", (forged,), None)
    line = TextFormatter(LOG_FORMAT).format(record)
    assert len(line.splitlines()) == 1
    assert line.endswith(r"User:admin\x1b[2J\u2028, é") and r"x)\n2026" in line


def test_stack_trace_in_a_text_log_keeps_its_lines() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        record = logging.LogRecord("logbus", logging.ERROR, "", 0, "failed", (), sys.exc_info())
    assert TextFormatter(LOG_FORMAT).format(record).splitlines()[-1] == "ValueError: broken"
