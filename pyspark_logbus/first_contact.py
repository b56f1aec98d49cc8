"""Warn about brokers that do not answer, while the query still retries.

A starting cluster answers within seconds, so a query retries its first request
(``fetchOffset.numRetries``). A wrong address never answers, so the user must see the address before
the retries end. The warnings go to the logger ``pyspark_logbus`` on the driver, by default to
stderr.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from broker_lite.client.administration.admin import Admin
from broker_lite.client.operations.requests import FIRST_CONTACT_MS
from broker_lite.config.client_security import ClientSecurity
from broker_lite.errors import LogbusError, NoBrokersError

log = logging.getLogger("pyspark_logbus")

HINT_S = 1.0
"""Seconds without a response before the first warning of a new query."""
RUNNING_HINT_S = 10.0
"""Seconds without a response before the first warning of a running query. A restarted broker
answers by then."""
WARNING_INTERVAL_S = 60.0
"""Seconds between two warnings of a running query."""

CURE = "is the address right, and does the cluster run? (logbus status, logbus doctor)"


@contextmanager
def warn_if_silent(servers: str, seconds: float) -> Iterator[None]:
    """Warn if the block, which sends the first request to ``servers``, takes more than one second.

    The warning says that the request is retried for ``seconds``. If the block raises
    NoBrokersError, its message is extended by the option ``bootstrap.servers`` and its value.
    """
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


@contextmanager
def first_admin(
    servers: str, security: ClientSecurity | None, client_id: str, timeout_ms: int
) -> Iterator[Admin]:
    """Yield an Admin for the first requests of a sink or of tasks to ``servers``, and close it.

    Warns and raises as ``warn_if_silent`` does.
    """
    with (
        Admin(servers, client_id=client_id, timeout_ms=timeout_ms, security=security) as admin,
        warn_if_silent(servers, min(timeout_ms, FIRST_CONTACT_MS) / 1000),
    ):
        yield admin


class Silence:
    """Detects that brokers no longer answer a running query, and logs a warning. Without the
    warning the user would see nothing, because Spark shows no error while the query waits."""

    def __init__(self, servers: str, monotonic: Callable[[], float]) -> None:
        self._servers = servers
        self._monotonic = monotonic
        self._since: float | None = None
        self._due = 0.0
        self._has_warned = False

    def check(self, problem: LogbusError | None, *, is_known: bool) -> None:
        """Warn if brokers have not answered for too long.

        ``is_known`` says whether brokers have answered this query before. ``problem`` is the
        current error, or None. An error that a broker returned counts as an answer.
        """
        if is_known and not isinstance(problem, NoBrokersError):
            if self._has_warned:
                log.warning("bootstrap.servers=%s: brokers answer again", self._servers)
            self._since, self._has_warned = None, False
            return
        now = self._monotonic()
        if self._since is None:
            self._since = now
            self._due = now + (RUNNING_HINT_S if is_known else HINT_S)
        if now >= self._due:
            self._due, self._has_warned = now + WARNING_INTERVAL_S, True
            why = problem or "no broker answers"
            text = "bootstrap.servers=%s: the query waits, for %.0f s now: %s; %s"
            log.warning(text, self._servers, now - self._since, why, CURE)
