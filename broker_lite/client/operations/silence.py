"""Warn about brokers that no longer answer a client, while the client still retries."""

from __future__ import annotations

import logging
from collections.abc import Callable

from broker_lite.errors import LogbusError, NoBrokersError

FIRST_WARNING_MS = 1_000
"""Milliseconds without a response before the first warning of a client that no broker has answered
yet."""
WARNING_MS = 10_000
"""Milliseconds without a response before the first warning of a client that brokers answered
before. A restarted broker answers by then."""
INTERVAL_MS = 60_000
"""Milliseconds between two warnings."""

CURE = "is the address right, and does the cluster run? (logbus status, logbus doctor)"


class Silence:
    """Detects that brokers no longer answer a client, and logs a warning: a client that retries
    shows its user no error.

    The warning names the brokers' addresses ``servers`` and the kind of ``client``. ``now_ms``
    returns monotonic time."""

    def __init__(
        self, servers: str, client: str, now_ms: Callable[[], float], logger: logging.Logger
    ) -> None:
        self._servers = servers
        self._client = client
        self._now_ms = now_ms
        self._logger = logger
        self._since_ms: float | None = None
        self._due_ms = 0.0
        self._has_warned = False

    def check(self, problem: LogbusError | None, *, is_known: bool) -> None:
        """Warn if brokers have not answered for too long.

        ``is_known`` says whether brokers have answered this client before. ``problem`` is the
        current error, or None. An error that a broker returned counts as an answer."""
        if is_known and not isinstance(problem, NoBrokersError):
            if self._has_warned:
                self._logger.warning("bootstrap.servers=%s: brokers answer again", self._servers)
            self._since_ms, self._has_warned = None, False
            return
        now_ms = self._now_ms()
        if self._since_ms is None:
            self._since_ms = now_ms
            self._due_ms = now_ms + (WARNING_MS if is_known else FIRST_WARNING_MS)
        if now_ms >= self._due_ms:
            self._due_ms, self._has_warned = now_ms + INTERVAL_MS, True
            self._logger.warning(
                "bootstrap.servers=%s: the %s waits, for %.0f s now: %s; %s",
                self._servers,
                self._client,
                (now_ms - self._since_ms) / 1000,
                problem or "no broker answers",
                CURE,
            )
