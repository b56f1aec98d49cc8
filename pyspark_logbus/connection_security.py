"""The security of a query's connections: passwords on the driver, derived keys in the tasks.

Spark pickles the settings of a query into task binaries. Before that, ``for_tasks`` replaces a
password by SCRAM keys, and a client secret by the present access token. SASL PLAIN needs the
password itself, so its tasks receive the password. Executors import this module, so it imports only
modules that executors load anyway.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broker_lite.client.client_config import FILE, OPTIONS, security_of_options
from broker_lite.client.transport.access_tokens import with_token
from broker_lite.config.client_security import KEY_PASSWORD, ClientSecurity
from broker_lite.config.secret import Secret
from broker_lite.errors import InvalidConfigError
from broker_lite.model import PLAIN
from broker_lite.security.bearer import AccessToken

log = logging.getLogger("pyspark_logbus")

QuerySecurity = ClientSecurity | Path | None
"""The TLS and login settings that a query's options give. With a path (``client.config``), each
process reads this file. With None, each process looks for settings on its machine
(``security_for``)."""


DERIVED_S = 30.0
"""Seconds for which ``for_tasks`` caches SCRAM keys. Spark plans a sink for every micro-batch, and
a login for each would be slow."""

_warned: set[str] = set()
"""Users for whom ``for_tasks`` has already warned that tasks carry their password."""
_derived: dict[tuple[str, ClientSecurity], tuple[float, ClientSecurity]] = {}


def query_security(values: Mapping[str, Any]) -> QuerySecurity:
    """Return the TLS and login settings of a query's options. Raises InvalidConfigError for a wrong
    value."""
    given = {name: str(values[name]) for name in OPTIONS if name in values}
    security = security_of_options(given)
    return Path(given[FILE]) if set(given) == {FILE} else security


def for_tasks(
    servers: str, security: QuerySecurity, client_id: str, timeout_ms: int
) -> QuerySecurity:
    """Return the security settings to pickle into Spark's tasks, with these replacements:

    - SCRAM: keys, which are valid for this cluster only, in place of the password;
    - OAUTHBEARER: the present access token in place of the client secret (``task_token``);
    - PLAIN: none. The tasks receive the password, and this function logs a warning.

    Raises the login's error, NoBrokersError if no broker answers within ``timeout_ms``, and
    InvalidConfigError if the options have a password for the private key.
    """
    if not isinstance(security, ClientSecurity):
        return security
    if security.key_password is not None:
        raise InvalidConfigError(
            f"{KEY_PASSWORD} stays on the driver, and executors need the private key too: name a "
            "decrypted key file, or put the settings into a file on every machine and name it in "
            f"the option {FILE}"
        )
    if not isinstance(security.secret, Secret):
        return security
    if security.token_url:
        return with_token(security)
    if security.mechanism == PLAIN and security.username not in _warned:
        _warned.add(security.username)
        log.warning(
            "sasl.mechanism=PLAIN: Spark's tasks carry the password of user %r; with "
            "SCRAM-SHA-512 they carry keys of this cluster only",
            security.username,
        )
    key, now = (servers, security), time.monotonic()
    derived = _derived.get(key)
    if derived is not None and now - derived[0] < DERIVED_S:
        return derived[1]
    # Import here, because only the driver needs this module.
    from pyspark_logbus.first_contact import first_admin

    with first_admin(servers, security, client_id, timeout_ms) as admin:
        admin.cluster(())
        secured = admin.security_without_password()
    _derived.clear()
    _derived[key] = now, secured
    return secured


def task_token(security: QuerySecurity) -> AccessToken | None:
    """Return the present access token of a query with OAUTHBEARER, to pickle for tasks. Return None
    for other mechanisms, and if tasks fetch their own tokens."""
    if not isinstance(security, ClientSecurity) or not security.token_url:
        return None
    secret = with_token(security).secret
    return secret if isinstance(secret, AccessToken) else None
