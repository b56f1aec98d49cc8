"""Warn about brokers that do not answer, while the query still retries.

A starting cluster answers within seconds, so a query retries its first request
(``fetchOffset.numRetries``). A wrong address never answers, so the user must see the address before
the retries end. The warnings go to the logger ``pyspark_logbus`` on the driver, by default to
stderr.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from broker_lite.client.administration.admin import Admin
from broker_lite.client.operations.requests import FIRST_CONTACT_MS
from broker_lite.client.operations.silence import CURE
from broker_lite.config.client_security import ClientSecurity
from broker_lite.errors import NoBrokersError

log = logging.getLogger("pyspark_logbus")

HINT_S = 1.0
"""Seconds without a response before the first warning of a new query."""


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
