"""Format log lines as text, for ``log.format=text``.

Messages contain text that clients chose, such as names of software. Line breaks in it are escaped,
so that a client cannot forge a line of the broker."""

from __future__ import annotations

import logging


class TextFormatter(logging.Formatter):
    """Formats log records as ``logging.Formatter`` does, with unprintable characters escaped.

    Stack traces are not escaped."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        message = record.message
        if not message.isprintable():
            record.message = "".join(map(_escaped, message))
        return super().formatMessage(record)


def _escaped(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]
