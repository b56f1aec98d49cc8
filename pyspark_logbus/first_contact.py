"""Warnings about an address that does not answer, while the source still retries. Driver only.

A starting cluster answers within seconds, so a source retries (``fetchOffset.numRetries``). A wrong
address never answers, and the user needs its name soon. Warnings go to the logger
``pyspark_logbus``: on the driver, stderr.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from broker_lite.errors import LogbusError, NoBrokersError

log = logging.getLogger("pyspark_logbus")

HINT_S = 1.0
"""Seconds without an answer before the first warning."""
PATIENCE_S = 10.0
"""Seconds before the first warning of a query that has read before; a restarted broker answers by
then."""
AGAIN_S = 60.0

CURE = "is the address right, and does the cluster run? (logbus status, logbus doctor)"


@contextmanager
def told(servers: str, seconds: float) -> Iterator[None]:
    """Guard a first request that is retried for ``seconds``: warn after one second, and name the
    option in NoBrokersError."""
    text = "bootstrap.servers=%s: no broker answers yet; trying for up to %.0f s: %s"
    hint = threading.Timer(HINT_S, log.warning, (text, servers, seconds, CURE))
    hint.daemon = True
    hint.start()
    try:
        yield
    except NoBrokersError as error:
        raise NoBrokersError(f"bootstrap.servers={servers}: {error.message}; {CURE}") from None
    finally:
        hint.cancel()


class Silence:
    """Warns when the cluster of a running query stops answering, because the query then waits
    without an error in Spark."""

    def __init__(self, servers: str, monotonic: Callable[[], float]) -> None:
        self._servers = servers
        self._monotonic = monotonic
        self._since: float | None = None
        self._due = 0.0
        self._told = False

    def look(self, problem: LogbusError | None, *, is_known: bool) -> None:
        """Warn if due. ``is_known``: the cluster has answered this query before. ``problem``: the
        current error, if any. An error that a broker returned does not count as silence."""
        if is_known and not isinstance(problem, NoBrokersError):
            if self._told:
                log.warning("bootstrap.servers=%s: brokers answer again", self._servers)
            self._since, self._told = None, False
            return
        now = self._monotonic()
        if self._since is None:
            self._since = now
            self._due = now + (PATIENCE_S if is_known else HINT_S)
        if now >= self._due:
            self._due, self._told = now + AGAIN_S, True
            why = problem or "no broker answers"
            text = "bootstrap.servers=%s: the query waits, for %.0f s now: %s; %s"
            log.warning(text, self._servers, now - self._since, why, CURE)
