"""Format log lines as JSON objects, for ``log.format=json`` and for the logging configuration that
``logbus broker --logging`` names."""

from __future__ import annotations

import json
import logging
from typing import Any

from broker_lite.config.time_text import iso

FIELDS = ("event", "topic", "partition", "group")
"""The optional fields of a line, which its log statement sets with ``log_event``."""


class JsonFormatter(logging.Formatter):
    """Formats each log record as ``{"time", "level", "logger", "message", "broker_id"}``.

    ``time`` is UTC in ISO 8601 with milliseconds. A ``log_event`` adds ``event`` and its topic,
    partition or group; an exception adds ``exception``, the stack trace. ``broker_id`` is null
    until the broker sets it."""

    broker_id: int | None = None

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": iso(int(record.created * 1000)),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "broker_id": self.broker_id,
        }
        for name in FIELDS:
            if hasattr(record, name):
                line[name] = getattr(record, name)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
