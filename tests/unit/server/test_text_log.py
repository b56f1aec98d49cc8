"""Text log lines: one message, one line."""

from __future__ import annotations

import logging
import sys

from broker_lite.server.broker import LOG_FORMAT
from broker_lite.server.text_log import TextFormatter


def test_text_of_a_client_cannot_look_like_a_line_of_the_broker() -> None:
    forged = "x)\n2026-01-01 00:00:00,000 WARNING logbus.access: User:admin\x1b[2J\u2028"
    record = logging.LogRecord("logbus", logging.INFO, "", 0, "login of %s, é", (forged,), None)
    line = TextFormatter(LOG_FORMAT).format(record)
    assert len(line.splitlines()) == 1
    assert line.endswith(r"User:admin\x1b[2J\u2028, é") and r"x)\n2026" in line


def test_stack_trace_keeps_its_lines() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        record = logging.LogRecord("logbus", logging.ERROR, "", 0, "failed", (), sys.exc_info())
    assert TextFormatter(LOG_FORMAT).format(record).splitlines()[-1] == "ValueError: broken"
