"""Format the lines of the audit log, and limit their number.

A client can cause an event with every request. So an event of the same kind as an earlier one is
written at most once in ``REPEAT_MS``, and at most ``LINES_PER_S`` lines a second are written. The
next line says how many events were omitted. Text that a client chose is shortened, and JSON escapes
it."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from typing import Any

from broker_lite.config.time_text import iso

REPEAT_MS = 10_000
"""Milliseconds for which further events of one kind are omitted after a line of this kind."""
LINES_PER_S = 1000
KINDS_MAX = 10_000
"""Maximum kinds of events for which ``AuditLimit`` remembers the time of the last line. With one
kind more, it forgets all these times."""
TEXT_MAX = 200
"""Maximum characters of a text that a client chose, in a line of the log."""


class AuditLimit:
    """Decides which events become lines of the audit log. All times are in milliseconds."""

    def __init__(self) -> None:
        self._second = 0
        self._lines = 0
        self._left_out = 0
        self._kinds: dict[Hashable, tuple[int, int]] = {}
        """For each kind of event, the time of its last log line, and the number of its events
        omitted since."""

    def counts(self, kind: Hashable | None, now_ms: int) -> tuple[int, int] | None:
        """Return None if the event must be omitted from the log. Otherwise return two counts of
        omitted events, for the event's line.

        The first count is of events of the same kind since this kind's last line, the second of
        events omitted since the last line because of ``LINES_PER_S``. An event with ``kind`` None
        never counts as a repetition."""
        repeated = 0
        if kind is not None:
            at_ms, repeated = self._kinds.get(kind, (now_ms - REPEAT_MS, 0))
            if now_ms - at_ms < REPEAT_MS:
                self._kinds[kind] = at_ms, repeated + 1
                return None
        if now_ms // 1000 != self._second:
            self._second, self._lines = now_ms // 1000, 0
        if self._lines >= LINES_PER_S:
            self._left_out += 1
            return None
        self._lines += 1
        if kind is not None:
            if len(self._kinds) >= KINDS_MAX:
                self._kinds.clear()
            self._kinds[kind] = now_ms, 0
        left_out, self._left_out = self._left_out, 0
        return repeated, left_out


def line_of(now_ms: int, event: str, fields: Mapping[str, Any]) -> str:
    """Return one line of the log: a JSON object with ``time``, ``event`` and the fields that are
    not None, empty or 0."""
    line = {"time": iso(now_ms), "event": event}
    present = {name: cut(value) for name, value in fields.items() if value not in (None, "", 0)}
    return json.dumps(line | present)


def cut(value: Any) -> Any:
    """Return ``value``, a field of an audit event, with its texts cut to ``TEXT_MAX``
    characters."""
    if isinstance(value, str):
        return value if len(value) <= TEXT_MAX else value[:TEXT_MAX] + "…"
    if isinstance(value, Mapping):
        return {cut(str(key)): cut(each) for key, each in value.items()}
    if isinstance(value, bool | int | float) or value is None:
        return value
    return cut(str(value))
